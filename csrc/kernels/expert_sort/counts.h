// kernels/expert_sort/counts.h: counts of experts in LDS, and the places that follow from them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/scan_intrinsics.h"
#include "kinds.h"

namespace hipkittens::expert_sort {

template <class V>
using global = __attribute__((address_space(1))) V*;

inline constexpr uint32_t no_expert = ~0u;

// Workgroups share the pairs in segments, waves share a segment; both in the order of pairs. So many times 64 pairs are loaded at
// a time.
inline constexpr int pairs_held = 4;

class Pairs {
    const SortArguments& arguments_;

  public:
    uint32_t first, past;  // of this wave

    KITTENS_DEVICE Pairs(const SortArguments& arguments, uint32_t segment) : arguments_(arguments) {
        first = (segment * waves + kittens::wave_id()) * arguments.wave_pairs;
        past = first + arguments.wave_pairs;
        if (past > arguments.pairs) past = arguments.pairs;
    }
    // Those of the lane: pair begin + 64 n + lane, no_expert behind the wave's last pair.
    KITTENS_DEVICE void experts(uint32_t begin, uint32_t (&found)[pairs_held]) const {
        const kittens::buffer ids = {reinterpret_cast<const char*>(arguments_.ids), arguments_.pairs * 4};
        const uint32_t pair = begin + kittens::lane_id();
#pragma unroll
        for (int n = 0; n < pairs_held; ++n)
            found[n] = kittens::buffer_load<uint32_t>(ids, (pair + n * 64) * 4);
        if (__builtin_expect(arguments_.expert_map != nullptr, false)) {
            const kittens::buffer map = {reinterpret_cast<const char*>(arguments_.expert_map),
                                         arguments_.mapped_ids * 4};
#pragma unroll
            for (int n = 0; n < pairs_held; ++n) {
                const bool is_known = found[n] < arguments_.mapped_ids;
                const uint32_t local = kittens::buffer_load<uint32_t>(map, is_known ? found[n] * 4 : 0);
                found[n] = is_known ? local : no_expert;
            }
        }
#pragma unroll
        for (int n = 0; n < pairs_held; ++n)
            if (pair + n * 64 >= past || found[n] >= arguments_.experts) found[n] = no_expert;
    }
};

class Counts {
    kittens::shared_byte* lds_;
    uint32_t experts_;

    KITTENS_DEVICE kittens::shared_byte* slot(uint32_t wave, uint32_t expert) const {
        return lds_ + (wave * experts_ + expert) * 4;
    }
    KITTENS_DEVICE kittens::shared_byte* start_slot(uint32_t expert) const {
        return lds_ + (waves * experts_ + expert) * 4;
    }

  public:
    // The counts of waves, the first place of each expert and the one past the last, and a sum of each wave.
    static constexpr int lds_bytes = (waves * most_experts + most_experts + 1 + waves) * 4;

    KITTENS_DEVICE Counts(kittens::shared_byte* lds, uint32_t experts) : lds_(lds), experts_(experts) {}

    // Of a wave, and after `add_waves` those of the waves before it.
    KITTENS_DEVICE uint32_t of_wave(uint32_t wave, uint32_t expert) const {
        return kittens::lds_read<uint32_t>(slot(wave, expert));
    }
    KITTENS_DEVICE void set(uint32_t wave, uint32_t expert, uint32_t count) const {
        kittens::lds_write(count, slot(wave, expert));
    }
    KITTENS_DEVICE uint32_t start(uint32_t expert) const {
        return kittens::lds_read<uint32_t>(start_slot(expert));
    }
    KITTENS_DEVICE void set_start(uint32_t expert, uint32_t place) const {
        kittens::lds_write(place, start_slot(expert));
    }

    // Visits every expert, each from one thread.
    template <class Visit>
    KITTENS_DEVICE void each(const Visit& visit) const {
        for (uint32_t expert = kittens::thread_id(); expert < experts_; expert += threads) visit(expert);
    }

    KITTENS_DEVICE void count(const Pairs& pairs) const {
        for (uint32_t i = kittens::thread_id(); i < waves * experts_; i += threads)
            kittens::lds_write(0u, lds_ + i * 4);
        kittens::barrier();
        const uint32_t wave = kittens::wave_id();
        for (uint32_t begin = pairs.first; begin < pairs.past; begin += pairs_held * 64) {
            uint32_t experts[pairs_held];
            pairs.experts(begin, experts);
#pragma unroll
            for (int n = 0; n < pairs_held; ++n)
                if (experts[n] != no_expert)
                    __hip_atomic_fetch_add((kittens::shared_pointer<uint32_t>)slot(wave, experts[n]), 1u,
                                           __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
        }
        kittens::barrier();
    }
    // Leaves in each wave's count those of the waves before it. Returns the sum.
    KITTENS_DEVICE uint32_t add_waves(uint32_t expert) const {
        uint32_t before = 0;
#pragma unroll
        for (int wave = 0; wave < waves; ++wave) {
            const uint32_t count = of_wave(wave, expert);
            set(wave, expert, before);
            before += count;
        }
        return before;
    }
    // Each expert's start from the room that it takes, `room` of an expert. All threads call it, with a barrier before and after.
    template <class Room>
    KITTENS_DEVICE void set_starts(const Room& room) const {
        const uint32_t each = (experts_ + threads - 1) / threads, first = kittens::thread_id() * each;
        uint32_t mine = 0;
        for (uint32_t i = 0; i < each; ++i)
            if (first + i < experts_) mine += room(first + i);
        const uint32_t up_to_lane = kittens::inclusive_sum(mine);
        kittens::shared_byte* sums = start_slot(most_experts + 1);
        if (kittens::lane_id() == 63) kittens::lds_write(up_to_lane, sums + kittens::wave_id() * 4);
        kittens::barrier();
        uint32_t place = up_to_lane - mine;
        for (int wave = 0; wave < kittens::wave_id(); ++wave)
            place += kittens::lds_read<uint32_t>(sums + wave * 4);
        for (uint32_t i = 0; i < each; ++i)
            if (first + i < experts_) {
                const uint32_t taken = room(first + i);  // which may be told by what is there
                set_start(first + i, place);
                place += taken;
                if (first + i + 1 == experts_) set_start(experts_, place);
            }
        kittens::barrier();
    }
};

}  // namespace hipkittens::expert_sort
