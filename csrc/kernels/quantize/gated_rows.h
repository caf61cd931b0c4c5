// kernels/quantize/gated_rows.h: short gated rows, of which a workgroup processes several in sequence.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_reduction.h"
#include "../element_of.h"
#include "../quantization/codes.h"
#include "row_values.h"
#include "usual_codes.h"

namespace hipkittens::quantize {

// One scale per row, with rows held in registers. The next row is loaded while the current one is computed.
template <HeldRowConfig config>
struct GatedRowsKernel {
    using T = typename element_of<config.element>::value;
    using Raw = kittens::raw_eight<T>;
    using Reduction = kittens::RowReduction<config.waves>;
    static constexpr int threads = config.waves * 64, waves_per_simd = 4, lds_bytes = Reduction::lds_bytes;
    static constexpr uint32_t step = threads * columns_of_thread;

    struct Held {
        Raw gate[config.chunks], other[config.chunks];

        // Loads nothing past the last row.
        KITTENS_DEVICE Held(const QuantizeArguments& arguments, uint32_t row) {
            load(arguments, arguments.x, row, gate);
            load(arguments, arguments.other, row, other);
        }

      private:
        KITTENS_DEVICE static void load(const QuantizeArguments& arguments, const StridedRows& of,
                                        uint32_t row, Raw (&into)[config.chunks]) {
            const bool there = row < arguments.rows.all;
            const kittens::buffer from = {
                static_cast<const char*>(of.data) + (there ? row : 0) * of.inner * int64_t(sizeof(T)),
                there ? arguments.columns * static_cast<uint32_t>(sizeof(T)) : 0};
            kittens::load_raw_row<T>(into, from, kittens::thread_id() * columns_of_thread * sizeof(T),
                                     step * sizeof(T));
        }
    };

    KITTENS_DEVICE static void run(const GatedRowsArguments& arguments, kittens::shared_byte* lds) {
        assume_usual_codes(arguments);
        if (arguments.bias) __builtin_unreachable();
        const uint32_t column = kittens::thread_id() * columns_of_thread;
        Reduction reduction(lds);
        uint32_t row = kittens::workgroup_id_x();
        Held held(arguments, row);
        while (true) {
            const uint32_t next = row + arguments.workgroups;
            const Held ahead(arguments, next);
            Raw values[config.chunks];
            float magnitude = 0;
#pragma unroll
            for (int c = 0; c < config.chunks; ++c) {
                values[c] = gated<T>(arguments, kittens::widened(held.gate[c]),
                                     kittens::widened(held.other[c]), [](uint32_t) { return eight(0.0f); });
                magnitude = kittens::larger_or_nan(magnitude, largest_raw_magnitude<T>(values[c]));
            }
            const Scale scale = scale_of(arguments, reduction.magnitude(magnitude));
            if (kittens::thread_id() == 0) store_scale(arguments, scale, row, 0);
#pragma unroll
            for (int c = 0; c < config.chunks; ++c)
                if (column + c * step < arguments.columns)
                    store_codes(arguments, codes_of(arguments, kittens::widened(values[c]), scale), row,
                                column + c * step, columns_of_thread, true);
            if (next >= arguments.rows.all) return;
            held = ahead;
            row = next;
        }
    }
};

}  // namespace hipkittens::quantize
