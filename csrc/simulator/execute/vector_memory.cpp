// simulator/execute/vector_memory.cpp: loads, stores, atomics and direct-to-LDS loads through any address form.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_memory.h"

#include "simulator/execute/atomics.h"
#include "simulator/execute/families.h"
#include "simulator/execute/memory_pieces.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Encoding;
using isa::Opcode;

namespace {

template <AddressForm form>
HIPKITTENS_INLINE bool record_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    if constexpr (form == AddressForm::vector) return record_vector_addresses(wave, step, operation);
    if constexpr (form == AddressForm::scalar) return record_scalar_addresses(wave, step, operation);
    if constexpr (form == AddressForm::flat) return record_flat_addresses(wave, step, operation);
    if constexpr (form == AddressForm::scratch) return record_scratch_addresses(wave, step, operation);
    if constexpr (form == AddressForm::buffer) return record_buffer_addresses(wave, step, operation);
}

template <AddressForm form>
HIPKITTENS_INLINE void queue(Wave* wave, PendingOperation* operation) {
    if constexpr (form == AddressForm::flat) {
        queue_flat(wave, operation);
    } else {
        queue_vector_memory(wave, operation);
    }
}

HIPKITTENS_INLINE void count_bytes(uint64_t& counter, const Step* step, const PendingOperation* operation) {
    counter += static_cast<uint64_t>(__builtin_popcountll(operation->valid)) * step->extra[0];
}

// --- loads ----------------------------------------------------------------------------------------------------------

// The data is wanted when the load lands; the host can fetch it meanwhile. Neighbouring lanes mostly share its lines.
HIPKITTENS_INLINE void prefetch(const PendingOperation* operation, uint32_t bytes) {
    constexpr uint32_t line_bytes = 64;
    if (bytes < 8 || !operation->valid) return;
    for (uint32_t lane = 0; lane < 64; lane += line_bytes / 16) {
        __builtin_prefetch(reinterpret_cast<const void*>(operation->address[lane]));
    }
}

template <AddressForm form>
const Step* issue_load(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    begin_results(wave, step, operation);
    if constexpr (form == AddressForm::flat) {
        operation->rows = reinterpret_cast<uint8_t*>(operation->data);
        operation->write_mask = step->extra[1];
    }
    count_bytes(wave->workgroup->counters.global_bytes_loaded, step, operation);
    prefetch(operation, step->extra[0]);
    poison_results(wave, step);
    queue<form>(wave, operation);
    return step + 1;
}

HostPointers pointers(const PendingOperation* operation) { return {operation->address, 0}; }

// Copies what is in range of every lane; the rest of a dword that has begun is poison (what hardware gives there is not
// documented), dwords that lie outside altogether are 0.
template <int bytes>
void copy_partial(const PendingOperation* operation, uint8_t* lanes, uint64_t* address) {
    for (int lane = 0; lane < 64; ++lane) {
        uint8_t* target = lanes + bytes * lane;
        memset(target, 0, bytes);
        address[lane] = reinterpret_cast<uint64_t>(target);
        if (!(operation->valid >> lane & 1)) continue;
        const uint32_t good = operation->valid_bytes[lane];
        memcpy(target, reinterpret_cast<const uint8_t*>(operation->address[lane]), good);
        for (uint32_t byte = good; byte % 4; ++byte) target[byte] = static_cast<uint8_t>(poison_pattern >> 8 * (byte % 4));
    }
}

template <int dwords>
void land_load(Wave*, PendingOperation* operation) {
    if (__builtin_expect(!operation->valid, 0)) {
        fill_rows(operation->rows, dwords, 0, operation->lanes);
        return;
    }
    if (__builtin_expect(operation->partial, 0)) {
        uint8_t lanes[64 * 4 * dwords];
        alignas(64) uint64_t address[64];
        copy_partial<4 * dwords>(operation, lanes, address);
        load_rows<dwords>(HostPointers{address, 0}, operation->rows, operation->lanes, all_lanes);
        return;
    }
    load_rows<dwords>(pointers(operation), operation->rows, operation->lanes, operation->valid | ~operation->lanes);
}

template <Piece piece>
void land_piece(Wave*, PendingOperation* operation) {
    static const uint32_t zero = 0;
    if (!operation->valid) {
        for (int lane = 0; lane < 64; ++lane) operation->address[lane] = reinterpret_cast<uint64_t>(&zero);
    }
    load_piece_row<piece>(pointers(operation), operation->rows, operation->lanes, operation->valid);
}

