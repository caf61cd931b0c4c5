// simulator/execute/lds.cpp: reads and writes of the local data share.
// SPDX-License-Identifier: MIT
#include "simulator/execute/lds.h"

#include <memory>

#include "simulator/execute/families.h"
#include "simulator/execute/memory_pieces.h"
#include "simulator/machine/recording.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;
using memory::LdsAccess;

namespace {

// The latest conflicts of an instruction, which mostly repeat: the same distances between lanes, starting at
// another dword, hit the same banks, or the same banks all rotated alike.
struct KnownConflicts {
    uint64_t lanes = 0;
    uint32_t access = 0, bytes = 0;  // no access has size 0
    uint32_t first = 0, cycles = 0;
    uint32_t distance[64];
};
constexpr uint32_t known_conflicts = 256;

uint32_t conflict_cycles(const Wave* wave, const Step* step, const uint32_t* address) {
    static thread_local std::unique_ptr<KnownConflicts[]> of_instructions;
    if (!of_instructions) of_instructions = std::make_unique<KnownConflicts[]>(known_conflicts);
    KnownConflicts& known = of_instructions[step->instruction % known_conflicts];
    const uint32_t first = address[0], bytes = step->extra[0];
    const uint32_t access = step->extra[2] & (memory_flag::is_gfx950 | 0xffu << memory_flag::access_shift);
    uint32_t different = (known.access ^ access) | (known.bytes ^ bytes) | (known.first - first) % 4;
    for (int lane = 0; lane < 64; ++lane) different |= known.distance[lane] ^ (address[lane] - first);
    if (different || known.lanes != wave->exec) {
        const isa::Target target =
            access & memory_flag::is_gfx950 ? isa::Target::gfx950 : isa::Target::gfx942;
        const auto& phases =
            memory::lds_phases(target, static_cast<LdsAccess>(access >> memory_flag::access_shift));
        known = {
            wave->exec, access, bytes, first, memory::lds_conflict_cycles(phases, address, wave->exec, bytes),
            {}};
        for (int lane = 0; lane < 64; ++lane) known.distance[lane] = address[lane] - first;
    }
    return known.cycles;
}

}  // namespace

void count_lds_access(Wave* wave, const Step* step, const uint32_t* address) {
    Counters& counters = wave->workgroup->counters;
    ++counters.lds_accesses;
    const uint32_t cycles = conflict_cycles(wave, step, address);
    counters.lds_conflict_cycles += cycles;
    if (wave->workgroup->dispatch->recording) record_lds_access(wave, step, cycles, address);
}

namespace {

// Counts the access of which `step` describes one half: read2 and write2 count as two.
HIPKITTENS_INLINE void count_if_asked(Wave* wave, const Step* step, const PendingOperation* operation) {
    if (__builtin_expect(step->extra[2] & memory_flag::count_conflicts, 0)) {
        count_lds_access(wave, step, operation->lds_address);
    }
}

HIPKITTENS_INLINE uint64_t second_outside(Wave* wave, const Step* step, const PendingOperation* operation) {
    const uint32_t limit = wave->lds_bytes - step->extra[0];
    alignas(64) uint32_t second[64];
    const bool beyond = add_and_compare(operation->lds_address, step->extra[1], limit, second);
    if (__builtin_expect(step->extra[2] & memory_flag::count_conflicts, 0))
        count_lds_access(wave, step, second);
    if (__builtin_expect(!beyond, 1)) return 0;
    return lanes_beyond(second, limit) & wave->exec;
}

template <bool two>
const Step* issue_read(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    uint64_t outside = record_lds_addresses(wave, step, operation);
    if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, 0);
    if constexpr (two) {
        outside = second_outside(wave, step, operation);
        if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, step->extra[1]);
        operation->lds_offset = step->extra[1];
    }
    begin_results(wave, step, operation);
    operation->lanes = operation->valid = wave->exec;
    fill_idle_lanes(operation->lds_address, wave->exec);
    count_if_asked(wave, step, operation);
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

