// kernels/gemm/reduce.h: adds the partial sums of a split K, always in the same order.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"

namespace hipkittens::gemm {

inline constexpr int reduce_threads = 256;

KITTENS_DEVICE float element_at(buffer source, ElementType type, int index) {
    if (type == ElementType::f32) return buffer_load<float>(source, index * 4);
    const uint16_t bits = buffer_load<uint16_t>(source, index * 2);
    return type == ElementType::bf16 ? static_cast<float>(__builtin_bit_cast(bf16, bits))
                                     : static_cast<float>(__builtin_bit_cast(half, bits));
}

// The sum for one element, in the order of the splits.
template <class Sum>
KITTENS_DEVICE Sum sum_of_splits(const Sum* partial, int splits, int64_t split_stride) {
    Sum sum = 0;
    // Several loads at a time; those past the last split read that split again and are not added.
    constexpr int at_once = 8;
    for (int first = 0; first < splits; first += at_once) {
        Sum values[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const int split = first + i < splits ? first + i : splits - 1;
            values[i] = partial[split * split_stride];
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) sum = first + i < splits ? sum + values[i] : sum;
    }
    return sum;
}

// One thread per output element: columns along x, rows along y, batches along z.
KITTENS_DEVICE void reduce(const ReduceArguments& arguments) {
    const int64_t row = workgroup_id_y(), batch = workgroup_id_z();
    const int col = workgroup_id_x() * reduce_threads + thread_id();
    if (col >= arguments.n) return;
    const float* partial = arguments.partial + (batch * arguments.m + row) * arguments.n + col;
    float added = 0;
    if (arguments.bias)
        added = element_at(bias_buffer(arguments.bias, arguments.bias_type, arguments.n), arguments.bias_type,
                           col);
    float sum = sum_of_splits(partial, arguments.splits, arguments.split_stride);
    sum += added;
    const int64_t index = batch * arguments.c.batch_stride + row * arguments.c.leading_stride + col;
    void* data = const_cast<void*>(arguments.c.data);
    if (arguments.adds) sum += static_cast<const float*>(data)[index];
    with_element(arguments.output, [&](auto zero) KITTENS_INLINE {
        using T = decltype(zero);
        static_cast<T*>(data)[index] = static_cast<T>(sum);
    });
}

}  // namespace hipkittens::gemm
