// simulator/execute/scalar_memory.cpp: scalar loads, stores and atomics, the clocks and the scalar cache.
// SPDX-License-Identifier: MIT
#include "simulator/execute/atomics.h"
#include "simulator/execute/families.h"
#include "simulator/execute/vector_memory.h"
#include "simulator/memory/buffer_descriptor.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

void complete_scalars(Wave* wave, PendingOperation* operation) {
    for (uint32_t i = 0; i < operation->dwords; ++i) {
        write_scalar(wave, operation->destination + i * layout::scalar_row_bytes, operation->data[i]);
    }
}

// The value is read at issue: scalar loads read memory that nobody writes meanwhile (LLVM orders neither a
// later vector store nor an earlier one against them without a wait). The registers change when the wait
// completes the load.
const Step* queue_scalars(Wave* wave, const Step* step, PendingOperation* operation) {
    operation->complete = completion_of(step);
    operation->destination = step->destination;
    operation->dwords = step->dwords;
    if (step->extra[2] & memory_flag::poison) {
        for (uint32_t i = 0; i < step->dwords; ++i) {
            write_scalar(wave, step->destination + i * layout::scalar_row_bytes, poison_pattern);
        }
    }
    // Counts twice for more than one dword (rocjitsu's audit of the hardware's counters).
    queue_scalar(wave, operation, step->dwords > 1 ? 2 : 1);
    return step + 1;
}

// The two low bits of a scalar address are ignored.
uint64_t address_of(const Wave* wave, const Step* step) {
    return (read_scalar64(wave, step->source[0]) + read_scalar(wave, step->source[1]) +
            static_cast<uint64_t>(int64_t{step->immediate})) &
           ~uint64_t{3};
}
const Step* issue_load(Wave* wave, const Step* step) {
    const uint64_t address = address_of(wave, step);
    const uint32_t bytes = step->dwords * 4u;
    if (!find_region(wave, address, bytes)) {
        return fault(wave, step, "scalar load outside the memory of this launch", address);
    }
    PendingOperation* operation = peek_operation(wave);
    memcpy(operation->data, reinterpret_cast<const void*>(address), bytes);
    return queue_scalars(wave, step, operation);
}

// Range check by dword, in bytes: `records` counts elements of `stride` when there is one.
struct BufferRange {
    uint64_t base, offset, limit;
    bool contains(uint32_t dword, uint32_t bytes = 4) const { return offset + 4 * dword + bytes <= limit; }
    uint64_t address(uint32_t dword) const { return base + offset + 4 * dword; }
};
BufferRange buffer_range_of(const Wave* wave, const Step* step) {
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = read_scalar(wave, step->source[0] + i * layout::scalar_row_bytes);
    const memory::BufferDescriptor descriptor =
        memory::decode_buffer_descriptor(word[0], word[1], word[2], word[3]);
    const uint64_t limit = uint64_t{descriptor.records} * (descriptor.stride ? descriptor.stride : 1);
    const uint64_t offset =
        (uint64_t{read_scalar(wave, step->source[1])} + static_cast<uint32_t>(step->immediate)) &
        ~uint64_t{3};
    return {descriptor.base & ~uint64_t{3}, offset, limit};
}
const Step* issue_buffer_load(Wave* wave, const Step* step) {
    const BufferRange range = buffer_range_of(wave, step);
    PendingOperation* operation = peek_operation(wave);
    for (uint32_t i = 0; i < step->dwords; ++i) {
        operation->data[i] = 0;
        if (!range.contains(i)) continue;
        if (!find_region(wave, range.address(i), 4)) {
            if (tolerates_overread(wave, step, range.address(i))) continue;
            return fault(wave, step, "scalar load outside the memory of this launch", range.address(i));
        }
        memcpy(&operation->data[i], reinterpret_cast<const void*>(range.address(i)), 4);
    }
    return queue_scalars(wave, step, operation);
}

bool may_write(Wave* wave, const Step* step, uint64_t address, uint32_t bytes) {
    const Region* region = find_region(wave, address, bytes);
    if (region && region->writable) return true;
    fault(wave, step,
          region ? "scalar store or atomic to read-only memory of this launch"
                 : "scalar store or atomic outside the memory of this launch",
          address);
    return false;
}

void complete_store(Wave*, PendingOperation* operation) {
    for (uint32_t i = 0; i < operation->dwords; ++i) {
        if (operation->valid >> i & 1)
            memcpy(reinterpret_cast<void*>(operation->address[0] + 4 * i), &operation->data[i], 4);
    }
}

