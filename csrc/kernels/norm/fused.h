// kernels/norm/fused.h: a norm with everything that may come before it and behind it, codes of 8 and 4 bits included.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/transcendental.h"
#include "../quantize/codes.h"
#include "forward.h"

namespace hipkittens::norm {

// Read from memory where it is called: all of them do not fit into scalar registers. which: 0 or 1.
KITTENS_DEVICE FusedArguments fused_arguments(uint32_t which) {
    auto* pair =
        (const __attribute__((address_space(4))) FusedArguments*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(pair));
    return pair[which];
}

template <class T>
KITTENS_DEVICE buffer row_of(const StridedRows& rows, const RowCounts& counts, uint32_t columns,
                             uint32_t row) {
    return {static_cast<const char*>(rows.data) + rows.offset(row, counts) * static_cast<int64_t>(sizeof(T)),
            columns * static_cast<uint32_t>(sizeof(T))};
}

// The first chunk of a row stays in registers; of rows longer than a workgroup's lanes the others are read again in each pass.
template <class T, RowShape shape>
class FusedRow {
    using Row = Worker<shape>;
    static_assert(Row::chunks == 1);
    const uint32_t which_, row_;
    const Row& worker_;

  public:
    KITTENS_DEVICE FusedRow(uint32_t which, uint32_t row, const Row& worker)
        : which_(which), row_(row), worker_(worker) {}

    // dropout(x + x_bias) + residual of eight columns; zeros behind the row's end.
    KITTENS_DEVICE eight sum_at(uint32_t column, bool is_first_pass) const {
        const FusedArguments arguments = fused_arguments(which_);
        const uint32_t columns = arguments.columns;
        eight z =
            load_eight<T>(row_of<T>(arguments.x, arguments.rows, columns, row_), column, arguments.wide);
        if (arguments.x_bias) z += parameter(arguments, arguments.x_bias, column);
        if (arguments.dropout.seed) z *= kept(arguments.dropout, row_, column);
        if (arguments.residual.data)
            z += load_eight<T>(row_of<T>(arguments.residual, arguments.rows, columns, row_), column,
                               arguments.wide);
        if (arguments.sum) {
            const eight stored = kittens::widened(__builtin_convertvector(z, kittens::vec<T, 8>));
            if (is_first_pass)
                store_eight<T>(stored, dense_row<T>(arguments.sum, row_, static_cast<int>(columns)), column,
                               arguments.wide);
            if (arguments.round_sum) z = stored;
        }
        return z;
    }

    // What is stored of (z - mean) rstd.
    KITTENS_DEVICE eight result_at(uint32_t column, eight normalised) const {
        const FusedArguments arguments = fused_arguments(which_);
        if (arguments.round_before_weight)
            normalised = kittens::widened(__builtin_convertvector(normalised, kittens::vec<T, 8>));
        if (arguments.weight) {
            const eight weight = parameter(arguments, arguments.weight, column);
            normalised *= arguments.gemma ? weight + 1.0f : weight;
        }
        if (arguments.bias) normalised += parameter(arguments, arguments.bias, column);
        if (arguments.gate.data) {
            const eight gate = load_eight<T>(
                row_of<T>(arguments.gate, arguments.rows, arguments.columns, row_), column, arguments.wide);
#pragma unroll
            for (int i = 0; i < 8; ++i) normalised[i] *= gate[i] * kittens::sigmoid<true>(gate[i]).value;
        }
        return inside(normalised, column, arguments.columns);
    }

    KITTENS_DEVICE static eight inside(eight values, uint32_t column, uint32_t columns) {
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) values[i] = column + i < columns ? values[i] : 0.0f;
        return values;
    }

    // Passes over the row: its mean, its variance, the largest magnitude of what is stored where a row has one scale, and results.
    // One loop for all of them, since each may have to begin with reading the row.
    KITTENS_DEVICE void run(RowReduction<Row::waves>& row_reduction) const {
        enum Pass { for_mean, for_variance, for_magnitude, for_results };
        const int first_pass = fused_arguments(which_).centred ? for_mean : for_variance;
        float mean = 0, correction = 0, rstd = 0;
        quantize::Scale scale = {0, 0, 0};
        eight held;  // the first chunk, as far as the passes before have brought it
        bool held_is_result = false;
#pragma clang loop unroll(disable)
        for (int pass = first_pass; pass <= for_results; ++pass) {
            const FusedArguments arguments = fused_arguments(which_);
            const uint32_t columns = arguments.columns;
            if (pass == for_magnitude && arguments.codes != Codes::row) continue;
            eight sum = {}, squares = {};
            float magnitude = 0;
            const uint32_t end = pass == for_results ? end_of_results() : columns;
#pragma clang loop unroll(disable)
            for (uint32_t column = worker_.column(), start = 0; start < end;
                 start += Row::chunk_step, column += Row::chunk_step) {
                eight value = held;
                const bool is_read = start > 0 || pass == first_pass;
                if (is_read) value = sum_at(column, pass == first_pass);
                if (pass >= for_variance && (start > 0 || pass == for_variance))
                    value = inside(value - mean, column, columns);
                if (pass >= for_magnitude && (start > 0 || !held_is_result))
                    value = result_at(column, (value - correction) * rstd);
                if (start == 0) held = value;
                if (pass <= for_variance) {
                    sum += value;
                    squares = fused(value, value, squares);
                } else if (pass == for_magnitude) {
                    magnitude = kittens::larger_or_nan(magnitude,
                                                       quantize::largest_magnitude(smoothed(column, value)));
                } else {
                    store(column, value, scale);
                }
            }
            const FusedArguments last = fused_arguments(which_);
            const bool begins = worker_.column() == 0;
            if (pass == for_mean) {
                mean = row_reduction.sum(sum_of(sum)) * last.per_column;
            } else if (pass == for_variance) {
                // As in forward.h's moments.
                float sums[2] = {sum_of(squares), sum_of(sum)};
                row_reduction.sum(sums);
                correction = last.centred ? sums[1] * last.per_column : 0.0f;
                const float variance = sums[0] * last.per_column - correction * correction;
                rstd = kittens::hardware_reciprocal_square_root(variance + last.epsilon);
                if (begins && last.rstd) last.rstd[row_] = rstd;
                if (begins && last.mean) last.mean[row_] = mean + correction;
                if (last.codes == Codes::tensor) scale.inverse = 1 / *last.quantization.given;
            } else if (pass == for_magnitude) {
                held_is_result = true;
                scale = quantize::scale_of(last.quantization, row_reduction.magnitude(magnitude));
                if (begins) quantize::store_scale(last.quantization, scale, row_, 0);
            }
        }
    }

