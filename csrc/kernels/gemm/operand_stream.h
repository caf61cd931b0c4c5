// kernels/gemm/operand_stream.h: direct loads of an operand, where workgroups differ in which of the two it is.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

// Of the workgroups that share rows of A or columns of B, half load A first and half B: a line is fetched from memory
// for one half of them, and in L2 when the others ask. The loads of a compute unit return in order, so that one from
// memory holds up those behind it: each of both kinds stays among its own.
KITTENS_DEVICE bool loads_a_first(WorkgroupPlace place, const GemmConfig& config) {
    return (place.m / config.tile_m + place.n / config.tile_n) % 2 == 0;
}

KITTENS_DEVICE kittens::buffer chosen(bool first, kittens::buffer one, kittens::buffer other) {
    return {first ? one.base : other.base, first ? one.bytes : other.bytes,
            first ? one.scalar_offset : other.scalar_offset};
}

// Both operands are loaded alike; a K tile of each is `pieces` tiles in LDS.
template <class A, class B, int pieces>
struct OperandStream {
    static constexpr int passes = A::Loads::passes, tile_bytes = A::Tile::bytes;
    static_assert(A::fill == kittens::Fill::direct && B::Loads::passes == passes &&
                      B::Tile::bytes == tile_bytes,
                  "the operands are loaded alike");
    using Tile = typename A::Tile;

    kittens::buffer view;
    typename A::Loads loads;
    uint32_t step;
    int left;  // tiles not yet begun to load, after the first of the range
    uint32_t offsets[pieces][passes];
    uint32_t first_offsets[pieces][passes];  // of the range's first tile, which K may cut
    kittens::buffer first_view;
    kittens::shared_byte* tiles;

    KITTENS_DEVICE void init_offsets(bool is_a, const A (&a)[pieces], const B (&b)[pieces],
                                     const RunningViews<A, B>& views, kittens::buffer a_first,
                                     kittens::buffer b_first, kittens::shared_byte* a_tiles,
                                     kittens::shared_byte* b_tiles, KRange range) {
        view = chosen(is_a, views.a, views.b);
        step = is_a ? views.a_step : views.b_step;
        tiles = is_a ? a_tiles : b_tiles;
        left = range.count() - 1;
        loads.wave = a[0].loads.wave;
        first_view = chosen(is_a, A::Loads::prepared(a_first), B::Loads::prepared(b_first));
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            uint32_t of_a[passes], of_b[passes];
            a[piece].mask(of_a, range.valid_k);
            b[piece].mask(of_b, range.valid_k);
#pragma unroll
            for (int pass = 0; pass < passes; ++pass) {
                offsets[piece][pass] = is_a ? a[piece].loads.offsets[pass] : b[piece].loads.offsets[pass];
                first_offsets[piece][pass] = is_a ? of_a[pass] : of_b[pass];
            }
        }
    }
    KITTENS_DEVICE Tile tile(int buffer, int piece) const {
        return {tiles + (buffer * pieces + piece) * tile_bytes};
    }
    KITTENS_DEVICE void issue_first(int piece) {
        loads.issue_at(first_view, tile(0, piece), first_offsets[piece]);
    }
    template <int piece, bool steady>
    KITTENS_DEVICE void issue(int buffer) {
        loads.issue_at(view, tile(buffer, piece), offsets[piece]);
        if constexpr (piece == pieces - 1) advance<steady>();
    }

  private:
    KITTENS_DEVICE void close() { view.bytes = view.scalar_offset = step = 0; }
    template <bool steady>
    KITTENS_DEVICE void advance() {
        view.scalar_offset += step;
        if constexpr (!steady)
            if (left == 1) close();
        --left;
    }
};

struct no_stream {};
template <class A, class B, int pieces, bool wanted>
struct stream_of {
    using type = no_stream;
};
template <class A, class B, int pieces>
struct stream_of<A, B, pieces, true> {
    using type = OperandStream<A, B, pieces>;
};

}  // namespace hipkittens::gemm