template <int dwords, bool two>
const Step* issue_write(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    uint64_t outside = record_lds_addresses(wave, step, operation);
    if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, 0);
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    if constexpr (two) {
        outside = second_outside(wave, step, operation);
        if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, step->extra[1]);
        operation->lds_offset = step->extra[1];
        capture_rows<dwords>(at(wave, step->source[2]), operation->data + 64 * dwords);
    }
    operation->complete = completion_of(step);
    operation->lanes = operation->valid = wave->exec;
    count_if_asked(wave, step, operation);
    queue_lds(wave, operation);
    return step + 1;
}

LdsPointers pointers(Wave* wave, const PendingOperation* operation, uint32_t distance = 0) {
    return {wave->lds + distance, operation->lds_address};
}

template <int dwords>
void complete_read(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    load_rows<dwords>(pointers(wave, operation), operation->rows, operation->lanes, all_lanes);
}

template <int dwords>
void complete_read2(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    load_rows<dwords>(pointers(wave, operation), operation->rows, operation->lanes, all_lanes);
    LdsPointers second = pointers(wave, operation);
    // The second address wraps independently, so the distance is added to each offset.
    for (int lane = 0; lane < 64; ++lane) operation->lds_address[lane] += operation->lds_offset;
    load_rows<dwords>(second, operation->rows + 256 * dwords, operation->lanes, all_lanes);
}

template <Piece piece>
void complete_piece(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    load_piece_row<piece>(pointers(wave, operation), operation->rows, operation->lanes, all_lanes);
}

template <int bytes>
void complete_write(Wave* wave, PendingOperation* operation) {
    store_captured<bytes>(pointers(wave, operation), operation->data, operation->lanes);
}

// d16_hi: bits 16 and above of the register.
template <int bytes>
void complete_write_high(Wave* wave, PendingOperation* operation) {
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(wave->lds + operation->lds_address[lane],
               reinterpret_cast<const uint8_t*>(operation->data + lane) + 2, bytes);
    }
}

template <int bytes>
void complete_write2(Wave* wave, PendingOperation* operation) {
    store_captured<bytes>(pointers(wave, operation), operation->data, operation->lanes);
    for (int lane = 0; lane < 64; ++lane) operation->lds_address[lane] += operation->lds_offset;
    store_captured<bytes>(pointers(wave, operation), operation->data + 16 * bytes, operation->lanes);
}

struct Read {
    Complete complete;
    uint8_t bytes, dwords;
    LdsAccess access;
};

