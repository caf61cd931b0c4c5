// simulator/execute/vector_special.cpp: lane reads and writes, register swaps.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_special.h"

#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

using isa::Instruction;
using isa::Opcode;

uint32_t read_lane(const Wave* wave, uint32_t offset, uint32_t stride, uint32_t lane) {
    return read_scalar(wave, offset + (lane >> 4) * stride + 4 * (lane & 15));
}

const Step* readfirstlane(Wave* wave, const Step* step) {
    const uint32_t lane = wave->exec ? static_cast<uint32_t>(__builtin_ctzll(wave->exec)) : 0;
    write_scalar(wave, step->destination, read_lane(wave, step->source[0], step->stride[0], lane));
    return step + 1;
}
const Step* readlane(Wave* wave, const Step* step) {
    const uint32_t lane = read_scalar(wave, step->source[1]) & 63;
    write_scalar(wave, step->destination, read_lane(wave, step->source[0], step->stride[0], lane));
    return step + 1;
}
// Ignores EXEC.
const Step* writelane(Wave* wave, const Step* step) {
    const uint32_t lane = read_scalar(wave, step->source[1]) & 63, value = read_scalar(wave, step->source[0]);
    memcpy(at(wave, step->destination + 4 * lane), &value, sizeof value);
    return step + 1;
}

const Step* swap(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 a = load_quarter<u32x16>(wave, operands.destination, 64, quarter),
                     b = operands.read<u32x16>(wave, 0, quarter);
        store_quarter(wave, operands.destination, quarter, b);
        store_quarter(wave, operands.offset[0], quarter, a);
    }
    return step + 1;
}

// Exchanges the odd groups of `group` lanes of the destination with the even groups of the source. Both lanes
// of a pair must be enabled; immediate (bound_ctrl) and extra[0] (fi) are then irrelevant.
template <int group>
const Step* permlane_swap(Wave* wave, const Step* step) {
    uint32_t a[64], b[64];
    memcpy(a, at(wave, step->destination), sizeof a);
    memcpy(b, at(wave, step->source[0]), sizeof b);
    for (int lane = 0; lane < 64; ++lane) {
        if (lane & group) continue;
        const uint32_t upper_of_a = a[lane + group];
        a[lane + group] = b[lane];
        b[lane] = upper_of_a;
    }
    for (int lane = 0; lane < 64; ++lane) {
        if (!(wave->exec >> lane & 1)) continue;
        memcpy(at(wave, step->destination + 4 * lane), a + lane, 4);
        memcpy(at(wave, step->source[0] + 4 * lane), b + lane, 4);
    }
    return step + 1;
}

Handler special_handler(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_readfirstlane_b32:
            return readfirstlane;
        case Opcode::v_readlane_b32:
            return readlane;
        case Opcode::v_writelane_b32:
            return writelane;
        case Opcode::v_swap_b32:
            return swap;
        case Opcode::v_permlane16_swap_b32:
            return permlane_swap<16>;
        case Opcode::v_permlane32_swap_b32:
            return permlane_swap<32>;
        default:
            return nullptr;
    }
}

}  // namespace

bool bind_special(const Instruction& in, StepBuilder& builder) {
    const Handler handler = special_handler(in.opcode);
    if (!handler || in.has_sdwa || in.has_dpp) return false;
    StepBuilder::Source sources[2] = {};
    int count = 0;
    for (int i = 1; i < in.operand_count && count < 2; ++i) {
        if (!in.operands[i].is_implicit) sources[count++] = builder.source(in, in.operands[i]);
    }
    Step& step = builder.emit(handler);
    step.destination = builder.offset_of(in.operands[0].code);
    for (int i = 0; i < count; ++i) {
        step.source[i] = sources[i].offset;
        step.stride[i] = sources[i].stride;
    }
    const uint16_t code = in.operands[0].code;
    if (code == isa::code::exec_lo || code == isa::code::exec_hi) builder.emit_exec_update();
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
