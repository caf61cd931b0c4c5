// simulator/timing/clock.cpp: the clock at which a chip runs a kernel within its power limit.
// SPDX-License-Identifier: MIT
#include "simulator/timing/clock.h"

#include <algorithm>

namespace hipkittens::simulator::timing {

double full_load_clock(const Parameters& parameters, MatrixType type) {
    switch (type) {
        case MatrixType::none:
            return parameters.clock_peak;
        case MatrixType::f16:
            return parameters.clock_matrix_f16;
        case MatrixType::bf16:
            return parameters.clock_matrix_bf16;
        case MatrixType::f8:
            return parameters.clock_matrix_f8;
        case MatrixType::f4:
            return parameters.clock_matrix_f4;
        case MatrixType::other:
            return parameters.clock_matrix_other;
    }
    return parameters.clock_peak;
}

double sustained_clock(const Parameters& parameters, MatrixType type, double matrix_load) {
    const double peak = parameters.clock_peak, full = std::min(peak, full_load_clock(parameters, type));
    const double span = parameters.clock_full_load - parameters.clock_idle_load;
    const double share =
        span > 0 ? std::clamp((matrix_load - parameters.clock_idle_load) / span, 0.0, 1.0) : 1.0;
    return 1 / ((1 - share) / peak + share / full);
}

}  // namespace hipkittens::simulator::timing