// The data is read at issue; memory changes at a wait, or at the end of the program.
template <bool is_buffer>
const Step* issue_store(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    operation->valid = 0;
    if constexpr (is_buffer) {
        const BufferRange range = buffer_range_of(wave, step);
        operation->address[0] = range.address(0);
        for (uint32_t i = 0; i < step->dwords; ++i) operation->valid |= uint64_t{range.contains(i)} << i;
    } else {
        operation->address[0] = address_of(wave, step);
        operation->valid = (uint64_t{1} << step->dwords) - 1;
    }
    for (uint32_t i = 0; i < step->dwords; ++i) {
        if (!(operation->valid >> i & 1)) continue;
        if (!may_write(wave, step, operation->address[0] + 4 * i, 4)) return nullptr;
        operation->data[i] = read_scalar(wave, step->destination + i * layout::scalar_row_bytes);
    }
    operation->complete = complete_store;
    operation->dwords = step->dwords;
    queue_scalar(wave, operation, step->dwords > 1 ? 2 : 1);
    return step + 1;
}

// A scalar atomic is a vector atomic of lane 0 whose result goes to a scalar register. `result` stages it,
// followed by the function that performs the operation.
constexpr int performer_at = 96;
void complete_atomic(Wave* wave, PendingOperation* operation) {
    Complete perform;
    memcpy(&perform, &operation->result[performer_at], sizeof perform);
    operation->rows = reinterpret_cast<uint8_t*>(operation->result);
    perform(wave, operation);
    for (uint32_t i = 0; i < operation->dwords; ++i)
        write_scalar(wave, operation->destination + i * layout::scalar_row_bytes, operation->result[64 * i]);
}

// extra[0]: bytes of the value; extra[1]: whether it is a cmpswap; dwords: of the result, 0 if it is not
// returned.
template <bool is_buffer>
const Step* issue_atomic(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t bytes = step->extra[0], dwords = bytes / 4;
    operation->lanes = operation->valid = 1;
    if constexpr (is_buffer) {
        const BufferRange range = buffer_range_of(wave, step);
        operation->address[0] = range.address(0);
        operation->valid = range.contains(0, bytes);
    } else {
        operation->address[0] = address_of(wave, step);
    }
    if (operation->valid) {
        if (!may_write(wave, step, operation->address[0], bytes)) return nullptr;
        if (operation->address[0] % bytes)
            return fault(wave, step, "an atomic needs an address aligned to its size", operation->address[0]);
    }
    for (uint32_t i = 0; i < dwords; ++i) {
        operation->data[i] = read_scalar(wave, step->destination + i * layout::scalar_row_bytes);
        if (step->extra[1])
            operation->data[second_operand + i] =
                read_scalar(wave, step->destination + (dwords + i) * layout::scalar_row_bytes);
    }
    operation->complete = complete_atomic;
    operation->destination = step->destination;
    operation->dwords = step->dwords;
    operation->partial = false;
    memcpy(&operation->result[performer_at], &step->data, sizeof step->data);
    if (step->extra[2] & memory_flag::poison) {
        for (uint32_t i = 0; i < step->dwords; ++i)
            write_scalar(wave, step->destination + i * layout::scalar_row_bytes, poison_pattern);
    }
    queue_scalar(wave, operation, dwords > 1 ? 2 : 1);
    return step + 1;
}

// Time is the number of reads so far, so that a run does not depend on the host.
const Step* issue_clock(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint64_t now = wave->pending->clock += 64;
    operation->data[0] = static_cast<uint32_t>(now);
    operation->data[1] = static_cast<uint32_t>(now >> 32);
    return queue_scalars(wave, step, operation);
}

const Step* do_nothing(Wave*, const Step* step) { return step + 1; }

enum class Access : uint8_t { none, load, store, atomic };
struct Meaning {
    Access access = Access::none;
    bool is_buffer = false;
    uint8_t dwords = 0;  // moved, or the size of an atomic's value
    Atomic atomic = Atomic::add;
};

#define LOADS(name, is_buffer)               \
    case Opcode::name##_dword:               \
        return {Access::load, is_buffer, 1}; \
    case Opcode::name##_dwordx2:             \
        return {Access::load, is_buffer, 2}; \
    case Opcode::name##_dwordx4:             \
        return {Access::load, is_buffer, 4}; \
    case Opcode::name##_dwordx8:             \
        return {Access::load, is_buffer, 8}; \
    case Opcode::name##_dwordx16:            \
        return {Access::load, is_buffer, 16};
