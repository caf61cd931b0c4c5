// kernels/gemm/adding.h: products added to the contents of C.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"

namespace hipkittens::gemm {

// A stage: adds the elements of C, which is f32, at the positions that will be stored. Sums that started from them would round once for
// every step of K.
struct AddSums {
    template <class Accumulator, int down, int across, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                                     EpiloguePlace place, Memory) {
        __builtin_assume(arguments.output == ElementType::f32);
        using Shape = typename Accumulator::shape;
        constexpr int run = Shape::run, runs = Accumulator::per_lane / run, size = sizeof(float);
        const buffer c = SplitDestination::view(arguments, place.tile, size);
        const Coordinate own = row_layout(Shape::value(), own_lane(), 0);
        const uint32_t row_bytes = static_cast<uint32_t>(arguments.c.leading_stride) * size;
        const int columns = arguments.n - place.tile.n;
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int i = 0; i < Accumulator::height; ++i) {
                const int row = place.row + r * place.row_step + i * Shape::rows + own.row;
                vec<float, run> held[across][Accumulator::width][runs];
                // whole: as in ProductStores::store. Selected per row of base tiles, since sums that came from two branches would
                // be in registers twice.
                const auto load_row = [&](auto whole) KITTENS_INLINE {
#pragma unroll
                    for (int b = 0; b < across; ++b)
#pragma unroll
                        for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                            for (int e = 0; e < runs; ++e) {
                                const int column = place.col + b * place.col_step + j * Shape::cols +
                                                   own.col + row_layout(Shape::value(), 0, e * run).col;
                                held[b][j][e] = load<decltype(whole)::value, run>(
                                    c, row * row_bytes + column * size, columns - column);
                            }
                };
                if (arguments.vector_stores)
                    load_row(index<1>{});
                else
                    load_row(index<0>{});
#pragma unroll
                for (int b = 0; b < across; ++b)
#pragma unroll
                    for (int j = 0; j < Accumulator::width; ++j) {
                        auto& sums = bands[r][b].tiles[i][j];
#pragma unroll
                        for (int e = 0; e < Accumulator::per_lane; ++e)
                            sums[e] += held[b][j][e / run][e % run];
                        materialize(sums);
                    }
            }
    }

  private:
    template <bool whole, int run>
    KITTENS_DEVICE static vec<float, run> load(buffer c, uint32_t offset, int columns_left) {
        if constexpr (whole) return buffer_load<vec<float, run>>(c, columns_left > 0 ? offset : out_of_range);
        vec<float, run> values;
#pragma unroll
        for (int n = 0; n < run; ++n)
            values[n] = buffer_load<float>(
                c, n < columns_left ? offset + n * static_cast<int>(sizeof(float)) : out_of_range);
        return values;
    }
};

}  // namespace hipkittens::gemm
