// kernels/norm/fused_row.h: a row of a norm with everything that may precede and follow it, including 8- and 4-bit quantization.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/transcendental.h"
#include "../quantization/codes.h"
#include "forward.h"
#include "fused_operands.h"

namespace hipkittens::norm {

// Registers hold a block of a row, with `chunks` times 8 elements in each lane. `usual` arguments (FusedConfig) have dedicated code,
// in which instructions that do not run are not fetched either, and rows that are a single block. For other rows, the blocks after the
// first are read again in each pass.
template <class T, RowShape shape, bool usual>
class FusedRow {
    static constexpr bool streams = !usual;
    using Row = Worker<shape>;
    static constexpr int chunks = Row::chunks;
    using Block = eight[chunks];
    const uint32_t which_, row_;
    const Row& worker_;

  public:
    KITTENS_DEVICE FusedRow(uint32_t which, uint32_t row, const Row& worker)
        : which_(which), row_(row), worker_(worker) {}

    // Passes over the row: its mean, its variance, the largest magnitude of what is stored if a row has one scale, and results.
    KITTENS_DEVICE void run(RowReduction<Row::waves>& row_reduction) const {
        float mean = 0, correction = 0, rstd = 0;
        quantize::Scale scale = {0, 0, 0};
        Block held = {};  // the first block, as far as the previous passes have processed it
        const FusedArguments given = fused_arguments(which_);
        const bool centred = given.centred, by_row = given.codes == Codes::row;
        // One loop for all passes, since each may have to start by reading the row; otherwise it is unrolled.
        const auto pass_over = [&](auto number, bool is_first) {
            const int pass = number;
            eight sum = {}, squares = {};
            float magnitude = 0;
            const auto visit = [&](uint32_t start, Block& values, bool is_read, bool is_result) {
                if (is_read) read(start, values, is_first);
                if (pass >= for_variance && (start > 0 || pass == for_variance)) {
                    if (centred) take_from(start, values, mean);
                }
                if (pass >= for_magnitude && !is_result) finish(start, values, correction, rstd);
                if (pass == for_mean || pass == for_variance) {
#pragma unroll
                    for (int c = 0; c < chunks; ++c) {
                        sum += values[c];
                        if (pass == for_variance) squares = fused(values[c], values[c], squares);
                    }
                } else if (pass == for_magnitude) {
                    magnitude = kittens::larger_or_nan(magnitude, largest(start, values));
                } else {
                    store(start, values, scale);
                }
            };
            visit(0, held, is_first, pass == for_results && by_row);
            if constexpr (streams) {
                const uint32_t end = pass == for_results ? end_of_results() : fused_arguments(which_).columns;
#pragma clang loop unroll(disable)
                for (uint32_t start = block; start < end; start += block) {
                    Block values;
                    visit(start, values, true, false);
                }
            }
            const FusedArguments last = fused_arguments(which_);
            const bool begins = worker_.column() == 0;
            if (pass == for_mean) {
                mean = row_reduction.sum(sum_of(sum)) * last.per_column;
            } else if (pass == for_variance) {
                // As in `moments` of forward.h.
                float both[2] = {sum_of(squares), sum_of(sum)};
                row_reduction.sum(both);
                correction = centred ? both[1] * last.per_column : 0.0f;
                const float variance = both[0] * last.per_column - correction * correction;
                rstd = kittens::hardware_reciprocal_square_root(variance + last.epsilon);
                if (begins && last.rstd) last.rstd[row_] = rstd;
                if (begins && last.mean) last.mean[row_] = mean + correction;
                if (last.codes == Codes::tensor) scale.inverse = 1 / *last.quantization.given;
            } else if (pass == for_magnitude) {
                scale = quantize::scale_of(last.quantization, row_reduction.magnitude(magnitude));
                if (begins) quantize::store_scale(last.quantization, scale, row_, 0);
            }
        };
        if constexpr (streams) {
#pragma clang loop unroll(disable)
            for (int pass = centred ? for_mean : for_variance; pass <= for_results; ++pass)
                if (pass != for_magnitude || by_row)
                    pass_over(pass, pass == (centred ? for_mean : for_variance));
        } else {
            read(0, held, true);
            if (centred) pass_over(Constant<for_mean>(), false);
            pass_over(Constant<for_variance>(), false);
            if (by_row) pass_over(Constant<for_magnitude>(), false);
            pass_over(Constant<for_results>(), false);
        }
    }

