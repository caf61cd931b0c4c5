// simulator/visible_devices.h: the devices visible to this process, in order.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/devices.h"

namespace hipkittens::simulator {

// One of each kind, unless HIPKITTENS_SIMULATED_DEVICES lists others ("gfx950,gfx950"): then
// HIP_VISIBLE_DEVICES also selects among them by number, as in HIP ("1,0"). Without the list
// HIP_VISIBLE_DEVICES is ignored: programs set it for AMD GPUs, and the Python package needs both kinds.
int visible_device_count();
const DeviceFacts& visible_device(int ordinal);

// Those of one of the equal partitions as which every device is shown: 1, 2, 4 or 8 of them in the modes SPX,
// DPX, QPX and CPX. While launches are modelled, those of the modelled product replace the device's.
Processors visible_processors(const DeviceFacts& device);
int visible_partitions();
void show_partitions(int count);  // throws HipError if XCDs cannot be divided like this

// Handles of objects of which each device has one: device numbers combined with the tag.
template <class Handle, uintptr_t tag>
struct DeviceHandles {
    static Handle handle_of(int device) {
        return reinterpret_cast<Handle>((tag << 48) + 16u * static_cast<unsigned>(device + 1));
    }
    // Returns -1 for an invalid handle.
    static int device_of(Handle handle) {
        const uintptr_t number = reinterpret_cast<uintptr_t>(handle) - (tag << 48);
        const bool is_one =
            number % 16 == 0 && number > 0 && number / 16 <= static_cast<uintptr_t>(visible_device_count());
        return is_one ? static_cast<int>(number / 16) - 1 : -1;
    }
};

}  // namespace hipkittens::simulator
