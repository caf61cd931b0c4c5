// tiles/wait_counts.h: how many loads may be in flight at an s_waitcnt, derived from where a loop issues and needs them.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

// s_waitcnt of gfx9: vmcnt in bits 3:0 and 15:14, expcnt in 6:4, lgkmcnt in 11:8.
constexpr int wait_immediate(int vector_memory, int lds) {
    return (vector_memory & 15) | (vector_memory >> 4 & 3) << 14 | 7 << 4 | (lds & 15) << 8;
}
inline constexpr int any_vector_memory = 63, any_lds = 15;

// Loads that one iteration of a loop issues in slot `issued` (a phase of ping_pong, a matrix step of interleave) for the
// iteration `ahead` later, where they are needed from slot `needed` on. Slot numbers past the end of the body wrap to its
// beginning; a negative one is in the previous iteration.
struct load_stage {
    int issued, needed, ahead, loads;  // loads: what they add to vmcnt of one wave
};

// A wave's loads return in order (CDNA3 ISA manual 4.4), so a wait specifies how many of the most recent ones may be in flight.
template <int Stages>
struct load_pipeline {
    int slots;
    load_stage stages[Stages];

    // At a wait in slot `wait`, placed after what that slot issues: everything needed in the next `until_next` slots, up to the
    // slot of the following wait, must be complete; loads issued after the youngest of these may be in flight. Returns
    // any_vector_memory if nothing new is needed, and -1 if something is needed before it is issued, so that no wait can help.
    constexpr int in_flight(int wait, int until_next = 1) const {
        const int iteration = 64, now = iteration * slots + wait;  // far enough from the first one
        int youngest = -1, youngest_stage = -1;
        for_each_load(iteration, [&](int stage, int issue_time, int need_time) {
            if (need_time > now && need_time <= now + until_next &&
                (issue_time > youngest || (issue_time == youngest && stage > youngest_stage))) {
                youngest = issue_time;
                youngest_stage = stage;
            }
        });
        if (youngest_stage < 0) return any_vector_memory;
        if (youngest > now) return -1;
        int count = 0;
        for_each_load(iteration, [&](int stage, int issue_time, int) {
            if (issue_time <= now &&
                (issue_time > youngest || (issue_time == youngest && stage > youngest_stage)))
                count += stages[stage].loads;
        });
        return count;
    }

  private:
    template <class Use>
    constexpr void for_each_load(int iteration, const Use& use) const {
        for (int t = iteration - 16; t <= iteration + 16; ++t)
            for (int stage = 0; stage < Stages; ++stage)
                if (stages[stage].loads > 0)
                    use(stage, (t - stages[stage].ahead) * slots + stages[stage].issued,
                        t * slots + stages[stage].needed);
    }
};

static_assert(load_pipeline<1>{1, {{0, 0, 1, 4}}}.in_flight(0) == 0,
              "one tile ahead: nothing may be in flight");
static_assert(load_pipeline<1>{1, {{0, 0, 2, 4}}}.in_flight(0) == 4, "two ahead: one tile stays in flight");
static_assert(load_pipeline<1>{1, {{0, 0, 0, 4}}}.in_flight(0) == -1 ||
                  load_pipeline<1>{2, {{1, 1, 0, 4}}}.in_flight(0) == -1,
              "needed before it is issued");

}  // namespace kittens
