// simulator/execute/lds_atomics.cpp: atomics on the local data share, with and without returning the previous value.
// SPDX-License-Identifier: MIT
#include "simulator/execute/atomics.h"
#include "simulator/execute/lds.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

using isa::Opcode;
using memory::LdsAccess;

namespace {

template <int dwords>
const Step* issue_atomic(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint64_t outside = record_lds_addresses(wave, step, operation);
    if (__builtin_expect(outside != 0, 0)) return lds_fault(wave, step, outside, 0);
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        if (operation->lds_address[lane] % (4 * dwords)) {
            return fault(wave, step, "an LDS atomic needs an address aligned to its size",
                         operation->lds_address[lane], lane);
        }
    }
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    if (step->source[2]) capture_rows<dwords>(at(wave, step->source[2]), operation->data + second_operand);
    begin_results(wave, step, operation);
    operation->lanes = operation->valid = wave->exec;
    if (__builtin_expect(step->extra[2] & memory_flag::count_conflicts, 0)) {
        count_lds_access(wave, step, operation->lds_address);
    }
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

// ds_append and ds_consume: one counter for the wave, at M0[15:0] + offset.
template <bool append>
void complete_count(Wave* wave, PendingOperation* operation) {
    if (!operation->lanes) return;
    uint8_t* place = wave->lds + operation->lds_offset;
    const uint32_t old = load_unaligned<uint32_t>(place);
    const uint32_t active = static_cast<uint32_t>(__builtin_popcountll(operation->lanes));
    store_unaligned<uint32_t>(place, append ? old + active : old - active);
    fill_rows(operation->rows, 1, old, operation->lanes);
}

const Step* issue_count(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    const uint32_t address =
        (read_scalar(wave, layout::m0) & 0xffff) + static_cast<uint32_t>(step->immediate);
    if (wave->exec && (address % 4 || uint64_t{address} + 4 > wave->lds_bytes)) {
        return fault(wave, step, "LDS access outside the workgroup's allocation", address);
    }
    begin_results(wave, step, operation);
    operation->lanes = operation->valid = wave->exec;
    operation->lds_offset = address;
    poison_results(wave, step);
    queue_lds(wave, operation);
    return step + 1;
}

struct Match {
    Opcode plain, returning;
    AtomicOperation atomic;
};

constexpr Match matches[] = {
    {Opcode::ds_add_u32, Opcode::ds_add_rtn_u32, {Atomic::add, 4}},
    {Opcode::ds_sub_u32, Opcode::ds_sub_rtn_u32, {Atomic::sub, 4}},
    {Opcode::ds_rsub_u32, Opcode::ds_rsub_rtn_u32, {Atomic::rsub, 4}},
    {Opcode::ds_inc_u32, Opcode::ds_inc_rtn_u32, {Atomic::inc, 4}},
    {Opcode::ds_dec_u32, Opcode::ds_dec_rtn_u32, {Atomic::dec, 4}},
    {Opcode::ds_min_i32, Opcode::ds_min_rtn_i32, {Atomic::smin, 4}},
    {Opcode::ds_max_i32, Opcode::ds_max_rtn_i32, {Atomic::smax, 4}},
    {Opcode::ds_min_u32, Opcode::ds_min_rtn_u32, {Atomic::umin, 4}},
    {Opcode::ds_max_u32, Opcode::ds_max_rtn_u32, {Atomic::umax, 4}},
    {Opcode::ds_and_b32, Opcode::ds_and_rtn_b32, {Atomic::bit_and, 4}},
    {Opcode::ds_or_b32, Opcode::ds_or_rtn_b32, {Atomic::bit_or, 4}},
    {Opcode::ds_xor_b32, Opcode::ds_xor_rtn_b32, {Atomic::bit_xor, 4}},
    {Opcode::ds_mskor_b32, Opcode::ds_mskor_rtn_b32, {Atomic::mskor, 4}},
    {Opcode::ds_cmpst_b32, Opcode::ds_cmpst_rtn_b32, {Atomic::cmpst, 4}},
    {Opcode::ds_cmpst_f32, Opcode::ds_cmpst_rtn_f32, {Atomic::cmpst_float, 4}},
    {Opcode::ds_min_f32, Opcode::ds_min_rtn_f32, {Atomic::min_float, 4}},
    {Opcode::ds_max_f32, Opcode::ds_max_rtn_f32, {Atomic::max_float, 4}},
    {Opcode::ds_add_f32, Opcode::ds_add_rtn_f32, {Atomic::add_float, 4}},
    {Opcode::ds_pk_add_f16, Opcode::ds_pk_add_rtn_f16, {Atomic::pk_add_f16, 4}},
    {Opcode::ds_pk_add_bf16, Opcode::ds_pk_add_rtn_bf16, {Atomic::pk_add_bf16, 4}},
    {Opcode::ds_add_u64, Opcode::ds_add_rtn_u64, {Atomic::add, 8}},
    {Opcode::ds_sub_u64, Opcode::ds_sub_rtn_u64, {Atomic::sub, 8}},
    {Opcode::ds_rsub_u64, Opcode::ds_rsub_rtn_u64, {Atomic::rsub, 8}},
    {Opcode::ds_inc_u64, Opcode::ds_inc_rtn_u64, {Atomic::inc, 8}},
    {Opcode::ds_dec_u64, Opcode::ds_dec_rtn_u64, {Atomic::dec, 8}},
    {Opcode::ds_min_i64, Opcode::ds_min_rtn_i64, {Atomic::smin, 8}},
    {Opcode::ds_max_i64, Opcode::ds_max_rtn_i64, {Atomic::smax, 8}},
    {Opcode::ds_min_u64, Opcode::ds_min_rtn_u64, {Atomic::umin, 8}},
    {Opcode::ds_max_u64, Opcode::ds_max_rtn_u64, {Atomic::umax, 8}},
    {Opcode::ds_and_b64, Opcode::ds_and_rtn_b64, {Atomic::bit_and, 8}},
    {Opcode::ds_or_b64, Opcode::ds_or_rtn_b64, {Atomic::bit_or, 8}},
    {Opcode::ds_xor_b64, Opcode::ds_xor_rtn_b64, {Atomic::bit_xor, 8}},
    {Opcode::ds_mskor_b64, Opcode::ds_mskor_rtn_b64, {Atomic::mskor, 8}},
    {Opcode::ds_cmpst_b64, Opcode::ds_cmpst_rtn_b64, {Atomic::cmpst, 8}},
    {Opcode::ds_cmpst_f64, Opcode::ds_cmpst_rtn_f64, {Atomic::cmpst_float, 8}},
    {Opcode::ds_min_f64, Opcode::ds_min_rtn_f64, {Atomic::min_float, 8}},
    {Opcode::ds_max_f64, Opcode::ds_max_rtn_f64, {Atomic::max_float, 8}},
    {Opcode::ds_add_f64, Opcode::ds_add_rtn_f64, {Atomic::add_float, 8}},
    {Opcode::invalid, Opcode::ds_wrxchg_rtn_b32, {Atomic::swap, 4}},
    {Opcode::invalid, Opcode::ds_wrxchg_rtn_b64, {Atomic::swap, 8}},
    {Opcode::invalid, Opcode::ds_wrap_rtn_b32, {Atomic::wrap, 4}},
    {Opcode::invalid, Opcode::ds_condxchg32_rtn_b64, {Atomic::condxchg32, 8}},
};

bool bind_count(const isa::Instruction& instruction, StepBuilder& builder) {
    const bool append = instruction.opcode == Opcode::ds_append;
    if (!append && instruction.opcode != Opcode::ds_consume) return false;
    Step& step = builder.emit(issue_count);
    step.destination = builder.offset_of(instruction.operands[0].code);
    step.dwords = 1;
    step.immediate = instruction.offset;
    step.extra[2] = flags_of(builder, instruction);
    set_completion(step, append ? complete_count<true> : complete_count<false>);
    return true;
}

}  // namespace

