// kernels/gemm/reduce.h: adds the partial products of a split K, always in the same order.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"

namespace hipkittens::gemm {

inline constexpr int reduce_threads = 256;

// One thread per output element: columns along x, rows along y, batches along z.
KITTENS_DEVICE void reduce(const ReduceArguments& arguments) {
    const int64_t row = kittens::workgroup_id_y(), batch = kittens::workgroup_id_z();
    const int col = kittens::workgroup_id_x() * reduce_threads + kittens::thread_id();
    if (col >= arguments.n) return;
    const float* partial = arguments.partial + (batch * arguments.m + row) * arguments.n + col;
    float added = 0;
    if (arguments.bias) {
        const kittens::buffer bias = bias_buffer(arguments.bias, arguments.bias_type, arguments.n);
        added = element_at(bias, arguments.bias_type, col);
    }
    float sum = 0;
    // Several loads at a time; those past the last split read it once more and are not added.
    constexpr int at_once = 8;
    for (int first = 0; first < arguments.splits; first += at_once) {
        float values[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const int split = first + i < arguments.splits ? first + i : arguments.splits - 1;
            values[i] = partial[split * arguments.split_stride];
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) sum = first + i < arguments.splits ? sum + values[i] : sum;
    }
    sum += added;
    const int64_t index = batch * arguments.c.batch_stride + row * arguments.c.leading_stride + col;
    void* data = const_cast<void*>(arguments.c.data);
    if (arguments.output == ElementType::f32)
        static_cast<float*>(data)[index] = sum;
    else if (arguments.output == ElementType::bf16)
        static_cast<kittens::bf16*>(data)[index] = static_cast<kittens::bf16>(sum);
    else
        static_cast<kittens::half*>(data)[index] = static_cast<kittens::half>(sum);
}

}  // namespace hipkittens::gemm