#define STORES(name, is_buffer)               \
    case Opcode::name##_dword:                \
        return {Access::store, is_buffer, 1}; \
    case Opcode::name##_dwordx2:              \
        return {Access::store, is_buffer, 2}; \
    case Opcode::name##_dwordx4:              \
        return {Access::store, is_buffer, 4};
#define ATOMIC(name, operation)                               \
    case Opcode::s_atomic_##name:                             \
        return {Access::atomic, false, 1, Atomic::operation}; \
    case Opcode::s_atomic_##name##_x2:                        \
        return {Access::atomic, false, 2, Atomic::operation}; \
    case Opcode::s_buffer_atomic_##name:                      \
        return {Access::atomic, true, 1, Atomic::operation};  \
    case Opcode::s_buffer_atomic_##name##_x2:                 \
        return {Access::atomic, true, 2, Atomic::operation};

Meaning meaning_of(Opcode opcode) {
    switch (opcode) {
        LOADS(s_load, false)
        LOADS(s_buffer_load, true)
        STORES(s_store, false)
        STORES(s_buffer_store, true)
        ATOMIC(swap, swap)
        ATOMIC(cmpswap, cmpswap)
        ATOMIC(add, add)
        ATOMIC(sub, sub)
        ATOMIC(smin, smin)
        ATOMIC(umin, umin)
        ATOMIC(smax, smax)
        ATOMIC(umax, umax)
        ATOMIC(and, bit_and)
        ATOMIC(or, bit_or)
        ATOMIC(xor, bit_xor)
        ATOMIC(inc, inc)
        ATOMIC(dec, dec)
        default:
            return {};
    }
}
#undef LOADS
#undef STORES
#undef ATOMIC

}  // namespace

bool bind_scalar_memory(const isa::Instruction& instruction, StepBuilder& builder) {
    switch (instruction.opcode) {
        // Stores are in memory when they complete, and translations are never missing: there is nothing to
        // discard or probe.
        case Opcode::s_dcache_inv:
        case Opcode::s_dcache_wb:
        case Opcode::s_dcache_inv_vol:
        case Opcode::s_dcache_wb_vol:
        case Opcode::s_dcache_discard:
        case Opcode::s_dcache_discard_x2:
        case Opcode::s_atc_probe:
        case Opcode::s_atc_probe_buffer:
            builder.emit(do_nothing);
            return true;
        case Opcode::s_memtime:
        case Opcode::s_memrealtime: {
            Step& step = builder.emit(issue_clock);
            step.destination = builder.offset_of(instruction.operands[0].code);
            step.dwords = 2;
            step.extra[2] = flags_of(builder, instruction);
            set_completion(step, complete_scalars);
            return true;
        }
        default:
            break;
    }
    const Meaning meaning = meaning_of(instruction.opcode);
    if (meaning.access == Access::none) return false;
    const uint16_t data = instruction.operands[0].code;
    if (data > isa::code::vcc_hi) return false;  // EXEC and M0 cannot be loaded; trap registers are unused
    const uint32_t offset = scalar_row_or_zero(instruction, instruction.operands[2], builder);
    const auto choose = [&](Handler global, Handler buffer) { return meaning.is_buffer ? buffer : global; };
    const bool returns = meaning.access == Access::atomic && instruction.sc0;
    const Handler handler = meaning.access == Access::load ? choose(issue_load, issue_buffer_load)
                            : meaning.access == Access::store
                                ? choose(issue_store<false>, issue_store<true>)
                                : choose(issue_atomic<false>, issue_atomic<true>);
    Step& step = builder.emit(handler);
    step.destination = builder.offset_of(data);
    step.source[0] = builder.offset_of(instruction.operands[1].code);
    step.source[1] = offset;
    step.immediate = instruction.offset;
    step.dwords = meaning.access == Access::atomic && !returns ? 0 : meaning.dwords;
    step.extra[0] = meaning.dwords * 4u;
    step.extra[1] = meaning.atomic == Atomic::cmpswap;
    step.extra[2] = flags_of(builder, instruction);
    if (meaning.access == Access::load) set_completion(step, complete_scalars);
    if (meaning.access == Access::atomic)
        set_completion(step, atomic_completion({meaning.atomic, static_cast<uint8_t>(meaning.dwords * 4)},
                                               Shared::device));
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
