// simulator/machine/step_builder.cpp: register offsets, constant rows and the growing list of steps.
// SPDX-License-Identifier: MIT
#include "simulator/machine/step_builder.h"

#include <algorithm>
#include <stdexcept>

#include "simulator/memory/apertures.h"

namespace hipkittens::simulator {

struct StepBuilder::State {
    std::vector<Step> steps;
    std::vector<uint32_t> constant_values;
    uint32_t vgprs, accum_offset;
    uint32_t instruction = 0;
};

StepBuilder::StepBuilder(const Settings& settings, uint32_t vgprs, uint32_t accum_offset)
    : settings_(settings), state_(new State{{}, {}, vgprs, accum_offset, 0}) {}
StepBuilder::~StepBuilder() { delete state_; }

Step& StepBuilder::emit(Handler handler) {
    Step& step = state_->steps.emplace_back();
    step.handler = handler;
    step.instruction = state_->instruction;
    return step;
}

void StepBuilder::begin_instruction(uint32_t index) { state_->instruction = index; }
std::vector<Step>& StepBuilder::steps() { return state_->steps; }
const std::vector<uint32_t>& StepBuilder::constant_values() const { return state_->constant_values; }
void StepBuilder::set_constant_values(const std::vector<uint32_t>& values) {
    state_->constant_values = values;
}
uint32_t StepBuilder::wave_bytes() const {
    return layout::constants(state_->vgprs) +
           static_cast<uint32_t>(state_->constant_values.size()) * layout::scalar_row_bytes;
}

uint32_t StepBuilder::offset_of(uint16_t code) const {
    if (code < 128) return layout::scalar(code);
    if (code >= isa::code::first_agpr && code < isa::code::end) {
        code = static_cast<uint16_t>(code - isa::code::first_agpr + state_->accum_offset);
    } else if (code >= isa::code::first_vgpr) {
        code -= isa::code::first_vgpr;
    } else {
        throw std::logic_error("operand " + std::to_string(code) + " has no register row");
    }
    return layout::vectors + code * layout::vector_row_bytes;
}

uint32_t StepBuilder::constant(uint32_t value) {
    auto& values = state_->constant_values;
    auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) {
        values.push_back(value);
        found = values.end() - 1;
    }
    return layout::constants(state_->vgprs) +
           static_cast<uint32_t>(found - values.begin()) * layout::scalar_row_bytes;
}

uint32_t StepBuilder::constant64(uint64_t value) {
    const uint32_t pair[2] = {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
    auto& values = state_->constant_values;
    auto found = std::search(values.begin(), values.end(), pair, pair + 2);
    if (found == values.end()) {
        found = values.insert(values.end(), pair, pair + 2);
    }
    return layout::constants(state_->vgprs) +
           static_cast<uint32_t>(found - values.begin()) * layout::scalar_row_bytes;
}

namespace {

bool is_16_bit(isa::OperandType type) {
    using T = isa::OperandType;
    return type == T::b16 || type == T::i16 || type == T::u16 || type == T::f16 || type == T::pk_f16 ||
           type == T::pk_i16 || type == T::pk_u16;
}

bool is_packed_16(isa::OperandType type) {
    using T = isa::OperandType;
    return type == T::pk_f16 || type == T::pk_bf16 || type == T::pk_i16 || type == T::pk_u16;
}

// Codes 240..248: 0.5 -0.5 1 -1 2 -2 4 -4 1/(2 pi) (ISA manual, "Inline constants").
constexpr uint16_t float16_pattern[9] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000,
                                         0xc000, 0x4400, 0xc400, 0x3118};
constexpr uint32_t float32_pattern[9] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                         0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
constexpr uint64_t float64_pattern[9] = {0x3fe0000000000000, 0xbfe0000000000000, 0x3ff0000000000000,
                                         0xbff0000000000000, 0x4000000000000000, 0xc000000000000000,
                                         0x4010000000000000, 0xc010000000000000, 0x3fc45f306dc9c882};

uint64_t aperture(uint16_t code) {
    switch (code) {
        case isa::code::shared_base:
            return uint64_t{memory::shared_aperture_high} << 32;
        case isa::code::shared_limit:
            return uint64_t{memory::shared_aperture_high} << 32 | 0xffffffff;
        case isa::code::private_base:
            return uint64_t{memory::private_aperture_high} << 32;
        default:
            return uint64_t{memory::private_aperture_high} << 32 | 0xffffffff;
    }
}

}  // namespace

StepBuilder::Source StepBuilder::source(const isa::Instruction& instruction, const isa::Operand& operand) {
    using T = isa::OperandType;
    const uint16_t code = operand.code;
    if (operand.is_vgpr() || operand.is_agpr()) return {offset_of(code), 64};
    if (code < 128) return {offset_of(code), 0};
    // Packed f32 uses its inline constant in the low half only (an assumption: LLVM always selects the low
    // half).
    const bool wide = operand.dwords == 2;
    if (code >= isa::code::first_inline_constant && code <= 208) {
        const int32_t value = code <= 192 ? code - 128 : 192 - code;
        if (wide && operand.type != T::pk_f32) return {constant64(static_cast<uint64_t>(int64_t{value})), 0};
        if (wide) return {constant64(static_cast<uint32_t>(value)), 0};
        // For packed math an integer constant is its full 32 bits, so that -1 is -1 in both halves, and 1
        // only in the lower one: LLVM selects the lower half for both of <1, 1>, but not for <-1, -1>
        // (getInlineEncodingV216 of AMDGPUBaseInfo.cpp).
        const bool narrow = is_16_bit(operand.type) && !is_packed_16(operand.type);
        return {constant(narrow ? static_cast<uint16_t>(value) : static_cast<uint32_t>(value)), 0};
    }
    if (code >= 240 && code <= 248) {
        const int index = code - 240;
        if (wide)
            return {constant64(operand.type == T::pk_f32 ? float32_pattern[index] : float64_pattern[index]),
                    0};
        // Packed integers get the bit pattern of a float (same source).
        const bool half = is_16_bit(operand.type) && operand.type != T::pk_i16 && operand.type != T::pk_u16;
        return {constant(half ? float16_pattern[index] : float32_pattern[index]), 0};
    }
    if (code == isa::code::literal) {
        if (!wide) return {constant(instruction.literal), 0};
        if (operand.type == T::f64) return {constant64(uint64_t{instruction.literal} << 32), 0};
        if (operand.type == T::u64 || operand.type == T::b64 || operand.type == T::pk_f32)
            return {constant64(instruction.literal), 0};
        return {constant64(static_cast<uint64_t>(int64_t{static_cast<int32_t>(instruction.literal)})), 0};
    }
    if (code >= isa::code::shared_base && code <= isa::code::private_limit) {
        // Read as 32 bits, an aperture register returns its upper half, the part that is not zero.
        return {wide ? constant64(aperture(code)) : constant(static_cast<uint32_t>(aperture(code) >> 32)), 0};
    }
    throw std::logic_error("operand " + std::to_string(code) + " cannot be read as a row");
}

void StepBuilder::emit_exec_update() {
    emit([](Wave* wave, const Step* step) -> const Step* {
        wave->exec = read_scalar64(wave, layout::exec);
        return step + 1;
    });
}

}  // namespace hipkittens::simulator