// --- direct to LDS --------------------------------------------------------------------------------------------------

// LDS address = the workgroup's base + M0[17:0] + instruction offset + lane * size; masked lanes keep their bytes
// (CDNA3 ISA manual, "Memory buffer load to LDS"; the offset counts on both sides).
template <AddressForm form>
const Step* issue_load_to_lds(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    const uint32_t size = step->dwords * 4;
    const uint32_t start = (read_scalar(wave, layout::m0) & 0x3ffff) + static_cast<uint32_t>(step->immediate);
    const uint32_t top = operation->lanes ? 63 - static_cast<uint32_t>(__builtin_clzll(operation->lanes)) : 0;
    if (__builtin_expect(operation->lanes && uint64_t{start} + (top + 1) * size > wave->lds_bytes, 0)) {
        return fault(wave, step, "direct-to-LDS load outside the workgroup's LDS allocation", start + top * size, top);
    }
    operation->land = land_of(step);
    operation->lds_offset = start;
    count_bytes(wave->workgroup->counters.global_bytes_loaded, step, operation);
    prefetch(operation, size);
    if (__builtin_expect(step->extra[2] & memory_flag::poison, 0)) {
        for (uint64_t left = operation->lanes; left; left &= left - 1) {
            uint8_t* target = wave->lds + start + __builtin_ctzll(left) * size;
            for (uint32_t byte = 0; byte < size; byte += 4) store_unaligned<uint32_t>(target + byte, poison_pattern);
        }
    }
    queue_vector_memory(wave, operation);
    return step + 1;
}

template <int bytes>
void land_in_lds(Wave* wave, PendingOperation* operation) {
    uint8_t* target = wave->lds + operation->lds_offset;
    uint8_t lanes[64 * bytes];
    alignas(64) uint64_t address[64];
    HostPointers from = pointers(operation);
    if (__builtin_expect(operation->partial, 0)) {
        copy_partial<bytes>(operation, lanes, address);
        from.address = address;
        operation->valid = operation->lanes;
    }
    if (operation->valid == all_lanes) {
#pragma GCC unroll 16
        for (int lane = 0; lane < 64; ++lane) memcpy(target + bytes * lane, from[lane], bytes);
        return;
    }
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        if (operation->valid >> lane & 1) {
            memcpy(target + bytes * lane, from[lane], bytes);
        } else {
            memset(target + bytes * lane, 0, bytes);
        }
    }
}

template <Piece piece>
void land_piece_in_lds(Wave* wave, PendingOperation* operation) {
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint32_t value = operation->valid >> lane & 1 ? load_piece<piece>(pointers(operation)[lane]) : 0;
        store_unaligned<uint32_t>(wave->lds + operation->lds_offset + 4 * lane, value);
    }
}

// --- stores ---------------------------------------------------------------------------------------------------------

template <AddressForm form, int dwords>
const Step* issue_store(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    if (__builtin_expect(operation->partial, 0)) {
        for (uint64_t left = operation->valid; left; left &= left - 1) {
            const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
            if (operation->valid_bytes[lane] % 4 == 0) continue;
            return fault(wave, step, "buffer store across the end of its range within a dword", operation->address[lane], lane);
        }
    }
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    operation->land = land_of(step);
    operation->dwords = 0;
    count_bytes(wave->workgroup->counters.global_bytes_stored, step, operation);
    queue<form>(wave, operation);
    return step + 1;
}

template <int bytes>
void land_store(Wave*, PendingOperation* operation) {
    if (__builtin_expect(!operation->partial, 1)) {
        store_captured<bytes>(pointers(operation), operation->data, operation->valid);
        return;
    }
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(reinterpret_cast<uint8_t*>(operation->address[lane]),
               reinterpret_cast<const uint8_t*>(operation->data) + captured_at<(bytes + 3) / 4>(lane),
               operation->valid_bytes[lane]);
    }
}

template <int bytes>
void land_store_high(Wave*, PendingOperation* operation) {
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(reinterpret_cast<uint8_t*>(operation->address[lane]),
               reinterpret_cast<const uint8_t*>(operation->data + lane) + 2, bytes);
    }
}

