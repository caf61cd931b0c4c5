// kernels/attention/dq_accumulator.h: dQ accumulated as integers, with the same result in any order.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "backward_arguments.h"

namespace hipkittens::attention {

using namespace kittens;

// Workgroups add to dQ in memory in whatever order they run. Floats would round differently each time; integer additions do not
// round. The unit of a query is a power of two chosen so that the whole sum cannot exceed 2^dq_bits units: as P_j >= 0 add up to
// w, which is 1, or less with a sink, |sum_j P_j (dO v_j - delta) k_j| <= max|k| w (|dO|_2 max|v|_2 + |delta|) is an upper bound
// for each element of dQ. This leaves a factor of 2 for rounded P and statistics.
inline constexpr int dq_bits = 30;

// In memory, a block of 64 queries consists of 32 x 32 tiles, first side by side along a row. A tile is stored in the order of a
// row-layout accumulator: 16 registers, each of 64 lanes.
inline constexpr int dq_tile_bytes = 32 * 32 * 4;
constexpr int dq_index(int row, int col, int width) {
    return (row / 32 * (width / 32) + col / 32) * 1024 + (col % 32 / 8 * 4 + col % 4) * 64 +
           (col / 4 % 2) * 32 + row % 32;
}

struct KeyBounds {
    float k, v;  // for a sequence and head: the largest element of K, and the largest norm of a row of V

    KITTENS_DEVICE void include(KeyBounds other) {
        k = larger(k, other.k);
        v = larger(v, other.v);
    }
    KITTENS_DEVICE void join_wave() {
        include({rotate_in_16<8>(k), rotate_in_16<8>(v)});
        include({rotate_in_16<4>(k), rotate_in_16<4>(v)});
        include({rotate_in_16<2>(k), rotate_in_16<2>(v)});
        include({rotate_in_16<1>(k), rotate_in_16<1>(v)});
        include({exchange_16(k), exchange_16(v)});
        include({exchange_32(k), exchange_32(v)});
    }
    // The bound of |dQ| of a query.
    KITTENS_DEVICE float bound(float norm, float dq_delta) const {
        return k * __builtin_fmaf(norm, v, dq_delta);
    }
};

// The first workgroups process blocks of queries, the following ones the work for the keys.
template <class Kernel>
KITTENS_DEVICE void run_blocks(const BackwardArguments& arguments) {
    const WorkgroupOrder& order = arguments.order;
    const uint32_t workgroup = workgroup_id_x(),
                   queries = static_cast<uint32_t>(order.tiles) * order.heads * order.batch;
    if (workgroup < queries)
        Kernel::of_queries(arguments, coordinate_of_workgroup(workgroup, order));
    else
        Kernel::of_keys(arguments, workgroup - queries);
}
KITTENS_DEVICE TileCoordinate block_of_keys(const BackwardArguments& arguments, uint32_t workgroup) {
    const uint32_t tiles = arguments.key_tiles, key_heads = arguments.heads / arguments.group;
    const uint32_t head_of_all = workgroup / tiles;
    return {static_cast<int>(workgroup % tiles), static_cast<int>(head_of_all % key_heads),
            static_cast<int>(head_of_all / key_heads), 0, head_of_all};
}

// The index of the first block of keys of a sequence and key head, among all blocks.
KITTENS_DEVICE int64_t first_block_of_keys(const BackwardArguments& arguments, const Sequence& sequence,
                                           int batch, int key_head) {
    const int64_t head = sequence.batch * key_head_of(arguments.heads, arguments.group) + key_head;
    return head * arguments.blocks_per_key_head +
           (arguments.packed.first_k ? sequence.first_k / statistics_block + batch : 0);
}
KITTENS_DEVICE KeyBounds* bounds_at(const BackwardArguments& arguments, const Sequence& sequence, int batch,
                                    int key_head) {
    return reinterpret_cast<KeyBounds*>(arguments.key_bounds) +
           first_block_of_keys(arguments, sequence, batch, key_head);
}
// The bounds over all its blocks, computed by one wave.
KITTENS_DEVICE KeyBounds bounds_of(const BackwardArguments& arguments, const Sequence& sequence, int batch,
                                   int key_head) {
    const KeyBounds* blocks = bounds_at(arguments, sequence, batch, key_head);
    const int count = (sequence.mask.n_k + statistics_block - 1) / statistics_block;
    KeyBounds all{0, 0};
    for (int block = lane_id(); block < count; block += wave_lanes) all.include(blocks[block]);
    all.join_wave();
    if (arguments.dropout.seed) all.v *= arguments.dropout.scale;
    return all;
}

// The exponent of a query's unit is this minus dq_bits.
KITTENS_DEVICE int bound_exponent(float bound) {
    const int exponent = binary_exponent(bound);
    return exponent < -90 ? -90 : exponent;
}

}  // namespace hipkittens::attention
