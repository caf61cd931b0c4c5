// simulator/execute/vector_memory.cpp: steps of loads, stores, atomics and direct-to-LDS loads.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_memory.h"

#include "simulator/execute/atomics.h"
#include "simulator/execute/buffer_format.h"
#include "simulator/execute/families.h"
#include "simulator/memory/workgroup_order.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Encoding;
using isa::Opcode;

namespace {

const Step* invalidate(Wave*, const Step* step) { return step + 1; }

const Step* write_back(Wave* wave, const Step* step) {
    if (wave->barriers) order_before_write_back(wave);
    return step + 1;
}

#define HIPKITTENS_FORMS(name) \
    Opcode::buffer_atomic_##name, Opcode::flat_atomic_##name, Opcode::global_atomic_##name

struct AtomicRow {
    Opcode opcodes[3];
    AtomicOperation atomic;
};
constexpr AtomicRow atomics[] = {
    {{HIPKITTENS_FORMS(swap)}, {Atomic::swap, 4}},
    {{HIPKITTENS_FORMS(cmpswap)}, {Atomic::cmpswap, 4}},
    {{HIPKITTENS_FORMS(add)}, {Atomic::add, 4}},
    {{HIPKITTENS_FORMS(sub)}, {Atomic::sub, 4}},
    {{HIPKITTENS_FORMS(smin)}, {Atomic::smin, 4}},
    {{HIPKITTENS_FORMS(umin)}, {Atomic::umin, 4}},
    {{HIPKITTENS_FORMS(smax)}, {Atomic::smax, 4}},
    {{HIPKITTENS_FORMS(umax)}, {Atomic::umax, 4}},
    {{HIPKITTENS_FORMS(and)}, {Atomic::bit_and, 4}},
    {{HIPKITTENS_FORMS(or)}, {Atomic::bit_or, 4}},
    {{HIPKITTENS_FORMS(xor)}, {Atomic::bit_xor, 4}},
    {{HIPKITTENS_FORMS(inc)}, {Atomic::inc, 4}},
    {{HIPKITTENS_FORMS(dec)}, {Atomic::dec, 4}},
    {{HIPKITTENS_FORMS(add_f32)}, {Atomic::add_float, 4}},
    {{HIPKITTENS_FORMS(pk_add_f16)}, {Atomic::pk_add_f16, 4}},
    {{HIPKITTENS_FORMS(pk_add_bf16)}, {Atomic::pk_add_bf16, 4}},
    {{HIPKITTENS_FORMS(add_f64)}, {Atomic::add_float, 8}},
    {{HIPKITTENS_FORMS(min_f64)}, {Atomic::min_float, 8}},
    {{HIPKITTENS_FORMS(max_f64)}, {Atomic::max_float, 8}},
    {{HIPKITTENS_FORMS(swap_x2)}, {Atomic::swap, 8}},
    {{HIPKITTENS_FORMS(cmpswap_x2)}, {Atomic::cmpswap, 8}},
    {{HIPKITTENS_FORMS(add_x2)}, {Atomic::add, 8}},
    {{HIPKITTENS_FORMS(sub_x2)}, {Atomic::sub, 8}},
    {{HIPKITTENS_FORMS(smin_x2)}, {Atomic::smin, 8}},
    {{HIPKITTENS_FORMS(umin_x2)}, {Atomic::umin, 8}},
    {{HIPKITTENS_FORMS(smax_x2)}, {Atomic::smax, 8}},
    {{HIPKITTENS_FORMS(umax_x2)}, {Atomic::umax, 8}},
    {{HIPKITTENS_FORMS(and_x2)}, {Atomic::bit_and, 8}},
    {{HIPKITTENS_FORMS(or_x2)}, {Atomic::bit_or, 8}},
    {{HIPKITTENS_FORMS(xor_x2)}, {Atomic::bit_xor, 8}},
    {{HIPKITTENS_FORMS(inc_x2)}, {Atomic::inc, 8}},
    {{HIPKITTENS_FORMS(dec_x2)}, {Atomic::dec, 8}},
};
#undef HIPKITTENS_FORMS

const AtomicOperation* atomic_of(Opcode opcode) {
    for (const AtomicRow& row : atomics) {
        for (Opcode candidate : row.opcodes) {
            if (candidate == opcode) return &row.atomic;
        }
    }
    return nullptr;
}

bool is_direct_to_lds(const isa::Instruction& instruction) {
    switch (instruction.opcode) {
        case Opcode::global_load_lds_ubyte:
        case Opcode::global_load_lds_sbyte:
        case Opcode::global_load_lds_ushort:
        case Opcode::global_load_lds_sshort:
        case Opcode::global_load_lds_dword:
        case Opcode::global_load_lds_dwordx3:
        case Opcode::global_load_lds_dwordx4:
        case Opcode::scratch_load_lds_ubyte:
        case Opcode::scratch_load_lds_sbyte:
        case Opcode::scratch_load_lds_ushort:
        case Opcode::scratch_load_lds_sshort:
        case Opcode::scratch_load_lds_dword:
            return true;
        default:
            return instruction.encoding == Encoding::mubuf && instruction.lds;
    }
}

// Operands by position (isa/table.h): the address and the data.
struct Positions {
    AddressForm form;
    int destination = -1, data = -1, vaddr = -1, saddr = -1;
};

// `results` and `data`: whether the instruction writes a VGPR and reads data.
Positions positions_of(const isa::Instruction& instruction, bool results, bool data) {
    Positions positions{};
    int next = 0;
    if (instruction.encoding == Encoding::mubuf) {
        positions.form = AddressForm::buffer;
        if (results || data) {
            if (results) positions.destination = next;
            if (data) positions.data = next;
            ++next;
        }
        positions.vaddr = next;
        positions.saddr = next + 1;
        return positions;
    }
    if (results) positions.destination = next++;
    positions.vaddr = next++;
    if (data) positions.data = next++;
    if (instruction.encoding == Encoding::flat) {
        positions.form = AddressForm::flat;
        return positions;
    }
    positions.saddr = next;
    if (instruction.encoding == Encoding::scratch) {
        positions.form = AddressForm::scratch;
    } else {
        positions.form =
            instruction.operands[next].code == isa::code::none ? AddressForm::vector : AddressForm::scalar;
    }
    return positions;
}

void set_addresses(const isa::Instruction& instruction, StepBuilder& builder, Step& step,
                   const Positions& positions, uint32_t scalar_offset_row) {
    step.immediate = instruction.offset;
    const isa::Operand& vaddr = instruction.operands[positions.vaddr];
    if (vaddr.code != isa::code::none) step.source[0] = builder.offset_of(vaddr.code);
    if (positions.saddr >= 0 && instruction.operands[positions.saddr].code != isa::code::none) {
        step.source[2] = builder.offset_of(instruction.operands[positions.saddr].code);
    }
    if (positions.form == AddressForm::buffer) {
        step.extra[1] = scalar_offset_row;
        step.stride[0] = instruction.offen;
        step.stride[1] = instruction.idxen;
    }
}

}  // namespace

