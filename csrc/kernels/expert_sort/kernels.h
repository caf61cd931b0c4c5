// kernels/expert_sort/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "move.h"

namespace hipkittens::expert_sort {

// A workgroup that has counts of experts in LDS.
struct CountingWorkgroup {
    static constexpr int threads = expert_sort::threads, lds_bytes = Counts::lds_bytes;
    static constexpr int waves_per_simd = waves / 4;

    KITTENS_DEVICE static uint32_t room(uint32_t pairs, uint32_t block) {
        return (pairs + block - 1) / block * block;
    }
};

template <NoConfig config>
struct SortAll : CountingWorkgroup {
    KITTENS_DEVICE static void run(const SortArguments& arguments, kittens::shared_byte* lds) {
        const Counts counts(lds, arguments.experts);
        const Pairs pairs(arguments, 0);
        counts.count(pairs);
        // Until the starts are known, each expert's pairs stand in their place.
        counts.each([&](uint32_t expert) { counts.set_start(expert, counts.add_waves(expert)); });
        kittens::barrier();
        counts.set_starts([&](uint32_t expert) { return room(counts.start(expert), arguments.block); });
        counts.each([&](uint32_t expert) {
            const uint32_t start = counts.start(expert);
            for (int wave = 0; wave < waves; ++wave)
                counts.set(wave, expert, counts.of_wave(wave, expert) + start);
        });
        kittens::barrier();
        move_pairs(arguments, pairs, counts);
        store_offsets(arguments, counts);
        kittens::barrier();
        // The last wave's next place is behind all pairs of the expert.
        fill_rest(
            arguments, counts,
            [&](uint32_t expert) { return counts.of_wave(waves - 1, expert) - counts.start(expert); }, 0, 1);
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

// Leaves in each segment's count those of the segments before it.
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
        counts.set_starts([&](uint32_t expert) { return room(counts.start(expert), arguments.block); });
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
            arguments.segments);
    }
};

}  // namespace hipkittens::expert_sort
