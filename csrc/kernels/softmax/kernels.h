// kernels/softmax/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../row_softmax.h"
#include "short_rows.h"
#include "weighted_mean.h"

#define PRELOADS_short_forward 1
#define PRELOADS_long_forward 1
#define PRELOADS_short_backward 1
#define PRELOADS_long_backward 1

namespace hipkittens::softmax {

// e^(x - maximum) or, for 16-bit elements, a value proportional to it within a row: the product of the maximum and log2 e is rounded,
// which is a factor common to all elements. Where that product would overflow, elements that differ at all are so far apart that any
// factor smaller than log2 e gives the same zeros and ones.
template <bool accurate>
struct Powers {
    float factor = 0x1.715476p+0f, maximum;  // log2 e
    KITTENS_DEVICE explicit Powers(float of_row) : maximum(of_row) {
        if constexpr (!accurate) {
            if (kittens::absolute_value(of_row) > 0x1p126f) factor = 0x1p-20f;
            maximum *= factor;
        }
    }
    KITTENS_DEVICE eight of(eight values) const {
        values =
            accurate ? values - maximum : __builtin_elementwise_fma(values, eight(factor), eight(-maximum));
#pragma unroll
        for (int i = 0; i < 8; ++i)
            values[i] =
                accurate ? kittens::exponential<true>(values[i]) : kittens::exponential_base_2(values[i]);
        return values;
    }
};
// power / sum. accurate: to the last bit, which multiplication by the inverse would lose half the time.
template <bool accurate>
struct Divided {
    float sum, inverse;
    KITTENS_DEVICE explicit Divided(float by) : sum(by), inverse(1 / by) {}
    KITTENS_DEVICE eight of(eight powers) const {
        const eight quotient = powers * inverse;
        if constexpr (!accurate) return quotient;
        const eight rest = __builtin_elementwise_fma(quotient, eight(-sum), powers);
        return __builtin_elementwise_fma(rest, eight(inverse), quotient);
    }
};
KITTENS_DEVICE float maximum_of(eight values) {
    float result = values[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) result = kittens::larger(result, values[i]);
    return result;
}
constexpr float smallest = -__builtin_inff();

template <ShortConfig config>
struct ShortForward {
    using T = typename element_of<config.element>::value;
    static constexpr bool accurate = !kittens::is_16bit<T>;
    static constexpr int threads = short_threads, waves_per_simd = 4, lds_bytes = 0,
                         count = config.rows_of_lane;

    KITTENS_DEVICE static void run(const SoftmaxArguments& arguments) {
        const ShortRows<T, config.wide, count> rows(arguments);
        kittens::raw_eight<T> x[count];
        rows.load(x, arguments.x, arguments.rows);
        eight values[count];
        float reduced[count];
#pragma unroll
        for (int n = 0; n < count; ++n) {
            values[n] = rows.lane.filled(x[n], 0, smallest);
            reduced[n] = maximum_of(values[n]);
        }
        combine_lanes_of_row(reduced, arguments.lane_bits, kittens::larger);
#pragma unroll
        for (int n = 0; n < count; ++n) {
            values[n] = Powers<accurate>(reduced[n]).of(values[n]);
            reduced[n] = sum_of(values[n]);
        }
        combine_lanes_of_row(reduced, arguments.lane_bits, sum<float>);
#pragma unroll
        for (int n = 0; n < count; ++n)
            rows.store(n, Divided<accurate>(reduced[n]).of(values[n]), arguments.result);
    }
};

template <ShortConfig config>
struct ShortBackward {
    using T = typename element_of<config.element>::value;
    using Mean = WeightedMean<!kittens::is_16bit<T>>;
    static constexpr int threads = short_threads, waves_per_simd = 4, lds_bytes = 0,
                         count = config.rows_of_lane;

    KITTENS_DEVICE static void run(const SoftmaxArguments& arguments) {
        const ShortRows<T, config.wide, count> rows(arguments);
        kittens::raw_eight<T> y[count], dy[count];
        rows.load(y, arguments.x, arguments.rows);
        rows.load(dy, arguments.dy, arguments.rows);
        typename Mean::Value sums[count * Mean::count];
#pragma unroll
        for (int n = 0; n < count; ++n)
            Mean(rows.lane.filled(y[n], 0, 0.0f), rows.lane.filled(dy[n], 0, 0.0f))
                .sums(sums + n * Mean::count);
        combine_lanes_of_row(sums, arguments.lane_bits, sum<typename Mean::Value>);
#pragma unroll
        for (int n = 0; n < count; ++n)
            rows.store(
                n, Mean::gradient(kittens::widened(y[n]), kittens::widened(dy[n]), sums + n * Mean::count),
                arguments.result);
    }
};

// A row processed by one workgroup.
template <class T, bool wide, LongConfig config>
struct LongRow {
    static constexpr uint32_t threads = config.waves * 64, step = threads * 8, held = step * config.chunks;
    LaneColumns<T, wide> lane;
    uint32_t row, row_bytes;

