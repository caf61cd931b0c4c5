// simulator/hsa_agents.cpp: the functions of AMD's HSA runtime with which a program enumerates GPUs.
// SPDX-License-Identifier: MIT
//
// Facts: hsa.h and hsa_ext_amd.h of ROCm. Agents are the visible devices; the host has none. Launches are possible only through HIP.
#include <atomic>
#include <cstring>
#include <string>

#include "simulator/hip_call.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

namespace {

enum hsa_status_t : int {
    success = 0,
    error_invalid_argument = 0x1001,
    error_invalid_agent = 0x1004,
    error_not_initialized = 0x100b,
    error_invalid_isa = 0x100f,
};

enum hsa_agent_info_t : int {
    agent_name = 0,
    agent_vendor_name = 1,
    agent_feature = 2,
    agent_machine_model = 3,
    agent_profile = 4,
    agent_wavefront_size = 6,
    agent_workgroup_max_dim = 7,
    agent_workgroup_max_size = 8,
    agent_node = 16,
    agent_device = 17,
    agent_isa = 19,
    agent_compute_unit_count = 0xa002,
    agent_max_clock_frequency = 0xa003,
    agent_driver_node_id = 0xa004,
    agent_bdf_id = 0xa006,
    agent_memory_width = 0xa007,
    agent_memory_max_frequency = 0xa008,
    agent_product_name = 0xa009,
    agent_max_waves_per_cu = 0xa00a,
    agent_num_simds_per_cu = 0xa00b,
    agent_domain = 0xa00f,
    agent_num_xcc = 0xa111,
};

enum hsa_isa_info_t : int {
    isa_name_length = 0,
    isa_name = 1,
    isa_machine_models = 5,
    isa_profiles = 6,
    isa_workgroup_max_dim = 12,
    isa_workgroup_max_size = 13,
};

struct hsa_agent_t {
    uint64_t handle;
};
struct hsa_isa_t {
    uint64_t handle;
};
using Agents = DeviceHandles<uint64_t, 0x100b>;
using Isas = DeviceHandles<uint64_t, 0x100c>;

constexpr uint32_t gpu = 1, kernel_dispatch = 1, large_model = 1, base_profile = 0;
constexpr uint32_t name_bytes = 64;
constexpr uint16_t workgroup_dimensions[3] = {max_workgroup_size, max_workgroup_size, max_workgroup_size};

std::atomic<int> users{0};  // number of hsa_init calls

hsa_status_t put(void* into, const void* what, size_t bytes) {
    std::memcpy(into, what, bytes);
    return success;
}
hsa_status_t put(void* into, uint32_t number) { return put(into, &number, sizeof number); }
hsa_status_t put_name(void* into, const char* name) {
    char text[name_bytes] = {};
    std::strncpy(text, name, name_bytes - 1);
    return put(into, text, name_bytes);
}

}  // namespace

HIPKITTENS_EXPORT hsa_status_t hsa_init() {
    ++users;
    return success;
}
HIPKITTENS_EXPORT hsa_status_t hsa_shut_down() {
    int before = users;
    while (before > 0 && !users.compare_exchange_weak(before, before - 1)) {
    }
    return before > 0 ? success : error_not_initialized;
}

// Stops at the first status other than success that the callback returns, and returns it.
HIPKITTENS_EXPORT hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void*), void* data) {
    if (users == 0) return error_not_initialized;
    if (!callback) return error_invalid_argument;
    for (int device = 0; device < visible_device_count(); ++device)
        if (const hsa_status_t status = callback({Agents::handle_of(device)}, data)) return status;
    return success;
}

HIPKITTENS_EXPORT hsa_status_t hsa_agent_get_info(hsa_agent_t agent, int attribute, void* value) {
    if (users == 0) return error_not_initialized;
    const int device = Agents::device_of(agent.handle);
    if (device < 0) return error_invalid_agent;
    if (!value) return error_invalid_argument;
    const DeviceFacts& facts = visible_device(device);
    const Processors processors = visible_processors(facts);
    const auto number = static_cast<uint32_t>(device) + 1;  // like the bus ids that HIP reports
    switch (attribute) {
        case agent_name:
            return put_name(value, code_object::target_name(facts.target));
        case agent_vendor_name:
            return put_name(value, "AMD");
        case agent_product_name:
            return put_name(value, facts.name);
        case agent_feature:
            return put(value, kernel_dispatch);
        case agent_machine_model:
            return put(value, large_model);
        case agent_profile:
            return put(value, base_profile);
        case agent_wavefront_size:
            return put(value, wave_size);
        case agent_workgroup_max_dim:
            return put(value, workgroup_dimensions, sizeof workgroup_dimensions);
        case agent_workgroup_max_size:
            return put(value, max_workgroup_size);
        case agent_device:
            return put(value, gpu);
        case agent_node:
        case agent_driver_node_id:
            return put(value, number);
        case agent_isa: {
            const uint64_t isa = Isas::handle_of(device);
            return put(value, &isa, sizeof isa);
        }
        case agent_compute_unit_count:
            return put(value, static_cast<uint32_t>(processors.compute_units));
        case agent_num_xcc:
            return put(value, static_cast<uint32_t>(processors.xccs));
        case agent_max_clock_frequency:  // MHz, both
            return put(value, static_cast<uint32_t>(facts.clock_khz / 1000));
        case agent_memory_max_frequency:
            return put(value, static_cast<uint32_t>(facts.memory_clock_khz / 1000));
        case agent_memory_width:
            return put(value, static_cast<uint32_t>(facts.memory_bus_bits));
        case agent_bdf_id:  // bus, device and function
            return put(value, number << 8);
        case agent_domain:
            return put(value, 0);
        case agent_max_waves_per_cu:
            return put(value, max_waves_per_simd * simds_per_compute_unit);
        case agent_num_simds_per_cu:
            return put(value, simds_per_compute_unit);
        default:
            return error_invalid_argument;
    }
}

HIPKITTENS_EXPORT hsa_status_t hsa_agent_iterate_isas(hsa_agent_t agent,
                                                      hsa_status_t (*callback)(hsa_isa_t, void*),
                                                      void* data) {
    if (users == 0) return error_not_initialized;
    const int device = Agents::device_of(agent.handle);
    if (device < 0) return error_invalid_agent;
    if (!callback) return error_invalid_argument;
    return callback({Isas::handle_of(device)}, data);
}

HIPKITTENS_EXPORT hsa_status_t hsa_isa_get_info_alt(hsa_isa_t isa, int attribute, void* value) {
    if (users == 0) return error_not_initialized;
    const int device = Isas::device_of(isa.handle);
    if (device < 0) return error_invalid_isa;
    if (!value) return error_invalid_argument;
    const std::string name = std::string("amdgcn-amd-amdhsa--") + visible_device(device).gcn_arch_name;
    const bool large_alone[2] = {false, true}, base_alone[2] = {true, false};
    switch (attribute) {
        case isa_name_length:  // ROCm counts the terminating 0, which hsa.h does not
            return put(value, static_cast<uint32_t>(name.size() + 1));
        case isa_name:
            return put(value, name.c_str(), name.size() + 1);
        case isa_machine_models:
            return put(value, large_alone, sizeof large_alone);
        case isa_profiles:
            return put(value, base_alone, sizeof base_alone);
        case isa_workgroup_max_dim:
            return put(value, workgroup_dimensions, sizeof workgroup_dimensions);
        case isa_workgroup_max_size:
            return put(value, max_workgroup_size);
        default:
            return error_invalid_argument;
    }
}

}  // namespace hipkittens::simulator
