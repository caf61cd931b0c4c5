// kernels/gemm/epilogue.h: bias, one rounding, and the way out of the registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::gemm {

using kittens::vec;

// What a workgroup computes: its tile begins at row m, column n of the product.
struct TileCoordinate {
    int m, n, split;
    int64_t batch;
};

KITTENS_DEVICE float element_at(kittens::buffer source, ElementType type, int index) {
    if (type == ElementType::f32) return kittens::buffer_load<float>(source, index * 4);
    const uint16_t bits = kittens::buffer_load<uint16_t>(source, index * 2);
    return type == ElementType::bf16 ? static_cast<float>(__builtin_bit_cast(kittens::bf16, bits))
                                     : static_cast<float>(__builtin_bit_cast(kittens::half, bits));
}

KITTENS_DEVICE kittens::buffer bias_buffer(const void* bias, ElementType type, int n) {
    return {static_cast<const char*>(bias), static_cast<uint32_t>(n) * (type == ElementType::f32 ? 4u : 2u)};
}

// Known to be small: divisions by powers of two become shifts.
KITTENS_DEVICE int own_lane() {
    const int lane = kittens::recompute_lane_id();
    __builtin_assume(lane >= 0 && lane < kittens::wave_lanes);
    return lane;
}

constexpr int next_power_of_two(int value) {
    int power = 1;
    while (power < value) power *= 2;
    return power;
}

// Rows of the product in LDS (output_stager.h), which the operands have left. Runs of four columns are permuted within
// 128 bytes, the width of LDS for writes, so that neighbouring rows of one column are in different banks.
template <class T, int columns>
struct ProductRows {
    using element = T;
    static constexpr int size = sizeof(T);
    // Rows begin a power of two apart; the lanes of what is between them have nothing to store.
    static constexpr int row_bytes = next_power_of_two(columns) * size, run_bytes = 4 * size;

    KITTENS_DEVICE static constexpr int offset(int lane_row, int step, int lane_byte, int run) {
        constexpr int window = 128, rows_per_window = row_bytes < window ? window / row_bytes : 1;
        constexpr int runs = (row_bytes < window ? row_bytes : window) / run_bytes;
        const int row = step + lane_row, byte = lane_byte + run;
        return row * row_bytes + (byte ^ (row / rows_per_window % runs) * run_bytes);
    }
};

// The elements of a chunk that C has, one by one.
template <class T>
KITTENS_DEVICE void store_elements(kittens::b128 values, kittens::buffer destination, uint32_t offset,
                                   int columns_left) {
    constexpr int count = kittens::b128_bytes / sizeof(T);
    const vec<T, count> elements = __builtin_bit_cast(vec<T, count>, values);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const T element = elements[i];
        kittens::buffer_store(
            element, destination,
            i < columns_left ? offset + i * static_cast<int>(sizeof(T)) : kittens::out_of_range);
    }
}

// How a wave's bands get from its accumulators to C.
template <class T, class Accumulator>
struct ProductStores {
    using Shape = typename Accumulator::shape;
    using Rows = ProductRows<T, Accumulator::cols>;
    using Stager = kittens::output_stager<Rows>;

    kittens::shared_byte* lds;
    kittens::buffer destination;
    uint32_t row_bytes;
    int columns;         // of C from the tile's first on
    int lane, row, col;  // of the wave's first band in the tile

    // `whole` as in store(). The compiler may not see that both convert alike, or it converts everything before it asks.
    template <int step, bool whole, class Convert>
    KITTENS_DEVICE void write(const Accumulator& sum, int first, const Convert& convert) const {
        const kittens::Coordinate own = kittens::row_layout(Shape::value(), lane, 0);
        const auto convert_run = [&](vec<float, 4> values) KITTENS_INLINE {
            if constexpr (!whole) values = kittens::opaque(values);
            return convert(values);
        };
#pragma unroll
        for (int i = 0; i < step; ++i)
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
                // gfx942 rounds to bf16 with compares, whose masks would not fit.
                Stager::template write<Shape, true>(lds, own, i * Shape::rows, j * Shape::cols,
                                                    sum.tiles[first + i][j], convert_run);
    }
    // Rows of the band that begins at (band_row, band_col), as they were written from row `written` on. Stores outside
    // the matrix go to an offset that the buffer drops; rows past its end are past the end of the buffer.
    template <bool whole>
    KITTENS_DEVICE void store(int band_row, int band_col, int written, int count) const {
        const int own_row = lane / Stager::vectors_per_row,
                  own_byte = lane % Stager::vectors_per_row * kittens::b128_bytes;
        const int column = col + band_col + own_byte / static_cast<int>(sizeof(T));
        const bool inside = own_byte < Accumulator::cols * static_cast<int>(sizeof(T));
        // Nothing is written between rows: what is half a row before has the same banks.
        const int read_byte = inside ? own_byte : own_byte - Rows::row_bytes / 2;
        auto pass = [&](int first) {
            const kittens::b128 values = Stager::read(lds, own_row, first, read_byte);
            const uint32_t offset =
                (row + band_row + written + first + own_row) * row_bytes + column * sizeof(T);
            if constexpr (whole)
                kittens::buffer_store(values, destination,
                                      inside && column < columns ? offset : kittens::out_of_range);
            else
                store_elements<T>(values, destination, offset, inside ? columns - column : 0);
        };
        if constexpr (whole) {
#pragma unroll
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        } else {
#pragma unroll 1
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        }
    }
};

