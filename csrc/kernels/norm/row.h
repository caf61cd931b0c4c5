// kernels/norm/row.h: the location of a worker's row in memory and in registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/philox.h"
#include "../../tiles/row_chunk.h"
#include "../../tiles/row_reduction.h"
#include "../element_of.h"
#include "config.h"

namespace hipkittens::norm {

using kittens::buffer;
using kittens::eight;
using kittens::RowReduction;

// Calls function with a zero of a type that is known only at run time.
template <class Function>
KITTENS_DEVICE void with_type(ElementType type, const Function& function) {
    if (type == ElementType::f32)
        function(float());
    else if (type == ElementType::bf16)
        function(kittens::bf16());
    else
        function(kittens::half());
}

template <class T>
KITTENS_DEVICE buffer row_of(const RowTensor& tensor, const Rows& rows, uint32_t row) {
    int64_t offset = row * tensor.inner;
    if (rows.inner_count != rows.count) {  // a division only if there is more than one dimension
        const uint32_t rest = row / rows.inner_count;
        offset = (row - rest * rows.inner_count) * tensor.inner + rest / rows.middle_count * tensor.outer +
                 rest % rows.middle_count * tensor.middle;
    }
    return {static_cast<const char*>(tensor.data) + offset * static_cast<int64_t>(sizeof(T)),
            static_cast<uint32_t>(rows.cols) * static_cast<uint32_t>(sizeof(T))};
}
template <class T>
KITTENS_DEVICE buffer dense_row(const void* data, uint32_t row, int cols) {
    return {
        static_cast<const char*>(data) + static_cast<int64_t>(row) * cols * static_cast<int64_t>(sizeof(T)),
        static_cast<uint32_t>(cols) * static_cast<uint32_t>(sizeof(T))};
}
template <class T>
KITTENS_DEVICE buffer parameters(const void* data, int cols) {
    return dense_row<T>(data, 0, cols);
}

// The factors of eight elements: 0 or scale. The counter is the element's row and column instead of an address, so that
// strides and variants do not change the mask.
KITTENS_DEVICE eight kept(const Dropout& dropout, uint32_t row, uint32_t column) {
    const uint64_t key = dropout.seed[0], offset = dropout.seed[1];
    eight result;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        const kittens::vec<uint32_t, 4> bits = kittens::philox(
            {column / 4 + half, row, static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)},
            static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
#pragma unroll
        for (int i = 0; i < 4; ++i) result[half * 4 + i] = bits[i] < dropout.threshold ? 0.0f : dropout.scale;
    }
    return result;
}

// a b + c, rounded once.
KITTENS_DEVICE eight fused(eight a, eight b, eight c) { return __builtin_elementwise_fma(a, b, c); }

KITTENS_DEVICE float sum_of(eight values) {
    const kittens::vec<float, 4> four = values.lo + values.hi;  // one instruction for two additions
    const kittens::vec<float, 2> two = four.lo + four.hi;
    return two[0] + two[1];
}

template <RowShape shape>
struct Worker {
    static constexpr int waves = shape.waves, chunks = shape.chunks;
    uint32_t first_row;
    int wave_column;  // of the wave's first lane

    KITTENS_DEVICE Worker() {
        const int wave = kittens::wave_id();
        first_row = kittens::workgroup_id_x() * shape.rows_per_workgroup() + (waves == 1 ? wave : 0);
        wave_column = waves == 1 ? 0 : wave * 512;
    }
    // The lane's first column in chunk 0; its chunks are chunk_step columns apart. Recomputed at every call: otherwise offsets and
    // masks of every element, which are the same for all rows, would stay in registers.
    KITTENS_DEVICE int column() const { return wave_column + kittens::recompute_lane_id() * 8; }
    static constexpr int chunk_step = waves * 512;
};

}  // namespace hipkittens::norm
