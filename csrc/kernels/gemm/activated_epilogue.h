// kernels/gemm/activated_epilogue.h: applies a function to the sums, rounded once; optionally stores the sums as well, for a derivative.
// SPDX-License-Identifier: MIT
#pragma once
#include "scaled_epilogue.h"

namespace hipkittens::gemm {

// The same arguments with `sums` as the destination, from column `first` on.
KITTENS_DEVICE GemmArguments of_sums(const ActivatedGemmArguments& arguments, ElementType element,
                                     int first) {
    GemmArguments result = arguments;
    result.c = arguments.sums;
    result.c.data =
        static_cast<const char*>(result.c.data) + first * static_cast<int64_t>(element_bytes(element));
    result.output = element;
    result.vector_stores = arguments.sums_vector_stores;
    return result;
}

// `element`: of the operands.
template <class Destination, ElementType element>
struct ActivatedEpilogue {
    template <int lds_bytes, class Accumulator, int down, int across>
    KITTENS_DEVICE static void store(Accumulator (&bands)[down][across],
                                     const ActivatedGemmArguments& arguments, EpiloguePlace place,
                                     shared_byte* lds) {
        const WaveMemory<lds_bytes> memory{lds};
        AddBias::apply(bands, arguments, place, memory);
        // Both results are stored by the same code.
#pragma unroll 1
        for (int part = arguments.sums.data ? 0 : 1; part < 2; ++part) {
            if (part == 1) Activate::apply(bands, arguments, place, memory);
            // Read again; otherwise both destinations would occupy scalar registers throughout, of which there are too few.
            const ActivatedGemmArguments again = reload_arguments<ActivatedGemmArguments>();
            const GemmArguments to =
                part == 1 ? static_cast<const GemmArguments&>(again) : of_sums(again, element, 0);
            Epilogue<Destination>::template store<lds_bytes>(bands, to, place, lds);
        }
    }
};

}  // namespace hipkittens::gemm
