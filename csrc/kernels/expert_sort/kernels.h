// kernels/expert_sort/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "move.h"

namespace hipkittens::expert_sort {

// A workgroup with counts of experts in LDS.
struct CountingWorkgroup {
    static constexpr int threads = expert_sort::threads, lds_bytes = Counts::lds_bytes;
    static constexpr int waves_per_simd = waves / 4;

    KITTENS_DEVICE static uint32_t room(uint32_t pairs, uint32_t block) {
        return (pairs + block - 1) / block * block;
    }
};

// Each workgroup counts all pairs, so that none waits for another, and moves a share of them, 64 per wave.
template <NoConfig config>
struct SortAll : CountingWorkgroup {
    KITTENS_DEVICE static void run(const SortArguments& arguments, kittens::shared_byte* lds) {
        const Counts counts(lds, arguments.experts);
        const uint32_t part = kittens::workgroup_id_x(), first = part * threads;
        const Pairs pairs(arguments, part);
        uint32_t mine[1];
        pairs.experts(pairs.first, mine);
        counts.clear();
        counts.count_others(pairs, arguments.pairs, first, first + threads);
        counts.add(1 + kittens::wave_id(), mine);
        kittens::barrier();
        counts.set_places([&](uint32_t count) { return room(count, arguments.block); });
        move_pair(arguments, pairs.first + kittens::lane_id(), pairs.past, mine[0], counts);
        if (part == 0) store_offsets(arguments, counts);
        fill_rest(
            arguments, counts, [&](uint32_t expert) { return counts.total(expert); }, part,
            arguments.workgroups);
    }
};

template <NoConfig config>
struct CountSegment : CountingWorkgroup {
    KITTENS_DEVICE static void run(const SortArguments& arguments, kittens::shared_byte* lds) {
        const Counts counts(lds, arguments.experts);
        const uint32_t segment = kittens::workgroup_id_x();
        counts.count(Pairs(arguments, segment));
        counts.each([&](uint32_t expert) {
            ((global<int32_t>)arguments.segment_counts)[segment * arguments.experts + expert] =
                static_cast<int32_t>(counts.add_waves(expert));
        });
    }
};

// Replaces each segment's counts by the sums over the preceding segments.
template <NoConfig config>
struct AddCounts : CountingWorkgroup {
    KITTENS_DEVICE static void run(const SortArguments& arguments, kittens::shared_byte* lds) {
        const Counts counts(lds, arguments.experts);
        counts.each([&](uint32_t expert) {
            auto* of_segment = (global<int32_t>)arguments.segment_counts + expert;
            uint32_t before = 0;
#pragma unroll 8
            for (uint32_t segment = 0; segment < arguments.segments; ++segment) {
                const uint32_t count = static_cast<uint32_t>(of_segment[segment * arguments.experts]);
                of_segment[segment * arguments.experts] = static_cast<int32_t>(before);
                before += count;
            }
            of_segment[arguments.segments * arguments.experts] = static_cast<int32_t>(before);
            counts.set_start(expert, before);
        });
        kittens::barrier();
        counts.set_starts([&](uint32_t expert) { return room(counts.start(expert), arguments.block); },
                          [&](uint32_t expert, uint32_t place) { counts.set_start(expert, place); });
        store_offsets(arguments, counts);
    }
};

template <NoConfig config>
struct MoveSegment : CountingWorkgroup {
    KITTENS_DEVICE static void run(const SortArguments& arguments, kittens::shared_byte* lds) {
        const Counts counts(lds, arguments.experts);
        const uint32_t segment = kittens::workgroup_id_x();
        const auto stored = [&](const int32_t* from, uint32_t at) {
            return static_cast<uint32_t>(((global<const int32_t>)from)[at]);
        };
        const Pairs pairs(arguments, segment);
        counts.count(pairs);
        counts.each([&](uint32_t expert) {
            counts.add_waves(expert);
            const uint32_t start = stored(arguments.offsets, expert);
            const uint32_t before =
                start + stored(arguments.segment_counts, segment * arguments.experts + expert);
            for (int wave = 0; wave < waves; ++wave)
                counts.set(wave, expert, counts.of_wave(wave, expert) + before);
            counts.set_start(expert, start);
            if (expert == 0)
                counts.set_start(arguments.experts, stored(arguments.offsets, arguments.experts));
        });
        kittens::barrier();
        move_pairs(arguments, pairs, counts);
        const uint32_t totals = arguments.segments * arguments.experts;
        fill_rest(
            arguments, counts,
            [&](uint32_t expert) { return stored(arguments.segment_counts, totals + expert); }, segment,
            arguments.workgroups);
    }
};

}  // namespace hipkittens::expert_sort
