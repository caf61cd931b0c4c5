// kernels/mul_add/kernels.h: the device code of a x + b.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "../row_columns.h"
#include "kinds.h"

namespace hipkittens::mul_add {

using kittens::eight;

template <ElementConfig config>
struct MulAdd {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = mul_add::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const MulAddArguments& arguments) {
        const RowColumns<T> columns(kittens::workgroup_id_x() * threads + kittens::thread_id(),
                                    arguments.threads_per_row, arguments.rows.all, arguments.columns,
                                    arguments.aligned != 0);
        if (columns.none()) return;
        const auto load = [&](const StridedRows& of) {
            return columns.load(of.data, of.offset(columns.row, arguments.rows));
        };
        const auto operand = [&](Source source, const StridedRows& of, bool is_float, float number) -> eight {
            if (source == Source::each) return load(of);
            if (source == Source::number) return number;
            return is_float ? *static_cast<const float*>(of.data)
                            : static_cast<float>(*static_cast<const T*>(of.data));
        };
        const eight x = load(arguments.x);
        const eight a = operand(arguments.source_a, arguments.a, arguments.float_a, arguments.number_a);
        const eight b = operand(arguments.source_b, arguments.b, arguments.float_b, arguments.number_b);
        columns.store(__builtin_elementwise_fma(a, x, b), arguments.result,
                      static_cast<int64_t>(columns.row) * arguments.columns);
    }
};

}  // namespace hipkittens::mul_add
