// tests/oracles/hsa_program.cpp: what a program asks the HSA runtime of its GPUs, by HSA's own headers.
// SPDX-License-Identifier: MIT
#define __AMD__
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdio.h>

#define EXPECT(condition)                                           \
    if (!(condition)) {                                             \
        fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
        return HSA_STATUS_ERROR;                                    \
    }

static hsa_status_t tell_of_isa(hsa_isa_t isa, void* data) {
    uint32_t length = 0;
    char name[64];
    EXPECT(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_NAME_LENGTH, &length) == HSA_STATUS_SUCCESS &&
           length <= 64);
    EXPECT(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_NAME, name) == HSA_STATUS_SUCCESS);
    EXPECT(hsa_isa_get_info_alt(isa, HSA_ISA_INFO_GRID_MAX_DIM, name) == HSA_STATUS_ERROR_INVALID_ARGUMENT);
    EXPECT(hsa_isa_get_info_alt(hsa_isa_t{1}, HSA_ISA_INFO_NAME, name) == HSA_STATUS_ERROR_INVALID_ISA);
    printf(" %s\n", name);
    *static_cast<hsa_isa_t*>(data) = isa;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t tell_of_agent(hsa_agent_t agent, void* data) {
    char name[64], product[64];
    hsa_device_type_t type;
    uint32_t units = 0, wave = 0, bus = 0;
    uint16_t sizes[3];
    hsa_isa_t first, listed;
    const auto ask = [&](int attribute, void* value) {
        return hsa_agent_get_info(agent, static_cast<hsa_agent_info_t>(attribute), value) ==
               HSA_STATUS_SUCCESS;
    };
    EXPECT(ask(HSA_AGENT_INFO_NAME, name) && ask(HSA_AMD_AGENT_INFO_PRODUCT_NAME, product));
    EXPECT(ask(HSA_AGENT_INFO_DEVICE, &type) && type == HSA_DEVICE_TYPE_GPU);
    EXPECT(ask(HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT, &units) && ask(HSA_AGENT_INFO_WAVEFRONT_SIZE, &wave));
    EXPECT(ask(HSA_AMD_AGENT_INFO_BDFID, &bus) && ask(HSA_AGENT_INFO_ISA, &first));
    EXPECT(ask(HSA_AGENT_INFO_WORKGROUP_MAX_DIM, sizes) && sizes[2] == 1024);
    EXPECT(!ask(HSA_AGENT_INFO_FBARRIER_MAX_SIZE, name + 32));
    EXPECT(hsa_agent_get_info(hsa_agent_t{7}, HSA_AGENT_INFO_NAME, product) ==
           HSA_STATUS_ERROR_INVALID_AGENT);
    printf("%s, %s: %u compute units, %u lanes, bus %x,", name, product, units, wave, bus);
    EXPECT(hsa_agent_iterate_isas(agent, tell_of_isa, &listed) == HSA_STATUS_SUCCESS);
    EXPECT(listed.handle == first.handle);
    return ++*static_cast<int*>(data) == 2 ? HSA_STATUS_INFO_BREAK : HSA_STATUS_SUCCESS;
}

int main() {
    int agents = 0;
    if (hsa_iterate_agents(tell_of_agent, &agents) != HSA_STATUS_ERROR_NOT_INITIALIZED) return 1;
    if (hsa_init() != HSA_STATUS_SUCCESS || hsa_init() != HSA_STATUS_SUCCESS) return 2;
    if (hsa_shut_down() != HSA_STATUS_SUCCESS) return 3;
    const hsa_status_t ended = hsa_iterate_agents(tell_of_agent, &agents);
    printf("%d of 3\n", agents);
    if (ended != HSA_STATUS_INFO_BREAK) return 4;
    if (hsa_shut_down() != HSA_STATUS_SUCCESS) return 5;
    return hsa_shut_down() == HSA_STATUS_ERROR_NOT_INITIALIZED ? 0 : 6;
}
