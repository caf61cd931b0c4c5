// simulator/machine/stop_request.cpp: how a running launch is stopped.
// SPDX-License-Identifier: MIT
#include "simulator/machine/stop_request.h"

#include <immintrin.h>

#include "simulator/tile_unit/tile_unit.h"

namespace hipkittens::simulator {

bool StopRequest::ask() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    // The polled function may run any code, for example Python's signal handlers: it gets the thread in its
    // original mode.
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
