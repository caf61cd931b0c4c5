// kernels/gemm/epilogue.h: bias, one rounding, and the way out of the registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::gemm {

using kittens::vec;

// What a workgroup computes: its tile begins at row m, column n of the product.
struct WorkgroupPlace {
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

// Four neighbouring columns of one row. Stores outside the matrix go to an offset that the buffer drops; rows
// past its end lie past the end of the buffer.
template <class V>
KITTENS_DEVICE void store_four(V values, kittens::buffer destination, uint32_t offset, int columns_left,
                               bool whole) {
    constexpr int size = sizeof(V) / 4;
    if (whole) {
        kittens::buffer_store(values, destination, columns_left > 0 ? offset : kittens::out_of_range);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const auto value = values[i];
            kittens::buffer_store(value, destination,
                                  i < columns_left ? offset + i * size : kittens::out_of_range);
        }
    }
}

template <class Accumulator>
KITTENS_DEVICE void store_product(Accumulator& sum, const GemmArguments& arguments, WorkgroupPlace place,
                                  int wave_row, int wave_col) {
    static_assert(Accumulator::layout::is_row && Accumulator::shape::run == 4,
                  "a lane owns four neighbouring columns");
    const int lane = kittens::lane_id_again();
    const kittens::Coordinate own = kittens::row_layout(Accumulator::shape::value(), lane, 0);
    // Of element e, from the lane's first.
    constexpr auto column_of = [](int e) {
        return kittens::row_layout(Accumulator::shape::value(), 0, e).col;
    };
    const int row = wave_row + own.row, col = place.n + wave_col + own.col;

    if (arguments.bias) {
        const kittens::buffer bias = bias_buffer(arguments.bias, arguments.bias_type, arguments.n);
        auto add_bias = [&](auto zero) {
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                for (int e = 0; e < Accumulator::per_lane; ++e) {
                    using T = decltype(zero);
                    const int index = col + j * Accumulator::shape::cols + column_of(e);
                    const float value = static_cast<float>(kittens::buffer_load<T>(bias, index * sizeof(T)));
#pragma unroll
                    for (int i = 0; i < Accumulator::height; ++i) sum.tiles[i][j][e] += value;
                }
        };
        if (arguments.bias_type == ElementType::f32)
            add_bias(float());
        else if (arguments.bias_type == ElementType::bf16)
            add_bias(kittens::bf16());
        else
            add_bias(kittens::half());
    }

    const bool single = arguments.output == ElementType::f32;
    const int size = single ? 4 : 2;
    char* data = static_cast<char*>(const_cast<void*>(arguments.c.data)) +
                 (place.batch * arguments.c.batch_stride + place.split * arguments.c_split_stride) * size;
    const int64_t begin = (place.m * arguments.c.leading_stride + place.n) * size;
    const int64_t end = ((arguments.m - 1) * arguments.c.leading_stride + arguments.n) * size;
    const kittens::buffer destination = kittens::global_window{data + begin, end - begin}.view();
    const uint32_t row_bytes = static_cast<uint32_t>(arguments.c.leading_stride) * size;
    const bool whole = arguments.vector_stores;

    auto store_all = [&](auto convert) {
#pragma unroll
        for (int i = 0; i < Accumulator::height; ++i)
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                for (int e = 0; e < Accumulator::per_lane; e += 4) {
                    const typename Accumulator::fragment& all = sum.tiles[i][j];
                    const auto values = convert(vec<float, 4>{all[e], all[e + 1], all[e + 2], all[e + 3]});
                    const int right = j * Accumulator::shape::cols + column_of(e);
                    const uint32_t offset = (row + i * Accumulator::shape::rows) * row_bytes +
                                            (wave_col + own.col + right) * size;
                    store_four(values, destination, offset, arguments.n - (col + right), whole);
                }
    };
    if (single)
        store_all([](vec<float, 4> values) { return values; });
    else if (arguments.output == ElementType::bf16)
        store_all(
            [](vec<float, 4> values) { return __builtin_convertvector(values, vec<kittens::bf16, 4>); });
    else
        store_all(
            [](vec<float, 4> values) { return __builtin_convertvector(values, vec<kittens::half, 4>); });
}

}  // namespace hipkittens::gemm
