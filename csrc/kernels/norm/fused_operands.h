// kernels/norm/fused_operands.h: the arguments of fused norms, and rows of their tensors.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/memory_intrinsics.h"
#include "../../tiles/wave_intrinsics.h"
#include "arguments.h"

namespace hipkittens::norm {

// Read from memory at the call: all of them do not fit into scalar registers. which: 0 or 1.
KITTENS_DEVICE FusedArguments fused_arguments(uint32_t which) {
    return kittens::reload_arguments<FusedArguments>(which);
}

template <class T>
KITTENS_DEVICE buffer row_of(const StridedRows& rows, const RowCounts& counts, uint32_t columns,
                             uint32_t row) {
    return {static_cast<const char*>(rows.data) + rows.offset(row, counts) * static_cast<int64_t>(sizeof(T)),
            columns * static_cast<uint32_t>(sizeof(T))};
}

}  // namespace hipkittens::norm
