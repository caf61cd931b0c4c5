// simulator/execute/lds_exchange.cpp: two exchanges in one instruction, and accesses by lane number.
// SPDX-License-Identifier: MIT
#include "simulator/execute/lds.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

constexpr int second_data = 128;  // offset in dwords in PendingOperation::data

template <int dwords>
const Step* issue_exchange2(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (const uint64_t outside = record_lds_addresses(wave, step, operation))
        return lds_fault(wave, step, outside, 0);
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        if (uint64_t{operation->lds_address[lane] + step->extra[1]} + step->extra[0] > wave->lds_bytes)
            return lds_fault(wave, step, left, step->extra[1]);
    }
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    capture_rows<dwords>(at(wave, step->source[2]), operation->data + second_data);
    begin_results(wave, step, operation);
    operation->lds_offset = step->extra[1];
    operation->lanes = operation->valid = wave->exec;
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

template <int dwords>
void complete_exchange2(Wave* wave, PendingOperation* operation) {
    uint32_t* rows = reinterpret_cast<uint32_t*>(operation->rows);
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        for (int which = 0; which < 2; ++which) {
            // A 32-bit sum: the second access may be below the first.
            const uint32_t address = operation->lds_address[lane] + (which ? operation->lds_offset : 0);
            uint8_t* place = wave->lds + address;
            uint32_t old[dwords];
            memcpy(old, place, sizeof old);
            memcpy(place,
                   reinterpret_cast<const uint8_t*>(operation->data + which * second_data) +
                       captured_at<dwords>(lane),
                   sizeof old);
            for (int i = 0; i < dwords; ++i) rows[64 * (which * dwords + i) + lane] = old[i];
        }
    }
}

// Address: M0[15:0] + offset + 4 * lane.
bool record_lane_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const uint32_t base = (read_scalar(wave, layout::m0) & 0xffff) + static_cast<uint32_t>(step->immediate);
    for (uint32_t lane = 0; lane < 64; ++lane) operation->lds_address[lane] = base + 4 * lane;
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        if (operation->lds_address[lane] + 4 <= wave->lds_bytes) continue;
        fault(wave, step, "LDS access outside the workgroup's allocation", operation->lds_address[lane],
              lane);
        return false;
    }
    operation->lanes = operation->valid = wave->exec;
    return true;
}
const Step* issue_read_by_lane(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (!record_lane_addresses(wave, step, operation)) return nullptr;
    begin_results(wave, step, operation);
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}
const Step* issue_write_by_lane(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (!record_lane_addresses(wave, step, operation)) return nullptr;
    memcpy(operation->data, at(wave, step->source[1]), layout::vector_row_bytes);
    operation->complete = completion_of(step);
    queue_lds(wave, operation);
    return step + 1;
}
void complete_read_by_lane(Wave* wave, PendingOperation* operation) {
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(operation->rows + 4 * lane, wave->lds + operation->lds_address[lane], 4);
    }
}
void complete_write_by_lane(Wave* wave, PendingOperation* operation) {
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(wave->lds + operation->lds_address[lane], operation->data + lane, 4);
    }
}

bool bind_by_lane(const isa::Instruction& instruction, StepBuilder& builder) {
    const bool reads = instruction.opcode == Opcode::ds_read_addtid_b32;
    if (!reads && instruction.opcode != Opcode::ds_write_addtid_b32) return false;
    const uint32_t place = builder.offset_of(instruction.operands[0].code);
    Step& step = builder.emit(reads ? issue_read_by_lane : issue_write_by_lane);
    (reads ? step.destination : step.source[1]) = place;
    step.dwords = reads;
    step.immediate = instruction.offset;
    step.extra[0] = 4;
    step.extra[2] = flags_of(builder, instruction);
    set_completion(step, reads ? complete_read_by_lane : complete_write_by_lane);
    return true;
}

}  // namespace

bool bind_lds_exchange(const isa::Instruction& instruction, StepBuilder& builder) {
    int dwords = 0, stride = 1;
    switch (instruction.opcode) {
        case Opcode::ds_wrxchg2_rtn_b32:
            dwords = 1;
            break;
        case Opcode::ds_wrxchg2st64_rtn_b32:
            dwords = 1, stride = 64;
            break;
        case Opcode::ds_wrxchg2_rtn_b64:
            dwords = 2;
            break;
        case Opcode::ds_wrxchg2st64_rtn_b64:
            dwords = 2, stride = 64;
            break;
        default:
            return bind_by_lane(instruction, builder);
    }
    const isa::Operand* operands = instruction.operands;
    const int32_t scale = 4 * dwords * stride;
    Step& step = builder.emit(dwords == 1 ? issue_exchange2<1> : issue_exchange2<2>);
    step.destination = builder.offset_of(operands[0].code);
    step.source[0] = builder.offset_of(operands[1].code);
    step.source[1] = builder.offset_of(operands[2].code);
    step.source[2] = builder.offset_of(operands[3].code);
    step.dwords = static_cast<uint8_t>(2 * dwords);
    step.immediate = instruction.offset * scale;
    step.extra[0] = static_cast<uint32_t>(4 * dwords);
    step.extra[1] = static_cast<uint32_t>((instruction.offset1 - instruction.offset) * scale);
    step.extra[2] = flags_of(builder, instruction);
    set_completion(step, dwords == 1 ? complete_exchange2<1> : complete_exchange2<2>);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
