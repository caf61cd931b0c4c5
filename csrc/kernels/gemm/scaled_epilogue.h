// kernels/gemm/scaled_epilogue.h: processes the sums of quantized operands: scales, bias, activation, one rounding.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_functions.h"
#include "epilogue.h"

namespace hipkittens::gemm {

// A stage: multiplies sums by the scales of their row and column, or of their row alone.
template <bool of_columns>
struct ScaleSums {
    template <class Accumulator, int down, int across, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const ScaledGemmArguments& arguments,
                                     EpiloguePlace place, Memory) {
        if (!arguments.a_scale.data) [[unlikely]]
            return;
        using Shape = typename Accumulator::shape;
        const Coordinate own = row_layout(Shape::value(), own_lane(), 0);
        const auto factors = [&](ScaleArgument scale, int extent) KITTENS_INLINE {
            return buffer{static_cast<const char*>(scale.data) + place.tile.batch * scale.batch_stride * 4,
                          scale.stride ? static_cast<uint32_t>((extent - 1) * scale.stride + 1) * 4 : 4};
        };
        const buffer a = factors(arguments.a_scale, arguments.m);
        const uint32_t a_step = static_cast<uint32_t>(arguments.a_scale.stride) * 4;
        float columns[across][Accumulator::width][Accumulator::per_lane];
        if constexpr (of_columns) {
            const buffer b = factors(arguments.b_scale, arguments.n);
            const uint32_t b_step = static_cast<uint32_t>(arguments.b_scale.stride) * 4;
#pragma unroll
            for (int c = 0; c < across; ++c)
#pragma unroll
                for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                    for (int e = 0; e < Accumulator::per_lane; ++e)
                        columns[c][j][e] =
                            buffer_load<float>(b, (place.tile.n + place.col + c * place.col_step + own.col +
                                                   j * Shape::cols + row_layout(Shape::value(), 0, e).col) *
                                                      b_step);
        }
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int i = 0; i < Accumulator::height; ++i) {
                const float row = buffer_load<float>(
                    a, (place.tile.m + place.row + r * place.row_step + own.row + i * Shape::rows) * a_step);
#pragma unroll
                for (int c = 0; c < across; ++c)
#pragma unroll
                    for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                        for (int e = 0; e < Accumulator::per_lane; ++e) {
                            bands[r][c].tiles[i][j][e] *= row;
                            if constexpr (of_columns) bands[r][c].tiles[i][j][e] *= columns[c][j][e];
                        }
            }
    }
};

// use(function) for the function selected at run time, on a float. Accurate to the last bits of a float where the result shows them.
template <class Use>
KITTENS_DEVICE void with_activation_of_sums(int32_t activation, ElementType output, const Use& use) {
    using activation::Activation;
    const auto chosen = [&](auto constant) KITTENS_INLINE {
        constexpr Activation function = decltype(constant)::value;
        if (output == ElementType::f32)
            use([](float x) { return activation::activated<function, true>(x, 1.0f).value; });
        else
            use([](float x) { return activation::activated<function, false>(x, 1.0f).value; });
    };
    switch (static_cast<Activation>(activation)) {
        case Activation::silu:
            return chosen(activation::Constant<Activation::silu>());
        case Activation::gelu_tanh:
            return chosen(activation::Constant<Activation::gelu_tanh>());
        case Activation::gelu:
            return chosen(activation::Constant<Activation::gelu>());
        default:
            return chosen(activation::Constant<Activation::relu>());
    }
}

// A stage: applies a function to each sum. The sums go through LDS, so that one loop can process them: in registers, each would have
// a copy of every function.
struct Activate {
    template <class Accumulator, int down, int across, class Arguments, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const Arguments& arguments,
                                     EpiloguePlace, Memory memory) {
        if (arguments.activation == no_activation) [[likely]]
            return;
        using four = vec<float, 4>;
        constexpr int height = Accumulator::height, width = Accumulator::width;
        static_assert(Accumulator::per_lane == 4, "a base tile is 16 bytes of a lane");
        constexpr int pass_bytes = wave_lanes * static_cast<int>(sizeof(four));
        constexpr int all = down * across * height * width, fit = Memory::bytes / pass_bytes;
        constexpr int at_once = fit < all ? fit : all;
        shared_byte* own = memory.lds + own_lane() * static_cast<int>(sizeof(four));
        const auto sums = [&](int n) KITTENS_INLINE -> auto& {
            const int band = n / (height * width);
            return bands[band / across][band % across].tiles[n / width % height][n % width];
        };
#pragma unroll
        for (int first = 0; first < all; first += at_once) {
            const int count = first + at_once < all ? at_once : all - first;
#pragma unroll
            for (int n = 0; n < count; ++n) lds_write(sums(first + n), own + n * pass_bytes);
            compiler_fence();
            with_activation_of_sums(arguments.activation, arguments.output,
                                    [&](auto function) KITTENS_INLINE {
#pragma unroll 1
                                        for (int n = 0; n < count; ++n) {
                                            four values = lds_read<four>(own + n * pass_bytes);
#pragma unroll
                                            for (int e = 0; e < 4; ++e) values[e] = function(values[e]);
                                            lds_write(values, own + n * pass_bytes);
                                        }
                                    });
            compiler_fence();
#pragma unroll
            for (int n = 0; n < count; ++n) sums(first + n) = lds_read<four>(own + n * pass_bytes);
            compiler_fence();
        }
    }
};

// Integer sums are first converted to float, or are stored unchanged: in that case the stages have nothing to do.
template <class Destination, class... Stages>
struct ScaledEpilogue {
    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const ScaledGemmArguments& arguments,
                                     EpiloguePlace place, shared_byte* lds) {
        using Floats = Epilogue<Destination, Stages...>;
        if constexpr (same_type<typename Accumulator::element, float>) {
            Floats::template store<lds_bytes>(bands, arguments, place, lds);
        } else {
            ScaledGemmArguments as_floats = arguments;
            const bool exact = arguments.output == ElementType::i32;
            if (exact) as_floats.output = ElementType::f32;
            rt<float, Accumulator::rows, Accumulator::cols, row_l, typename Accumulator::shape>
                converted[down][across];
#pragma unroll
            for (int r = 0; r < down; ++r)
#pragma unroll
                for (int c = 0; c < across; ++c)
                    for_each_register<Accumulator>([&](int i, int j, int e) {
                        const int sum = bands[r][c].tiles[i][j][e];
                        converted[r][c].tiles[i][j][e] =
                            exact ? __builtin_bit_cast(float, sum) : static_cast<float>(sum);
                    });
            Floats::template store<lds_bytes>(converted, as_floats, place, lds);
        }
    }
};

}  // namespace hipkittens::gemm
