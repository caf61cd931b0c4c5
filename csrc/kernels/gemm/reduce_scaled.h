// kernels/gemm/reduce_scaled.h: adds the partial sums of a split K of quantized operands, then does the work of ScaledEpilogue.
// SPDX-License-Identifier: MIT
#pragma once
#include "reduce.h"
#include "scaled_epilogue.h"

namespace hipkittens::gemm {

// One thread per output element: columns along x, rows along y, batches along z.
template <class Sum>
KITTENS_DEVICE void reduce_scaled(const ScaledReduceArguments& arguments) {
    const int64_t row = workgroup_id_y(), batch = workgroup_id_z();
    const int col = workgroup_id_x() * reduce_threads + thread_id();
    if (col >= arguments.n) return;
    const auto* partial =
        reinterpret_cast<const Sum*>(arguments.partial) + (batch * arguments.m + row) * arguments.n + col;
    const auto factor = [&](ScaleArgument scale, int64_t index) KITTENS_INLINE {
        return static_cast<const float*>(scale.data)[batch * scale.batch_stride + index * scale.stride];
    };
    float row_factor = 1, column_factor = 1, added = 0;
    if (arguments.a_scale.data)
        row_factor = factor(arguments.a_scale, row), column_factor = factor(arguments.b_scale, col);
    if (arguments.bias)
        added = element_at(bias_buffer(arguments.bias, arguments.bias_type, arguments.n), arguments.bias_type,
                           col);
    const Sum sum = sum_of_splits(partial, arguments.splits, arguments.split_stride);
    const int64_t index = batch * arguments.c.batch_stride + row * arguments.c.leading_stride + col;
    void* data = const_cast<void*>(arguments.c.data);
    if constexpr (!same_type<Sum, float>)
        if (arguments.output == ElementType::i32) {
            static_cast<Sum*>(data)[index] = sum;
            return;
        }
    float value = static_cast<float>(sum) * row_factor * column_factor + added;
    if (arguments.activation != no_activation)
        with_activation_of_sums(arguments.activation, arguments.output,
                                [&](auto function) KITTENS_INLINE { value = function(value); });
    with_element(arguments.output, [&](auto zero) KITTENS_INLINE {
        using T = decltype(zero);
        static_cast<T*>(data)[index] = static_cast<T>(value);
    });
}

}  // namespace hipkittens::gemm
