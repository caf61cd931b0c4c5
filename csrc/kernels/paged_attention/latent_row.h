// kernels/paged_attention/latent_row.h: the layout of a row of a latent cache, and the scales embedded in it.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "key_tile.h"

namespace hipkittens::paged_attention {

// The latent, then the scales, if any, then the rotary key.
template <PagedConfig config>
struct LatentRow {
    using T = typename element_of<config.element>::value;
    using Cached = typename element_of<config.cache>::value;
    static constexpr bool has_scales = config.scaling == CacheScaling::in_rows;
    using RotaryElement = typename choice<has_scales, T, Cached>::type;
    static constexpr int scales_at = latent_dim * static_cast<int>(sizeof(Cached)),
                         rotary_at = scales_at + (has_scales ? scaled_row_scales * 4 : 0);
    static_assert(!has_scales ||
                  (rotary_at + rotary_dim * static_cast<int>(sizeof(RotaryElement)) == scaled_row_bytes));
};

// The scales of a tile's rows, loaded with its keys: of every 16 lanes, which share 8 rows, lanes n and 8 + n have `count`
// adjacent scales of row n.
template <int count>
struct RowScales {
    vec<float, count> loaded, current;

    // `from`: the lane's row according to KeyPages. Loads must be issued at this point.
    KITTENS_DEVICE void load(global<const char> from) {
        compiler_fence();
        loaded = load_at<vec<float, count>>(from);
        compiler_fence();
    }
    KITTENS_DEVICE void take() { current = loaded; }

    // A band of the lane's rows times the scales with index `scale`; `first`: selects one of the two lanes of a row.
    template <class T, int first, class Cached, int band_dim>
    KITTENS_DEVICE TileRows<T, band_dim> times(const TileRows<Cached, band_dim>& codes, int scale) const {
        static_assert(TileRows<T, band_dim>::bands == 1);
        TileRows<T, band_dim> values;
        for_each_index<lane_keys>([&](auto n) KITTENS_INLINE {
            values.rows[0][n.value] =
                scaled_e4m3fn<T>(codes.rows[0][n.value], broadcast_in_16<first + n.value>(current[scale]));
        });
        return values;
    }
};

}  // namespace hipkittens::paged_attention
