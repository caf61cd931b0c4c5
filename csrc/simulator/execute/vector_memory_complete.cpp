// simulator/execute/vector_memory_complete.cpp: completion of loads and stores, and their tables.
// SPDX-License-Identifier: MIT
#include "simulator/execute/memory_pieces.h"
#include "simulator/execute/vector_memory.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

HostPointers pointers(const PendingOperation* operation) { return {operation->address, 0}; }

// Copies the in-range part of every lane; the rest of a partially in-range dword is poison (what hardware
// returns there is not documented), dwords that are entirely out of range are 0.
template <int bytes>
void copy_partial(const PendingOperation* operation, uint8_t* lanes, uint64_t* address) {
    for (int lane = 0; lane < 64; ++lane) {
        uint8_t* target = lanes + bytes * lane;
        memset(target, 0, bytes);
        address[lane] = reinterpret_cast<uint64_t>(target);
        if (!(operation->valid >> lane & 1)) continue;
        const uint32_t good = operation->valid_bytes[lane];
        memcpy(target, reinterpret_cast<const uint8_t*>(operation->address[lane]), good);
        for (uint32_t byte = good; byte % 4; ++byte)
            target[byte] = static_cast<uint8_t>(poison_pattern >> 8 * (byte % 4));
    }
}

template <int dwords>
void complete_load(Wave*, PendingOperation* operation) {
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
    load_rows<dwords>(pointers(operation), operation->rows, operation->lanes,
                      operation->valid | ~operation->lanes);
}

template <Piece piece>
void complete_piece(Wave*, PendingOperation* operation) {
    static const uint32_t zero = 0;
    if (!operation->valid) {
        for (int lane = 0; lane < 64; ++lane) operation->address[lane] = reinterpret_cast<uint64_t>(&zero);
    }
    load_piece_row<piece>(pointers(operation), operation->rows, operation->lanes, operation->valid);
}

template <int bytes>
void complete_in_lds(Wave* wave, PendingOperation* operation) {
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
void complete_piece_in_lds(Wave* wave, PendingOperation* operation) {
    for (uint64_t left = operation->lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint32_t value =
            operation->valid >> lane & 1 ? load_piece<piece>(pointers(operation)[lane]) : 0;
        store_unaligned<uint32_t>(wave->lds + operation->lds_offset + 4 * lane, value);
    }
}

template <int bytes>
void complete_store(Wave*, PendingOperation* operation) {
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
void complete_store_high(Wave*, PendingOperation* operation) {
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        memcpy(reinterpret_cast<uint8_t*>(operation->address[lane]),
               reinterpret_cast<const uint8_t*>(operation->data + lane) + 2, bytes);
    }
}

template <Piece piece, bool may_go_to_lds = false>
constexpr Load piece_load() {
    Complete in_lds = nullptr;
    if constexpr (may_go_to_lds) in_lds = complete_piece_in_lds<piece>;
    return {complete_piece<piece>, in_lds, static_cast<uint8_t>(piece_bytes(piece)), 1, piece_mask(piece)};
}
template <int dwords>
constexpr Load dword_load() {
    return {complete_load<dwords>, dwords == 2 ? nullptr : complete_in_lds<4 * dwords>, 4 * dwords, dwords,
            0xffffffff};
}

// Loads and stores of one kind in MUBUF, FLAT, GLOBAL and SCRATCH differ only in their addresses.
#define HIPKITTENS_FORMS(name) \
    Opcode::buffer_##name, Opcode::flat_##name, Opcode::global_##name, Opcode::scratch_##name
#define HIPKITTENS_TO_LDS(name) Opcode::global_load_lds_##name, Opcode::scratch_load_lds_##name

struct LoadRow {
    Opcode opcodes[6];
    Load load;
};
constexpr LoadRow loads[] = {
    {{HIPKITTENS_FORMS(load_ubyte), HIPKITTENS_TO_LDS(ubyte)}, piece_load<Piece::u8, true>()},
    {{HIPKITTENS_FORMS(load_sbyte), HIPKITTENS_TO_LDS(sbyte)}, piece_load<Piece::i8, true>()},
    {{HIPKITTENS_FORMS(load_ushort), HIPKITTENS_TO_LDS(ushort)}, piece_load<Piece::u16, true>()},
    {{HIPKITTENS_FORMS(load_sshort), HIPKITTENS_TO_LDS(sshort)}, piece_load<Piece::i16, true>()},
    {{HIPKITTENS_FORMS(load_ubyte_d16)}, piece_load<Piece::u8_low>()},
    {{HIPKITTENS_FORMS(load_ubyte_d16_hi)}, piece_load<Piece::u8_high>()},
    {{HIPKITTENS_FORMS(load_sbyte_d16)}, piece_load<Piece::i8_low>()},
    {{HIPKITTENS_FORMS(load_sbyte_d16_hi)}, piece_load<Piece::i8_high>()},
    {{HIPKITTENS_FORMS(load_short_d16)}, piece_load<Piece::u16_low>()},
    {{HIPKITTENS_FORMS(load_short_d16_hi)}, piece_load<Piece::u16_high>()},
    {{HIPKITTENS_FORMS(load_dword), HIPKITTENS_TO_LDS(dword)}, dword_load<1>()},
    {{HIPKITTENS_FORMS(load_dwordx2)}, dword_load<2>()},
    {{HIPKITTENS_FORMS(load_dwordx3), Opcode::global_load_lds_dwordx3}, dword_load<3>()},
    {{HIPKITTENS_FORMS(load_dwordx4), Opcode::global_load_lds_dwordx4}, dword_load<4>()},
};

struct StoreRow {
    Opcode opcodes[4];
    Store store;
};
constexpr StoreRow stores[] = {
    {{HIPKITTENS_FORMS(store_byte)}, {complete_store<1>, 1, 1}},
    {{HIPKITTENS_FORMS(store_byte_d16_hi)}, {complete_store_high<1>, 1, 1}},
    {{HIPKITTENS_FORMS(store_short)}, {complete_store<2>, 2, 1}},
    {{HIPKITTENS_FORMS(store_short_d16_hi)}, {complete_store_high<2>, 2, 1}},
    {{HIPKITTENS_FORMS(store_dword)}, {complete_store<4>, 4, 1}},
    {{HIPKITTENS_FORMS(store_dwordx2)}, {complete_store<8>, 8, 2}},
    {{HIPKITTENS_FORMS(store_dwordx3)}, {complete_store<12>, 12, 3}},
    {{HIPKITTENS_FORMS(store_dwordx4)}, {complete_store<16>, 16, 4}},
};
#undef HIPKITTENS_FORMS
#undef HIPKITTENS_TO_LDS

}  // namespace

const Load* load_of(Opcode opcode) {
    for (const LoadRow& row : loads) {
        for (Opcode candidate : row.opcodes) {
            if (candidate == opcode && opcode != Opcode::invalid) return &row.load;
        }
    }
    return nullptr;
}

const Store* store_of(Opcode opcode) {
    for (const StoreRow& row : stores) {
        for (Opcode candidate : row.opcodes) {
            if (candidate == opcode) return &row.store;
        }
    }
    return nullptr;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
