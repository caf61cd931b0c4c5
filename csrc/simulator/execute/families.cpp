// simulator/execute/families.cpp: the instruction binders of one host level.
// SPDX-License-Identifier: MIT
#include "simulator/execute/families.h"

#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

const Families& families() {
    static constexpr Families table = {bind_scalar, bind_scalar_memory, bind_vector,
                                       bind_matrix, bind_lds,           bind_vector_memory};
    return table;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
