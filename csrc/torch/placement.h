// torch/placement.h: where an operator's launches go: the GPU its tensors are on, or for CPU tensors the
// simulated one.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "kernels/device_shape.h"
#include "kernels/launch.h"
#include "runtime/device.h"
#include "runtime/launch.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

class Placement {
  public:
    explicit Placement(Device device);

    const runtime::Device& device() const { return device_; }
    int target() const;  // 942, 950
    DeviceShape shape() const;

    // Allocates a result or a workspace. Under checks it is NaN in every dtype until it is written.
    Tensor empty(std::span<const int64_t> sizes, Dtype dtype) const;

    void launch(const Launch& launch, std::span<const runtime::Region> regions) const;

  private:
    Device place_;
    const runtime::Device& device_;
    void* stream_;
    mutable std::vector<const void*> filled_;  // tensors that `empty` returned and filled
};

}  // namespace hipkittens::torch_binding

// The binding for Python's `simulate` and `batch_invariant`. All settings are per process: autograd may launch from any thread.
extern "C" {
// Accepts "gfx942" or "gfx950". Returns 0, or 1 for any other name.
int hipkittens_torch_set_simulated_arch(const char* arch);
// Called in the launching thread before every simulated launch; passes it the simulator's settings.
void hipkittens_torch_set_before_launch(void (*function)());
void hipkittens_torch_set_prefill(int on);
// Sets DeviceShape::batch_invariant of every plan from now on. Returns the previous value.
int hipkittens_torch_set_batch_invariant(int on);
int hipkittens_torch_is_batch_invariant(void);
// Sends CPU tensors to this GPU instead of the simulator, or with -1 back to the simulator. Only for a HIP library
// that runs nothing, or runs in the host's memory: benchmarks/launch.py uses it to measure the host cost of a call.
void hipkittens_torch_set_gpu_of_cpu_tensors(int ordinal);
// The first kernel that the calling thread's last operator launched, or "".
const char* hipkittens_torch_last_kernel(void);
}
