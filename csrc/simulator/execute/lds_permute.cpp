// simulator/execute/lds_permute.cpp: ds_permute, ds_bpermute and ds_swizzle: lanes trade values, LDS is not touched.
// SPDX-License-Identifier: MIT
#include "simulator/execute/lds.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

// The result exists at issue, but like every LDS instruction it shows up when lgkmcnt says so.
void land_values(Wave*, PendingOperation* operation) {
    write_row_from(operation->rows, operation->data, operation->lanes, all_lanes);
}

HIPKITTENS_INLINE const Step* queue_values(Wave* wave, const Step* step, PendingOperation* operation) {
    begin_results(wave, step, operation);
    operation->lanes = operation->valid = wave->exec;
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

HIPKITTENS_INLINE uint32_t chosen_lane(Wave* wave, const Step* step, int lane) {
    const uint32_t* address = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    return (address[lane] + static_cast<uint32_t>(step->immediate)) / 4 % 64;
}

// An inactive source lane gives 0.
const Step* issue_bpermute(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t* data = reinterpret_cast<const uint32_t*>(at(wave, step->source[1]));
    const uint64_t exec = wave->exec;
    for (int lane = 0; lane < 64; ++lane) {
        const uint32_t from = chosen_lane(wave, step, lane);
        operation->data[lane] = exec >> from & 1 ? data[from] : 0;
    }
    return queue_values(wave, step, operation);
}

// Of several lanes that send to one, the highest wins; a lane nobody sends to gets 0.
const Step* issue_permute(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t* data = reinterpret_cast<const uint32_t*>(at(wave, step->source[1]));
    for (int lane = 0; lane < 64; ++lane) operation->data[lane] = 0;
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        operation->data[chosen_lane(wave, step, lane)] = data[lane];
    }
    return queue_values(wave, step, operation);
}

// ds_swizzle's offset says which lane of the group each lane reads; out of the ISA manual, "DS_SWIZZLE_B32".
uint32_t swizzle_source(uint32_t lane, uint32_t offset) {
    if (offset >= 0xe000) {
        // FFT: within 32 lanes, bit-reversed order; the offset's bits that are set are left as they are.
        const uint32_t mask = offset & 0x1f, in_group = lane & 0x1f;
        uint32_t reversed = 0;
        for (int bit = 0; bit < 5; ++bit) reversed |= (in_group >> bit & 1) << (4 - bit);
        return (lane & 0x20) | ((reversed >> __builtin_popcount(mask)) | (in_group & mask));
    }
    if (offset >= 0xc000) {
        // Rotate within 32 lanes: bit 10 direction (1: right), bits 9..5 distance, bits 4..0 lane bits that stay.
        const uint32_t mask = offset & 0x1f, distance = offset >> 5 & 0x1f;
        const uint32_t moved = offset >> 10 & 1 ? lane - distance : lane + distance;
        return (lane & 0x20) | (lane & mask) | (moved & 0x1f & ~mask);
    }
    if (offset & 0x8000) {
        // Quad permute: two bits for each of four lanes.
        return (lane & ~3u) | (offset >> (2 * (lane & 3)) & 3);
    }
    const uint32_t and_mask = offset & 0x1f, or_mask = offset >> 5 & 0x1f, xor_mask = offset >> 10 & 0x1f;
    return (lane & 0x20) | (((lane & and_mask) | or_mask) ^ xor_mask);
}

const Step* issue_swizzle(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t* data = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    const uint64_t exec = wave->exec;
    for (uint32_t lane = 0; lane < 64; ++lane) {
        const uint32_t from = swizzle_source(lane, static_cast<uint32_t>(step->immediate) & 0xffff);
        operation->data[lane] = exec >> from & 1 ? data[from] : 0;
    }
    return queue_values(wave, step, operation);
}

}  // namespace

bool bind_lds_permute(const isa::Instruction& instruction, StepBuilder& builder) {
    Handler issue;
    switch (instruction.opcode) {
        case Opcode::ds_bpermute_b32: issue = issue_bpermute; break;
        case Opcode::ds_permute_b32: issue = issue_permute; break;
        case Opcode::ds_swizzle_b32: issue = issue_swizzle; break;
        default: return false;
    }
    Step& step = builder.emit(issue);
    step.destination = builder.offset_of(instruction.operands[0].code);
    step.source[0] = builder.offset_of(instruction.operands[1].code);
    if (instruction.opcode != Opcode::ds_swizzle_b32) step.source[1] = builder.offset_of(instruction.operands[2].code);
    step.immediate = instruction.offset;
    step.dwords = 1;
    step.extra[2] = flags_of(builder, instruction);
    set_land(step, land_values);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
