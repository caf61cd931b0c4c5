// isa/decoder.h: the state of one decode and the operand builders shared by decode*.cpp. Private to this module.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/table.h"

namespace hipkittens::isa {

// A builder returns false if the bits name no register, or one that the operand does not allow.
class Decoder {
  public:
    Decoder(Target target, const uint8_t* bytes, size_t size, Instruction& instruction);

    // Each decodes one group of encodings; `word` below holds the bits they examine.
    bool decode_scalar();
    bool decode_scalar_memory();
    bool decode_vector_short();
    bool decode_vector_long();
    bool is_scaled_matrix_next() const;
    bool decode_matrix_scale();
    bool decode_ds();
    bool decode_buffer(Encoding encoding);
    bool decode_flat();

    uint32_t first_dword() const { return static_cast<uint32_t>(word_); }

  private:
    // Bits high..low of the first eight bytes.
    uint32_t bits(int high, int low) const {
        return static_cast<uint32_t>(word_ >> low) &
               static_cast<uint32_t>((uint64_t{1} << (high - low + 1)) - 1);
    }
    uint32_t bit(int position) const { return bits(position, position); }
    uint32_t dword_at(size_t offset) const;

    // Selects the row; false if the target has none.
    bool find(Encoding encoding, uint32_t number);
    bool set_size(size_t bytes);

    bool source(const OperandForm& form, uint32_t code);  // the 9-bit source space
    bool vgpr(const OperandForm& form, uint32_t index, bool accumulation = false);
    bool sgpr(const OperandForm& form, uint32_t code);              // 7-bit space: registers only
    bool constant_or_sgpr(const OperandForm& form, uint32_t code);  // 8-bit space
    bool inline_constant(const OperandForm& form, uint32_t code);
    bool immediate(const OperandForm& form, int32_t value);
    bool absent(const OperandForm& form);
    bool vcc(const OperandForm& form);
    bool literal(const OperandForm& form);
    bool finish();  // implicit operands, the literal

    // decode_vector.cpp
    bool sdwa(bool has_second_source);
    bool dpp(bool has_second_source);
    bool signs_fit() const;
    bool decode_vop3(bool with_mask);
    bool decode_vop3p();
    bool decode_matrix(uint64_t word);
    bool matrix_source(OperandForm form, uint32_t code, bool accumulation);

    Operand& add(const OperandForm& form, uint32_t code);
    const OperandForm* begin() const { return row_->forms; }
    const OperandForm* end() const { return row_->forms + row_->form_count; }

    Target target_;
    const uint8_t* bytes_;
    size_t size_;
    uint64_t word_ = 0;
    Instruction& out_;
    const Row* row_ = nullptr;
    bool needs_literal_ = false;
};

}  // namespace hipkittens::isa
