// kernels/rotary/rows.h: the location of a token's head.
// SPDX-License-Identifier: MIT
#pragma once
#include "unit.h"

namespace hipkittens::rotary {

template <class T>
KITTENS_DEVICE const T* row_of(const HeadTensor& tensor, uint32_t batch, uint32_t token, uint32_t head) {
    return static_cast<const T*>(tensor.data) + batch * tensor.batch + token * tensor.token +
           head * tensor.head;
}
template <class T>
KITTENS_DEVICE T* result_of(const HeadTensor& tensor, uint32_t batch, uint32_t token, uint32_t head) {
    return const_cast<T*>(row_of<T>(tensor, batch, token, head));
}

}  // namespace hipkittens::rotary
