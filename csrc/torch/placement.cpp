// torch/placement.cpp: torch/placement.h over runtime/.
// SPDX-License-Identifier: MIT
#include "torch/placement.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace hipkittens::torch_binding {
namespace {

// A NaN as f64, f32, f16 and bf16, and as an integer one that no kernel's accumulator reaches; -1 would be an
// ordinary sum.
constexpr uint32_t unwritten = 0x7ff57ff5;

constexpr const char* archs[] = {"gfx942", "gfx950"};
std::atomic<const char*> simulated_arch{archs[0]};
std::atomic<void (*)()> before_launch{nullptr};
std::atomic<bool> prefill{false}, batch_invariant{false};
std::atomic<int> gpu_of_cpu_tensors{-1};
thread_local std::string last_kernel;

const runtime::Device& device_of(Device place) {
    if (!place.cpu) return runtime::hip_device(place.index);
    const int gpu = gpu_of_cpu_tensors.load();
    return gpu < 0 ? runtime::simulated_device(simulated_arch.load()) : runtime::hip_device(gpu);
}

}  // namespace

Placement::Placement(Device device)
    : place_(device), device_(device_of(device)), stream_(current_stream(device)) {
    last_kernel.clear();
}

int Placement::target() const { return std::atoi(device_.arch.c_str() + std::strlen("gfx")); }

DeviceShape Placement::shape() const {
    const runtime::Processors processors = runtime::processors_of(device_);
    return {target(), processors.compute_units, processors.xcds, batch_invariant.load()};
}

Tensor Placement::empty(std::span<const int64_t> sizes, Dtype dtype) const {
    Tensor result = Tensor::empty(sizes, dtype, place_);
    if (place_.cpu && prefill && result.data()) {  // a result of no elements has no memory
        auto* bytes = static_cast<unsigned char*>(result.data());
        for (int64_t i = 0, count = result.extent_bytes(dtype); i < count; ++i)
            bytes[i] = static_cast<unsigned char>(unwritten >> 8 * (i % 4));
        filled_.push_back(result.data());
    }
    return result;
}

void Placement::launch(const Launch& launch, std::span<const runtime::Region> regions) const {
    if (place_.cpu) {
        if (const auto function = before_launch.load()) function();
    }
    if (last_kernel.empty()) last_kernel = launch.kernel;
    runtime::LaunchShape shape;
    std::copy_n(launch.grid.begin(), 3, shape.grid);
    std::copy_n(launch.block.begin(), 3, shape.block);
    const auto start = [&](std::span<const runtime::Region> marked) {
        runtime::launch(device_, launch.kernel, shape, stream_, launch.arguments.data(),
                        launch.arguments.size(), marked);
    };
    if (filled_.empty()) return start(regions);
    std::vector<runtime::Region> marked(regions.begin(), regions.end());
    for (runtime::Region& region : marked)
        region.unwritten =
            std::find(filled_.begin(), filled_.end(), region.pointer) != filled_.end() ? unwritten : 0;
    start(marked);
}

}  // namespace hipkittens::torch_binding

#define HIPKITTENS_EXPORT extern "C" __attribute__((visibility("default")))

HIPKITTENS_EXPORT int hipkittens_torch_set_simulated_arch(const char* arch) {
    for (const char* known : hipkittens::torch_binding::archs) {
        if (std::string_view(known) == arch) {
            hipkittens::torch_binding::simulated_arch = known;
            return 0;
        }
    }
    return 1;
}

HIPKITTENS_EXPORT void hipkittens_torch_set_before_launch(void (*function)()) {
    hipkittens::torch_binding::before_launch = function;
}

HIPKITTENS_EXPORT void hipkittens_torch_set_gpu_of_cpu_tensors(int ordinal) {
    hipkittens::torch_binding::gpu_of_cpu_tensors = ordinal;
}

HIPKITTENS_EXPORT void hipkittens_torch_set_prefill(int on) { hipkittens::torch_binding::prefill = on != 0; }

HIPKITTENS_EXPORT int hipkittens_torch_set_batch_invariant(int on) {
    return hipkittens::torch_binding::batch_invariant.exchange(on != 0);
}

HIPKITTENS_EXPORT int hipkittens_torch_is_batch_invariant() {
    return hipkittens::torch_binding::batch_invariant;
}

HIPKITTENS_EXPORT const char* hipkittens_torch_last_kernel() {
    return hipkittens::torch_binding::last_kernel.c_str();
}
