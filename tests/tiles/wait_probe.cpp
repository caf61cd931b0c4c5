// tests/tiles/wait_probe.cpp: how many loads a wait may leave in flight, as a C function for ctypes.
// SPDX-License-Identifier: MIT
#include "tiles/wait_counts.h"

// Four stages of {issued, needed, ahead, loads}.
extern "C" int probe_in_flight(int slots, int wait, int until_next, const int* stages) {
    kittens::load_pipeline<4> pipeline{slots, {}};
    for (int i = 0; i < 4; ++i)
        pipeline.stages[i] = {stages[4 * i], stages[4 * i + 1], stages[4 * i + 2], stages[4 * i + 3]};
    return pipeline.in_flight(wait, until_next);
}
