// runtime/device.h: one device of a HIP library.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "runtime/hip_library.h"

namespace hipkittens::runtime {

// What plans and the order of workgroups depend on; of a device in a partition mode (DPX, QPX, CPX), those of its part.
struct Processors {
    int compute_units = 0;
    int xcds = 0;
};

struct Device {
    HipLibrary* library = nullptr;
    int ordinal = 0;
    std::string arch;  // "gfx942": the target its code objects are made for
    std::string name;
    Processors processors;  // when the device was first asked for
    int lds_bytes = 0;      // a workgroup may use
};

// Device `ordinal` of the system's HIP. Throws Error if there is none, or if it is no gfx942 or gfx950.
// The reference is good for the life of the process.
const Device& hip_device(int ordinal);

// The same whatever its architecture, to say what is there. Throws Error if there is none.
const Device& any_hip_device(int ordinal);

// The simulator's device for "gfx942" or "gfx950". Throws Error.
const Device& simulated_device(std::string_view arch);

// A simulated device has those of the product whose cycles are being modelled (simulator.h, hipkittens_time_launches),
// which may change.
Processors processors_of(const Device& device);

// Makes a device current for the calling thread, and the one before it again at the end of the scope.
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
