// kernels/expert_sort/move.h: moves pairs to their places, and fills the places between them.
// SPDX-License-Identifier: MIT
#pragma once
#include "counts.h"

namespace hipkittens::expert_sort {

// Processes 64 pairs, in order: a lane's place comes after those of preceding lanes with the same expert. The wave's count of an
// expert is the next place.
KITTENS_DEVICE void move_pair(const SortArguments& arguments, uint32_t pair, uint32_t past, uint32_t expert,
                              const Counts& counts) {
    const uint32_t wave = kittens::wave_id();
    const bool is_there = expert != no_expert;
    uint64_t same = kittens::lanes_where(is_there);
#pragma clang loop unroll(disable)
    for (uint32_t bit = 0; bit < arguments.id_bits; ++bit) {
        const bool is_set = expert >> bit & 1;
        const uint64_t set = kittens::lanes_where(is_set);
        same &= is_set ? set : ~set;
    }
    const uint32_t before = kittens::count_lanes_before(same);
    if (is_there) {
        const uint32_t next = counts.of_wave(wave, expert);
        if (before == 0) counts.set(wave, expert, next + static_cast<uint32_t>(__builtin_popcountll(same)));
        const uint32_t place = next + before;
        uint32_t entry = pair;
        if (arguments.packed) {
            const uint32_t token = pair / arguments.k;
            entry = (pair - token * arguments.k) << packed_token_bits | token;
        }
        ((global<int32_t>)arguments.entries)[place] = static_cast<int32_t>(entry);
        if (arguments.weights)
            ((global<float>)arguments.sorted_weights)[place] = ((global<const float>)arguments.weights)[pair];
        ((global<int32_t>)arguments.places)[pair] = static_cast<int32_t>(place);
    } else if (pair < past) {
        ((global<int32_t>)arguments.places)[pair] = -1;
    }
}

KITTENS_DEVICE void move_pairs(const SortArguments& arguments, const Pairs& pairs, const Counts& counts) {
    for (uint32_t begin = pairs.first; begin < pairs.past; begin += pairs_held * 64) {
        uint32_t experts[pairs_held];
        pairs.experts(begin, experts);
#pragma unroll
        for (int n = 0; n < pairs_held; ++n)
            if (begin + n * 64 < pairs.past)
                move_pair(arguments, begin + n * 64 + kittens::lane_id(), pairs.past, experts[n], counts);
    }
}

// Workgroup `part` of `parts` processes its share of experts, and of the places past all of them. pairs_of(expert) is the
// number of its pairs. There is nothing between experts if blocks have 1 pair and are not described.
template <class PairsOf>
KITTENS_DEVICE void fill_rest(const SortArguments& arguments, const Counts& counts, const PairsOf& pairs_of,
                              uint32_t part, uint32_t parts) {
    const uint32_t lane = kittens::lane_id(), all = counts.start(arguments.experts);
    const auto pad = [&](uint32_t place) {
        ((global<int32_t>)arguments.entries)[place] = arguments.padding;
        if (arguments.weights) ((global<float>)arguments.sorted_weights)[place] = 0.0f;
    };
    const auto describe = [&](uint32_t block, int32_t expert, int32_t left) {
        ((global<int32_t>)arguments.block_experts)[block] = expert;
        ((global<int32_t>)arguments.tokens_left)[block] = left;
    };
    const bool ragged = arguments.block == 1 && !arguments.block_experts;
    for (uint32_t expert = part * waves + kittens::wave_id(); expert < arguments.experts && !ragged;
         expert += parts * waves) {
        const uint32_t start = counts.start(expert), past = counts.start(expert + 1),
                       pairs = pairs_of(expert);
        for (uint32_t place = start + pairs + lane; place < past; place += 64) pad(place);
        if (arguments.block_experts)
            for (uint32_t block = lane; block * arguments.block < past - start; block += 64)
                describe(start / arguments.block + block, static_cast<int32_t>(expert),
                         static_cast<int32_t>(pairs - block * arguments.block));
    }
    const uint32_t thread = part * threads + kittens::thread_id();
    for (uint32_t place = all + thread; place < arguments.capacity; place += parts * threads) pad(place);
    if (arguments.block_experts)
        for (uint32_t block = all / arguments.block + thread; block < arguments.blocks;
             block += parts * threads)
            describe(block, -1, 0);
}

KITTENS_DEVICE void store_offsets(const SortArguments& arguments, const Counts& counts) {
    for (uint32_t i = kittens::thread_id(); i <= arguments.experts; i += threads)
        ((global<int32_t>)arguments.offsets)[i] = static_cast<int32_t>(counts.start(i));
    if (kittens::thread_id() == 0) {
        ((global<int32_t>)arguments.num_valid)[0] = static_cast<int32_t>(counts.start(arguments.experts));
        ((global<int32_t>)arguments.num_valid)[1] = static_cast<int32_t>(arguments.pairs / arguments.k);
    }
}

}  // namespace hipkittens::expert_sort
