// kernels/gemm/epilogue.h: what becomes of sums of products before they are stored, as a chain of stages.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"
#include "product_stores.h"

namespace hipkittens::gemm {

// What a workgroup computes: its tile begins at row m, column n of the product.
struct TileCoordinate {
    int m, n, split;
    int64_t batch;
};

// use(T()) for the T of a type that the host names: one branch, outside of all elements.
template <class Use>
KITTENS_DEVICE void with_element(ElementType type, const Use& use) {
    if (type == ElementType::f32)
        use(float());
    else if (type == ElementType::bf16)
        use(bf16());
    else
        use(half());
}

// The bands of a wave, the first at (row, col) of the product and others row_step and col_step on.
template <class Accumulator_, int down_, int across_>
struct ProductBands {
    using Accumulator = Accumulator_;
    using Shape = typename Accumulator::shape;
    static constexpr int down = down_, across = across_;
    Accumulator (&bands)[down][across];
    int row, col, row_step, col_step;

    // use(c, j, e, column): register e of base tile column j of band column c holds elements of `column`, for a lane whose
    // first one is `lane_col`.
    KITTENS_DEVICE static int lane_col() { return row_layout(Shape::value(), own_lane(), 0).col; }
    template <class Use>
    KITTENS_DEVICE void for_each_column(int lane_col, const Use& use) const {
#pragma unroll
        for (int c = 0; c < across; ++c)
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                for (int e = 0; e < Accumulator::per_lane; ++e)
                    use(c, j, e,
                        col + c * col_step + lane_col + j * Shape::cols +
                            row_layout(Shape::value(), 0, e).col);
    }
    // use(element, c, j, e) for the elements of all rows.
    template <class Use>
    KITTENS_DEVICE void for_each(const Use& use) const {
#pragma unroll
        for (int r = 0; r < down; ++r)
#pragma unroll
            for (int c = 0; c < across; ++c)
#pragma unroll
                for (int i = 0; i < Accumulator::height; ++i)
#pragma unroll
                    for (int j = 0; j < Accumulator::width; ++j)
#pragma unroll
                        for (int e = 0; e < Accumulator::per_lane; ++e)
                            bands[r][c].tiles[i][j][e] = use(bands[r][c].tiles[i][j][e], c, j, e);
    }
};

// A stage: apply(bands, arguments) changes the sums where they are. What may be absent asks once, not for each element.
struct AddBias {
    template <class Bands>
    KITTENS_DEVICE static void apply(const Bands& bands, const GemmArguments& arguments) {
        if (!arguments.bias) return;
        using Accumulator = typename Bands::Accumulator;
        const int lane_col = Bands::lane_col();
        float values[Bands::across][Accumulator::width][Accumulator::per_lane];
        const buffer bias{static_cast<const char*>(arguments.bias),
                          static_cast<uint32_t>(arguments.n * size_of(arguments.bias_type))};
        with_element(arguments.bias_type, [&](auto zero) KITTENS_INLINE {
            using T = decltype(zero);
            bands.for_each_column(lane_col, [&](int c, int j, int e, int column) KITTENS_INLINE {
                values[c][j][e] = static_cast<float>(buffer_load<T>(bias, column * sizeof(T)));
            });
        });
        bands.for_each([&](float sum, int c, int j, int e) { return sum + values[c][j][e]; });
    }
};

// Where rows of the product go: those of C, or with a split K of the split's partial sums.
struct SplitDestination {
    KITTENS_DEVICE static buffer view(const GemmArguments& arguments, TileCoordinate tile, int size) {
        char* data = static_cast<char*>(const_cast<void*>(arguments.c.data)) +
                     (tile.batch * arguments.c.batch_stride + tile.split * arguments.c_split_stride) * size;
        const int64_t begin = (tile.m * arguments.c.leading_stride + tile.n) * size;
        const int64_t end = ((arguments.m - 1) * arguments.c.leading_stride + arguments.n) * size;
        return global_window{data + begin, end - begin}.view();
    }
};

// The stages in their order, one rounding to the type of C, and the stores.
template <class Destination, class... Stages>
struct Epilogue {
    // (row, col): of the wave's first band in the tile. `lds`: lds_bytes of the wave's own that no load is in flight to.
    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const GemmArguments& arguments,
                                     TileCoordinate tile, int row, int col, int row_step, int col_step,
                                     shared_byte* lds) {
        const ProductBands<Accumulator, down, across> product{bands, tile.m + row, tile.n + col, row_step,
                                                              col_step};
        (Stages::apply(product, arguments), ...);
        const int size = size_of(arguments.output);
        const buffer destination = Destination::view(arguments, tile, size);
        const auto store_all = [&](auto zero, auto whole) KITTENS_INLINE {
            using T = decltype(zero);
            using Stores = ProductStores<T, Accumulator>;
            // As many base tiles at a time as there is room for.
            constexpr int fit = lds_bytes / (Accumulator::shape::rows * Stores::Rows::row_bytes);
            constexpr int step = fit < Accumulator::height ? fit : Accumulator::height;
            constexpr int rows = step * Accumulator::shape::rows;
            static_assert(
                step >= 1 && Accumulator::height % step == 0 && rows % Stores::Stager::rows_per_pass == 0,
                "whole passes fit in the wave's LDS");
            const Stores stores{lds,
                                destination,
                                static_cast<uint32_t>(arguments.c.leading_stride) * size,
                                arguments.n - tile.n,
                                own_lane(),
                                row,
                                col};
#pragma unroll
            for (int r = 0; r < down; ++r)
#pragma unroll
                for (int c = 0; c < across; ++c)
#pragma unroll
                    for (int i = 0; i < Accumulator::height; i += step) {
                        stores.template write<step, whole.value>(bands[r][c], i);
                        // A wave's accesses to LDS are in order; only the compiler has to keep it.
                        compiler_fence();
                        stores.template store<whole.value>(r * row_step, c * col_step,
                                                           i * Accumulator::shape::rows, rows);
                        compiler_fence();
                    }
        };
        with_element(arguments.output, [&](auto zero) KITTENS_INLINE {
            if (arguments.vector_stores)
                store_all(zero, index<1>{});
            else
                store_all(zero, index<0>{});
        });
    }
};

}  // namespace hipkittens::gemm
