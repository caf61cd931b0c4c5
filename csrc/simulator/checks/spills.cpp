// simulator/checks/spills.cpp: registers that were never written but are saved in scratch and restored from it.
// SPDX-License-Identifier: MIT
#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

namespace {

template <class Visit>
void for_each_lane(uint64_t lanes, Visit visit) {
    for (; lanes; lanes &= lanes - 1) visit(static_cast<uint32_t>(__builtin_ctzll(lanes)));
}

void save(WaveShadow& shadow, const MemoryEffects& effects, const PendingOperation* operation) {
    for (uint32_t dword = 0; dword < effects.memory_bytes / 4u; ++dword) {
        const bool is_saved = dword < effects.saved_count;
        const uint64_t written = is_saved ? defined_lanes(shadow, effects.saved_first + dword) : ~uint64_t{0};
        for_each_lane(operation->valid, [&](uint32_t lane) {
            const uint64_t address = operation->address[lane] + 4 * dword;
            if (written >> lane & 1) {
                shadow.unwritten_scratch.erase(address);
            } else {
                shadow.unwritten_scratch.insert(address);
            }
        });
    }
}

void restore(WaveShadow& shadow, const MemoryEffects& effects, const PendingOperation* operation) {
    for (uint32_t dword = 0; dword < effects.result_count; ++dword) {
        uint64_t unwritten = 0;
        for_each_lane(operation->valid, [&](uint32_t lane) {
            const bool is_unwritten = shadow.unwritten_scratch.count(operation->address[lane] + 4 * dword);
            unwritten |= uint64_t{is_unwritten} << lane;
        });
        if (unwritten) undefine(shadow, effects.result_first + dword, unwritten);
    }
}

}  // namespace

void follow_spill(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    WaveShadow& shadow = *wave->shadow;
    if (effects.writes_memory) {
        bool is_any_unwritten = !shadow.unwritten_scratch.empty();
        for (uint32_t number = effects.saved_first; number < effects.saved_first + effects.saved_count;
             ++number)
            is_any_unwritten |= ~defined_lanes(shadow, number) != 0;
        if (is_any_unwritten) save(shadow, effects, operation);
    } else if (!effects.to_lds && !shadow.unwritten_scratch.empty()) {
        restore(shadow, effects, operation);
    }
}

}  // namespace hipkittens::simulator::checks
