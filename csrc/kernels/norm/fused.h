// kernels/norm/fused.h: the rows of a norm fused with surrounding operations.
// SPDX-License-Identifier: MIT
#pragma once
#include "fused_row.h"

namespace hipkittens::norm {

template <class T, RowShape shape, bool usual>
KITTENS_DEVICE void fused_rows(kittens::shared_byte* lds) {
    const Worker<shape> worker;
    const uint32_t which = kittens::workgroup_id_y();
    RowReduction<shape.waves> row_reduction(lds);
    for (uint32_t row = worker.first_row;;) {
        const FusedArguments arguments = fused_arguments(which);
        const bool pads = arguments.codes == Codes::group &&
                          arguments.quantization.layout == quantize::ScaleLayout::shuffled;
        if (row >= (pads ? arguments.quantization.padded_rows : arguments.rows.all)) return;
        const FusedRow<T, shape, usual> fused(which, row, worker);
        if (row < arguments.rows.all)
            fused.run(row_reduction);
        else
            fused.pad();
        row += fused_arguments(which).workers;
    }
}

}  // namespace hipkittens::norm
