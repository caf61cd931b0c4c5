// kernels/gemm/gated_epilogue.h: a function of one sum of a pair times the other sum, rounded once.
// SPDX-License-Identifier: MIT
#pragma once
#include "activated_epilogue.h"
#include "paired_columns.h"

namespace hipkittens::gemm {

// Where the pairs of a wave's bands are (PairedRows): in two bands of columns, or in two base tiles of one band.
template <class Accumulator, int across>
struct Pairs {
    static constexpr bool in_bands = across == 2;
    static_assert(in_bands || (across == 1 && Accumulator::width % 2 == 0), "every gate has its partner");
    static constexpr int height = Accumulator::height,
                         width = in_bands ? Accumulator::width : Accumulator::width / 2;
    using Result =
        rt<float, Accumulator::rows, width * Accumulator::shape::cols, row_l, typename Accumulator::shape>;

    template <int partner, int down>
    KITTENS_DEVICE static auto& sums(Accumulator (&bands)[down][across], int r, int i, int j) {
        if constexpr (in_bands)
            return bands[r][partner].tiles[i][j];
        else
            return bands[r][0].tiles[i][2 * j + partner];
    }
    // The wave's first column of C in the tile.
    KITTENS_DEVICE static int first_column(int col) { return in_bands ? col : col / 2; }
};

// `element`: of the operands.
template <class Destination, ElementType element>
struct GatedEpilogue {
    template <class Of, class Accumulator, int down, int across>
    KITTENS_DEVICE static void add_bias(Accumulator (&bands)[down][across],
                                        const GatedGemmArguments& arguments, int first_column) {
        if (!arguments.bias) return;
        using Shape = typename Accumulator::shape;
        const int64_t elements = (arguments.n - 1) * arguments.bias_stride + arguments.bias_pair_stride + 1;
        const buffer bias{static_cast<const char*>(arguments.bias),
                          static_cast<uint32_t>(elements) * element_bytes(arguments.bias_type)};
        const uint32_t stride = static_cast<uint32_t>(arguments.bias_stride),
                       to_partner = static_cast<uint32_t>(arguments.bias_pair_stride);
        const int own = row_layout(Shape::value(), own_lane(), 0).col;
        float values[2][Of::width][Accumulator::per_lane];
        with_element(arguments.bias_type, [&](auto zero) {
            using T = decltype(zero);
#pragma unroll
            for (int j = 0; j < Of::width; ++j)
#pragma unroll
                for (int e = 0; e < Accumulator::per_lane; ++e) {
                    const int column =
                        first_column + own + j * Shape::cols + row_layout(Shape::value(), 0, e).col;
                    // Out-of-range columns are not stored; their bias may be read from anywhere in the buffer.
                    const uint32_t offset = column * stride * sizeof(T);
                    values[0][j][e] = static_cast<float>(buffer_load<T>(bias, offset));
                    values[1][j][e] =
                        static_cast<float>(buffer_load<T>(bias, offset + to_partner * sizeof(T)));
                }
        });
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int i = 0; i < Of::height; ++i)
#pragma unroll
                for (int j = 0; j < Of::width; ++j)
#pragma unroll
                    for (int e = 0; e < Accumulator::per_lane; ++e) {
                        Of::template sums<0>(bands, r, i, j)[e] += values[0][j][e];
                        Of::template sums<1>(bands, r, i, j)[e] += values[1][j][e];
                    }
    }

    // Accurate to the last bits of a float where the result shows them.
    template <class Use>
    KITTENS_DEVICE static void with_gate(const GatedGemmArguments& arguments, const Use& use) {
        activation::with_activation(
            static_cast<activation::Activation>(arguments.activation), [&](auto constant) KITTENS_INLINE {
                constexpr activation::Activation function = decltype(constant)::value;
                const float alpha = arguments.alpha, limit = arguments.limit;
                if (arguments.output == ElementType::f32)
                    use([=](float gate, float other) {
                        return activation::gated<function, true>(gate, other, alpha, limit).value;
                    });
                else
                    use([=](float gate, float other) {
                        return activation::gated<function, false>(gate, other, alpha, limit).value;
                    });
            });
    }

