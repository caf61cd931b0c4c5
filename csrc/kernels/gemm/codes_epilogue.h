// kernels/gemm/codes_epilogue.h: converts the sums to 8-bit floats of the target.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/float8.h"
#include "scaled_epilogue.h"

namespace hipkittens::gemm {

// Applies the stages in order and the scale of C, then rounds once, to nearest even; values past the largest finite one become it.
template <class Destination, class... Stages>
struct CodesEpilogue {
    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across], const CodesGemmArguments& arguments,
                                     EpiloguePlace place, shared_byte* lds) {
        (Stages::apply(bands, arguments, place, WaveMemory<lds_bytes>{lds}), ...);
        const float factor =
            arguments.c_scale
                ? buffer_load<float>(buffer{reinterpret_cast<const char*>(arguments.c_scale), 4}, 0)
                : 1.0f;
        const buffer destination = Destination::view(arguments, place.tile, 1);
        const auto convert = [&](vec<float, 4> values) KITTENS_INLINE {
#pragma unroll
            for (int e = 0; e < 4; ++e) values[e] = clamped(values[e] * factor, largest_fp8);
            return to_fp8(values);
        };
        if (arguments.vector_stores) [[likely]]
            store_bands<uint8_t, true, lds_bytes>(bands, arguments, place, lds, destination, convert);
        else
            store_bands<uint8_t, false, lds_bytes>(bands, arguments, place, lds, destination, convert);
    }
};

}  // namespace hipkittens::gemm
