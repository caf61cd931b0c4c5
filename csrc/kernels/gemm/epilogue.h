// kernels/gemm/epilogue.h: processes the accumulators before they are stored, as a chain of stages.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"
#include "product_stores.h"

namespace hipkittens::gemm {

// What a workgroup computes: its tile begins at row m, column n of the product.
struct TileCoordinate {
    int m, n, split;
    int64_t batch;
    int first_row = 0,
        past_row = 0;  // rows first_row .. past_row - 1 are the group of rows that the tile belongs to
};

// Calls use(T()) for the T of a type known only at run time: one branch, outside of the loops over elements.
template <class Use>
KITTENS_DEVICE void with_element(ElementType type, const Use& use) {
    if (type == ElementType::f32)
        use(float());
    else if (type == ElementType::bf16)
        use(bf16());
    else
        use(half());
}

// For the types that with_element supports.
KITTENS_DEVICE uint32_t element_bytes(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

KITTENS_DEVICE buffer bias_buffer(const void* bias, ElementType type, int n) {
    return {static_cast<const char*>(bias), static_cast<uint32_t>(n) * element_bytes(type)};
}

// The position of a wave's bands: the first begins at (row, col) of the tile, the others are row_step and col_step apart.
struct EpiloguePlace {
    TileCoordinate tile;
    int row, col, row_step, col_step;
};

// LDS of a wave with no load to it in flight.
template <int bytes_>
struct WaveMemory {
    static constexpr int bytes = bytes_;
    shared_byte* lds;
};

// A stage: apply(bands, arguments, place, memory) modifies the accumulators of a wave's bands. The presence of optional
// arguments is tested once, not per element.
struct AddBias {
    template <class Accumulator, int down, int across, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                                     EpiloguePlace place, Memory) {
        if (!arguments.bias) [[likely]]
            return;
        using Shape = typename Accumulator::shape;
        const buffer bias = bias_buffer(arguments.bias, arguments.bias_type, arguments.n);
        const int own = row_layout(Shape::value(), own_lane(), 0).col;
        float values[across][Accumulator::width][Accumulator::per_lane];
        with_element(arguments.bias_type, [&](auto zero) {
            using T = decltype(zero);
#pragma unroll
            for (int c = 0; c < across; ++c)
#pragma unroll
                for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                    for (int e = 0; e < Accumulator::per_lane; ++e) {
                        const int column = place.tile.n + place.col + c * place.col_step + own +
                                           j * Shape::cols + row_layout(Shape::value(), 0, e).col;
                        values[c][j][e] = static_cast<float>(buffer_load<T>(bias, column * sizeof(T)));
                    }
        });
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int c = 0; c < across; ++c)
                for_each_register<Accumulator>(
                    [&](int i, int j, int e) { bands[r][c].tiles[i][j][e] += values[c][j][e]; });
    }
};

// Where rows of the product are stored: in C or, with a split K, in the partial sums of the split.
struct SplitDestination {
    KITTENS_DEVICE static buffer view(const GemmArguments& arguments, TileCoordinate tile, int size) {
        char* data = static_cast<char*>(const_cast<void*>(arguments.c.data)) +
                     (tile.batch * arguments.c.batch_stride + tile.split * arguments.c_split_stride) * size;
        const int64_t begin = (tile.m * arguments.c.leading_stride + tile.n) * size;
        const int64_t end = ((arguments.m - 1) * arguments.c.leading_stride + arguments.n) * size;
        return global_window{data + begin, end - begin}.view();
    }
};

// Moves the accumulators of a wave's bands, converted to the type of `Stores`, to memory. `whole`: 16 bytes at a time.
template <class Stores, bool whole, int lds_bytes, class Accumulator, int down, int across, class Convert>
KITTENS_DEVICE void move_bands(const Stores& stores, Accumulator (&bands)[down][across], int row_step,
                               int col_step, const Convert& convert) {
    // As many base tiles at a time as fit in the LDS.
    constexpr int fit = lds_bytes / (Accumulator::shape::rows * Stores::Rows::row_bytes);
    constexpr int step = fit < Accumulator::height ? fit : Accumulator::height;
    constexpr int rows = step * Accumulator::shape::rows;
    static_assert(step >= 1 && Accumulator::height % step == 0 && Stores::fill_passes(rows),
                  "whole passes fit in the wave's LDS");
#pragma unroll
    for (int r = 0; r < down; ++r)
#pragma unroll
        for (int c = 0; c < across; ++c)
#pragma unroll
            for (int i = 0; i < Accumulator::height; i += step) {
                stores.template write<step, whole>(bands[r][c], i, convert);
                // A wave's LDS accesses execute in order; only the compiler must be kept from reordering them.
                compiler_fence();
                stores.template store<rows, whole>(r * row_step, c * col_step, i * Accumulator::shape::rows);
                compiler_fence();
            }
}

// The same in rows of C.
template <class T, bool whole, int lds_bytes, class Accumulator, int down, int across, class Convert>
KITTENS_DEVICE void store_bands(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                                EpiloguePlace place, shared_byte* lds, buffer destination,
                                const Convert& convert) {
    const auto [tile, row, col, row_step, col_step] = place;
    using Stores = ProductStores<T, Accumulator>;
    const Stores stores{lds,
                        destination,
                        static_cast<uint32_t>(arguments.c.leading_stride) * static_cast<int>(sizeof(T)),
                        arguments.n - tile.n,
                        own_lane(),
                        row,
                        col};
    move_bands<Stores, whole, lds_bytes>(stores, bands, row_step, col_step, convert);
}

// Applies the stages in order, rounds once to the type of C, and stores. Likely branches are marked, so that in most kernels the path to
// the end is contiguous code: each jump over code that other cases need waits for instructions that have not been fetched yet, and the
// last of these fetches queue after the workgroup's own stores (docs/gemm_tuning.md).
template <class Destination, class... Stages>
struct Epilogue {
    // `lds`: lds_bytes that belong to the wave alone, with no load to them in flight.
    template <int lds_bytes, class Accumulator, int down, int across, class Arguments>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const Arguments& arguments,
                                     EpiloguePlace place, shared_byte* lds) {
        (Stages::apply(bands, arguments, place, WaveMemory<lds_bytes>{lds}), ...);
        const bool single = arguments.output == ElementType::f32;
        const buffer destination = Destination::view(arguments, place.tile, single ? 4 : 2);

        auto store_as = [&](auto zero, auto convert) {
            using T = decltype(zero);
            if (arguments.vector_stores) [[likely]]
                store_bands<T, true, lds_bytes>(bands, arguments, place, lds, destination, convert);
            else
                store_bands<T, false, lds_bytes>(bands, arguments, place, lds, destination, convert);
        };
        if (arguments.output == ElementType::bf16) [[likely]]
            store_as(bf16(),
                     [](vec<float, 4> values) { return __builtin_convertvector(values, vec<bf16, 4>); });
        else if (single)
            store_as(float(), [](vec<float, 4> values) { return values; });
        else
            store_as(half(),
                     [](vec<float, 4> values) { return __builtin_convertvector(values, vec<half, 4>); });
    }
};

}  // namespace hipkittens::gemm
