// tiles/pipeline.h: how many loads may still be under way at a wait, computed from the stages of a tile.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

// A piece of a tile that is loaded and read as one. Phases count from the beginning of a tile; a piece is
// issued `ahead` tiles before the one that reads it.
struct PipelineStage {
    int issued_in;  // phase, 0 .. phases-1
    int read_in;
    int ahead;
    int loads;  // per wave
};

template <int Stages>
struct Pipeline {
    int phases;
    PipelineStage stages[Stages];

    constexpr int issue_time(int stage, int tile) const {
        return (tile - stages[stage].ahead) * phases + stages[stage].issued_in;
    }
    // Waves wait at the end of the phase before the one that reads: the barrier after it publishes every
    // wave's share. Loads return in order, so everything issued after the youngest piece needed may stay
    // under way. Returns -1 when the next phase needs nothing new.
    constexpr int outstanding_after(int phase) const {
        const int tile = 64, now = tile * phases + phase;  // far enough from the beginning for a steady state
        int youngest_time = -1, youngest_stage = -1;
        for (int stage = 0; stage < Stages; ++stage)
            for (int t = tile; t <= tile + 1; ++t)
                if (t * phases + stages[stage].read_in == now + 1 && issue_time(stage, t) >= youngest_time) {
                    youngest_time = issue_time(stage, t);
                    youngest_stage = stage;
                }
        if (youngest_stage < 0) return -1;
        if (youngest_time > now) return -2;  // read before it is issued: no wait can help
        int outstanding = 0;
        for (int stage = 0; stage < Stages; ++stage)
            for (int t = tile - 8; t <= tile + 8; ++t) {
                const int time = issue_time(stage, t);
                if (time <= now &&
                    (time > youngest_time || (time == youngest_time && stage > youngest_stage)))
                    outstanding += stages[stage].loads;
            }
        return outstanding;
    }
};

static_assert(Pipeline<1>{1, {{0, 0, 1, 4}}}.outstanding_after(0) == 0, "one buffer ahead: wait for all");
static_assert(Pipeline<1>{1, {{0, 0, 2, 4}}}.outstanding_after(0) == 4,
              "two ahead: one tile stays under way");

}  // namespace kittens
