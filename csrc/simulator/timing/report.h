// simulator/timing/report.h: what a modelled launch says about itself, as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "simulator/timing/chip.h"

namespace hipkittens::simulator::timing {

// `fast`: the same launch at the peak clock, if `chip` ran it at the clock of full matrix load. The clock that it would
// sustain is between, where the load it has there allows it; times are interpolated.
struct Report {
    std::string text;
    bool fast_is_nearer = false;  // all but the times is that of the run nearer to the sustained clock
};
Report report_of(const Chip& chip, const Chip* fast);

}  // namespace hipkittens::simulator::timing