    KITTENS_DEVICE explicit LongRow(const SoftmaxArguments& arguments)
        : lane{static_cast<uint32_t>(kittens::thread_id()), threads, arguments.columns},
          row(kittens::workgroup_id_x()),
          row_bytes(arguments.columns * static_cast<uint32_t>(sizeof(T))) {}
    KITTENS_DEVICE buffer of(const StridedRows& tensor, const RowCounts& counts) const {
        return {static_cast<const char*>(tensor.data) + tensor.offset(row, counts) * int64_t(sizeof(T)),
                row_bytes};
    }
    KITTENS_DEVICE buffer result(void* data) const {
        return {static_cast<const char*>(data) + static_cast<int64_t>(row) * row_bytes, row_bytes};
    }
    KITTENS_DEVICE void load(kittens::raw_eight<T> (&into)[config.chunks], const buffer& from) const {
#pragma unroll
        for (int c = 0; c < config.chunks; ++c) into[c] = lane.load(from, c * step);
    }
    // visit(first) for the chunks that are not held in registers.
    template <class Visit>
    KITTENS_DEVICE void each_other_chunk(const Visit& visit) const {
        for (uint32_t first = held; first < lane.columns; first += step) visit(first);
    }
};

// With few chunks, the exponentials stay in registers once the maximum of the row is known. With more, they are computed as the row
// arrives, relative to the largest value so far, and again when the sum is known: they take twice the registers of 16-bit elements,
// and the loads of a row take longer than computing them.
template <LongConfig config>
struct LongForward {
    using T = typename element_of<config.element>::value;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr bool accurate = !kittens::is_16bit<T>, keeps_powers = config.chunks <= 4;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes,
                         chunks = config.chunks;

    KITTENS_DEVICE static void run(const SoftmaxArguments& arguments, kittens::shared_byte* lds) {
        arguments.wide ? run_row<true>(arguments, lds) : run_row<false>(arguments, lds);
    }
    template <bool wide>
    KITTENS_DEVICE static void run_row(const SoftmaxArguments& arguments, kittens::shared_byte* lds) {
        const LongRow<T, wide, config> row(arguments);
        const buffer x = row.of(arguments.x, arguments.rows);
        Reduction reduction(lds);
        kittens::raw_eight<T> held[chunks];
        row.load(held, x);
        const auto values = [&](int c) { return row.lane.filled(held[c], c * row.step, smallest); };
        if constexpr (keeps_powers) {
            float maximum = smallest;
#pragma unroll
            for (int c = 0; c < chunks; ++c) maximum = kittens::larger(maximum, maximum_of(values(c)));
            const Powers<accurate> powers(reduction.maximum(maximum));
            eight kept[chunks], sums = 0.0f;
#pragma unroll
            for (int c = 0; c < chunks; ++c) sums += kept[c] = powers.of(values(c));
            const Divided<accurate> divided(reduction.sum(sum_of(sums)));
            const buffer y = row.result(arguments.result);
#pragma unroll
            for (int c = 0; c < chunks; ++c) row.lane.store(divided.of(kept[c]), y, c * row.step);
        } else {
            OnlineSoftmax<accurate, false> online;
#pragma unroll
            for (int c = 0; c < chunks; ++c)
                if (c * row.step < arguments.columns) online.add(values(c));
            row.each_other_chunk([&](uint32_t first) {
                online.add(row.lane.filled(row.lane.load(x, first), first, smallest));
            });
            online.rise_to(reduction.maximum(online.maximum));
            const Divided<accurate> divided(reduction.sum(online.sum));
            const Powers<accurate> powers(online.maximum);
            const buffer y = row.result(arguments.result);
            const auto store = [&](kittens::raw_eight<T> raw, uint32_t first) {
                row.lane.store(divided.of(powers.of(kittens::widened(raw))), y, first);
            };
#pragma unroll
            for (int c = 0; c < chunks; ++c)
                if (c * row.step < arguments.columns) store(held[c], c * row.step);
            row.each_other_chunk([&](uint32_t first) { store(row.lane.load(x, first), first); });
        }
    }
};

template <LongConfig config>
struct LongBackward {
    using T = typename element_of<config.element>::value;
    using Mean = WeightedMean<!kittens::is_16bit<T>>;
    using Reduction = kittens::RowReduction<config.waves, 64, typename Mean::Value>;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes,
                         chunks = config.chunks;

    KITTENS_DEVICE static void run(const SoftmaxArguments& arguments, kittens::shared_byte* lds) {
        arguments.wide ? run_row<true>(arguments, lds) : run_row<false>(arguments, lds);
    }
    template <bool wide>
    KITTENS_DEVICE static void run_row(const SoftmaxArguments& arguments, kittens::shared_byte* lds) {
        const LongRow<T, wide, config> row(arguments);
        const buffer y = row.of(arguments.x, arguments.rows), dy = row.of(arguments.dy, arguments.rows);
        kittens::raw_eight<T> held_y[chunks], held_dy[chunks];
        row.load(held_y, y);
        row.load(held_dy, dy);
        // Elements past the end of a row have been read as zero.
        Mean mean(kittens::widened(held_y[0]), kittens::widened(held_dy[0]));
        const auto add = [&](kittens::raw_eight<T> a, kittens::raw_eight<T> b) {
            mean.add(kittens::widened(a), kittens::widened(b));
        };
#pragma unroll
        for (int c = 1; c < chunks; ++c) add(held_y[c], held_dy[c]);
        row.each_other_chunk([&](uint32_t first) { add(row.lane.load(y, first), row.lane.load(dy, first)); });
        typename Mean::Value sums[Mean::count];
        mean.sums(sums);
        Reduction(lds).sum(sums);
        const buffer dx = row.result(arguments.result);
        const auto store = [&](kittens::raw_eight<T> a, kittens::raw_eight<T> b, uint32_t first) {
            row.lane.store(Mean::gradient(kittens::widened(a), kittens::widened(b), sums), dx, first);
        };
#pragma unroll
        for (int c = 0; c < chunks; ++c) store(held_y[c], held_dy[c], c * row.step);
        row.each_other_chunk(
            [&](uint32_t first) { store(row.lane.load(y, first), row.lane.load(dy, first), first); });
    }
};

}  // namespace hipkittens::softmax
