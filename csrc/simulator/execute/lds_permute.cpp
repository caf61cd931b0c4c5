// simulator/execute/lds_permute.cpp: exchanges of values between lanes: ds_permute, ds_bpermute, ds_swizzle.
// SPDX-License-Identifier: MIT
#include "simulator/execute/lds.h"
#include "simulator/memory/lane_swizzle.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;

namespace {

// The result exists at issue, but as for every LDS instruction it becomes visible when lgkmcnt allows.
void complete_values(Wave*, PendingOperation* operation) {
    write_row_from(operation->rows, operation->data, operation->lanes, all_lanes);
}

HIPKITTENS_INLINE const Step* queue_values(Wave* wave, const Step* step, PendingOperation* operation) {
    begin_results(wave, step, operation);
    operation->complete = complete_values;
    operation->lanes = operation->valid = wave->exec;
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

HIPKITTENS_INLINE uint32_t chosen_lane(Wave* wave, const Step* step, int lane) {
    const uint32_t* address = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    return (address[lane] + static_cast<uint32_t>(step->immediate)) / 4 % 64;
}

// values[lane] = data[from[lane] % 64], or 0 where that lane is inactive.
HIPKITTENS_INLINE void gather_lanes(uint32_t* values, const uint32_t* data, const u32x16 from[4],
                                    uint64_t exec) {
#if defined(__AVX512F__)
    __m512i source[4];
    for (int quarter = 0; quarter < 4; ++quarter) {
        source[quarter] =
            _mm512_maskz_loadu_epi32(static_cast<__mmask16>(exec >> (16 * quarter)), data + 16 * quarter);
    }
    for (int quarter = 0; quarter < 4; ++quarter) {
        // permutex2var uses five bits of the lane number; the sixth selects the half of the wave.
        const __m512i lane = (__m512i)from[quarter];
        const __m512i low = _mm512_permutex2var_epi32(source[0], lane, source[1]);
        const __m512i high = _mm512_permutex2var_epi32(source[2], lane, source[3]);
        const __mmask16 upper = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(32));
        _mm512_store_si512(values + 16 * quarter, _mm512_mask_blend_epi32(upper, low, high));
    }
#else
    for (int quarter = 0; quarter < 4; ++quarter) {
        for (int lane = 0; lane < 16; ++lane) {
            const uint32_t source = from[quarter][lane] % 64;
            values[16 * quarter + lane] = exec >> source & 1 ? data[source] : 0;
        }
    }
#endif
}

// An inactive source lane gives 0.
const Step* issue_bpermute(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    u32x16 from[4];
    for (int quarter = 0; quarter < 4; ++quarter) {
        from[quarter] = (load_quarter<u32x16>(wave, step->source[0], 64, quarter) +
                         static_cast<uint32_t>(step->immediate)) >>
                        2;
    }
    gather_lanes(operation->data, reinterpret_cast<const uint32_t*>(at(wave, step->source[1])), from,
                 wave->exec);
    return queue_values(wave, step, operation);
}

// If several lanes send to one lane, the highest wins; a lane that nobody sends to gets 0.
const Step* issue_permute(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t* data = reinterpret_cast<const uint32_t*>(at(wave, step->source[1]));
    for (int lane = 0; lane < 64; ++lane) operation->data[lane] = 0;
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        operation->data[chosen_lane(wave, step, lane)] = data[lane];
    }
    return queue_values(wave, step, operation);
}

const Step* issue_swizzle(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const u32x16* from = static_cast<const u32x16*>(step->data);
    gather_lanes(operation->data, reinterpret_cast<const uint32_t*>(at(wave, step->source[0])), from,
                 wave->exec);
    return queue_values(wave, step, operation);
}

}  // namespace

bool bind_lds_permute(const isa::Instruction& instruction, StepBuilder& builder) {
    Handler issue;
    switch (instruction.opcode) {
        case Opcode::ds_bpermute_b32:
            issue = issue_bpermute;
            break;
        case Opcode::ds_permute_b32:
            issue = issue_permute;
            break;
        case Opcode::ds_swizzle_b32:
            issue = issue_swizzle;
            break;
        default:
            return false;
    }
    Step& step = builder.emit(issue);
    step.destination = builder.offset_of(instruction.operands[0].code);
    step.source[0] = builder.offset_of(instruction.operands[1].code);
    if (instruction.opcode == Opcode::ds_swizzle_b32) {
        step.data = memory::swizzle_sources(static_cast<uint16_t>(instruction.offset));
    } else {
        step.source[1] = builder.offset_of(instruction.operands[2].code);
        step.immediate = instruction.offset;
    }
    step.dwords = 1;
    step.extra[2] = flags_of(builder, instruction);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