// --- atomics --------------------------------------------------------------------------------------------------------

template <AddressForm form, int dwords>
const Step* issue_atomic(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    // An atomic is all or nothing.
    if (operation->partial) {
        for (uint64_t left = operation->valid; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            if (operation->valid_bytes[lane] < 4 * dwords) operation->valid &= ~(uint64_t{1} << lane);
        }
        operation->partial = false;
    }
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        if (operation->address[lane] % (4 * dwords) == 0) continue;
        return fault(wave, step, "an atomic needs an address aligned to its size", operation->address[lane], lane);
    }
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    if (step->stride[2]) {
        capture_rows<dwords>(at(wave, step->source[1] + dwords * layout::vector_row_bytes), operation->data + second_operand);
    }
    begin_results(wave, step, operation);
    if constexpr (form == AddressForm::flat) {
        operation->rows = reinterpret_cast<uint8_t*>(operation->result);
        operation->write_mask = 0xffffffff;
    }
    poison_results(wave, step);
    queue<form>(wave, operation);
    return step + 1;
}

const Step* do_nothing(Wave*, const Step* step) { return step + 1; }

// --- which instruction is which -------------------------------------------------------------------------------------

// The operations of MUBUF, FLAT, GLOBAL and SCRATCH share their opcode numbers; one list serves all encodings.
#define HIPKITTENS_CASES(name) \
    case Opcode::buffer_##name: case Opcode::flat_##name: case Opcode::global_##name: case Opcode::scratch_##name
#define HIPKITTENS_ATOMIC_CASES(name) \
    case Opcode::buffer_atomic_##name: case Opcode::flat_atomic_##name: case Opcode::global_atomic_##name

struct Load {
    Land land, in_lds;
    uint8_t bytes, dwords;
    uint32_t write_mask;
};

template <Piece piece, bool may_go_to_lds = false>
Load piece_load() {
    Land in_lds = nullptr;
    if constexpr (may_go_to_lds) in_lds = land_piece_in_lds<piece>;
    return {land_piece<piece>, in_lds, static_cast<uint8_t>(piece_bytes(piece)), 1, piece_mask(piece)};
}
template <int dwords>
Load dword_load() {
    return {land_load<dwords>, dwords == 2 ? nullptr : land_in_lds<4 * dwords>, 4 * dwords, dwords, 0xffffffff};
}

bool load_of(Opcode opcode, Load* load) {
    switch (opcode) {
        HIPKITTENS_CASES(load_ubyte): case Opcode::global_load_lds_ubyte: case Opcode::scratch_load_lds_ubyte:
            *load = piece_load<Piece::u8, true>();
            return true;
        HIPKITTENS_CASES(load_sbyte): case Opcode::global_load_lds_sbyte: case Opcode::scratch_load_lds_sbyte:
            *load = piece_load<Piece::i8, true>();
            return true;
        HIPKITTENS_CASES(load_ushort): case Opcode::global_load_lds_ushort: case Opcode::scratch_load_lds_ushort:
            *load = piece_load<Piece::u16, true>();
            return true;
        HIPKITTENS_CASES(load_sshort): case Opcode::global_load_lds_sshort: case Opcode::scratch_load_lds_sshort:
            *load = piece_load<Piece::i16, true>();
            return true;
        HIPKITTENS_CASES(load_ubyte_d16): *load = piece_load<Piece::u8_low>(); return true;
        HIPKITTENS_CASES(load_ubyte_d16_hi): *load = piece_load<Piece::u8_high>(); return true;
        HIPKITTENS_CASES(load_sbyte_d16): *load = piece_load<Piece::i8_low>(); return true;
        HIPKITTENS_CASES(load_sbyte_d16_hi): *load = piece_load<Piece::i8_high>(); return true;
        HIPKITTENS_CASES(load_short_d16): *load = piece_load<Piece::u16_low>(); return true;
        HIPKITTENS_CASES(load_short_d16_hi): *load = piece_load<Piece::u16_high>(); return true;
        HIPKITTENS_CASES(load_dword): case Opcode::global_load_lds_dword: case Opcode::scratch_load_lds_dword:
            *load = dword_load<1>();
            return true;
        HIPKITTENS_CASES(load_dwordx2): *load = dword_load<2>(); return true;
        HIPKITTENS_CASES(load_dwordx3): case Opcode::global_load_lds_dwordx3: *load = dword_load<3>(); return true;
        HIPKITTENS_CASES(load_dwordx4): case Opcode::global_load_lds_dwordx4: *load = dword_load<4>(); return true;
        default: return false;
    }
}

