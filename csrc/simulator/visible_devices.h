// simulator/visible_devices.h: the devices that this process has, in their order.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/devices.h"

namespace hipkittens::simulator {

// One of each kind, unless HIPKITTENS_SIMULATED_DEVICES lists others ("gfx950,gfx950"): then HIP_VISIBLE_DEVICES, too, chooses
// among them by number, as in HIP ("1,0"). Without the list it is left alone: programs set it that have AMD GPUs in mind, and the
// Python package wants both kinds.
int visible_device_count();
const DeviceFacts& visible_device(int ordinal);

// Of one of the equal parts as which every device is shown: 1, 2, 4 or 8 of them in the modes SPX, DPX, QPX and CPX. While launches
// are modelled the modelled product's take the device's place.
Processors visible_processors(const DeviceFacts& device);
int visible_partitions();
void show_partitions(int count);  // throws HipError if XCDs cannot be shared so

// Handles of things of which each device has one: numbers behind the tag.
template <class Handle, uintptr_t tag>
struct DeviceHandles {
    static Handle handle_of(int device) {
        return reinterpret_cast<Handle>((tag << 48) + 16u * static_cast<unsigned>(device + 1));
    }
    // -1 for a handle that is none.
    static int device_of(Handle handle) {
        const uintptr_t number = reinterpret_cast<uintptr_t>(handle) - (tag << 48);
        const bool is_one =
            number % 16 == 0 && number > 0 && number / 16 <= static_cast<uintptr_t>(visible_device_count());
        return is_one ? static_cast<int>(number / 16) - 1 : -1;
    }
};

}  // namespace hipkittens::simulator
