// runtime/device.h: one device of a HIP library.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "runtime/hip_library.h"

namespace hipkittens::runtime {

// The properties that plans and the order of workgroups depend on; for a device in a partition mode (DPX,
// QPX, CPX), those of its partition.
struct Processors {
    int compute_units = 0;
    int xcds = 0;
};

struct Device {
    HipLibrary* library = nullptr;
    int ordinal = 0;
    std::string arch;  // "gfx942": the target of its code objects
    std::string name;
    Processors processors;  // when the device was first queried
    int lds_bytes = 0;      // available to a workgroup
};

// Device `ordinal` of the system's HIP. Throws Error if there is none, or if it is neither gfx942 nor gfx950.
// The reference stays valid for the life of the process.
const Device& hip_device(int ordinal);

// The same for any architecture, for reporting. Throws Error if there is none.
const Device& any_hip_device(int ordinal);

// The simulator's device for "gfx942" or "gfx950". Throws Error.
const Device& simulated_device(std::string_view arch);

// For a simulated device, those of the product whose cycles are being modelled (simulator.h,
// hipkittens_time_launches), which may change.
Processors processors_of(const Device& device);

// Makes a device current for the calling thread, and restores the previous one at the end of the scope.
class CurrentDevice {
  public:
    explicit CurrentDevice(const Device& device);
    ~CurrentDevice();
    CurrentDevice(const CurrentDevice&) = delete;

  private:
    const Device& device_;
    int before_ = 0;
};

}  // namespace hipkittens::runtime
