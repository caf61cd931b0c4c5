// simulator/hip_registration.cpp: kernels and variables that a program compiled by hipcc registers, and launches by its own names.
// SPDX-License-Identifier: MIT
//
// clang emits calls of the functions that begin with two underscores into such a program (CGCUDANV.cpp of LLVM).
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"
#include "simulator/visible_devices.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

constexpr uint32_t wrapper_magic = 0x48495046;  // "HIPF"
struct Wrapper {
    uint32_t magic, version;
    const void* image;
    void* unused;
};

// One image of a program, loaded on each device when something in it is first used there.
struct Image {
    const void* bytes = nullptr;
    std::map<int, hipModule_t> modules;
};
struct Named {
    Image* image;
    std::string name;
};

// Everything is registered before main and unregistered after it, except for libraries that a program opens.
struct Registry {
    std::mutex mutex;
    std::map<Image*, std::unique_ptr<Image>> images;
    std::map<const void*, Named> functions, variables;  // by the host address
};
Registry& registry() {
    static Registry& all = *new Registry;
    return all;
}

struct CallConfiguration {
    dim3 grid, block;
    size_t shared_bytes;
    hipStream_t stream;
};
std::vector<CallConfiguration>& configurations() {
    thread_local std::vector<CallConfiguration> stack;
    return stack;
}

hipModule_t module_of(Image& image) {
    hipModule_t& module = image.modules[checked_device(thread_state().device)];
    if (!module) module = load_module(image.bytes);
    return module;
}

std::pair<void*, size_t> variable_of(const void* symbol) {
    std::lock_guard lock(registry().mutex);
    const auto found = registry().variables.find(symbol);
    require(found != registry().variables.end(), hipErrorInvalidSymbol,
            "the program has registered no such variable");
    const auto module = objects().modules.get(module_of(*found->second.image));
    const code_object::Symbol* entry = module->code.object().find_symbol(found->second.name.c_str());
    if (!entry) throw HipError(hipErrorInvalidSymbol, "the image has no variable " + found->second.name);
    return {reinterpret_cast<void*>(module->code.run_address(entry->address)), entry->bytes};
}

void copy_symbol(const void* symbol, void* host, size_t bytes, size_t offset, bool to_symbol, int kind) {
    const auto [address, size] = variable_of(symbol);
    require(offset <= size && bytes <= size - offset, hipErrorInvalidValue, "the range leaves the variable");
    require(kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault, hipErrorInvalidMemcpyDirection,
            "kind is none of 0 to 4");
    uint8_t* const begin = static_cast<uint8_t*>(address) + offset;
    to_symbol ? std::memcpy(begin, host, bytes) : std::memcpy(host, begin, bytes);
}

}  // namespace

hipFunction_t function_of(const void* function) {
    std::lock_guard lock(registry().mutex);
    const auto found = registry().functions.find(function);
    if (found == registry().functions.end())  // a handle, or nothing
        return static_cast<hipFunction_t>(const_cast<void*>(function));
    return kernel_of(module_of(*found->second.image), found->second.name.c_str());
}

HIPKITTENS_EXPORT void** __hipRegisterFatBinary(const void* data) {
    const auto* wrapper = static_cast<const Wrapper*>(data);
    if (!wrapper || wrapper->magic != wrapper_magic || !wrapper->image) return nullptr;
    auto image = std::make_unique<Image>();
    image->bytes = wrapper->image;
    Image* const handle = image.get();
    std::lock_guard lock(registry().mutex);
    registry().images[handle] = std::move(image);
    return reinterpret_cast<void**>(handle);
}
HIPKITTENS_EXPORT void __hipUnregisterFatBinary(void** handle) {
    auto* const image = reinterpret_cast<Image*>(handle);
    std::lock_guard lock(registry().mutex);
    std::erase_if(registry().functions, [&](const auto& entry) { return entry.second.image == image; });
    std::erase_if(registry().variables, [&](const auto& entry) { return entry.second.image == image; });
    registry().images.erase(image);
}
HIPKITTENS_EXPORT void __hipRegisterFunction(void** handle, const void* function, char*, const char* name,
                                             unsigned int, void*, void*, void*, void*, int*) {
    std::lock_guard lock(registry().mutex);
    registry().functions[function] = {reinterpret_cast<Image*>(handle), name};
}
HIPKITTENS_EXPORT void __hipRegisterVar(void** handle, void* variable, char*, const char* name, int, size_t,
                                        int, int) {
    std::lock_guard lock(registry().mutex);
    registry().variables[variable] = {reinterpret_cast<Image*>(handle), name};
}
HIPKITTENS_EXPORT hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                        hipStream_t stream) {
    configurations().push_back({grid, block, shared_bytes, stream});
    return hipSuccess;
}
HIPKITTENS_EXPORT hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                                       hipStream_t* stream) {
    return call("__hipPopCallConfiguration", [&] {
        require(!configurations().empty(), hipErrorMissingConfiguration, "no call is under way");
        const CallConfiguration last = configurations().back();
        configurations().pop_back();
        *grid = last.grid;
        *block = last.block;
        *shared_bytes = last.shared_bytes;
        *stream = last.stream;
    });
}

