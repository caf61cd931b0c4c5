// kernels/attention/staged_queries.h: moves Q through LDS to registers, so that loads cover whole cache lines.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_tiles.h"

namespace hipkittens::attention {

// 32 queries per wave. A wave loads only its own, with 16 lanes per row instead of two, and waits for no other wave.
template <class T, int waves, int head_dim>
struct StagedQueries {
    static constexpr int queries = 32;
    using Tile = st<T, waves * queries, head_dim, Access::rows>;
    using Loads = global_to_shared<Tile, waves * wave_lanes, forward_fill>;
    using Reader = base_tile_reader<T, row_l, rt_32x16, st<T, queries, head_dim, Access::rows>>;
    static constexpr int bytes = Tile::bytes;

    KITTENS_DEVICE static void issue(const global_matrix<const T>& source, int first_query,
                                     shared_byte* lds) {
        const bool inside = first_query < source.rows;
        buffer from = source.window(inside ? first_query : 0, 0).view();
        if (!inside) from.bytes = 0;
        Loads loads;
        const auto row_bytes = static_cast<uint32_t>(source.row_bytes());
        loads.init_offsets_of([=](int row) KITTENS_INLINE { return row % queries * row_bytes; });
        skip_columns(loads, source.cols);
        loads.issue(from, {lds});
    }
    // `in_flight`: number of loads issued since. `sign`: bits to flip in every pair of elements.
    template <int in_flight, class Query, int pieces>
    KITTENS_DEVICE static void read(Query (&query)[pieces], uint32_t sign, shared_byte* lds) {
        wait_vector_memory<in_flight>();
        const Reader reader(lds + wave_id() * (bytes / waves));
        for_each_index<head_dim / 16>([&](auto at) KITTENS_INLINE {
            const auto values = __builtin_bit_cast(b128, reader.template read<0, at.value * 16>()) ^ sign;
            query[at.value / 2].tiles[0][at.value % 2] = __builtin_bit_cast(typename Query::fragment, values);
        });
        wait_lds<0>();
    }
};

}  // namespace hipkittens::attention