bool read_of(Opcode opcode, Read* read) {
    switch (opcode) {
        case Opcode::ds_read_b32:
            *read = {complete_read<1>, 4, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_b64:
            *read = {complete_read<2>, 8, 2, LdsAccess::read_b64};
            return true;
        case Opcode::ds_read_b96:
            *read = {complete_read<3>, 12, 3, LdsAccess::read_b96};
            return true;
        case Opcode::ds_read_b128:
            *read = {complete_read<4>, 16, 4, LdsAccess::read_b128};
            return true;
        case Opcode::ds_read_u8:
            *read = {complete_piece<Piece::u8>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_i8:
            *read = {complete_piece<Piece::i8>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_u16:
            *read = {complete_piece<Piece::u16>, 2, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_i16:
            *read = {complete_piece<Piece::i16>, 2, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_u8_d16:
            *read = {complete_piece<Piece::u8_low>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_u8_d16_hi:
            *read = {complete_piece<Piece::u8_high>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_i8_d16:
            *read = {complete_piece<Piece::i8_low>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_i8_d16_hi:
            *read = {complete_piece<Piece::i8_high>, 1, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_u16_d16:
            *read = {complete_piece<Piece::u16_low>, 2, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read_u16_d16_hi:
            *read = {complete_piece<Piece::u16_high>, 2, 1, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read2_b32:
        case Opcode::ds_read2st64_b32:
            *read = {complete_read2<1>, 4, 2, LdsAccess::read_b32};
            return true;
        case Opcode::ds_read2_b64:
        case Opcode::ds_read2st64_b64:
            *read = {complete_read2<2>, 8, 4, LdsAccess::read_b64};
            return true;
        default:
            return false;
    }
}

struct Write {
    Handler issue;
    Complete complete;
    uint8_t bytes;
    LdsAccess access;
};

bool write_of(Opcode opcode, Write* write) {
    switch (opcode) {
        case Opcode::ds_write_b8:
            *write = {issue_write<1, false>, complete_write<1>, 1, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write_b16:
            *write = {issue_write<1, false>, complete_write<2>, 2, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write_b8_d16_hi:
            *write = {issue_write<1, false>, complete_write_high<1>, 1, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write_b16_d16_hi:
            *write = {issue_write<1, false>, complete_write_high<2>, 2, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write_b32:
            *write = {issue_write<1, false>, complete_write<4>, 4, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write_b64:
            *write = {issue_write<2, false>, complete_write<8>, 8, LdsAccess::write_b64};
            return true;
        case Opcode::ds_write_b96:
            *write = {issue_write<3, false>, complete_write<12>, 12, LdsAccess::write_b96};
            return true;
        case Opcode::ds_write_b128:
            *write = {issue_write<4, false>, complete_write<16>, 16, LdsAccess::write_b128};
            return true;
        case Opcode::ds_write2_b32:
        case Opcode::ds_write2st64_b32:
            *write = {issue_write<1, true>, complete_write2<4>, 4, LdsAccess::write_b32};
            return true;
        case Opcode::ds_write2_b64:
        case Opcode::ds_write2st64_b64:
            *write = {issue_write<2, true>, complete_write2<8>, 8, LdsAccess::write_b64};
            return true;
        default:
            return false;
    }
}

bool is_pair(Opcode opcode) {
    switch (opcode) {
        case Opcode::ds_read2_b32:
        case Opcode::ds_read2st64_b32:
        case Opcode::ds_read2_b64:
        case Opcode::ds_read2st64_b64:
        case Opcode::ds_write2_b32:
        case Opcode::ds_write2st64_b32:
        case Opcode::ds_write2_b64:
        case Opcode::ds_write2st64_b64:
            return true;
        default:
            return false;
    }
}

bool has_stride_64(Opcode opcode) {
    switch (opcode) {
        case Opcode::ds_read2st64_b32:
        case Opcode::ds_read2st64_b64:
        case Opcode::ds_write2st64_b32:
        case Opcode::ds_write2st64_b64:
            return true;
        default:
            return false;
    }
}

void set_offsets(const isa::Instruction& instruction, Step& step, uint32_t bytes) {
    step.immediate = instruction.offset;
    if (!is_pair(instruction.opcode)) return;
    const int32_t scale = static_cast<int32_t>(bytes) * (has_stride_64(instruction.opcode) ? 64 : 1);
    step.immediate = instruction.offset * scale;
    step.extra[1] = static_cast<uint32_t>((instruction.offset1 - instruction.offset) * scale);
}

const Step* do_nothing(Wave*, const Step* step) { return step + 1; }

}  // namespace

bool bind_lds(const isa::Instruction& instruction, StepBuilder& builder) {
    if (instruction.gds) return false;
    const uint32_t flags = flags_of(builder, instruction);
    if (Read read; read_of(instruction.opcode, &read)) {
        Step& step = builder.emit(is_pair(instruction.opcode) ? issue_read<true> : issue_read<false>);
        step.destination = builder.offset_of(instruction.operands[0].code);
        step.source[0] = builder.offset_of(instruction.operands[1].code);
        step.dwords = read.dwords;
        step.extra[0] = read.bytes;
        step.extra[2] = flags | static_cast<uint32_t>(read.access) << memory_flag::access_shift;
        set_offsets(instruction, step, read.bytes);
        set_completion(step, read.complete);
        return true;
    }
    if (Write write; write_of(instruction.opcode, &write)) {
        Step& step = builder.emit(write.issue);
        step.source[0] = builder.offset_of(instruction.operands[0].code);
        step.source[1] = builder.offset_of(instruction.operands[1].code);
        if (is_pair(instruction.opcode)) step.source[2] = builder.offset_of(instruction.operands[2].code);
        step.extra[0] = write.bytes;
        step.extra[2] = flags | static_cast<uint32_t>(write.access) << memory_flag::access_shift;
        set_offsets(instruction, step, write.bytes);
        set_completion(step, write.complete);
        return true;
    }
    if (instruction.opcode == Opcode::ds_nop) {
        builder.emit(do_nothing);
        return true;
    }
    return bind_lds_permute(instruction, builder) || bind_lds_transpose(instruction, builder) ||
           bind_lds_atomic(instruction, builder) || bind_lds_exchange(instruction, builder);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
