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

}  // namespace hipkittens::simulator
