// kernels/preloaded_arguments.h: a kernel's argument struct whose first words are scalar arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/element.h"

namespace hipkittens {

// Scalar arguments are preloaded into registers when a wave starts; members of a struct are not (tools/build_kernels.py). A kernel
// therefore takes the first words of its arguments as scalars, followed by the rest as a struct.
inline constexpr int preloaded_words = 7;

template <class Arguments>
struct NotPreloaded {
    static_assert(sizeof(Arguments) % 8 == 0 && alignof(Arguments) == 8);
    uint64_t words[sizeof(Arguments) / 8 - preloaded_words];
};

template <class Arguments>
KITTENS_DEVICE Arguments joined(const uint64_t (&first)[preloaded_words],
                                const NotPreloaded<Arguments>& rest) {
    struct Words {
        uint64_t first[preloaded_words];
        NotPreloaded<Arguments> rest;
    };
    static_assert(sizeof(Words) == sizeof(Arguments));
    const Words words = {{first[0], first[1], first[2], first[3], first[4], first[5], first[6]}, rest};
    return __builtin_bit_cast(Arguments, words);
}

}  // namespace hipkittens
