// kernels/router/token.h: a token's logits in memory, and the location of its results.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/row_chunk.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::router {

class Token {
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    const RouteArguments& arguments_;
    int64_t logits_, results_;
    bool exists_;

    template <class T>
    KITTENS_DEVICE void load(uint32_t first, float* values, int chunks) const {
        typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
        auto* from = (global<const T>)arguments_.logits.data + logits_ + first;
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            const uint32_t expert = first + c * 8;
            if (arguments_.aligned && expert + 8 <= arguments_.experts) {
                const kittens::eight eight =
                    kittens::widened(kittens::raw_eight<T>(*(global<const vector>)(from + c * 8)));
#pragma unroll
                for (int i = 0; i < 8; ++i) values[c * 8 + i] = eight[i];
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    values[c * 8 + i] =
                        expert + i < arguments_.experts ? static_cast<float>(from[c * 8 + i]) : 0.0f;
            }
        }
    }

  public:
    // Past the last token, lanes read the last one and store nothing.
    KITTENS_DEVICE Token(const RouteArguments& arguments, uint32_t token)
        : arguments_(arguments), exists_(token < arguments.rows.all) {
        const uint32_t last = arguments.rows.all - 1, row = token < last ? token : last;
        logits_ = arguments.logits.offset(row, arguments.rows);
        results_ = static_cast<int64_t>(row) * (arguments.k + arguments.shared);
    }

    // Loads the logits of experts from `first` on, zeros past the last.
    template <int count>
    KITTENS_DEVICE void load(uint32_t first, float (&values)[count]) const {
        if (arguments_.element == ElementType::f32)
            load<float>(first, values, count / 8);
        else if (arguments_.element == ElementType::bf16)
            load<kittens::bf16>(first, values, count / 8);
        else
            load<kittens::half>(first, values, count / 8);
    }
    KITTENS_DEVICE void store_id(uint32_t slot, uint32_t expert) const {
        if (exists_) ((global<int32_t>)arguments_.ids)[results_ + slot] = static_cast<int32_t>(expert);
    }
    KITTENS_DEVICE void store_weight(uint32_t slot, float weight) const {
        if (exists_) ((global<float>)arguments_.weights)[results_ + slot] = weight;
    }
};

}  // namespace hipkittens::router