    // For rows past the last one.
    KITTENS_DEVICE void pad() const {
        const FusedArguments arguments = fused_arguments(which_);
        const quantize::QuantizeArguments& codes = arguments.quantization;
        for (uint32_t group = worker_.column() / 8; group < codes.padded_groups; group += Row::chunk_step / 8)
            store_scale_or_padding(codes, {}, false, row_, group);
    }

  private:
    enum Pass { for_mean, for_variance, for_magnitude, for_results };
    template <int value>
    struct Constant {
        constexpr operator int() const { return value; }
    };
    static constexpr uint32_t block = Row::chunk_step * chunks;

    template <class Visit>
    KITTENS_DEVICE void each(uint32_t start, Block& values, const Visit& visit) const {
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            const uint32_t column = start + worker_.column() + c * Row::chunk_step;
            visit(values[c], column);
        }
    }
    // load(column, wide) for each chunk, with all of them in flight at once.
    template <class Take, class Load>
    KITTENS_DEVICE void each_loaded(uint32_t start, Block& values, bool wide, const Take& take,
                                    const Load& load) const {
        const auto all = [&](auto is_wide) {
            Block loaded;
            each(start, loaded, [&](eight& value, uint32_t column) { value = load(column, bool(is_wide)); });
#pragma unroll
            for (int c = 0; c < chunks; ++c) take(values[c], loaded[c]);
        };
        if constexpr (usual)
            all(Constant<true>());
        else
            wide ? all(Constant<true>()) : all(Constant<false>());
    }
    template <class Take>
    KITTENS_DEVICE void each_parameter(uint32_t start, Block& values, const FusedArguments& arguments,
                                       const void* data, const Take& take) const {
        const auto of_type = [&](auto zero) {
            using Type = decltype(zero);
            const buffer source = parameters<Type>(data, static_cast<int>(arguments.columns));
            each_loaded(start, values, arguments.wide_parameters, take,
                        [&](uint32_t column, bool wide) { return load_eight<Type>(source, column, wide); });
        };
        if constexpr (usual)
            of_type(T());
        else
            with_type(arguments.parameter_type, of_type);
    }
    template <class Take>
    KITTENS_DEVICE void each_of_row(uint32_t start, Block& values, const FusedArguments& arguments,
                                    const StridedRows& rows, const Take& take) const {
        RowCounts counts = arguments.rows;
        if constexpr (usual) counts.inner = counts.all;
        const buffer source = row_of<T>(rows, counts, arguments.columns, row_);
        each_loaded(start, values, arguments.wide, take,
                    [&](uint32_t column, bool wide) { return load_eight<T>(source, column, wide); });
    }

