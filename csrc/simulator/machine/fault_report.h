// simulator/machine/fault_report.h: a wave's fault as text for the person who has to fix it.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

// Kernel, workgroup, wave, lane, instruction text with its offset, reason, address, nearest region and
// distance.
std::string describe_fault(const Wave& wave);

// The same place line for a wave that has not faulted (watchdog reports).
std::string describe_place(const Wave& wave, const Step* step);

}  // namespace hipkittens::simulator
