// fuzz/simulated_launch.cpp: any bytes as a module that is loaded and launched on the simulator.
// SPDX-License-Identifier: MIT
//
// Whatever the code object says and its instructions do: a HIP error or a fault report with a text, or a normal end. The
// input begins with a LaunchHeader that chooses the launch; the code object follows. Only what the library exports is called, so
// that the same input replays on any build of it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "code_object/code_object.h"
#include "fuzz/launch_header.h"
#include "fuzz/property.h"
#include "hip/hip_abi.h"
#include "simulator/simulator.h"

using namespace hipkittens;

extern "C" {
using hip::hipError_t, hip::hipFunction_t, hip::hipModule_t;
hipError_t hipSetDevice(int device);
hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
}

namespace {

constexpr size_t buffer_bytes = 1 << 14;
constexpr int buffer_count = 3;
constexpr uint64_t largest_image = uint64_t{1} << 26;  // to keep a run short

// An error with a text, and no error that stands for "something went wrong".
void check_error(hipError_t code, const char* function) {
    const std::string text = hipkittens_last_error();
    HIPKITTENS_PROPERTY(text.size() >= 20 && text.starts_with(function), "error %d of %s says only '%s'",
                        code, function, text.c_str());
    HIPKITTENS_PROPERTY(code != hip::hipErrorUnknown || !text.ends_with("std::exception"), "%s",
                        text.c_str());
}

// Pointers to the buffers where the kernel takes some, the header's numbers elsewhere.
std::vector<uint8_t> arguments_for(const code_object::Kernel& kernel, const fuzz::LaunchHeader& header,
                                   std::vector<uint8_t> (&buffers)[buffer_count]) {
    std::vector<uint8_t> bytes(kernel.explicit_kernarg_bytes);
    int next = 0;
    for (const code_object::Argument& argument : kernel.arguments) {
        if (argument.is_hidden()) continue;
        uint8_t* place = bytes.data() + argument.offset;
        if (argument.kind == code_object::ValueKind::global_buffer && argument.bytes == 8) {
            const uint8_t* pointer = buffers[next++ % buffer_count].data();
            std::memcpy(place, &pointer, sizeof pointer);
        } else {
            for (uint32_t i = 0; i < argument.bytes; i += 4) {
                const uint32_t number = header.numbers[i / 4 % 8];
                std::memcpy(place + i, &number, std::min<size_t>(4, argument.bytes - i));
            }
        }
    }
    return bytes;
}

void launch(hipModule_t module, const code_object::Kernel& kernel, const fuzz::LaunchHeader& header) {
    hipFunction_t function = nullptr;
    if (const hipError_t code = hipModuleGetFunction(&function, module, kernel.name.c_str()))
        return check_error(code, "hipModuleGetFunction");

    std::vector<uint8_t> buffers[buffer_count];
    HipkittensRegion regions[buffer_count];
    for (int i = 0; i < buffer_count; ++i) {
        buffers[i].resize(buffer_bytes);
        for (size_t at = 0; at < buffer_bytes; ++at)
            buffers[i][at] = static_cast<uint8_t>(at * 37 + static_cast<size_t>(i));
        regions[i] = {buffers[i].data(), buffer_bytes, "buffer", i != 0, 0};
    }
    const std::vector<uint8_t> before = buffers[0];
    const auto arguments = arguments_for(kernel, header, buffers);
    unsigned block[3] = {1u + header.block, 1, 1};
    if (kernel.reqd_workgroup_size.size() == 3) std::copy_n(kernel.reqd_workgroup_size.begin(), 3, block);
    const unsigned grid[3] = {1u + header.grid % 3, 1u + header.grid / 16 % 2, 1};
    hipkittens_record_launches(header.flags & fuzz::flag_record ? 2 : 0);
    const auto code = static_cast<hipError_t>(
        hipkittens_launch_bounded(function, grid, block, header.lds_granules * 64u, nullptr, arguments.data(),
                                  arguments.size(), regions, buffer_count));
    if (code) check_error(code, "hipkittens_launch_bounded");
    HIPKITTENS_PROPERTY(buffers[0] == before, "kernel %s wrote a buffer it may only read",
                        kernel.name.c_str());
    std::string findings(hipkittens_findings(nullptr, 0) + 1, '\0');
    hipkittens_findings(findings.data(), findings.size());
    HIPKITTENS_PROPERTY(findings.starts_with('['), "findings are no JSON array: %s", findings.c_str());
    hipkittens_clear_findings();
}

void count_mnemonic(void* context, const char* mnemonic, const char* row, uint64_t count,
                    uint64_t implemented) {
    HIPKITTENS_PROPERTY(mnemonic && *mnemonic && row && implemented <= count, "a survey of nothing");
    *static_cast<uint64_t*>(context) += count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz::LaunchHeader header;
    if (size < sizeof header) return 0;
    std::memcpy(&header, data, sizeof header);
    const std::vector<uint8_t> file(data + sizeof header, data + size);
    code_object::CodeObject object;
    try {
        object = code_object::parse(file);
    } catch (const code_object::Error&) {
        return 0;  // code_object_reader.cpp is for these
    }
    if (object.image_bytes > largest_image) return 0;
    const int target = object.target == code_object::Target::gfx942 ? 942 : 950;
    uint64_t surveyed = 0;
    hipkittens_survey(target, file.data(), file.size() / 4 * 4, count_mnemonic, &surveyed);

    HipkittensSettings settings;
    hipkittens_get_settings(&settings);
    settings.arithmetic = header.arithmetic % 3;
    settings.host_level = -1;
    settings.threads = 1;  // the same input runs the same way
    settings.wave_order_seed = header.wave_order_seed;
    settings.poison = (header.flags & fuzz::flag_poison) != 0;
    settings.count_lds_conflicts = (header.flags & fuzz::flag_lds_conflicts) != 0;
    settings.instruction_limit = 20'000;
    settings.wave_turn = header.wave_turn;
    settings.workgroups_side_by_side = header.flags & fuzz::flag_side_by_side ? 2 : 1;
    settings.checks = header.checks & 31;
    if (const int code = hipkittens_set_settings(&settings))
        return check_error(static_cast<hipError_t>(code), "hipkittens_set_settings"), 0;
    HIPKITTENS_PROPERTY(hipSetDevice(target == 942 ? 0 : 1) == hip::hipSuccess, "no device %d", target);

    hipModule_t module = nullptr;
    if (const hipError_t code = hipModuleLoadData(&module, file.data()))
        return check_error(code, "hipModuleLoadData"), 0;
    for (const code_object::Kernel& kernel : object.kernels) launch(module, kernel, header);
    const hipError_t unloaded = hipModuleUnload(module);
    HIPKITTENS_PROPERTY(unloaded == hip::hipSuccess, "a module cannot be unloaded: %s",
                        hipkittens_last_error());
    return 0;
}
