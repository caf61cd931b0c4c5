// simulator/hip_module.cpp: HIP's functions for modules, kernels and launches, on simulated devices.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "code_object/compressed_bundle.h"
#include "code_object/offload_bundle.h"
#include "simulator/debug/debugged_launch.h"
#include "simulator/debug/register_digests.h"
#include "simulator/device_memory.h"
#include "simulator/execute/families.h"
#include "simulator/hip_objects.h"
#include "simulator/interruption.h"
#include "simulator/kernel_arguments.h"
#include "simulator/launch_descriptions.h"
#include "simulator/launch_records.h"
#include "simulator/timed_launches.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

void rest_if_the_process_ends();

namespace {

Settings machine_settings(const HipkittensSettings& from) {
    Settings settings;
    settings.arithmetic = static_cast<Arithmetic>(from.arithmetic);
    settings.host_level = from.host_level < 0 ? best_host_level() : static_cast<HostLevel>(from.host_level);
    settings.threads = from.threads;
    settings.wave_order_seed = from.wave_order_seed;
    settings.poison = from.poison != 0;
    settings.count_lds_conflicts = from.count_lds_conflicts != 0;
    settings.instruction_limit = from.instruction_limit;
    settings.wave_turn = from.wave_turn;
    settings.workgroups_side_by_side = from.workgroups_side_by_side;
    settings.checks = from.checks;
    settings.tolerate_overreads = from.tolerate_overreads != 0;
    return settings;
}

HipkittensReport public_report(const Report& report) {
    return {report.instructions, report.workgroups,
            report.waves,        report.mfma,
            report.valu,         report.salu,
            report.lds,          report.vector_memory,
            report.other,        report.counters.lds_conflict_cycles,
            report.seconds};
}

std::atomic<int (*)(const HipkittensObservedLaunch*)> launch_observer{nullptr};
std::atomic<int> launches{0};
struct CountedLaunch {
    CountedLaunch() { ++launches; }
    ~CountedLaunch() { --launches; }
    CountedLaunch(const CountedLaunch&) = delete;
};

// The thread that is ending the process; launches of other threads no longer return.
std::atomic<std::thread::id> ending_thread{};

template <class Body>
hipError_t call_launch(const char* function, Body body) {
    rest_if_the_process_ends();
    const hipError_t result = call(function, body);
    rest_if_the_process_ends();
    return result;
}

int target_number(const Function& function) {
    return visible_device(function.module->device).target == code_object::Target::gfx942 ? 942 : 950;
}

void check_shape(const Function& function, const LaunchShape& shape) {
    const code_object::Kernel& kernel = *function.kernel;
    const DeviceFacts& device = visible_device(function.module->device);
    const auto refuse = [&](hipError_t code, const std::string& text) {
        throw HipError(code, "kernel " + kernel.name + ": " + text);
    };
    const auto triple = [](const uint32_t* of) {
        return std::to_string(of[0]) + " x " + std::to_string(of[1]) + " x " + std::to_string(of[2]);
    };
    for (int i = 0; i < 3; ++i) {
        if (shape.grid[i] == 0 || shape.grid[i] > (i == 0 ? max_grid_x : max_grid_yz)) {
            refuse(hipErrorInvalidConfiguration,
                   "a grid of " + triple(shape.grid) + " workgroups; allowed are 1 to " +
                       std::to_string(max_grid_x) + ", " + std::to_string(max_grid_yz) + ", " +
                       std::to_string(max_grid_yz));
        }
        // The dispatch packet counts work-items in 32 bits.
        if (uint64_t{shape.grid[i]} * shape.block[i] > 0xffffffff) {
            refuse(hipErrorInvalidConfiguration, "more than 2^32 - 1 work-items in one dimension");
        }
    }
    const uint64_t items = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    const uint64_t limit = std::min<uint64_t>(kernel.max_flat_workgroup_size, max_workgroup_size);
    if (items == 0 || shape.block[0] > 1024 || shape.block[1] > 1024 || shape.block[2] > 1024 ||
        items > limit) {
        refuse(hipErrorInvalidConfiguration, "a workgroup of " + triple(shape.block) +
                                                 " work-items; the kernel allows 1 to " +
                                                 std::to_string(limit));
    }
    const auto& required = kernel.reqd_workgroup_size;
    if (!required.empty() && !std::equal(required.begin(), required.end(), shape.block)) {
        refuse(hipErrorInvalidConfiguration, "a workgroup of " + triple(shape.block) +
                                                 "; the kernel was compiled for " + triple(required.data()) +
                                                 " only");
    }
    const uint64_t lds = uint64_t{kernel.lds_bytes} + shape.dynamic_lds_bytes;
    if (lds > device.lds_bytes) {
        refuse(hipErrorLaunchOutOfResources,
               std::to_string(kernel.lds_bytes) + " bytes of static and " +
                   std::to_string(shape.dynamic_lds_bytes) + " of dynamic LDS; " +
                   code_object::target_name(device.target) + " has " + std::to_string(device.lds_bytes));
    }
    if (kernel.allocated_vgprs > static_cast<uint32_t>(vgprs_per_simd_lane)) {
        refuse(hipErrorLaunchOutOfResources,
               std::to_string(kernel.allocated_vgprs) + " VGPRs; there are 512");
    }
    if (kernel.private_bytes > max_scratch_bytes_per_lane) {
        refuse(hipErrorLaunchOutOfResources, std::to_string(kernel.private_bytes) +
                                                 " bytes of scratch for each work-item; there are at most " +
                                                 std::to_string(max_scratch_bytes_per_lane));
    }
}

void check_device(const Function& function) {
    if (function.module->device != thread_state().device) {
        throw HipError(hipErrorInvalidDeviceFunction,
                       "kernel " + function.kernel->name + " was loaded on device " +
                           std::to_string(function.module->device) + ", the current device is " +
                           std::to_string(thread_state().device));
    }
}

void run(const Function& function, const LaunchShape& shape, const std::vector<uint8_t>& arguments,
         std::vector<Region> regions) {
    if (is_describing()) {
        describe_launch(function.kernel->name, shape, arguments, regions);
        return;
    }
    ThreadState& state = thread_state();
    const DeviceFacts& device = visible_device(function.module->device);
    LaunchRequest request;
    std::copy_n(shape.grid, 3, request.grid_workgroups);
    std::copy_n(shape.block, 3, request.workgroup_size);
    request.dynamic_lds_bytes = shape.dynamic_lds_bytes;
    request.arguments = arguments.data();
    request.argument_bytes = arguments.size();
    request.regions = std::move(regions);
    request.freed_at = [](uint64_t address) { return device_memory().freed_at(address); };
    request.should_stop = interruption_check();
    request.settings = machine_settings(state.settings);
    const Processors processors = visible_processors(device);
    request.compute_units = static_cast<uint32_t>(processors.compute_units);
    request.xccs = static_cast<uint32_t>(processors.xccs);
    request.lds_bytes_per_compute_unit = device.lds_bytes;
    state.report = {};
    request.record = is_recording();
    request.trace = is_tracing();
    const std::unique_ptr<timing::TimedLaunch> timed =
        begin_timed_launch(target_number(function), request.settings);
    if (timed) {
        request.launch_trace = timed.get();
        request.settings.trace = &timed->steps();
    }
    const debug::DebuggedLaunch debugged;
    request.debugger = debugged.debugger();
    debug::RegisterDigests digests;
    const bool digesting = takes_digests() && !request.debugger;
    if (digesting) request.debugger = &digests;
    if (request.debugger) debug::adjust_for_debugger(request.settings);
    const CountedLaunch counted;
    LaunchResult result = launch(function.module->code, *function.kernel, request);
    state.report = public_report(result.report);
    state.instructions_so_far += result.report.instructions;
    if (digesting) result.record.digests = std::move(digests.of_waves);
    if (request.record) {
        keep_launch(function.kernel->name, target_number(function), state.report, std::move(result.record));
    }
    if (!result.error.empty()) throw HipError(hipErrorLaunchFailure, result.error);
    if (timed) keep_timed_launch(*timed);
}

std::vector<uint8_t> segment_of(const code_object::Kernel& kernel, void** arguments, void** extra,
                                const LaunchShape& shape) {
    if (!extra) return arguments_from_pointers(kernel, arguments, shape);
    require(!arguments, hipErrorInvalidValue, "both kernelParams and extra are given");
    const void* buffer = nullptr;
    const size_t* bytes = nullptr;
    for (; *extra != launch_param_end; extra += 2) {
        if (*extra == launch_param_buffer_pointer) {
            buffer = extra[1];
        } else if (*extra == launch_param_buffer_size) {
            bytes = static_cast<const size_t*>(extra[1]);
        } else {
            throw HipError(hipErrorInvalidValue, "extra holds a word that is none of HIP_LAUNCH_PARAM_*");
        }
    }
    require(bytes, hipErrorInvalidValue, "extra has no HIP_LAUNCH_PARAM_BUFFER_SIZE");
    return arguments_from_buffer(kernel, buffer, *bytes, shape);
}

}  // namespace

