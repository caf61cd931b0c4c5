// simulator/machine/stop_request.cpp: how a running launch is told to stop.
// SPDX-License-Identifier: MIT
#include "simulator/machine/stop_request.h"

#include <immintrin.h>

#include "simulator/tile_unit/tile_unit.h"

namespace hipkittens::simulator {

bool StopRequest::ask() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    // Whoever is asked may run any code, Python's signal handlers for one: it gets the thread as the launch found it.
    constexpr unsigned initial_float_mode = 0x1f80;
    const unsigned float_mode = _mm_getcsr();
    _mm_setcsr(initial_float_mode);
    if (uses_tile_unit_) tile_unit::release_thread_tiles();
    const bool stops = should_stop_();
    if (uses_tile_unit_) tile_unit::shape_thread_tiles();
    _mm_setcsr(float_mode);
    next_ = std::chrono::steady_clock::now() + patience;
    if (stops) interrupted_ = true;
    return stops;
}

}  // namespace hipkittens::simulator
