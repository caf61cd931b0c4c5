// simulator/execute/scalar_memory.cpp: scalar loads, the clocks and the scalar cache.
// SPDX-License-Identifier: MIT
#include "simulator/execute/families.h"
#include "simulator/execute/vector_memory.h"
#include "simulator/memory/buffer_descriptor.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

void land_scalars(Wave* wave, PendingOperation* operation) {
    for (uint32_t i = 0; i < operation->dwords; ++i) {
        write_scalar(wave, operation->destination + i * layout::scalar_row_bytes, operation->data[i]);
    }
}

// The value is taken at issue: scalar loads read memory that nobody writes meanwhile (LLVM orders neither a
// later vector store nor an earlier one against them without a wait). The registers change when the wait says
// so.
const Step* queue_scalars(Wave* wave, const Step* step, PendingOperation* operation) {
    operation->land = land_of(step);
    operation->destination = step->destination;
    operation->dwords = step->dwords;
    if (step->extra[2] & memory_flag::poison) {
        for (uint32_t i = 0; i < step->dwords; ++i) {
            write_scalar(wave, step->destination + i * layout::scalar_row_bytes, poison_pattern);
        }
    }
    // Two counts for more than one dword (rocjitsu's audit of the hardware's counters).
    queue_scalar(wave, operation, step->dwords > 1 ? 2 : 1);
    return step + 1;
}

// The two low bits of a scalar address do not count.
const Step* issue_load(Wave* wave, const Step* step) {
    const uint64_t address = (read_scalar64(wave, step->source[0]) + read_scalar(wave, step->source[1]) +
                              static_cast<uint64_t>(int64_t{step->immediate})) &
                             ~uint64_t{3};
    const uint32_t bytes = step->dwords * 4u;
    if (!find_region(wave, address, bytes)) {
        return fault(wave, step, "scalar load outside the memory of this launch", address);
    }
    PendingOperation* operation = peek_operation(wave);
    memcpy(operation->data, reinterpret_cast<const void*>(address), bytes);
    return queue_scalars(wave, step, operation);
}

// Range check by dword, in bytes: `records` counts elements of `stride` when there is one.
const Step* issue_buffer_load(Wave* wave, const Step* step) {
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = read_scalar(wave, step->source[0] + i * layout::scalar_row_bytes);
    const memory::BufferDescriptor descriptor =
        memory::decode_buffer_descriptor(word[0], word[1], word[2], word[3]);
    const uint64_t limit = uint64_t{descriptor.records} * (descriptor.stride ? descriptor.stride : 1);
    const uint64_t offset =
        (uint64_t{read_scalar(wave, step->source[1])} + static_cast<uint32_t>(step->immediate)) &
        ~uint64_t{3};
    PendingOperation* operation = peek_operation(wave);
    for (uint32_t i = 0; i < step->dwords; ++i) {
        const uint64_t place = offset + 4 * i;
        operation->data[i] = 0;
        if (place + 4 > limit) continue;
        const uint64_t address = (descriptor.base & ~uint64_t{3}) + place;
        if (!find_region(wave, address, 4)) {
            return fault(wave, step, "scalar load outside the memory of this launch", address);
        }
        memcpy(&operation->data[i], reinterpret_cast<const void*>(address), 4);
    }
    return queue_scalars(wave, step, operation);
}

// Time is a count of readings, so that a run does not depend on the host.
const Step* issue_clock(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint64_t now = wave->pending->clock += 64;
    operation->data[0] = static_cast<uint32_t>(now);
    operation->data[1] = static_cast<uint32_t>(now >> 32);
    return queue_scalars(wave, step, operation);
}

const Step* do_nothing(Wave*, const Step* step) { return step + 1; }

}  // namespace

bool bind_scalar_memory(const isa::Instruction& instruction, StepBuilder& builder) {
    uint8_t dwords = 0;
    bool is_buffer = false;
    switch (instruction.opcode) {
        case Opcode::s_load_dword:
            dwords = 1;
            break;
        case Opcode::s_load_dwordx2:
            dwords = 2;
            break;
        case Opcode::s_load_dwordx4:
            dwords = 4;
            break;
        case Opcode::s_load_dwordx8:
            dwords = 8;
            break;
        case Opcode::s_load_dwordx16:
            dwords = 16;
            break;
        case Opcode::s_buffer_load_dword:
            dwords = 1, is_buffer = true;
            break;
        case Opcode::s_buffer_load_dwordx2:
            dwords = 2, is_buffer = true;
            break;
        case Opcode::s_buffer_load_dwordx4:
            dwords = 4, is_buffer = true;
            break;
        case Opcode::s_buffer_load_dwordx8:
            dwords = 8, is_buffer = true;
            break;
        case Opcode::s_buffer_load_dwordx16:
            dwords = 16, is_buffer = true;
            break;
        case Opcode::s_dcache_inv:
        case Opcode::s_dcache_wb:
        case Opcode::s_dcache_inv_vol:
        case Opcode::s_dcache_wb_vol:
            builder.emit(do_nothing);
            return true;
        case Opcode::s_memtime:
        case Opcode::s_memrealtime: {
            Step& step = builder.emit(issue_clock);
            step.destination = builder.offset_of(instruction.operands[0].code);
            step.dwords = 2;
            step.extra[2] = flags_of(builder, instruction);
            set_land(step, land_scalars);
            return true;
        }
        default:
            return false;
    }
    const uint16_t destination = instruction.operands[0].code;
    if (destination > isa::code::vcc_hi) return false;  // EXEC and M0 cannot be loaded
    const uint32_t offset = scalar_row_or_zero(instruction, instruction.operands[2], builder);
    Step& step = builder.emit(is_buffer ? issue_buffer_load : issue_load);
    step.destination = builder.offset_of(destination);
    step.source[0] = builder.offset_of(instruction.operands[1].code);
    step.source[1] = offset;
    step.immediate = instruction.offset;
    step.dwords = dwords;
    step.extra[2] = flags_of(builder, instruction);
    set_land(step, land_scalars);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