struct Store {
    Land land;
    uint8_t bytes, dwords;
};

bool store_of(Opcode opcode, Store* store) {
    switch (opcode) {
        HIPKITTENS_CASES(store_byte): *store = {land_store<1>, 1, 1}; return true;
        HIPKITTENS_CASES(store_byte_d16_hi): *store = {land_store_high<1>, 1, 1}; return true;
        HIPKITTENS_CASES(store_short): *store = {land_store<2>, 2, 1}; return true;
        HIPKITTENS_CASES(store_short_d16_hi): *store = {land_store_high<2>, 2, 1}; return true;
        HIPKITTENS_CASES(store_dword): *store = {land_store<4>, 4, 1}; return true;
        HIPKITTENS_CASES(store_dwordx2): *store = {land_store<8>, 8, 2}; return true;
        HIPKITTENS_CASES(store_dwordx3): *store = {land_store<12>, 12, 3}; return true;
        HIPKITTENS_CASES(store_dwordx4): *store = {land_store<16>, 16, 4}; return true;
        default: return false;
    }
}

bool atomic_of(Opcode opcode, AtomicOperation* atomic) {
    switch (opcode) {
        HIPKITTENS_ATOMIC_CASES(swap): *atomic = {Atomic::swap, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(cmpswap): *atomic = {Atomic::cmpswap, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(add): *atomic = {Atomic::add, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(sub): *atomic = {Atomic::sub, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(smin): *atomic = {Atomic::smin, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(umin): *atomic = {Atomic::umin, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(smax): *atomic = {Atomic::smax, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(umax): *atomic = {Atomic::umax, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(and): *atomic = {Atomic::bit_and, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(or): *atomic = {Atomic::bit_or, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(xor): *atomic = {Atomic::bit_xor, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(inc): *atomic = {Atomic::inc, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(dec): *atomic = {Atomic::dec, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(add_f32): *atomic = {Atomic::add_float, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(pk_add_f16): *atomic = {Atomic::pk_add_f16, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(pk_add_bf16): *atomic = {Atomic::pk_add_bf16, 4}; return true;
        HIPKITTENS_ATOMIC_CASES(add_f64): *atomic = {Atomic::add_float, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(min_f64): *atomic = {Atomic::min_float, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(max_f64): *atomic = {Atomic::max_float, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(swap_x2): *atomic = {Atomic::swap, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(cmpswap_x2): *atomic = {Atomic::cmpswap, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(add_x2): *atomic = {Atomic::add, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(sub_x2): *atomic = {Atomic::sub, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(smin_x2): *atomic = {Atomic::smin, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(umin_x2): *atomic = {Atomic::umin, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(smax_x2): *atomic = {Atomic::smax, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(umax_x2): *atomic = {Atomic::umax, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(and_x2): *atomic = {Atomic::bit_and, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(or_x2): *atomic = {Atomic::bit_or, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(xor_x2): *atomic = {Atomic::bit_xor, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(inc_x2): *atomic = {Atomic::inc, 8}; return true;
        HIPKITTENS_ATOMIC_CASES(dec_x2): *atomic = {Atomic::dec, 8}; return true;
        default: return false;
    }
}
#undef HIPKITTENS_CASES
#undef HIPKITTENS_ATOMIC_CASES

bool is_direct_to_lds(const isa::Instruction& instruction) {
    switch (instruction.opcode) {
        case Opcode::global_load_lds_ubyte: case Opcode::global_load_lds_sbyte: case Opcode::global_load_lds_ushort:
        case Opcode::global_load_lds_sshort: case Opcode::global_load_lds_dword: case Opcode::global_load_lds_dwordx3:
        case Opcode::global_load_lds_dwordx4: case Opcode::scratch_load_lds_ubyte: case Opcode::scratch_load_lds_sbyte:
        case Opcode::scratch_load_lds_ushort: case Opcode::scratch_load_lds_sshort: case Opcode::scratch_load_lds_dword:
            return true;
        default: return instruction.encoding == Encoding::mubuf && instruction.lds;
    }
}

struct Handlers {
    Handler load, load_to_lds, store[4], atomic[2];
};

template <AddressForm form>
constexpr Handlers handlers_of_form = {
    issue_load<form>,
    issue_load_to_lds<form>,
    {issue_store<form, 1>, issue_store<form, 2>, issue_store<form, 3>, issue_store<form, 4>},
    {issue_atomic<form, 1>, issue_atomic<form, 2>}};

const Handlers& handlers_of(AddressForm form) {
    switch (form) {
        case AddressForm::vector: return handlers_of_form<AddressForm::vector>;
        case AddressForm::scalar: return handlers_of_form<AddressForm::scalar>;
        case AddressForm::flat: return handlers_of_form<AddressForm::flat>;
        case AddressForm::scratch: return handlers_of_form<AddressForm::scratch>;
        default: return handlers_of_form<AddressForm::buffer>;
    }
}

// Operands by position (isa/table.h): where the address and the data stand.
struct Positions {
    AddressForm form;
    int destination = -1, data = -1, vaddr = -1, saddr = -1;
};

// `results` and `data`: the instruction writes a VGPR, reads data.
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
        positions.form = instruction.operands[next].code == isa::code::none ? AddressForm::vector : AddressForm::scalar;
    }
    return positions;
}

void set_addresses(const isa::Instruction& instruction, StepBuilder& builder, Step& step, const Positions& positions,
                   uint32_t scalar_offset_row) {
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
    if (instruction.encoding == Encoding::mtbuf) return false;
    // Cache maintenance orders accesses that are ordered here anyway.
    if (instruction.opcode == Opcode::buffer_inv || instruction.opcode == Opcode::buffer_wbl2) {
        builder.emit(do_nothing);
        return true;
    }
    Load load{};
    Store store{};
    AtomicOperation atomic{};
    const bool is_load = load_of(instruction.opcode, &load);
    const bool is_store = !is_load && store_of(instruction.opcode, &store);
    const bool is_atomic = !is_load && !is_store && atomic_of(instruction.opcode, &atomic);
    if (!is_load && !is_store && !is_atomic) return false;
    const bool to_lds = is_load && is_direct_to_lds(instruction);
    if (to_lds && !load.in_lds) return false;
    const bool returns = is_atomic && instruction.sc0;
    const Positions positions = positions_of(instruction, (is_load && !to_lds) || returns, is_store || is_atomic);
    // A constant is taken before the step: emitting invalidates nothing, but asking for one may throw.
    const uint32_t scalar_offset =
        positions.form == AddressForm::buffer
            ? scalar_row_or_zero(instruction, instruction.operands[positions.saddr + 1], builder)
            : 0;
    const Handlers& handlers = handlers_of(positions.form);
    uint32_t flags = flags_of(builder, instruction);
    if (!is_load) flags |= memory_flag::is_store;

    if (is_load) {
        Step& step = builder.emit(to_lds ? handlers.load_to_lds : handlers.load);
        set_addresses(instruction, builder, step, positions, scalar_offset);
        if (!to_lds) step.destination = builder.offset_of(instruction.operands[positions.destination].code);
        if (positions.form == AddressForm::flat) step.extra[1] = load.write_mask;
        step.dwords = load.dwords;
        step.extra[0] = load.bytes;
        step.extra[2] = flags;
        set_land(step, to_lds ? load.in_lds : load.land);
        return true;
    }
    if (is_store) {
        Step& step = builder.emit(handlers.store[store.dwords - 1]);
        set_addresses(instruction, builder, step, positions, scalar_offset);
        step.source[1] = builder.offset_of(instruction.operands[positions.data].code);
        step.extra[0] = store.bytes;
        step.extra[2] = flags;
        set_land(step, store.land);
        return true;
    }
    const int dwords = atomic.bytes / 4;
    Step& step = builder.emit(handlers.atomic[dwords - 1]);
    set_addresses(instruction, builder, step, positions, scalar_offset);
    step.source[1] = builder.offset_of(instruction.operands[positions.data].code);
    if (returns) {
        step.destination = builder.offset_of(instruction.operands[positions.destination].code);
        step.dwords = static_cast<uint8_t>(dwords);
    }
    step.stride[2] = atomic.operation == Atomic::cmpswap;
    step.extra[0] = atomic.bytes;
    step.extra[2] = flags;
    set_land(step, atomic_land(atomic, Shared::device));
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
