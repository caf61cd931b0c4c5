// simulator/timing/clock.h: at which clock a chip runs a kernel, as its power allows.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/timing/parameters.h"
#include "simulator/timing/static_cost.h"

namespace hipkittens::simulator::timing {

// Full matrix load holds the clock of that format's products; up to clock_idle_load the chip runs at its peak; between the
// two the clock's period is linear in the load. `matrix_load`: how busy the matrix cores are, 0 to 1.
double sustained_clock(const Parameters& parameters, MatrixType type, double matrix_load);

// The clock under full matrix load of this type; the peak if the kernel has no matrix instructions.
double full_load_clock(const Parameters& parameters, MatrixType type);

}  // namespace hipkittens::simulator::timing
