// tiles/row_chunk.h: eight consecutive elements of a row as floats, accessed with wide instructions or one by one.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

inline constexpr int chunk_elements = 8;
using eight = vec<float, chunk_elements>;

// The same in the element type of memory, so that a load needs no more registers than its bytes.
template <class T>
using raw_eight = choose<is_16bit<T>, vec<T, 8>, eight>;

template <class T>
KITTENS_DEVICE raw_eight<T> load_raw_at(buffer row, uint32_t offset) {
    if constexpr (is_16bit<T>) {
        return buffer_load<vec<T, 8>>(row, offset);
    } else {
        eight result;
        result.lo = buffer_load<vec<float, 4>>(row, offset);
        result.hi = buffer_load<vec<float, 4>>(row, offset + 16);
        return result;
    }
}
template <class T>
KITTENS_DEVICE raw_eight<T> load_raw(buffer row, uint32_t column) {
    return load_raw_at<T>(row, column * sizeof(T));
}
// Vectors of 8 elements, `step` bytes apart, all in flight at once.
template <class T, int count>
KITTENS_DEVICE void load_raw_row(raw_eight<T> (&into)[count], buffer row, uint32_t offset, uint32_t step) {
#pragma unroll
    for (int n = 0; n < count; ++n) into[n] = load_raw_at<T>(row, offset + n * step);
}
template <class Raw>
KITTENS_DEVICE eight widened(Raw values) {
    return __builtin_convertvector(values, eight);
}

// `row` ends at the end of the row: elements past it read zero, and stores to them are dropped. `wide`: the
// row is 4-byte aligned and its length is a multiple of 8 elements, so that no access straddles its end.
template <class T>
KITTENS_DEVICE eight load_eight(buffer row, uint32_t column, bool wide) {
    eight result;
    const uint32_t offset = column * sizeof(T);
    if (wide) {
        result = widened(load_raw<T>(row, column));
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            result[i] = static_cast<float>(buffer_load<T>(row, offset + i * static_cast<int>(sizeof(T))));
    }
    return result;
}

template <class T>
KITTENS_DEVICE void store_raw_at(raw_eight<T> values, buffer row, uint32_t offset) {
    if constexpr (is_16bit<T>) {
        buffer_store(values, row, offset);
    } else {
        buffer_store(vec<float, 4>(values.lo), row, offset);
        buffer_store(vec<float, 4>(values.hi), row, offset + 16);
    }
}
// Rounded to nearest even.
template <class T>
KITTENS_DEVICE void store_eight_at(eight values, buffer row, uint32_t offset) {
    store_raw_at<T>(__builtin_convertvector(values, raw_eight<T>), row, offset);
}
template <class T>
KITTENS_DEVICE void store_eight(eight values, buffer row, uint32_t column, bool wide) {
    const uint32_t offset = column * sizeof(T);
    if (wide) {
        store_eight_at<T>(values, row, offset);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const T value = static_cast<T>(values[i]);
            buffer_store(value, row, offset + i * static_cast<int>(sizeof(T)));
        }
    }
}

}  // namespace kittens