    // Of rows behind the last one.
    KITTENS_DEVICE void pad() const {
        const FusedArguments arguments = fused_arguments(which_);
        const quantize::QuantizeArguments& codes = arguments.quantization;
        for (uint32_t group = worker_.column() / 8; group < codes.padded_groups; group += Row::chunk_step / 8)
            store_scale_or_padding(codes, {}, false, row_, group);
    }

  private:
    KITTENS_DEVICE uint32_t end_of_results() const {
        const FusedArguments arguments = fused_arguments(which_);
        const uint32_t of_scales =
            arguments.codes == Codes::group
                ? arguments.quantization.padded_groups * arguments.quantization.group_lanes * 8
                : 0;
        const uint32_t end =
            arguments.y_columns > arguments.columns ? arguments.y_columns : arguments.columns;
        return of_scales > end ? of_scales : end;
    }

    KITTENS_DEVICE eight smoothed(uint32_t column, eight values) const {
        const FusedArguments arguments = fused_arguments(which_);
        if (arguments.smooth)
            values *=
                load_eight<float>(parameters<float>(arguments.smooth, static_cast<int>(arguments.columns)),
                                  column, arguments.wide_parameters);
        return values;
    }

    KITTENS_DEVICE void store(uint32_t column, eight values, quantize::Scale scale) const {
        const FusedArguments arguments = fused_arguments(which_);
        if (arguments.y)
            store_eight<T>(values, dense_row<T>(arguments.y, row_, static_cast<int>(arguments.y_columns)),
                           column, arguments.wide_y);
        if (arguments.codes == Codes::none) return;
        values = smoothed(column, values);
        const quantize::QuantizeArguments codes = fused_arguments(which_).quantization;
        if (arguments.codes == Codes::group) {
            scale =
                quantize::scale_of(codes, kittens::combine_group(quantize::largest_magnitude(values),
                                                                 codes.group_lanes, kittens::larger_or_nan));
            const uint32_t group_columns = codes.group_lanes * 8, group = column / group_columns;
            if (column % group_columns == 0 && group < codes.padded_groups)
                store_scale_or_padding(codes, scale, group < codes.groups, row_, group);
        }
        if (column < codes.columns)
            quantize::store_codes(codes, quantize::codes_of(codes, values, scale), row_, column,
                                  codes.columns - column, codes.columns % 8 == 0);
    }

    KITTENS_DEVICE static eight parameter(const FusedArguments& arguments, const void* data,
                                          uint32_t column) {
        eight values;
        with_type(arguments.parameter_type, [&](auto zero) {
            using Type = decltype(zero);
            values = load_eight<Type>(parameters<Type>(data, static_cast<int>(arguments.columns)), column,
                                      arguments.wide_parameters);
        });
        return values;
    }
    // Scales of padding, which matrix instructions read, are 1.
    KITTENS_DEVICE static void store_scale_or_padding(const quantize::QuantizeArguments& codes,
                                                      const quantize::Scale& scale, bool is_there,
                                                      uint32_t row, uint32_t group) {
        constexpr quantize::Scale one = {1, 1, 127};
        quantize::store_scale(codes, is_there ? scale : one, row, group);
    }
};

template <class T, RowShape shape>
KITTENS_DEVICE void fused_rows(kittens::shared_byte* lds) {
    const Worker<shape> worker;
    const uint32_t which = kittens::workgroup_id_y();
    RowReduction<shape.waves> row_reduction(lds);
    const FusedArguments arguments = fused_arguments(which);
    const bool pads =
        arguments.codes == Codes::group && arguments.quantization.layout == quantize::ScaleLayout::shuffled;
    const uint32_t rows = pads ? arguments.quantization.padded_rows : arguments.rows.all;
    for (uint32_t row = worker.first_row; row < rows; row += arguments.workers) {
        const FusedRow<T, shape> fused(which, row, worker);
        if (row < arguments.rows.all)
            fused.run(row_reduction);
        else
            fused.pad();
    }
}

}  // namespace hipkittens::norm