int resident_workgroups(const Function& function, int block_size, size_t dynamic_lds_bytes) {
    const DeviceFacts& device = visible_device(function.module->device);
    const uint32_t vgprs = std::max(function.kernel->allocated_vgprs, 8u);
    const int waves_per_simd =
        std::min<int>(max_waves_per_simd, vgprs_per_simd_lane / static_cast<int>(vgprs));
    const int waves = (block_size + wave_size - 1) / wave_size;
    // A workgroup's waves are assigned to the SIMDs round-robin.
    const int per_simd = (waves + simds_per_compute_unit - 1) / simds_per_compute_unit;
    int result = waves >= simds_per_compute_unit ? waves_per_simd / per_simd
                                                 : waves_per_simd * simds_per_compute_unit / waves;
    const uint64_t lds = function.kernel->lds_bytes + dynamic_lds_bytes;
    if (lds) {
        const uint64_t granules = (lds + device.lds_granule - 1) / device.lds_granule;
        result = std::min<int>(result, static_cast<int>(device.lds_bytes / (granules * device.lds_granule)));
    }
    return result;
}

void rest_if_the_process_ends() {
    const std::thread::id by = ending_thread.load();
    if (by == std::thread::id() || by == std::this_thread::get_id()) return;
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// The launch may touch all memory that HIP knows of when it runs.
Work prepared_launch(hipFunction_t function, const dim3& grid, const dim3& block, unsigned int shared_bytes,
                     hipStream_t stream, void** arguments, void** extra, bool cooperative) {
    const LaunchShape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes};
    const auto object = objects().functions.get(function);
    check_stream(stream, object->module->device);
    check_device(*object);
    check_shape(*object, shape);
    if (cooperative) {
        const uint64_t workgroups = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
        const auto items = static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
        const uint64_t resident =
            static_cast<uint64_t>(resident_workgroups(*object, items, shape.dynamic_lds_bytes)) *
            static_cast<uint64_t>(visible_processors(visible_device(object->module->device)).compute_units);
        if (workgroups > resident) {
            throw HipError(hipErrorCooperativeLaunchTooLarge,
                           "kernel " + object->kernel->name + ": " + std::to_string(workgroups) +
                               " workgroups; the device holds " + std::to_string(resident) + " at a time");
        }
    }
    return [object, shape, segment = segment_of(*object->kernel, arguments, extra, shape)] {
        rest_if_the_process_ends();
        {
            std::shared_lock running(device_memory().launches);
            DeviceMemory::Regions memory = device_memory().regions();
            run(*object, shape, segment, std::move(memory.regions));
        }
        rest_if_the_process_ends();
    };
}

