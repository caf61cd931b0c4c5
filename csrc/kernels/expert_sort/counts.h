// kernels/expert_sort/counts.h: counts of experts in LDS, and the places derived from them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/scan_intrinsics.h"
#include "kinds.h"

namespace hipkittens::expert_sort {

template <class V>
using global = __attribute__((address_space(1))) V*;

inline constexpr uint32_t no_expert = ~0u;

// Workgroups divide the pairs into segments, and waves divide a segment; both in the order of pairs. This many times 64 pairs are
// loaded at a time.
inline constexpr int pairs_held = 4;

class Pairs {
    const SortArguments& arguments_;

    // Maps ids to local expert indices.
    template <int count>
    KITTENS_DEVICE void translate(uint32_t (&found)[count]) const {
        if (__builtin_expect(arguments_.expert_map != nullptr, false)) {
            const kittens::buffer map = {reinterpret_cast<const char*>(arguments_.expert_map),
                                         arguments_.mapped_ids * 4};
#pragma unroll
            for (int n = 0; n < count; ++n) {
                const bool is_known = found[n] < arguments_.mapped_ids;
                const uint32_t local = kittens::buffer_load<uint32_t>(map, is_known ? found[n] * 4 : 0);
                found[n] = is_known ? local : no_expert;
            }
        }
#pragma unroll
        for (int n = 0; n < count; ++n)
            if (found[n] >= arguments_.experts) found[n] = no_expert;
    }
    KITTENS_DEVICE kittens::buffer ids() const {
        return {reinterpret_cast<const char*>(arguments_.ids), arguments_.pairs * 4};
    }

  public:
    uint32_t first, past;  // of this wave

    KITTENS_DEVICE Pairs(const SortArguments& arguments, uint32_t segment) : arguments_(arguments) {
        first = (segment * waves + kittens::wave_id()) * arguments.wave_pairs;
        past = first + arguments.wave_pairs;
        if (past > arguments.pairs) past = arguments.pairs;
    }
    // The experts of the lane's pairs: pair begin + 64 n + lane; no_expert past the wave's last pair.
    template <int count>
    KITTENS_DEVICE void experts(uint32_t begin, uint32_t (&found)[count]) const {
        const uint32_t pair = begin + kittens::lane_id();
#pragma unroll
        for (int n = 0; n < count; ++n) found[n] = kittens::buffer_load<uint32_t>(ids(), (pair + n * 64) * 4);
        translate(found);
#pragma unroll
        for (int n = 0; n < count; ++n)
            if (pair + n * 64 >= past) found[n] = no_expert;
    }
    // Pairs of any wave: the experts of four pairs starting at each of first + n step.
    template <int quads>
    KITTENS_DEVICE void experts_in_fours(uint32_t first_pair, uint32_t step,
                                         uint32_t (&found)[quads * 4]) const {
        kittens::vec<uint32_t, 4> four[quads];
#pragma unroll
        for (int n = 0; n < quads; ++n)
            four[n] = kittens::buffer_load<kittens::vec<uint32_t, 4>>(ids(), (first_pair + n * step) * 4);
#pragma unroll
        for (int i = 0; i < quads * 4; ++i) found[i] = four[i / 4][i % 4];
        translate(found);
#pragma unroll
        for (int i = 0; i < quads * 4; ++i)
            if (first_pair + i / 4 * step + i % 4 >= arguments_.pairs) found[i] = no_expert;
    }
};

// Slots with one count per expert: one for the pairs before the workgroup's, one per wave, and one for the pairs after. The last one
// is later overwritten with the place where each expert begins.
class Counts {
    kittens::shared_byte* lds_;
    uint32_t experts_;

    KITTENS_DEVICE kittens::shared_byte* slot(uint32_t number, uint32_t expert) const {
        return lds_ + (number * experts_ + expert) * 4;
    }
    KITTENS_DEVICE uint32_t get(uint32_t number, uint32_t expert) const {
        return kittens::lds_read<uint32_t>(slot(number, expert));
    }
    KITTENS_DEVICE void put(uint32_t number, uint32_t expert, uint32_t count) const {
        kittens::lds_write(count, slot(number, expert));
    }

  public:
    static constexpr uint32_t before = 0, behind = waves + 1, slots = waves + 2;
    // These slots, the place past the last one, and one sum per wave.
    static constexpr int lds_bytes = (slots * most_experts + 1 + waves) * 4;

    KITTENS_DEVICE Counts(kittens::shared_byte* lds, uint32_t experts) : lds_(lds), experts_(experts) {}

