// kernels/sample/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/order_key.h"
#include "../../tiles/row_chunk.h"
#include "../../tiles/transcendental.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::sample {

using kittens::buffer;
using kittens::eight;

// A column and the order key of its value; of equal values, the first is the greatest.
class Best {
    uint32_t key_ = 0, column_ = 0;

    KITTENS_DEVICE void take(uint32_t key, uint32_t column) {
        const bool better = key > key_ || (key == key_ && column < column_);
        key_ = better ? key : key_;
        column_ = better ? column : column_;
    }

  public:
    KITTENS_DEVICE void add(float value, uint32_t column) { take(kittens::order_key(value), column); }
    KITTENS_DEVICE void add(uint64_t best) { take(static_cast<uint32_t>(best >> 32), column_of(best)); }
    // The best of the workgroup, the same in each lane of the first wave.
    KITTENS_DEVICE uint64_t of_workgroup(kittens::shared_byte* lds) {
        of_wave();
        kittens::lds_write(key_, lds + kittens::wave_id() * 8);
        kittens::lds_write(column_, lds + kittens::wave_id() * 8 + 4);
        kittens::barrier();
        const int wave = kittens::lane_id() % waves;
        key_ = kittens::lds_read<uint32_t>(lds + wave * 8);
        column_ = kittens::lds_read<uint32_t>(lds + wave * 8 + 4);
        return of_wave();
    }
    KITTENS_DEVICE uint64_t of_wave() {
#pragma unroll
        for (int step = 32; step > 0; step /= 2) {
            const int other = kittens::lane_id() ^ step;
            take(kittens::read_lane(key_, other), kittens::read_lane(column_, other));
        }
        return packed_best(key_, column_);
    }
};

template <ElementConfig config>
struct Choose {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = sample::threads, waves_per_simd = 4, lds_bytes = waves * 8;
    // Vectors of 8 elements that a thread has in flight.
    static constexpr int vectors = 2;

    KITTENS_DEVICE static void run(const ChooseArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t row = kittens::workgroup_id_x(), columns = arguments.columns;
        const buffer logits = {static_cast<const char*>(arguments.x.data) +
                                   arguments.x.offset(row, arguments.rows) * int64_t(sizeof(T)),
                               columns * static_cast<uint32_t>(sizeof(T))};
        float temperature = 0;
        if (arguments.exponentials) temperature = arguments.temperatures[row * arguments.temperature_step];
        const buffer exponentials = {
            reinterpret_cast<const char*>(arguments.exponentials + row * arguments.exponential_step),
            columns * 4};
        Best best;
        if (temperature == 0)
            sweep(arguments, logits, [&](uint32_t, auto) { return [](float x, int) { return x; }; }, best);
        else
            race(arguments, logits, exponentials, temperature, best);
        const uint64_t found = best.of_workgroup(lds);
        if (kittens::thread_id() != 0) return;
        if (arguments.parts == 1)
            arguments.chosen[row] = column_of(found);
        else
            arguments.bests[uint64_t{row} * arguments.parts + kittens::workgroup_id_y()] = found;
    }

    KITTENS_DEVICE static void race(const ChooseArguments& arguments, const buffer& logits,
                                    const buffer& exponentials, float temperature, Best& best) {
        // A NaN temperature makes every value NaN, so the first column is chosen.
        const float inverse = 1 / (temperature < least_temperature ? least_temperature : temperature);
        const float eps = arguments.eps;
        sweep(
            arguments, logits,
            [&](uint32_t column, auto wide) {
                const eight drawn = kittens::load_eight<float>(exponentials, column, decltype(wide)::value);
                return [=](float x, int i) {
                    return __builtin_fmaf(x, inverse, -kittens::natural_logarithm(drawn[i] + eps));
                };
            },
            best);
    }

    template <bool value_>
    struct Wide {
        static constexpr bool value = value_;
    };
    // Passes value_of(column, wide)(x, i) for the row's elements to best. Elements past the end are skipped.
    template <class ValueOf>
    KITTENS_DEVICE static void sweep(const ChooseArguments& arguments, const buffer& row,
                                     const ValueOf& value_of, Best& best) {
        if (arguments.wide)
            sweep_all<true>(arguments, row, value_of, best);
        else
            sweep_all<false>(arguments, row, value_of, best);
    }
    template <bool wide, class ValueOf>
    KITTENS_DEVICE static void sweep_all(const ChooseArguments& arguments, const buffer& row,
                                         const ValueOf& value_of, Best& best) {
        constexpr uint32_t step = threads * 8;
        const uint32_t begin = kittens::workgroup_id_y() * arguments.share, left = arguments.columns - begin,
                       end = begin + (left < arguments.share ? left : arguments.share);
        for (uint32_t first = begin + kittens::thread_id() * 8; first < end; first += vectors * step) {
#pragma unroll
            for (uint32_t n = 0; n < vectors; ++n) {
                const uint32_t column = first + n * step;
                const eight x = kittens::load_eight<T>(row, column, wide);
                const auto value = value_of(column, Wide<wide>());
#pragma unroll
                for (uint32_t i = 0; i < 8; ++i)
                    if (column + i < end) best.add(value(x[i], i), column + i);
            }
        }
    }
};

template <NoConfig config>
struct Join {
    static constexpr int threads = join_threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ChooseArguments& arguments) {
        const uint32_t row = kittens::workgroup_id_x(), part = kittens::thread_id();
        Best best;
        if (part < arguments.parts) best.add(arguments.bests[uint64_t{row} * arguments.parts + part]);
        const uint64_t found = best.of_wave();
        if (part == 0) arguments.chosen[row] = column_of(found);
    }
};

}  // namespace hipkittens::sample