bool bind_vector_memory(const isa::Instruction& instruction, StepBuilder& builder) {
    if (bind_formatted_buffer(instruction, builder)) return true;
    if (instruction.encoding == Encoding::mtbuf) return false;
    // The simulated caches hold no data: missing cache control is found by checks/visibility.h.
    if (instruction.opcode == Opcode::buffer_inv || instruction.opcode == Opcode::buffer_wbl2) {
        builder.emit(instruction.opcode == Opcode::buffer_inv ? invalidate : write_back);
        return true;
    }
    const Load* load = load_of(instruction.opcode);
    const Store* store = store_of(instruction.opcode);
    const AtomicOperation* atomic = atomic_of(instruction.opcode);
    if (!load && !store && !atomic) return false;
    const bool to_lds = load && is_direct_to_lds(instruction);
    if (to_lds && !load->in_lds) return false;
    const bool returns = atomic && instruction.sc0;
    const Positions positions = positions_of(instruction, (load && !to_lds) || returns, store || atomic);
    // A constant is allocated before the step is emitted: emitting invalidates nothing, but allocating one
    // may throw.
    const uint32_t scalar_offset =
        positions.form == AddressForm::buffer
            ? scalar_row_or_zero(instruction, instruction.operands[positions.saddr + 1], builder)
            : 0;
    const Handlers& handlers = handlers_of(positions.form);
    uint32_t flags = flags_of(builder, instruction);
    if (!load) flags |= memory_flag::is_store;

    if (load) {
        Step& step = builder.emit(to_lds ? handlers.load_to_lds : handlers.load);
        set_addresses(instruction, builder, step, positions, scalar_offset);
        if (!to_lds) step.destination = builder.offset_of(instruction.operands[positions.destination].code);
        if (positions.form == AddressForm::flat) step.extra[1] = load->write_mask;
        step.dwords = load->dwords;
        step.extra[0] = load->bytes;
        step.extra[2] = flags;
        set_completion(step, to_lds ? load->in_lds : load->complete);
        return true;
    }
    if (store) {
        Step& step = builder.emit(handlers.store[store->dwords - 1]);
        set_addresses(instruction, builder, step, positions, scalar_offset);
        step.source[1] = builder.offset_of(instruction.operands[positions.data].code);
        step.extra[0] = store->bytes;
        step.extra[2] = flags;
        set_completion(step, store->complete);
        return true;
    }
    const int dwords = atomic->bytes / 4;
    Step& step = builder.emit(handlers.atomic[dwords - 1]);
    set_addresses(instruction, builder, step, positions, scalar_offset);
    step.source[1] = builder.offset_of(instruction.operands[positions.data].code);
    if (returns) {
        step.destination = builder.offset_of(instruction.operands[positions.destination].code);
        step.dwords = static_cast<uint8_t>(dwords);
    }
    step.stride[2] = atomic->operation == Atomic::cmpswap;
    step.extra[0] = atomic->bytes;
    step.extra[2] = flags;
    set_completion(step, atomic_completion(*atomic, Shared::device));
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
