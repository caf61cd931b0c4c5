// simulator/machine/product_runs.h: groups the matrix products of a block.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/program.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

// Kernels place loads, LDS accesses and waits between their products, one at a time, which hardware runs in parallel. The tile
// unit rearranges an operand once for consecutive products (tile_unit/), and an accumulator stays in its tile from one to
// the next. So products are moved past the steps that follow them and do not involve their registers, until they meet the next
// product or a step that does. All other steps keep their order, and so do products. The difference is visible only in a wave's
// registers, and no other step looks at these.
//
// A product may move past a wait: what completes there was requested for registers that a product before the wait may not touch either.
//
// Not done when waves take turns of a number of steps (Settings::wave_turn): a run counts as one step, and there time is measured in steps.
bool gathers_products(const Settings& settings);
void gather_products(Program& program, const StepBuilder& builder);

struct ProductRuns {
    uint64_t products = 0,
             runs = 0;  // bf16 products of the code, and runs with nothing between them
};
ProductRuns product_runs(const Program& program);

}  // namespace hipkittens::simulator