namespace {

void launch_on(hipStream_t stream, hipFunction_t function, const dim3& grid, const dim3& block,
               unsigned int shared_bytes, void** arguments, void** extra, bool cooperative) {
    submit(stream, NodeType::kernel,
           prepared_launch(function, grid, block, shared_bytes, stream, arguments, extra, cooperative));
}

hipModule_t load_code_object(std::span<const uint8_t> file) {
    auto module = std::make_shared<Module>(file);
    module->device = thread_state().device;
    const code_object::Target have = module->code.object().target,
                              want = visible_device(module->device).target;
    if (have != want) {
        throw HipError(hipErrorNoBinaryForGpu,
                       std::string("the code object is for ") + code_object::target_name(have) + ", device " +
                           std::to_string(module->device) + " is a " + code_object::target_name(want));
    }
    return objects().modules.add(std::move(module));
}

// Loads the image's code object for the thread's device: the image is a code object or a bundle of them.
// `bytes` is UINT64_MAX if the image came without its length.
hipModule_t load_image(const uint8_t* image, uint64_t bytes) {
    const code_object::UncompressedBundle uncompressed = code_object::uncompressed_bundle(image, bytes);
    if (uncompressed) {
        image = uncompressed.data.get();
        bytes = uncompressed.bytes;
    }
    const code_object::Target target = visible_device(checked_device(thread_state().device)).target;
    const uint8_t* file = code_object::code_object_for(target, image, bytes);
    const uint64_t length =
        bytes == UINT64_MAX ? code_object::extent(file) : bytes - static_cast<uint64_t>(file - image);
    return load_code_object(std::span(file, length));
}

}  // namespace

