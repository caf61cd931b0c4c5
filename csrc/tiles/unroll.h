// tiles/unroll.h: loops whose index is a constant.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"

namespace kittens {

template <int Index>
struct index {
    static constexpr int value = Index;
};

template <class T, T... Values>
struct constants {};
template <int Count>
using indices_below = __make_integer_seq<constants, int, Count>;

template <int First, class Step, int... Offsets>
KITTENS_DEVICE void for_each_offset(const Step& step, constants<int, Offsets...>) {
    (step(index<First + Offsets>{}), ...);
}
// step(index<First>{}), ..., step(index<Past - 1>{}).
template <int Past, int First = 0, class Step>
KITTENS_DEVICE void for_each_index(const Step& step) {
    for_each_offset<First>(step, indices_below<(Past > First ? Past - First : 0)>{});
}

}  // namespace kittens
