// simulator/execute/memory_pieces.h: loads of 8 and 16 bits into 32-bit registers.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/memory_lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// low, high: the half of the register that is written (d16, d16_hi). The other half is preserved, as in the
// ISA manual's pseudocode; LLVM does not rely on that with SRAM ECC enabled, which is always the case on
// these targets.
enum class Piece : uint8_t { u8, i8, u16, i16, u8_low, u8_high, i8_low, i8_high, u16_low, u16_high };

constexpr int piece_bytes(Piece piece) {
    return piece == Piece::u16 || piece == Piece::i16 || piece == Piece::u16_low || piece == Piece::u16_high
               ? 2
               : 1;
}
constexpr bool is_low_half(Piece p) {
    return p == Piece::u8_low || p == Piece::i8_low || p == Piece::u16_low;
}
constexpr bool is_high_half(Piece p) {
    return p == Piece::u8_high || p == Piece::i8_high || p == Piece::u16_high;
}
constexpr uint32_t piece_mask(Piece p) {
    return is_low_half(p) ? 0xffff : is_high_half(p) ? 0xffff0000 : 0xffffffff;
}

// The bits as they appear in the register; halves are already in position.
template <Piece piece>
HIPKITTENS_INLINE uint32_t load_piece(const uint8_t* place) {
    uint32_t value;
    if constexpr (piece_bytes(piece) == 2) {
        value = load_unaligned<uint16_t>(place);
        if constexpr (piece == Piece::i16) value = static_cast<uint32_t>(static_cast<int16_t>(value));
    } else {
        value = *place;
        if constexpr (piece == Piece::i8 || piece == Piece::i8_low || piece == Piece::i8_high) {
            value = static_cast<uint32_t>(static_cast<int8_t>(value));
        }
    }
    if constexpr (is_low_half(piece)) value &= 0xffff;
    if constexpr (is_high_half(piece)) value <<= 16;
    return value;
}

template <Piece piece, class Pointers>
HIPKITTENS_INLINE void load_piece_row(Pointers from, uint8_t* row, uint64_t lanes, uint64_t valid) {
    alignas(64) uint32_t values[64];
    for (int lane = 0; lane < 64; ++lane) values[lane] = load_piece<piece>(from[lane]);
    if constexpr (piece_mask(piece) != 0xffffffff) {
        const uint32_t* old = reinterpret_cast<const uint32_t*>(row);
        for (int lane = 0; lane < 64; ++lane) {
            const uint32_t fresh = valid >> lane & 1 ? values[lane] : 0;
            values[lane] = fresh | (old[lane] & ~piece_mask(piece));
        }
        write_row_from(row, values, lanes, all_lanes);
    } else {
        write_row_from(row, values, lanes, valid);
    }
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