template <class Accumulator, int down, int across>
KITTENS_DEVICE void add_bias(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                             int first_column, int band_step) {
    using Shape = typename Accumulator::shape;
    const kittens::buffer bias = bias_buffer(arguments.bias, arguments.bias_type, arguments.n);
    const int own = kittens::row_layout(Shape::value(), own_lane(), 0).col;
    float values[across][Accumulator::width][Accumulator::per_lane];
    auto load = [&](auto zero) {
        using T = decltype(zero);
#pragma unroll
        for (int c = 0; c < across; ++c)
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                for (int e = 0; e < Accumulator::per_lane; ++e) {
                    const int column = first_column + c * band_step + own + j * Shape::cols +
                                       kittens::row_layout(Shape::value(), 0, e).col;
                    values[c][j][e] = static_cast<float>(kittens::buffer_load<T>(bias, column * sizeof(T)));
                }
    };
    if (arguments.bias_type == ElementType::f32)
        load(float());
    else if (arguments.bias_type == ElementType::bf16)
        load(kittens::bf16());
    else
        load(kittens::half());
#pragma unroll
    for (int r = 0; r < down; ++r)
#pragma unroll
        for (int c = 0; c < across; ++c)
#pragma unroll
            for (int i = 0; i < Accumulator::height; ++i)
#pragma unroll
                for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                    for (int e = 0; e < Accumulator::per_lane; ++e)
                        bands[r][c].tiles[i][j][e] += values[c][j][e];
}

// The bands of a wave, the first at (row, col) of the workgroup's tile and others step_m and step_n on, go out through
// `lds`: lds_bytes of the wave's own that nothing is under way to.
template <int lds_bytes, class Accumulator, int down, int across>
KITTENS_DEVICE void store_product(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                                  TileCoordinate tile, int row, int col, int step_m, int step_n,
                                  kittens::shared_byte* lds) {
    if (arguments.bias) add_bias(bands, arguments, tile.n + col, step_n);
    const bool single = arguments.output == ElementType::f32;
    const int size = single ? 4 : 2;
    char* data = static_cast<char*>(const_cast<void*>(arguments.c.data)) +
                 (tile.batch * arguments.c.batch_stride + tile.split * arguments.c_split_stride) * size;
    const int64_t begin = (tile.m * arguments.c.leading_stride + tile.n) * size;
    const int64_t end = ((arguments.m - 1) * arguments.c.leading_stride + arguments.n) * size;
    const kittens::buffer destination = kittens::global_window{data + begin, end - begin}.view();

    auto store_all = [&](auto zero, auto whole, auto convert) {
        using T = decltype(zero);
        using Stores = ProductStores<T, Accumulator>;
        // As many base tiles at a time as there is room for.
        constexpr int fit = lds_bytes / (Accumulator::shape::rows * Stores::Rows::row_bytes);
        constexpr int step = fit < Accumulator::height ? fit : Accumulator::height;
        constexpr int rows = step * Accumulator::shape::rows;
        static_assert(
            step >= 1 && Accumulator::height % step == 0 && rows % Stores::Stager::rows_per_pass == 0,
            "whole passes fit in the wave's LDS");
        const Stores stores{lds,
                            destination,
                            static_cast<uint32_t>(arguments.c.leading_stride) * size,
                            arguments.n - tile.n,
                            own_lane(),
                            row,
                            col};
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int c = 0; c < across; ++c)
#pragma unroll
                for (int i = 0; i < Accumulator::height; i += step) {
                    stores.template write<step, decltype(whole)::value>(bands[r][c], i, convert);
                    // A wave's accesses to LDS take place in their order; only the compiler has to keep it.
                    kittens::compiler_fence();
                    stores.template store<decltype(whole)::value>(r * step_m, c * step_n,
                                                                  i * Accumulator::shape::rows, rows);
                    kittens::compiler_fence();
                }
    };
    auto store_as = [&](auto zero, auto convert) {
        if (arguments.vector_stores)
            store_all(zero, kittens::index<1>{}, convert);
        else
            store_all(zero, kittens::index<0>{}, convert);
    };
    if (single)
        store_as(float(), [](vec<float, 4> values) { return values; });
    else if (arguments.output == ElementType::bf16)
        store_as(kittens::bf16(),
                 [](vec<float, 4> values) { return __builtin_convertvector(values, vec<kittens::bf16, 4>); });
    else
        store_as(kittens::half(),
                 [](vec<float, 4> values) { return __builtin_convertvector(values, vec<kittens::half, 4>); });
}

}  // namespace hipkittens::gemm
