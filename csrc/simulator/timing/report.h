// simulator/timing/report.h: the report of a modelled launch, as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "simulator/timing/chip.h"

namespace hipkittens::simulator::timing {

// `fast`: the same launch at the peak clock, if `chip` ran it at the clock of full matrix load. The sustained
// clock lies between the two, where the load at that clock allows it; times are interpolated.
struct Report {
    std::string text;
    bool fast_is_nearer = false;  // everything but the times is from the run nearer to the sustained clock
};
Report report_of(const Chip& chip, const Chip* fast);

}  // namespace hipkittens::simulator::timing
