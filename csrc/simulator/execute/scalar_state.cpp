// simulator/execute/scalar_state.cpp: s_getreg and s_setreg: MODE, HW_ID and XCC_ID.
// SPDX-License-Identifier: MIT
#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

#include "simulator/execute/scalar_state.h"

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

// Numbers of the ISA manual's table "Hardware Register Values"; XCC_ID is LLVM's hwreg(HW_REG_XCC_ID).
constexpr uint32_t register_mode = 1, register_hw_id = 4, register_xcc_id = 20;

// MODE: rounding in bits 3:0, denormals of f32 in 5:4, of f64 and f16 in 7:6, dx10_clamp 8, ieee 9.
constexpr uint32_t mode_round = 0x0f, mode_denormals_f32 = 0x30, mode_denormals_f64 = 0xc0;

uint32_t hardware_register(const Wave* wave, uint32_t number) {
    switch (number) {
        case register_mode:
            return wave->mode;
        // HW_ID: wave slot in bits 3:0, SIMD in 5:4. Waves of a workgroup go round the four SIMDs; everything
        // else is 0.
        case register_hw_id:
            return wave->index_in_workgroup / 4 % 16 | (wave->index_in_workgroup % 4u) << 4;
        // Workgroups are dealt to the eight XCDs in turn.
        default:
            return wave->workgroup->linear_id % 8;
    }
}

// extra: register, first bit, mask of the field before shifting.
const Step* get_register(Wave* wave, const Step* step) {
    write_scalar(wave, step->destination,
                 hardware_register(wave, step->extra[0]) >> step->extra[1] & step->extra[2]);
    return step + 1;
}

// The host is set up for the mode a kernel starts in (machine/launch.cpp): a program that asks for another
// one is told.
const Step* set_mode(Wave* wave, const Step* step) {
    const uint32_t mask = step->extra[2] << step->extra[1];
    const uint32_t mode =
        (wave->mode & ~mask) | (read_scalar(wave, step->source[0]) << step->extra[1] & mask);
    const uint32_t changed = mode ^ wave->mode;
    if (changed & mode_round)
        return fault(wave, step, "s_setreg changes the rounding mode, which is not simulated");
    if (changed & mode_denormals_f32)
        return fault(wave, step, "s_setreg changes the denormal mode of f32, which is not simulated");
    if (changed & ~mode & mode_denormals_f64) {
        return fault(wave, step,
                     "s_setreg asks for f64 and f16 denormals to be flushed, which is not simulated");
    }
    if (changed & ~mode_denormals_f64)
        return fault(wave, step, "s_setreg changes a MODE field that is not simulated");
    wave->mode = mode;
    return step + 1;
}

}  // namespace

bool bind_hardware_register(const isa::Instruction& instruction, StepBuilder& builder) {
    const bool reads = instruction.opcode == isa::Opcode::s_getreg_b32;
    const isa::Operand& place = instruction.operands[reads ? 1 : 0];
    const uint32_t field = static_cast<uint16_t>(place.immediate);
    const uint32_t number = field & 63, size = (field >> 11) + 1;
    if (number != register_mode && !(reads && (number == register_hw_id || number == register_xcc_id)))
        return false;
    Handler handler = reads ? get_register : set_mode;
    uint32_t value = 0;
    if (instruction.opcode == isa::Opcode::s_setreg_imm32_b32) {
        value = builder.constant(instruction.literal);
    } else if (!reads) {
        value = builder.source(instruction, instruction.operands[1]).offset;
    }
    Step& step = builder.emit(handler);
    if (reads) step.destination = builder.offset_of(instruction.operands[0].code);
    step.source[0] = value;
    step.extra[0] = number;
    step.extra[1] = field >> 6 & 31;
    step.extra[2] = size == 32 ? ~uint32_t{0} : (uint32_t{1} << size) - 1;
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
