// simulator/tile_unit/tile_unit.h: bf16 matrix products on the host's own tile unit (Intel AMX), if it has
// one.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "isa/instruction.h"
#include "simulator/machine/step.h"

namespace hipkittens::simulator::tile_unit {

// The CPU has AMX-BF16 and the operating system lets this process use the tile registers.
bool is_available();

// The functions below need a CPU for which is_available() holds.

void shape_thread_tiles();
void release_thread_tiles();

// Gives the bf16 products among `steps` (bound at level avx512_bf16, arithmetic fast, operands used in place) handlers
// that use the tile unit. `together`: consecutive products become one step, and share their rearranged A operands.
void adopt_products(Step* steps, size_t count, const isa::Instruction* instructions, bool together);

// Configures the tiles of the calling thread for those handlers during its lifetime. Foreign code (torch's
// own kernels) configures them differently: nothing but the run loop may run meanwhile.
class ThreadTiles {
  public:
    explicit ThreadTiles(bool wanted) : wanted_(wanted) {
        if (wanted_) shape_thread_tiles();
    }
    ~ThreadTiles() {
        if (wanted_) release_thread_tiles();
    }
    ThreadTiles(const ThreadTiles&) = delete;

  private:
    bool wanted_;
};

}  // namespace hipkittens::simulator::tile_unit