bool bind_lds_atomic(const isa::Instruction& instruction, StepBuilder& builder) {
    for (const Match& match : matches) {
        const bool returning = instruction.opcode == match.returning;
        if (!returning && instruction.opcode != match.plain) continue;
        const int dwords = match.atomic.bytes / 4;
        const isa::Operand* operand = instruction.operands;
        Step& step = builder.emit(dwords == 1 ? issue_atomic<1> : issue_atomic<2>);
        if (returning) {
            step.destination = builder.offset_of(operand++->code);
            step.dwords = static_cast<uint8_t>(dwords);
        }
        step.source[0] = builder.offset_of(operand[0].code);
        step.source[1] = builder.offset_of(operand[1].code);
        const bool has_second = operand + 2 < instruction.operands + instruction.operand_count &&
                                operand[2].is_read && !operand[2].is_implicit &&
                                operand[2].code != isa::code::none;
        if (has_second) step.source[2] = builder.offset_of(operand[2].code);
        step.immediate = instruction.offset;
        step.extra[0] = match.atomic.bytes;
        step.extra[2] = flags_of(builder, instruction) |
                        static_cast<uint32_t>(dwords == 1 ? LdsAccess::write_b32 : LdsAccess::write_b64)
                            << memory_flag::access_shift;
        set_completion(step, atomic_completion(match.atomic, Shared::lds));
        return true;
    }
    return bind_count(instruction, builder);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