    // Through LDS, like Activate: one loop per function.
    template <class Of, int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void gate(Accumulator (&bands)[down][across],
                                    typename Of::Result (&results)[down][1],
                                    const GatedGemmArguments& arguments, EpiloguePlace of_wave,
                                    shared_byte* lds) {
        using four = vec<float, 4>;
        static_assert(Accumulator::per_lane == 4, "a base tile is 16 bytes of a lane");
        constexpr int pass_bytes = wave_lanes * static_cast<int>(sizeof(four));
        constexpr int all = down * Of::height * Of::width, fit = lds_bytes / (2 * pass_bytes);
        constexpr int at_once = fit < all ? fit : all;
        static_assert(at_once >= 1, "a pair fits in the wave's LDS");
        shared_byte* own = lds + own_lane() * static_cast<int>(sizeof(four));
        const auto at = [&](int n) KITTENS_INLINE {
            const int band = n / (Of::height * Of::width);
            return vec<int, 4>{band, n / Of::width % Of::height, n % Of::width, 0};
        };
#pragma unroll
        for (int first = 0; first < all; first += at_once) {
            const int count = first + at_once < all ? at_once : all - first;
            // Rows past the last one are not stored; with small groups they are most of a tile.
            const auto begin = at(first);
            const int row = begin[0] * of_wave.row_step + begin[1] * Accumulator::shape::rows;
            if (of_wave.tile.m + of_wave.row + row >= arguments.m) {
#pragma unroll
                for (int n = 0; n < count; ++n) {
                    const auto place = at(first + n);
                    results[place[0]][0].tiles[place[1]][place[2]] = {};
                }
                continue;
            }
#pragma unroll
            for (int n = 0; n < count; ++n) {
                const auto place = at(first + n);
                lds_write(Of::template sums<0>(bands, place[0], place[1], place[2]),
                          own + 2 * n * pass_bytes);
                lds_write(Of::template sums<1>(bands, place[0], place[1], place[2]),
                          own + (2 * n + 1) * pass_bytes);
            }
            compiler_fence();
            with_gate(arguments, [&](auto function) KITTENS_INLINE {
#pragma unroll 1
                for (int n = 0; n < count; ++n) {
                    four values = lds_read<four>(own + 2 * n * pass_bytes);
                    const four others = lds_read<four>(own + (2 * n + 1) * pass_bytes);
#pragma unroll
                    for (int e = 0; e < 4; ++e) values[e] = function(values[e], others[e]);
                    lds_write(values, own + 2 * n * pass_bytes);
                }
            });
            compiler_fence();
#pragma unroll
            for (int n = 0; n < count; ++n) {
                const auto place = at(first + n);
                results[place[0]][0].tiles[place[1]][place[2]] = lds_read<four>(own + 2 * n * pass_bytes);
            }
            compiler_fence();
        }
    }

    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const GatedGemmArguments& arguments,
                                     EpiloguePlace place, shared_byte* lds) {
        using Of = Pairs<Accumulator, across>;
        place.col = Of::first_column(place.col);
        add_bias<Of>(bands, arguments, place.tile.n + place.col);
        typename Of::Result results[down][1];
        // Gates, partners and results are stored by the same code.
        constexpr int gates = 0, partners = 1, gated = 2;
#pragma unroll 1
        for (int part = arguments.sums.data ? gates : gated; part <= gated; ++part) {
            if (part == gates)
                take<Of, 0>(bands, results);
            else if (part == partners)
                take<Of, 1>(bands, results);
            else
                gate<Of, lds_bytes>(bands, results, arguments, place, lds);
            const GemmArguments to = part == gated
                                         ? static_cast<const GemmArguments&>(arguments)
                                         : of_sums(arguments, element, part == partners ? arguments.n : 0);
            Epilogue<Destination>::template store<lds_bytes>(results, to, place, lds);
        }
    }
    template <class Of, int partner, class Accumulator, int down, int across>
    KITTENS_DEVICE static void take(Accumulator (&bands)[down][across],
                                    typename Of::Result (&results)[down][1]) {
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int i = 0; i < Of::height; ++i)
#pragma unroll
                for (int j = 0; j < Of::width; ++j)
                    results[r][0].tiles[i][j] = Of::template sums<partner>(bands, r, i, j);
    }
};

}  // namespace hipkittens::gemm
