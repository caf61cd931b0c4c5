// simulator/machine/product_runs.h: brings the matrix products of a block together.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/program.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

// Kernels put loads, LDS accesses and waits between their products, one by one, which hardware runs side by side. The tile unit
// rearranges an operand once for the products that follow each other (tile_unit/), and a sum stays in its tile from one to
// the next. So products move behind what stands between them and has nothing to do with their registers, until they meet the next
// ones or something that has. All other steps keep their order, and products theirs. Of a wave only registers tell the
// difference, and no other step looks at these.
//
// A wait may be passed: what completes there was requested for registers that a product before the wait may not touch either.
//
// Not where waves take turns of so many steps (Settings::wave_turn): a run counts as one, and time is measured by steps there.
bool gathers_products(const Settings& settings);
void gather_products(Program& program, const StepBuilder& builder);

struct ProductRuns {
    uint64_t products = 0,
             runs = 0;  // bf16 products of the code, and runs in which nothing stands between them
};
ProductRuns product_runs(const Program& program);

}  // namespace hipkittens::simulator