    KITTENS_DEVICE static eight rounded(eight values) {
        return kittens::widened(__builtin_convertvector(values, kittens::vec<T, 8>));
    }
    KITTENS_DEVICE static eight inside(eight values, uint32_t column, uint32_t columns) {
        if constexpr (usual) return column < columns ? values : eight(0.0f);
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) values[i] = column + i < columns ? values[i] : 0.0f;
        return values;
    }

    // dropout(x + x_bias) + residual; zeros past the end of the row.
    KITTENS_DEVICE void read(uint32_t start, Block& z, bool stores) const {
        const FusedArguments arguments = fused_arguments(which_);
        const auto add = [](eight& value, eight other) { value += other; };
        each_of_row(start, z, arguments, arguments.x, [](eight& value, eight x) { value = x; });
        if (streams && arguments.x_bias) each_parameter(start, z, arguments, arguments.x_bias, add);
        if (streams && arguments.dropout.seed)
            each(start, z,
                 [&](eight& value, uint32_t column) { value *= kept(arguments.dropout, row_, column); });
        if (arguments.residual.data) each_of_row(start, z, arguments, arguments.residual, add);
        if (!arguments.sum) return;
        const buffer destination = dense_row<T>(arguments.sum, row_, static_cast<int>(arguments.columns));
        each(start, z, [&](eight& value, uint32_t column) {
            const eight stored = rounded(value);
            if (stores) store_eight<T>(stored, destination, column, usual || arguments.wide);
            if (arguments.round_sum) value = stored;
        });
    }
    KITTENS_DEVICE void take_from(uint32_t start, Block& values, float mean) const {
        const uint32_t columns = fused_arguments(which_).columns;
        each(start, values,
             [&](eight& value, uint32_t column) { value = inside(value - mean, column, columns); });
    }
    // y, from z - mean except for a correction.
    KITTENS_DEVICE void finish(uint32_t start, Block& values, float correction, float rstd) const {
        const FusedArguments arguments = fused_arguments(which_);
        each(start, values, [&](eight& value, uint32_t) {
            value = (value - correction) * rstd;
            if (arguments.round_before_weight) value = rounded(value);
        });
        if (arguments.weight) {
            if (arguments.gemma)
                each_parameter(start, values, arguments, arguments.weight,
                               [](eight& value, eight weight) { value *= weight + 1.0f; });
            else
                each_parameter(start, values, arguments, arguments.weight,
                               [](eight& value, eight weight) { value *= weight; });
        }
        if (arguments.bias)
            each_parameter(start, values, arguments, arguments.bias,
                           [](eight& value, eight bias) { value += bias; });
        if (arguments.gate.data)
            each_of_row(start, values, arguments, arguments.gate, [](eight& value, eight gate) {
#pragma unroll
                for (int i = 0; i < 8; ++i) value[i] *= gate[i] * kittens::sigmoid<true>(gate[i]).value;
            });
        each(start, values,
             [&](eight& value, uint32_t column) { value = inside(value, column, arguments.columns); });
    }

    KITTENS_DEVICE uint32_t end_of_results() const {
        const FusedArguments arguments = fused_arguments(which_);
        const quantize::QuantizeArguments& codes = arguments.quantization;
        const uint32_t of_scales =
            arguments.codes == Codes::group ? codes.padded_groups * codes.group_lanes * 8 : 0;
        const uint32_t end =
            arguments.y_columns > arguments.columns ? arguments.y_columns : arguments.columns;
        return of_scales > end ? of_scales : end;
    }
    KITTENS_DEVICE void smooth(uint32_t start, Block& values) const {
        const FusedArguments arguments = fused_arguments(which_);
        if (!arguments.smooth) return;
        const buffer source = parameters<float>(arguments.smooth, static_cast<int>(arguments.columns));
        each_loaded(
            start, values, arguments.wide_parameters, [](eight& value, eight factor) { value *= factor; },
            [&](uint32_t column, bool wide) { return load_eight<float>(source, column, wide); });
    }
    KITTENS_DEVICE float largest(uint32_t start, const Block& values) const {
        Block smoothed;
#pragma unroll
        for (int c = 0; c < chunks; ++c) smoothed[c] = values[c];
        smooth(start, smoothed);
        float magnitude = 0;
#pragma unroll
        for (int c = 0; c < chunks; ++c)
            magnitude = kittens::larger_or_nan(magnitude, quantize::largest_magnitude(smoothed[c]));
        return magnitude;
    }
    KITTENS_DEVICE void store(uint32_t start, Block& values, quantize::Scale scale) const {
        const FusedArguments arguments = fused_arguments(which_);
        if (arguments.y) {
            const buffer y = dense_row<T>(arguments.y, row_, static_cast<int>(arguments.y_columns));
            each(start, values, [&](eight& value, uint32_t column) {
                store_eight<T>(value, y, column, usual || arguments.wide_y);
            });
        }
        if (arguments.codes == Codes::none) return;
        smooth(start, values);
        const quantize::QuantizeArguments codes = fused_arguments(which_).quantization;
        each(start, values, [&](eight& value, uint32_t column) {
            if (arguments.codes == Codes::group) {
                scale = quantize::scale_of(
                    codes, kittens::combine_group(quantize::largest_magnitude(value), codes.group_lanes,
                                                  kittens::larger_or_nan));
                const uint32_t group = quantize::group_of(codes, column);
                if (quantize::begins_group(codes, column) && group < codes.padded_groups)
                    store_scale_or_padding(codes, scale, group < codes.groups, row_, group);
            }
            if (column < codes.columns)
                quantize::store_codes(codes, quantize::codes_of(codes, value, scale), row_, column,
                                      codes.columns - column, usual || codes.columns % 8 == 0);
        });
    }
    // Scales of padding, which matrix instructions read, are 1.
    KITTENS_DEVICE static void store_scale_or_padding(const quantize::QuantizeArguments& codes,
                                                      const quantize::Scale& scale, bool is_there,
                                                      uint32_t row, uint32_t group) {
        constexpr quantize::Scale one = {1, 1, 127};
        quantize::store_scale(codes, is_there ? scale : one, row, group);
    }
};

}  // namespace hipkittens::norm
