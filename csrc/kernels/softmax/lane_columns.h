// kernels/softmax/lane_columns.h: which 8 columns of a chunk of a row a lane has, and how it reads and writes them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "../element_of.h"

namespace hipkittens::softmax {

using kittens::buffer;
using kittens::eight;

// wide: adjacent columns, in one access. Otherwise one by one, with adjacent lanes in each access: then the alignment of the row's
// beginning and end does not matter.
template <class T, bool wide>
struct LaneColumns {
    using Raw = kittens::raw_eight<T>;
    // 16-byte accesses need dword alignment.
    typedef Raw Vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;

    uint32_t lane, lanes, columns;

    // The column of element i in the chunk whose first column is `first`.
    KITTENS_DEVICE uint32_t column(uint32_t first, int i) const {
        return first + (wide ? lane * 8 + i : lane + i * lanes);
    }
    KITTENS_DEVICE bool has(uint32_t first, int i) const { return column(first, wide ? 0 : i) < columns; }
    // Replaces elements past the end of the row by `fill`.
    KITTENS_DEVICE eight filled(Raw raw, uint32_t first, float fill) const {
        eight values = kittens::widened(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = has(first, i) ? values[i] : fill;
        return values;
    }

    // `row` ends at the end of the row: elements past it read zero, and are not written.
    KITTENS_DEVICE Raw load(const buffer& row, uint32_t first) const {
        if constexpr (wide) return kittens::load_raw<T>(row, column(first, 0));
        Raw raw;
#pragma unroll
        for (int i = 0; i < 8; ++i) raw[i] = kittens::buffer_load<T>(row, column(first, i) * sizeof(T));
        return raw;
    }
    KITTENS_DEVICE void store(eight values, const buffer& row, uint32_t first) const {
        if constexpr (wide) return kittens::store_eight_at<T>(values, row, column(first, 0) * sizeof(T));
#pragma unroll
        for (int i = 0; i < 8; ++i)
            kittens::buffer_store(static_cast<T>(values[i]), row, column(first, i) * sizeof(T));
    }

    // The same for a row that may differ between lanes, and of which no lane has more than a chunk: past its end, its first
    // element is read. Elements that no lane has are skipped, which for very short rows is most of them.
    KITTENS_DEVICE Raw load(const void* data, int64_t row_offset) const {
        const auto* from = (global<const T>)data + row_offset;
        if constexpr (wide) return *(global<const Vector>)(from + (has(0, 0) ? column(0, 0) : 0));
        Raw raw = T(0);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i * lanes >= columns) break;
            raw[i] = from[has(0, i) ? column(0, i) : 0];
        }
        return raw;
    }
    KITTENS_DEVICE void store(eight values, void* data, int64_t row_offset) const {
        auto* to = (global<T>)data + row_offset;
        if constexpr (wide) {
            if (has(0, 0)) *(global<Vector>)(to + column(0, 0)) = __builtin_convertvector(values, Raw);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i * lanes >= columns) break;
            if (has(0, i)) to[column(0, i)] = static_cast<T>(values[i]);
        }
    }
};

}  // namespace hipkittens::softmax