HIPKITTENS_EXPORT hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                             size_t shared_bytes, hipStream_t stream) {
    return call("hipLaunchKernel", [&] {
        submit(stream, NodeType::kernel,
               prepared_launch(function_of(function), grid, block, static_cast<unsigned int>(shared_bytes),
                               stream, arguments, nullptr));
    });
}
HIPKITTENS_EXPORT hipError_t hipLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                                        void** arguments, unsigned int shared_bytes,
                                                        hipStream_t stream) {
    return call("hipLaunchCooperativeKernel", [&] {
        submit(stream, NodeType::kernel,
               prepared_launch(function_of(function), grid, block, shared_bytes, stream, arguments, nullptr,
                               true));
    });
}
HIPKITTENS_EXPORT hipError_t hipExtLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                size_t shared_bytes, hipStream_t stream, hipEvent_t start,
                                                hipEvent_t stop, int) {
    return call("hipExtLaunchKernel", [&] {
        const Work launch =
            prepared_launch(function_of(function), grid, block, static_cast<unsigned int>(shared_bytes),
                            stream, arguments, nullptr);
        submit(stream, NodeType::kernel, [=] {
            if (start) record(start);
            launch();
            if (stop) record(stop);
        });
    });
}
HIPKITTENS_EXPORT hipError_t hipGetFuncBySymbol(hipFunction_t* handle, const void* function) {
    return call("hipGetFuncBySymbol", [&] {
        require_pointer(handle, "functionPtr");
        *handle = function_of(function);
        objects().functions.get(*handle);
    });
}
HIPKITTENS_EXPORT hipError_t hipFuncGetAttributes(FunctionAttributes* attributes, const void* function) {
    return call("hipFuncGetAttributes", [&] {
        require_pointer(attributes, "attr");
        const auto object = objects().functions.get(function_of(function));
        const code_object::Kernel& kernel = *object->kernel;
        *attributes = {};
        attributes->local_bytes = kernel.private_bytes;
        attributes->max_dynamic_shared_bytes = object->max_dynamic_lds_bytes;
        attributes->max_threads_per_block = static_cast<int>(kernel.max_flat_workgroup_size);
        attributes->registers = static_cast<int>(kernel.vgprs);
        attributes->shared_bytes = kernel.lds_bytes;
    });
}
// Workgroups may use all of the LDS from the start, and it is not shared with a cache.
HIPKITTENS_EXPORT hipError_t hipFuncSetAttribute(const void* function, int, int) {
    return call("hipFuncSetAttribute", [&] { objects().functions.get(function_of(function)); });
}
HIPKITTENS_EXPORT hipError_t hipFuncSetCacheConfig(const void* function, int) {
    return call("hipFuncSetCacheConfig", [&] { objects().functions.get(function_of(function)); });
}
HIPKITTENS_EXPORT hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                                          int block_size,
                                                                          size_t shared_bytes) {
    return call("hipOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
        require_pointer(blocks, "numBlocks");
        require(block_size > 0 && block_size <= max_workgroup_size, hipErrorInvalidValue,
                "block size must be 1 to 1024");
        *blocks =
            resident_workgroups(*objects().functions.get(function_of(function)), block_size, shared_bytes);
    });
}
HIPKITTENS_EXPORT hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_size, size_t shared_bytes, unsigned int) {
    return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_bytes);
}
// The block size with the most work-items per compute unit; among equals the largest.
HIPKITTENS_EXPORT hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* function,
                                                               size_t shared_bytes, int limit) {
    return call("hipOccupancyMaxPotentialBlockSize", [&] {
        require_pointer(grid, "gridSize");
        require_pointer(block, "blockSize");
        const auto object = objects().functions.get(function_of(function));
        int most = std::min(static_cast<int>(object->kernel->max_flat_workgroup_size), max_workgroup_size);
        if (limit > 0) most = std::min(most, limit);
        int best = 0;
        for (int size = most; size > 0; size = (size - 1) / wave_size * wave_size) {
            const int resident = resident_workgroups(*object, size, shared_bytes);
            if (resident * size <= best) continue;
            best = resident * size;
            *block = size;
            *grid = resident * visible_device(object->module->device).compute_units;
        }
    });
}

HIPKITTENS_EXPORT hipError_t hipGetSymbolAddress(void** pointer, const void* symbol) {
    return call("hipGetSymbolAddress", [&] {
        require_pointer(pointer, "devPtr");
        *pointer = variable_of(symbol).first;
    });
}
HIPKITTENS_EXPORT hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol) {
    return call("hipGetSymbolSize", [&] {
        require_pointer(bytes, "size");
        *bytes = variable_of(symbol).second;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyToSymbol(const void* symbol, const void* source, size_t bytes,
                                               size_t offset, int kind) {
    return call("hipMemcpyToSymbol",
                [&] { copy_symbol(symbol, const_cast<void*>(source), bytes, offset, true, kind); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyFromSymbol(void* destination, const void* symbol, size_t bytes,
                                                 size_t offset, int kind) {
    return call("hipMemcpyFromSymbol", [&] { copy_symbol(symbol, destination, bytes, offset, false, kind); });
}

}  // namespace hipkittens::simulator
