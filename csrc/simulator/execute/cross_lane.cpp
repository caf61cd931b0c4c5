// simulator/execute/cross_lane.cpp: DPP permutations.
// SPDX-License-Identifier: MIT
#include "simulator/execute/lane_permutation.h"
#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

// The lane that `lane` reads, -1 for none, -2 if the control is reserved (ISA manual, "DPP").
int source_of(int control, int lane) {
    const int row = lane & ~15, place = lane & 15, amount = control & 15;
    switch (control >> 4) {
        case 0x10:
            return amount == 0 ? -2 : place + amount < 16 ? lane + amount : -1;  // row_shl
        case 0x11:
            return amount == 0 ? -2 : place - amount >= 0 ? lane - amount : -1;  // row_shr
        case 0x12:
            return amount == 0 ? -2 : row | ((place - amount) & 15);  // row_ror
        case 0x15:
            return row | amount;  // row_newbcast
        default:
            break;
    }
    if (control < 0x100) return (lane & ~3) | (control >> (2 * (lane & 3)) & 3);  // quad_perm
    switch (control) {
        case 0x130:
            return lane < 63 ? lane + 1 : -1;  // wave_shl:1
        case 0x134:
            return (lane + 1) & 63;  // wave_rol:1
        case 0x138:
            return lane - 1;  // wave_shr:1
        case 0x13c:
            return (lane - 1) & 63;  // wave_ror:1
        case 0x140:
            return row | (15 - place);  // row_mirror
        case 0x141:
            return (lane & ~7) | (7 - (lane & 7));  // row_half_mirror
        case 0x142:
            return row - 1;  // row_bcast:15
        case 0x143:
            return lane < 32 ? -1 : 31;  // row_bcast:31
        default:
            return -2;
    }
}

struct PermutationTable {
    LanePermutation entries[512];
    bool known[512];
    PermutationTable() {
        for (int control = 0; control < 512; ++control) {
            LanePermutation& entry = entries[control];
            known[control] = source_of(control, 0) != -2;
            if (!known[control]) continue;
            entry.within_rows = true;
            for (int lane = 0; lane < 64; ++lane) {
                const int source = source_of(control, lane);
                if (source >= 0) entry.valid |= uint64_t{1} << lane;
                entry.source[lane] = static_cast<uint8_t>(source >= 0 ? source : lane);
                if (source >= 0 && source / 16 != lane / 16) entry.within_rows = false;
            }
            for (int place = 0; place < 16; ++place) entry.row_source[place] = entry.source[place] & 15;
            if (control == 0x142 || control == 0x143) entry.within_rows = false;
        }
    }
};

}  // namespace

const LanePermutation* lane_permutation(uint16_t control) {
    static const PermutationTable table;
    return control < 512 && table.known[control] ? &table.entries[control] : nullptr;
}

uint64_t valid_lanes(const LanePermutation& permutation, uint64_t exec) {
    if (exec == ~uint64_t{0}) return permutation.valid;
    uint64_t lanes = 0;
    for (int lane = 0; lane < 64; ++lane) lanes |= (exec >> permutation.source[lane] & 1) << lane;
    return lanes & permutation.valid;
}

const Step* permute_within_rows(Wave* wave, const Step* step) {
    const LanePermutation& permutation = *static_cast<const LanePermutation*>(step->data);
    const Operands operands(step);
    u32x16 index;
    memcpy(&index, permutation.row_source, sizeof index);
    const bool zero_invalid =
        step->immediate && (permutation.valid != ~uint64_t{0} || wave->exec != ~uint64_t{0});
    const uint64_t valid = zero_invalid ? valid_lanes(permutation, wave->exec) : 0;
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 row = operands.read<u32x16>(wave, 0, quarter);
#if defined(__AVX512F__)
        u32x16 permuted = (u32x16)_mm512_permutexvar_epi32((__m512i)index, (__m512i)row);
#else
        u32x16 permuted;
        for (int lane = 0; lane < 16; ++lane) permuted[lane] = row[index[lane]];
#endif
        if (zero_invalid)
            permuted &= (u32x16)lane_mask(static_cast<uint32_t>(valid >> (16 * quarter)) & 0xffff);
        store_whole_quarter(wave, operands.destination, quarter, permuted);
    }
    return step + 1;
}

const Step* permute_across_rows(Wave* wave, const Step* step) {
    const LanePermutation& permutation = *static_cast<const LanePermutation*>(step->data);
    const Operands operands(step);
    const uint64_t valid = step->immediate ? valid_lanes(permutation, wave->exec) : ~uint64_t{0};
    uint32_t from[64], to[64];
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 row = operands.read<u32x16>(wave, 0, quarter);
        memcpy(from + 16 * quarter, &row, sizeof row);
    }
    for (int lane = 0; lane < 64; ++lane) to[lane] = valid >> lane & 1 ? from[permutation.source[lane]] : 0;
    memcpy(at(wave, operands.destination), to, sizeof to);
    return step + 1;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