    // The count of a wave; after `add_waves`, that of the preceding waves.
    KITTENS_DEVICE uint32_t of_wave(uint32_t wave, uint32_t expert) const { return get(1 + wave, expert); }
    KITTENS_DEVICE void set(uint32_t wave, uint32_t expert, uint32_t count) const {
        put(1 + wave, expert, count);
    }
    KITTENS_DEVICE uint32_t start(uint32_t expert) const { return get(behind, expert); }
    KITTENS_DEVICE void set_start(uint32_t expert, uint32_t place) const { put(behind, expert, place); }
    // Valid after `set_places`.
    KITTENS_DEVICE uint32_t total(uint32_t expert) const { return get(before, expert); }

    // Visits every expert, each from one thread.
    template <class Visit>
    KITTENS_DEVICE void each(const Visit& visit) const {
        for (uint32_t expert = kittens::thread_id(); expert < experts_; expert += threads) visit(expert);
    }

    KITTENS_DEVICE void clear() const {
        for (uint32_t i = kittens::thread_id(); i < slots * experts_; i += threads)
            kittens::lds_write(0u, lds_ + i * 4);
        kittens::barrier();
    }
    template <int count>
    KITTENS_DEVICE void add(uint32_t number, const uint32_t (&experts)[count]) const {
#pragma unroll
        for (int n = 0; n < count; ++n)
            if (experts[n] != no_expert)
                __hip_atomic_fetch_add((kittens::shared_pointer<uint32_t>)slot(number, experts[n]), 1u,
                                       __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    }
    // Counts the pairs of the waves.
    KITTENS_DEVICE void count(const Pairs& pairs) const {
        clear();
        for (uint32_t begin = pairs.first; begin < pairs.past; begin += pairs_held * 64) {
            uint32_t experts[pairs_held];
            pairs.experts(begin, experts);
            add(1 + kittens::wave_id(), experts);
        }
        kittens::barrier();
    }
    // Counts all pairs except first to past, which are the workgroup's; both are multiples of 4.
    KITTENS_DEVICE void count_others(const Pairs& pairs, uint32_t all, uint32_t first, uint32_t past) const {
        constexpr uint32_t quads = 4, step = threads * 4;
        for (uint32_t begin = kittens::thread_id() * 4; begin < all; begin += quads * step) {
            uint32_t experts[quads * 4];
            pairs.experts_in_fours<quads>(begin, step, experts);
#pragma unroll
            for (uint32_t n = 0; n < quads; ++n) {
                const uint32_t pair = begin + n * step;
                const uint32_t four[] = {experts[n * 4], experts[n * 4 + 1], experts[n * 4 + 2],
                                         experts[n * 4 + 3]};
                if (pair < first || pair >= past) add(pair < first ? before : behind, four);
            }
        }
    }
    // Replaces each wave's count by the sum over the preceding waves. Returns the total.
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
    // Computes each expert's start from the space it takes, room(expert), and calls store(expert, start); `room` is called again right
    // before that. All threads call this function, with a barrier before and after.
    template <class Room, class Store>
    KITTENS_DEVICE void set_starts(const Room& room, const Store& store) const {
        const uint32_t each = (experts_ + threads - 1) / threads, first = kittens::thread_id() * each;
        uint32_t mine = 0;
        for (uint32_t i = 0; i < each; ++i)
            if (first + i < experts_) mine += room(first + i);
        const uint32_t up_to_lane = kittens::inclusive_sum(mine);
        kittens::shared_byte* sums = lds_ + (slots * most_experts + 1) * 4;
        if (kittens::lane_id() == 63) kittens::lds_write(up_to_lane, sums + kittens::wave_id() * 4);
        kittens::barrier();
        uint32_t place = up_to_lane - mine;
#pragma unroll
        for (int wave = 0; wave < waves; ++wave) {
            const uint32_t sum = kittens::lds_read<uint32_t>(sums + wave * 4);
            place += wave < kittens::wave_id() ? sum : 0;
        }
        for (uint32_t i = 0; i < each; ++i)
            if (first + i < experts_) {
                const uint32_t taken = room(first + i);
                store(first + i, place);
                place += taken;
                if (first + i + 1 == experts_) set_start(experts_, place);
            }
        kittens::barrier();
    }
    // Converts all slots to the first place of each wave's pairs and of each expert.
    template <class Room>
    KITTENS_DEVICE void set_places(const Room& room) const {
        const auto sum = [&](uint32_t expert) {
            uint32_t result = 0;
#pragma unroll
            for (uint32_t number = 0; number < slots; ++number) result += get(number, expert);
            return result;
        };
        set_starts([&](uint32_t expert) { return room(sum(expert)); },
                   [&](uint32_t expert, uint32_t place) {
                       uint32_t counts[slots], next = place;
#pragma unroll
                       for (uint32_t number = 0; number < slots; ++number)
                           counts[number] = get(number, expert);
#pragma unroll
                       for (uint32_t number = 0; number < behind; ++number) {
                           put(number, expert, next);
                           next += counts[number];
                       }
                       put(before, expert, next + counts[behind] - place);
                       set_start(expert, place);
                   });
    }
};

}  // namespace hipkittens::expert_sort
