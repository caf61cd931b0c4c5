// simulator/execute/scalar_state.cpp: s_getreg and s_setreg: MODE, STATUS, sizes, apertures, HW_ID and XCC_ID.
// SPDX-License-Identifier: MIT
#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

#include "simulator/execute/scalar_state.h"

#include "simulator/machine/float_mode.h"
#include "simulator/machine/mode_regions.h"
#include "simulator/machine/program.h"
#include "simulator/machine/workgroup.h"
#include "simulator/memory/apertures.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

// Numbers of the ISA manual's table "Hardware Register Values"; XCC_ID is LLVM's hwreg(HW_REG_XCC_ID).
enum HardwareRegister : uint32_t {
    register_mode = 1,
    register_status = 2,
    register_trap_status = 3,
    register_hw_id = 4,
    register_gpr_alloc = 5,
    register_lds_alloc = 6,
    register_ib_status = 7,
    register_memory_bases = 15,
    register_xcc_id = 20,
};
bool is_readable(uint32_t number) {
    switch (number) {
        case register_mode:
        case register_status:
        case register_trap_status:
        case register_hw_id:
        case register_gpr_alloc:
        case register_lds_alloc:
        case register_ib_status:
        case register_memory_bases:
        case register_xcc_id:
            return true;
        default:
            return false;
    }
}

// MODE: rounding of f32 in bits 1:0, of f64 and f16 in 3:2, denormals of f32 in 5:4, of f64 and f16 in 7:6, dx10_clamp 8,
// ieee 9, fp16_ovfl 23, gpr_idx_en 27, vskip 28.
constexpr uint32_t mode_round_f32 = 0x03, mode_round_f64 = 0x0c, mode_denormals_f32 = 0x30,
                   mode_denormals_f64 = 0xc0, mode_fp16_overflow = 1u << 23,
                   mode_changeable = mode_round_f32 | mode_denormals_f32 | mode_denormals_f64 | 0x300 |
                                     mode_fp16_overflow | mode_gpr_index_enabled | mode_vskip;

uint32_t hardware_register(const Wave* wave, uint32_t number) {
    const Program& program = *wave->workgroup->dispatch->program;
    switch (number) {
        case register_mode:
            return wave->mode;
        // STATUS: scc 0, execz 9, vccz 10, in_tg 11, valid 16.
        case register_status:
            return wave->scc | uint32_t{wave->exec == 0} << 9 |
                   uint32_t{read_scalar64(wave, layout::vcc) == 0} << 10 |
                   uint32_t{wave->workgroup->waves.size() > 1} << 11 | 1u << 16;
        // HW_ID: wave slot in bits 3:0, SIMD in 5:4. Waves of a workgroup are assigned to the four SIMDs
        // round-robin; everything else is 0.
        case register_hw_id:
            return wave->index_in_workgroup / 4 % 16 | (wave->index_in_workgroup % 4u) << 4;
        // Sizes in units of 8 VGPRs and 16 SGPRs, minus one; a wave has 112 SGPRs.
        case register_gpr_alloc:
            return (program.vgprs / 8 - 1) << 8 | 6u << 24;
        case register_lds_alloc:  // size in units of 512 bytes
            return (wave->lds_bytes + 511) / 512 << 12;
        case register_memory_bases:  // private in bits 15:0, shared in 31:16: bits 63:48 of the apertures
            return memory::private_aperture_high >> 16 | (memory::shared_aperture_high >> 16 << 16);
        case register_xcc_id:
            return wave->workgroup->linear_id % wave->workgroup->dispatch->xccs;
        default:
            return 0;  // no exception was raised, and no counter is exposed
    }
}

// extra: register, first bit, mask of the field before shifting.
const Step* get_register(Wave* wave, const Step* step) {
    write_scalar(wave, step->destination,
                 hardware_register(wave, step->extra[0]) >> step->extra[1] & step->extra[2]);
    return step + 1;
}

const Step* set_mode(Wave* wave, const Step* step) {
    const uint32_t mask = step->extra[2] << step->extra[1];
    const uint32_t mode =
        (wave->mode & ~mask) | (read_scalar(wave, step->source[0]) << step->extra[1] & mask);
    const uint32_t changed = mode ^ wave->mode;
    if (changed & mode & mode_round_f64)
        return fault(wave, step, "s_setreg changes the rounding mode of f64 and f16, which is not simulated");
#if !defined(__FMA__)
    if (changed & mode & mode_round_f32)
        return fault(wave, step,
                     "s_setreg changes the rounding mode, which is not simulated at this host level");
#endif
    if (changed & ~mode & mode_denormals_f64) {
        return fault(wave, step,
                     "s_setreg asks for f64 and f16 denormals to be flushed, which is not simulated");
    }
    if (changed & ~(mode_changeable | mode_round_f64))
        return fault(wave, step, "s_setreg changes a MODE field that is not simulated");
    wave->mode = mode;
    enter_float_mode(mode);
    return step + 1;
}

// Exceptions are never raised, so there is nothing to clear.
const Step* set_nothing(Wave*, const Step* step) { return step + 1; }

}  // namespace

bool bind_hardware_register(const isa::Instruction& instruction, StepBuilder& builder) {
    const bool reads = instruction.opcode == isa::Opcode::s_getreg_b32;
    const isa::Operand& place = instruction.operands[reads ? 1 : 0];
    const uint32_t field = static_cast<uint16_t>(place.immediate);
    const uint32_t number = field & 63, size = (field >> 11) + 1;
    if (reads ? !is_readable(number) : number != register_mode && number != register_trap_status)
        return false;
    const Handler handler = reads ? get_register : number == register_mode ? set_mode : set_nothing;
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