hipModule_t load_module(const void* image) {
    return load_image(static_cast<const uint8_t*>(image), UINT64_MAX);
}

std::atomic<int>& launches_under_way() { return launches; }

HIPKITTENS_EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    return call("hipModuleLoadData", [&] {
        require_pointer(module, "module");
        require_pointer(image, "image");
        *module = load_module(image);
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image,
                                                 unsigned int option_count, int* options,
                                                 void** option_values) {
    return call("hipModuleLoadDataEx", [&] {
        require_pointer(module, "module");
        require_pointer(image, "image");
        // The options configure a compiler that turns PTX or bitcode into code; a code object is already
        // compiled.
        require(option_count == 0 || (options && option_values), hipErrorInvalidValue, "options are missing");
        *module = load_module(image);
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
    return call("hipModuleLoad", [&] {
        require_pointer(module, "module");
        require_pointer(path, "fname");
        std::ifstream file(path, std::ios::binary);
        if (!file) throw HipError(hipErrorFileNotFound, std::string(path) + " cannot be read");
        const std::string image(std::istreambuf_iterator<char>(file), {});
        *module = load_image(reinterpret_cast<const uint8_t*>(image.data()), image.size());
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleUnload(hipModule_t module) {
    return call("hipModuleUnload", [&] {
        const auto object = objects().modules.get(module);
        objects().modules.remove(module);
        std::lock_guard lock(object->mutex);
        for (const auto& [name, function] : object->functions) objects().functions.remove(function);
        object->functions.clear();
    });
}
hipFunction_t kernel_of(hipModule_t module, const char* name) {
    const auto object = objects().modules.get(module);
    const code_object::Kernel* kernel = object->code.object().find_kernel(name);
    if (!kernel) {
        std::string known;
        for (const auto& other : object->code.object().kernels)
            known += (known.empty() ? "" : ", ") + other.name;
        throw HipError(hipErrorNotFound,
                       std::string("the module has no kernel ") + name + "; it has: " + known);
    }
    std::lock_guard lock(object->mutex);
    hipFunction_t& handle = object->functions[name];
    if (!handle) {
        auto made = std::make_shared<Function>();
        made->module = object;
        made->kernel = kernel;
        const uint32_t lds_bytes = visible_device(object->device).lds_bytes;
        made->max_dynamic_lds_bytes = static_cast<int>(lds_bytes - std::min(kernel->lds_bytes, lds_bytes));
        handle = objects().functions.add(std::move(made));
    }
    return handle;
}
HIPKITTENS_EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                                  const char* name) {
    return call("hipModuleGetFunction", [&] {
        require_pointer(function, "function");
        require_pointer(name, "name");
        *function = kernel_of(module, name);
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleGetGlobal(void** pointer, size_t* bytes, hipModule_t module,
                                                const char* name) {
    return call("hipModuleGetGlobal", [&] {
        require_pointer(name, "name");
        const auto object = objects().modules.get(module);
        const code_object::Symbol* symbol = object->code.object().find_symbol(name);
        if (!symbol || symbol->type != code_object::SymbolType::object || !symbol->is_dynamic) {
            throw HipError(hipErrorNotFound, std::string("the module has no variable ") + name);
        }
        if (pointer) *pointer = reinterpret_cast<void*>(object->code.run_address(symbol->address));
        if (bytes) *bytes = symbol->bytes;
    });
}

HIPKITTENS_EXPORT hipError_t hipFuncGetAttribute(int* value, int attribute, hipFunction_t function) {
    return call("hipFuncGetAttribute", [&] {
        require_pointer(value, "value");
        const auto object = objects().functions.get(function);
        const code_object::Kernel& kernel = *object->kernel;
        switch (attribute) {
            case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
                *value = static_cast<int>(kernel.max_flat_workgroup_size);
                break;
            case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
                *value = static_cast<int>(kernel.lds_bytes);
                break;
            case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
                *value = 0;
                break;
            case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
                *value = static_cast<int>(kernel.private_bytes);
                break;
            case HIP_FUNC_ATTRIBUTE_NUM_REGS:
                *value = static_cast<int>(kernel.vgprs);
                break;
            case HIP_FUNC_ATTRIBUTE_BINARY_VERSION:
                *value = visible_device(object->module->device).major * 10 +
                         visible_device(object->module->device).minor;
                break;
            case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
                *value = object->max_dynamic_lds_bytes;
                break;
            default:
                throw HipError(hipErrorInvalidValue,
                               "attribute " + std::to_string(attribute) + " is not answered here");
        }
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                                hipFunction_t function,
                                                                                int block_size,
                                                                                size_t dynamic_lds_bytes) {
    return call("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
        require_pointer(blocks, "blocks");
        require(block_size > 0 && block_size <= max_workgroup_size, hipErrorInvalidValue,
                "block size must be 1 to 1024");
        *blocks = resident_workgroups(*objects().functions.get(function), block_size, dynamic_lds_bytes);
    });
}

HIPKITTENS_EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x,
                                                   unsigned int grid_y, unsigned int grid_z,
                                                   unsigned int block_x, unsigned int block_y,
                                                   unsigned int block_z, unsigned int shared_bytes,
                                                   hipStream_t stream, void** arguments, void** extra) {
    return call_launch("hipModuleLaunchKernel", [&] {
        launch_on(stream, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                  arguments, extra, false);
    });
}
HIPKITTENS_EXPORT hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned int grid_x,
                                                              unsigned int grid_y, unsigned int grid_z,
                                                              unsigned int block_x, unsigned int block_y,
                                                              unsigned int block_z, unsigned int shared_bytes,
                                                              hipStream_t stream, void** arguments) {
    return call_launch("hipModuleLaunchCooperativeKernel", [&] {
        launch_on(stream, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                  arguments, nullptr, true);
    });
}
HIPKITTENS_EXPORT hipError_t hipDrvLaunchKernelEx(const LaunchConfiguration* configuration,
                                                  hipFunction_t function, void** arguments, void** extra) {
    return call_launch("hipDrvLaunchKernelEx", [&] {
        require_pointer(configuration, "config");
        const LaunchConfiguration& c = *configuration;
        require(c.attribute_count == 0 || c.attributes, hipErrorInvalidValue, "attributes are missing");
        bool cooperative = false;
        for (unsigned int i = 0; i < c.attribute_count; ++i) {
            if (c.attributes[i].id != launch_attribute_cooperative) {
                throw HipError(hipErrorNotSupported, "launch attribute " +
                                                         std::to_string(c.attributes[i].id) +
                                                         " has no meaning on gfx942 and gfx950");
            }
            cooperative |= c.attributes[i].cooperative != 0;
        }
        launch_on(c.stream, function, {c.grid[0], c.grid[1], c.grid[2]}, {c.block[0], c.block[1], c.block[2]},
                  c.shared_bytes, arguments, extra, cooperative);
    });
}

extern "C" __attribute__((visibility("protected"))) int hipkittens_launch_bounded(
    void* function, const unsigned int grid[3], const unsigned int block[3], unsigned int shared_bytes,
    void* stream, const void* arguments, size_t argument_bytes, const HipkittensRegion* regions,
    size_t region_count) {
    return call_launch("hipkittens_launch_bounded", [&] {
        require_pointer(grid, "grid");
        require_pointer(block, "block");
        require(regions || region_count == 0, hipErrorInvalidValue, "regions is a null pointer");
        const auto object = objects().functions.get(static_cast<hipFunction_t>(function));
        check_stream(static_cast<hipStream_t>(stream), object->module->device);
        check_device(*object);
        const LaunchShape shape{{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes};
        check_shape(*object, shape);
        if (const auto observer = launch_observer.load()) {
            const HipkittensObservedLaunch seen{object->kernel->name.c_str(),
                                                target_number(*object),
                                                grid,
                                                block,
                                                shared_bytes,
                                                arguments,
                                                argument_bytes,
                                                regions,
                                                region_count};
            if (observer(&seen) != 0) return;
        }
        const auto segment = arguments_from_buffer(*object->kernel, arguments, argument_bytes, shape);
        std::vector<Region> bounds;
        for (size_t i = 0; i < region_count; ++i) {
            const uint64_t begin = reinterpret_cast<uint64_t>(regions[i].begin);
            require(regions[i].bytes <= UINT64_MAX - begin, hipErrorInvalidValue, "a region wraps around");
            bounds.push_back({begin, begin + regions[i].bytes, regions[i].name ? regions[i].name : "",
                              regions[i].writable != 0, false, regions[i].unwritten});
        }
        std::shared_lock running(device_memory().launches);
        run(*object, shape, segment, std::move(bounds));
    });
}

HIPKITTENS_EXPORT void hipkittens_set_launch_observer(
    int (*observer)(const HipkittensObservedLaunch* launch)) {
    launch_observer = observer;
}

HIPKITTENS_EXPORT void hipkittens_process_is_ending(void) { ending_thread = std::this_thread::get_id(); }

}  // namespace hipkittens::simulator
