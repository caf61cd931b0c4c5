// simulator/machine/step_builder.h: resolves operands to offsets while a program is translated into steps.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "isa/instruction.h"
#include "simulator/machine/settings.h"
#include "simulator/machine/step.h"

namespace hipkittens::simulator {

// Every family of instructions (execute/) has a binder: it examines an instruction and emits its steps. A
// binder returns false if it has no meaning for the instruction: translation then ends with a step that
// faults there.
class StepBuilder {
  public:
    StepBuilder(const Settings& settings, uint32_t vgprs, uint32_t accum_offset);
    ~StepBuilder();

    const Settings& settings() const { return settings_; }

    // Emits a step of the instruction being translated. The reference is valid until the next emit.
    Step& emit(Handler handler);

    // Offset and stride of an operand that is read. Constants get a constant row that holds the pattern
    // required by the operand's type (an inline 1.0 is 0x3c00 for f16, 0x3f800000 for f32; 64-bit types use
    // two rows).
    struct Source {
        uint32_t offset;
        uint8_t stride;
    };
    Source source(const isa::Instruction& instruction, const isa::Operand& operand);

    // Offset of a register by operand code (constants excluded): for a destination, or for vcc, m0, exec.
    uint32_t offset_of(uint16_t code) const;

    // A constant row holding `value`; rows with the same value are shared. `constant64` uses two consecutive
    // rows.
    uint32_t constant(uint32_t value);
    uint32_t constant64(uint64_t value);

    // Scratch row r, 256 bytes; rows are free again at the next instruction. Consecutive rows hold 64-bit
    // values.
    uint32_t scratch_row(int row) const { return layout::scratch + row * layout::vector_row_bytes; }

    // Emits the step that must follow any write of EXEC's rows by a plain scalar destination.
    void emit_exec_update();

    // Used by translate.cpp.
    void begin_instruction(uint32_t index);
    std::vector<Step>& steps();
    const std::vector<uint32_t>& constant_values() const;
    void set_constant_values(const std::vector<uint32_t>& values);  // from a finished program
    uint32_t wave_bytes() const;

  private:
    struct State;
    Settings settings_;
    State* state_;
};

}  // namespace hipkittens::simulator
