// simulator/execute/lds_transpose.cpp: the transposing matrix reads of gfx950.
// SPDX-License-Identifier: MIT
//
// Sixteen lanes read a small matrix with sixteen columns, each lane a run of consecutive elements of one row,
// in lane order; lane i of the sixteen receives column i, with its elements from low to high bits by row. For
// 16-bit elements that is four rows of four lanes each (HipKittens shared_to_register.cuh addresses row (l %
// 16) / 4, column 4 * (l % 4), and the result is used as column l % 16; Modular's ds_read_tr16_b64_row
// documents the same 4 x 16 exchange). That the 8-, 6- and 4-bit forms follow the same rule with 8, 16 and 16
// rows is an assumption.
#include "simulator/execute/lds.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;
using memory::LdsAccess;

typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint64_t u64x4 __attribute__((vector_size(32)));

namespace {

const Step* issue_transposed_read(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (wave->exec && wave->exec != all_lanes) {
        return fault(wave, step, "a transposed LDS read needs all 64 lanes active", 0,
                     static_cast<uint32_t>(__builtin_ctzll(~wave->exec)));
    }
    const uint64_t outside = record_lds_addresses(wave, step, operation);
    if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, 0);
    u32x16 misaligned = {};
    const uint32_t alignment = step->extra[0] == 12 ? 4 : 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
        misaligned |=
            *reinterpret_cast<const u32x16*>(operation->lds_address + 16 * quarter) & (alignment - 1);
    }
    if (wave->exec && to_bits((i32x16)(misaligned != 0))) {
        return fault(wave, step, "a transposed LDS read needs addresses aligned to its size",
                     operation->lds_address[0]);
    }
    begin_results(wave, step, operation);
    operation->lanes = operation->valid = wave->exec;
    if (__builtin_expect(step->extra[2] & memory_flag::count_conflicts, 0)) {
        count_lds_access(wave, step, operation->lds_address);
    }
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

void complete_16(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    const LdsPointers from{wave->lds, operation->lds_address};
    for (int group = 0; group < 4; ++group) {
        uint8_t* place = operation->rows + 64 * group;
#if defined(__AVX512BW__)
        // Eight lanes hold two rows of sixteen elements; the two elements of a column form a dword of the
        // result.
        const __m512i pairs = _mm512_or_si512(
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            _mm512_slli_epi32(
                _mm512_setr_epi32(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31), 16));
        _mm512_store_si512(place, _mm512_permutexvar_epi16(pairs, gather_qwords(from, 2 * group)));
        _mm512_store_si512(place + 256, _mm512_permutexvar_epi16(pairs, gather_qwords(from, 2 * group + 1)));
#else
        u32x16 row[4];
        for (int r = 0; r < 4; ++r) {
            const int lane = 16 * group + 4 * r;
            const u64x4 elements = {
                load_unaligned<uint64_t>(from[lane]), load_unaligned<uint64_t>(from[lane + 1]),
                load_unaligned<uint64_t>(from[lane + 2]), load_unaligned<uint64_t>(from[lane + 3])};
            row[r] = __builtin_convertvector((u16x16)elements, u32x16);
        }
        *reinterpret_cast<u32x16*>(place) = row[0] | row[1] << 16;
        *reinterpret_cast<u32x16*>(place + 256) = row[2] | row[3] << 16;
#endif
    }
}

// bits: 4, 6 or 8 per element.
template <int bits, int bytes>
void complete_narrow(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    constexpr int per_lane = 8 * bytes / bits, lanes_per_row = 16 / per_lane;
    const LdsPointers from{wave->lds, operation->lds_address};
    for (int group = 0; group < 64; group += 16) {
        uint8_t element[16][16];  // [row][column]
        for (int lane = 0; lane < 16; ++lane) {
            for (int i = 0; i < per_lane; ++i) {
                uint32_t value = 0;
                for (int bit = 0; bit < bits; ++bit) {
                    const int at_bit = i * bits + bit;
                    value |= (from[group + lane][at_bit / 8] >> (at_bit % 8) & 1u) << bit;
                }
                element[lane / lanes_per_row][lane % lanes_per_row * per_lane + i] =
                    static_cast<uint8_t>(value);
            }
        }
        for (int lane = 0; lane < 16; ++lane) {
            uint32_t out[4] = {};
            for (int i = 0; i < per_lane; ++i) {
                for (int bit = 0; bit < bits; ++bit) {
                    const int at_bit = i * bits + bit;
                    out[at_bit / 32] |= (element[i][lane] >> bit & 1u) << (at_bit % 32);
                }
            }
            for (int dword = 0; dword < bytes / 4; ++dword) {
                reinterpret_cast<uint32_t*>(operation->rows + 256 * dword)[group + lane] = out[dword];
            }
        }
    }
}

}  // namespace

bool bind_lds_transpose(const isa::Instruction& instruction, StepBuilder& builder) {
    Complete complete;
    uint32_t bytes = 8;
    LdsAccess access = LdsAccess::read_b64;
    switch (instruction.opcode) {
        case Opcode::ds_read_b64_tr_b16:
            complete = complete_16;
            break;
        case Opcode::ds_read_b64_tr_b8:
            complete = complete_narrow<8, 8>;
            break;
        case Opcode::ds_read_b64_tr_b4:
            complete = complete_narrow<4, 8>;
            break;
        case Opcode::ds_read_b96_tr_b6:
            complete = complete_narrow<6, 12>;
            bytes = 12;
            access = LdsAccess::read_b96;
            break;
        default:
            return false;
    }
    Step& step = builder.emit(issue_transposed_read);
    step.destination = builder.offset_of(instruction.operands[0].code);
    step.source[0] = builder.offset_of(instruction.operands[1].code);
    step.immediate = instruction.offset;
    step.dwords = static_cast<uint8_t>(bytes / 4);
    step.extra[0] = bytes;
    step.extra[2] = flags_of(builder, instruction) | static_cast<uint32_t>(access)
                                                         << memory_flag::access_shift;
    set_completion(step, complete);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
