// simulator/timing/clock.h: the clock at which a chip runs a kernel within its power limit.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/timing/parameters.h"
#include "simulator/timing/static_cost.h"

namespace hipkittens::simulator::timing {

// Under full matrix load the chip runs at the clock of that format's products, up to clock_idle_load it runs at its
// peak; between the two the clock period is linear in the load. `matrix_load`: utilization of the matrix cores, 0 to 1.
double sustained_clock(const Parameters& parameters, MatrixType type, double matrix_load);

// The clock under full matrix load of this type; the peak if the kernel has no matrix instructions.
double full_load_clock(const Parameters& parameters, MatrixType type);

}  // namespace hipkittens::simulator::timing
