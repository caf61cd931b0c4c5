// kernels/paged_attention/join_waves.h: combines the results of the waves of a workgroup.
// SPDX-License-Identifier: MIT
#pragma once
#include "row_softmax.h"

namespace hipkittens::paged_attention {

// What a wave passes on at once: sums, then the statistics of its rows, each as one vector per lane.
template <int row_tiles, int outputs>
inline constexpr int wave_bytes = row_tiles * (outputs * 16 + 8) * wave_lanes;

// Half of the waves pass their results to the other half, until the first wave has everything: always in the same order. `lds`:
// space for half of the waves and, of their sums, for one of `portions`.
template <int waves, int portions, int row_tiles, int outputs>
KITTENS_DEVICE void join_waves(RowSoftmax (&softmax)[row_tiles], vec<float, 4> (&output)[row_tiles][outputs],
                               shared_byte* lds) {
    constexpr int count = outputs / portions;
    const int wave = wave_id();
#pragma unroll
    for (int half = waves / 2; half >= 1; half /= 2) {
        shared_byte* const of_wave = lds + wave % half * wave_bytes<row_tiles, count>;
        shared_byte* const sums = of_wave + lane_id() * 16;
        shared_byte* const statistics = of_wave + row_tiles * count * 16 * wave_lanes + lane_id() * 8;
        float factor[row_tiles];
#pragma unroll
        for (int portion = 0; portion < portions; ++portion) {
            if (wave >= half && wave < 2 * half) {
#pragma unroll
                for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
                    for (int n = 0; n < count; ++n)
                        lds_write(output[r][portion * count + n], sums + (r * count + n) * 16 * wave_lanes);
                    if (portion == 0)
                        lds_write(vec<float, 2>{softmax[r].reference, softmax[r].sum},
                                  statistics + r * 8 * wave_lanes);
                }
            }
            barrier();
            if (wave < half) {
#pragma unroll
                for (int r = 0; r < row_tiles; ++r) {
                    if (portion == 0) {
                        const auto other = lds_read<vec<float, 2>>(statistics + r * 8 * wave_lanes);
                        factor[r] = softmax[r].join({other[0], other[1]}, output[r]);
                    }
#pragma unroll
                    for (int n = 0; n < count; ++n) {
                        const auto others = lds_read<vec<float, 4>>(sums + (r * count + n) * 16 * wave_lanes);
                        vec<float, 4>& own = output[r][portion * count + n];
                        own = __builtin_elementwise_fma(others, vec<float, 4>(factor[r]), own);
                    }
                }
            }
            if (half > 1 || portion + 1 < portions) barrier();
        }
    }
}

}  // namespace hipkittens::paged_attention
