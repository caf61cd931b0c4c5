// kernels/paged_attention/join_waves.h: one result from those of the waves of a workgroup.
// SPDX-License-Identifier: MIT
#pragma once
#include "row_softmax.h"

namespace hipkittens::paged_attention {

// What a wave hands over: its sums, then the statistics of its rows, each a vector of every lane.
template <int row_tiles, int outputs>
inline constexpr int wave_bytes = row_tiles * (outputs * 16 + 8) * wave_lanes;

// Half of the waves hand theirs to the other half, until the first one has all: always in the same order. `lds`: place for half of
// the waves.
template <int waves, int row_tiles, int outputs>
KITTENS_DEVICE void join_waves(RowSoftmax (&softmax)[row_tiles], vec<float, 4> (&output)[row_tiles][outputs],
                               shared_byte* lds) {
    const int wave = wave_id();
#pragma unroll
    for (int half = waves / 2; half >= 1; half /= 2) {
        shared_byte* const of_wave = lds + wave % half * wave_bytes<row_tiles, outputs>;
        shared_byte* const sums = of_wave + lane_id() * 16;
        shared_byte* const statistics = of_wave + row_tiles * outputs * 16 * wave_lanes + lane_id() * 8;
        if (wave >= half && wave < 2 * half) {
#pragma unroll
            for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
                for (int n = 0; n < outputs; ++n)
                    lds_write(output[r][n], sums + (r * outputs + n) * 16 * wave_lanes);
                lds_write(vec<float, 2>{softmax[r].reference, softmax[r].sum},
                          statistics + r * 8 * wave_lanes);
            }
        }
        barrier();
        if (wave < half) {
#pragma unroll
            for (int r = 0; r < row_tiles; ++r) {
                vec<float, 4> others[outputs];
#pragma unroll
                for (int n = 0; n < outputs; ++n)
                    others[n] = lds_read<vec<float, 4>>(sums + (r * outputs + n) * 16 * wave_lanes);
                const auto other = lds_read<vec<float, 2>>(statistics + r * 8 * wave_lanes);
                softmax[r].join({other[0], other[1]}, others, output[r]);
            }
        }
        if (half > 1) barrier();
    }
}

}  // namespace hipkittens::paged_attention
