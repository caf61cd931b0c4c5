// kernels/loss/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "../../tiles/row_reduction.h"
#include "../../tiles/transcendental.h"
#include "../element_of.h"
#include "../row_softmax.h"
#include "kinds.h"

namespace hipkittens::loss {

using kittens::buffer;
using kittens::eight;

// A logit after the cap: its value and derivative.
struct Capped {
    float value, slope;
};
template <bool plain>
KITTENS_DEVICE Capped capped(float logit, float softcap) {
    if (plain || softcap == 0) return {logit, 1};
    const kittens::Tangent tangent = kittens::hyperbolic_tangent(logit / softcap);
    return {softcap * tangent.value, tangent.slope};
}

template <CrossEntropyConfig config>
struct CrossEntropyKernel {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr bool accurate = !kittens::is_16bit<T>, plain = config.plain;
    static constexpr int threads = config.threads(), waves_per_simd = 4, lds_bytes = Reduction::lds_bytes,
                         vectors = config.vectors();

    // visit(column, eight logits) for the thread's share of a row; elements past the end are 0.
    template <class Visit>
    KITTENS_DEVICE static void sweep(const buffer& row, const CrossEntropyArguments& arguments,
                                     const Visit& visit) {
        constexpr uint32_t step = threads * 8;
        for (uint32_t first = 0; first < arguments.columns; first += vectors * step) {
            const uint32_t column = first + kittens::thread_id() * 8;
            if constexpr (plain) {
                kittens::raw_eight<T> loaded[vectors];
                kittens::load_raw_row<T>(loaded, row, column * sizeof(T), step * sizeof(T));
#pragma unroll
                for (int n = 0; n < vectors; ++n) visit(column + n * step, kittens::widened(loaded[n]));
            } else {
                visit(column, kittens::load_eight<T>(row, column, arguments.wide));
            }
        }
    }

    KITTENS_DEVICE static void run(const CrossEntropyArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t row = kittens::workgroup_id_x(), row_bytes = arguments.columns * sizeof(T);
        const int64_t target = arguments.target[row];
        const bool ignored = target == arguments.ignore_index;
        const buffer logits = {static_cast<const char*>(arguments.logits.data) +
                                   arguments.logits.offset(row, arguments.rows) * int64_t(sizeof(T)),
                               ignored ? 0 : row_bytes};
        Statistics statistics{};
        if (!arguments.loss) {
            statistics = {arguments.maximum[row], arguments.sum[row]};
        } else if (!ignored) {
            statistics = losses(arguments, logits, target, row, lds);
        } else if (kittens::thread_id() == 0) {
            arguments.loss[row] = arguments.maximum[row] = arguments.sum[row] = 0;
            if (!plain && arguments.entropy) arguments.entropy[row] = 0;
        }
        if (!arguments.gradient) return;
        const buffer gradient = {
            static_cast<const char*>(arguments.gradient) + static_cast<int64_t>(row) * row_bytes, row_bytes};
        if (ignored)
            sweep(logits, arguments, [&](uint32_t column, eight) {
                kittens::store_eight<T>(eight(0.0f), gradient, column, plain || arguments.wide);
            });
        else
            write_gradient(arguments, logits, gradient, target, row, statistics);
    }

    struct Statistics {
        float maximum, sum;
        KITTENS_DEVICE float lse() const { return maximum + kittens::natural_logarithm(sum); }
    };
    // Computes the statistics of the row; writes them, the loss and the entropy.
    KITTENS_DEVICE static Statistics losses(const CrossEntropyArguments& arguments, const buffer& logits,
                                            int64_t target, uint32_t row, kittens::shared_byte* lds) {
        const uint32_t columns = arguments.columns;
        OnlineSoftmax<accurate, !plain> online;
        float total = 0, of_target = 0;
        sweep(logits, arguments, [&](uint32_t column, eight values) {
            const uint32_t position = static_cast<uint32_t>(target) - column;
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i) {
                values[i] = capped<plain>(values[i], arguments.softcap).value;
                if (!plain) total += values[i];
                if (position == i) of_target = values[i];
                // A chunk of a wide row is whole.
                if (column + (plain ? 0 : i) >= columns) values[i] = -__builtin_inff();
            }
            online.add(values);
        });
        Reduction reduction(lds);
        online.rise_to(reduction.maximum(online.maximum));
        float sums[2] = {online.sum, of_target}, others[2] = {online.products, total};
        reduction.sum(sums);
        if (!plain) reduction.sum(others);
        const float logarithm = kittens::natural_logarithm(sums[0]);
        const Statistics statistics = {online.maximum, sums[0]};
        if (kittens::thread_id() == 0) {
            // A target outside the row has no loss.
            const bool there = static_cast<uint64_t>(target) < columns;
            float result = there ? (online.maximum - sums[1]) + logarithm : __builtin_nanf("");
            if (!plain && arguments.label_smoothing > 0)
                result +=
                    arguments.label_smoothing * (sums[1] - others[1] / static_cast<float>(arguments.classes));
            const float lse = statistics.lse();
            arguments.loss[row] = __builtin_fmaf(arguments.z_loss * lse, lse, result);
            arguments.maximum[row] = statistics.maximum;
            arguments.sum[row] = statistics.sum;
            if (!plain && arguments.entropy) arguments.entropy[row] = logarithm - others[0] / sums[0];
        }
        return statistics;
    }

    KITTENS_DEVICE static void write_gradient(const CrossEntropyArguments& arguments, const buffer& logits,
                                              const buffer& gradient, int64_t target, uint32_t row,
                                              const Statistics& statistics) {
        const float dloss = arguments.dloss[row * arguments.dloss_step];
        const float dentropy =
            !plain && arguments.dentropy ? arguments.dentropy[row * arguments.dentropy_step] : 0;
        const float entropy = dentropy != 0 ? arguments.entropy[row] : 0;
        const float inverse = 1 / statistics.sum, logarithm = kittens::natural_logarithm(statistics.sum);
        const float of_power = dloss * (2 * arguments.z_loss) * statistics.lse();
        const float smoothed = dloss * arguments.label_smoothing,
                    of_each = -smoothed / static_cast<float>(arguments.classes);
        sweep(logits, arguments, [&](uint32_t column, eight values) {
            const uint32_t position = static_cast<uint32_t>(target) - column;
            eight result;
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i) {
                const Capped x = capped<plain>(values[i], arguments.softcap);
                const float below = x.value - statistics.maximum;
                const float power = kittens::exponential<accurate>(below) * inverse;
                // The difference, which for a confident model is all that is left, is exact.
                float sum = dloss * (position == i ? power - 1 : power);
                if (!plain) sum += position == i ? smoothed + of_each : of_each;
                sum = __builtin_fmaf(of_power, power, sum);
                if (!plain && power != 0)
                    sum = __builtin_fmaf(-dentropy * power, below - logarithm + entropy, sum);
                result[i] = sum * x.slope;
            }
            kittens::store_eight<T>(result, gradient, column, plain || arguments.wide);
        });
    }
};

}  // namespace hipkittens::loss
