// simulator/execute/scalar.cpp: scalar arithmetic and comparison: SOP1, SOP2, SOPK, SOPC and the SOPP that do
// not affect control flow.
// SPDX-License-Identifier: MIT
//
// Meanings follow "Scalar ALU Operations" of the CDNA3 and CDNA4 ISA manuals; `scc` inside an operation is
// SCC before and after it. A SOPK instruction becomes the SOP2 or SOPC operation whose second source is a
// constant row.
#include "simulator/execute/families.h"
#include "simulator/execute/scalar_bits.h"
#include "simulator/execute/scalar_state.h"
#include "simulator/machine/wave.h"

#ifndef HIPKITTENS_HOST_LEVEL
#error "compile with -DHIPKITTENS_HOST_LEVEL=portable|avx2|avx512|avx512_bf16"
#endif

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

using isa::Instruction;
using isa::Opcode;
using isa::Operand;

template <class Value>
inline __attribute__((always_inline)) Value read(const Wave* wave, uint32_t offset) {
    if constexpr (sizeof(Value) == 8) {
        return static_cast<Value>(read_scalar64(wave, offset));
    } else {
        return static_cast<Value>(read_scalar(wave, offset));
    }
}

template <class Value>
inline __attribute__((always_inline)) void write(Wave* wave, uint32_t offset, Value value) {
    if constexpr (sizeof(Value) == 8) {
        write_scalar64(wave, offset, static_cast<uint64_t>(value));
    } else {
        write_scalar(wave, offset, static_cast<uint32_t>(value));
    }
}

// Handlers made from an operation without captures: Operation(a, [b,] scc).
template <class Result, class A, class Operation>
const Step* run_unary(Wave* wave, const Step* step) {
    uint32_t scc = wave->scc;
    const Result result = Operation{}(read<A>(wave, step->source[0]), scc);
    write<Result>(wave, step->destination, result);
    wave->scc = scc;
    return step + 1;
}

template <class Result, class A, class B, class Operation>
const Step* run_binary(Wave* wave, const Step* step) {
    uint32_t scc = wave->scc;
    const Result result = Operation{}(read<A>(wave, step->source[0]), read<B>(wave, step->source[1]), scc);
    write<Result>(wave, step->destination, result);
    wave->scc = scc;
    return step + 1;
}

template <class A, class B, class Operation>
const Step* run_compare(Wave* wave, const Step* step) {
    wave->scc = Operation{}(read<A>(wave, step->source[0]), read<B>(wave, step->source[1])) ? 1 : 0;
    return step + 1;
}

// EXEC <- f(source, EXEC); destination <- the previous EXEC, or (wrexec) the new one.
template <bool keep_new, class Operation>
const Step* run_exec(Wave* wave, const Step* step) {
    const uint64_t before = wave->exec;
    const uint64_t after = Operation{}(read_scalar64(wave, step->source[0]), before);
    write_exec(wave, after);
    write_scalar64(wave, step->destination, keep_new ? after : before);
    wave->scc = after != 0;
    return step + 1;
}

// How the operands of an instruction map to those of its handler.
enum class Form : uint8_t {
    none,
    unary,
    binary,
    compare,
    update
};  // update: the destination is the second source

struct Meaning {
    Handler handler = nullptr;
    Form form = Form::none;
};

template <class Result, class A, class Operation>
constexpr Meaning unary(Operation) {
    return {run_unary<Result, A, Operation>, Form::unary};
}
template <class Result, class A, class B, class Operation>
constexpr Meaning binary(Operation) {
    return {run_binary<Result, A, B, Operation>, Form::binary};
}
template <class Result, class A, class B, class Operation>
constexpr Meaning update(Operation) {
    return {run_binary<Result, A, B, Operation>, Form::update};
}
template <class A, class B, class Operation>
constexpr Meaning compare(Operation) {
    return {run_compare<A, B, Operation>, Form::compare};
}
template <bool keep_new, class Operation>
constexpr Meaning exec_operation(Operation) {
    return {run_exec<keep_new, Operation>, Form::unary};
}

#define NONZERO(type, expression)         \
    {                                     \
        const type result = (expression); \
        scc = result != 0;                \
        return result;                    \
    }
#define UNARY(name, result, a_type, expression)                         \
    case Opcode::name:                                                  \
        return unary<result, a_type>([](a_type a, u32& scc) -> result { \
            (void)scc;                                                  \
            return static_cast<result>(expression);                     \
        })
#define UNARY_SCC(name, result, a_type, expression) \
    case Opcode::name:                              \
        return unary<result, a_type>(               \
            [](a_type a, u32& scc)->result NONZERO(result, static_cast<result>(expression)))
#define BINARY(name, result, a_type, b_type, expression)                                   \
    case Opcode::name:                                                                     \
        return binary<result, a_type, b_type>([](a_type a, b_type b, u32& scc) -> result { \
            (void)scc;                                                                     \
            return static_cast<result>(expression);                                        \
        })
#define BINARY_SCC(name, result, a_type, b_type, expression) \
    case Opcode::name:                                       \
        return binary<result, a_type, b_type>(               \
            [](a_type a, b_type b, u32& scc)->result NONZERO(result, static_cast<result>(expression)))
#define LOGIC(name, expression)                        \
    BINARY_SCC(name##_b32, u32, u32, u32, expression); \
    BINARY_SCC(name##_b64, u64, u64, u64, expression)
#define COMPARE(name, type, expression) \
    case Opcode::name:                  \
        return compare<type, type>([](type a, type b) { return expression; })
// A comparison exists as SOPC and as SOPK.
#define COMPARE_BOTH(suffix, type, expression) \
    COMPARE(s_cmp_##suffix, type, expression); \
    COMPARE(s_cmpk_##suffix, type, expression)
#define SAVE_EXEC(name, expression) \
    case Opcode::name:              \
        return exec_operation<false>([](u64 source, u64 exec) -> u64 { return expression; })
#define WRITE_EXEC(name, expression) \
    case Opcode::name:               \
        return exec_operation<true>([](u64 source, u64 exec) -> u64 { return expression; })

Meaning meaning_of(Opcode opcode) {
    switch (opcode) {
        UNARY(s_mov_b32, u32, u32, a);
        UNARY(s_mov_b64, u64, u64, a);
        UNARY(s_movk_i32, u32, u32, a);
        UNARY_SCC(s_not_b32, u32, u32, ~a);
        UNARY_SCC(s_not_b64, u64, u64, ~a);
        UNARY_SCC(s_wqm_b32, u32, u32, quad_any(a) * 15);
        UNARY_SCC(s_wqm_b64, u64, u64, quad_any(a) * 15);
        UNARY_SCC(s_quadmask_b32, u32, u32, quad_mask(a));
        UNARY_SCC(s_quadmask_b64, u64, u64, quad_mask(a));
        UNARY(s_brev_b32, u32, u32, reverse_bits(a) >> 32);
        UNARY(s_brev_b64, u64, u64, reverse_bits(a));
        UNARY_SCC(s_bcnt0_i32_b32, u32, u32, 32 - count_bits(a));
        UNARY_SCC(s_bcnt0_i32_b64, u32, u64, 64 - count_bits(a));
        UNARY_SCC(s_bcnt1_i32_b32, u32, u32, count_bits(a));
        UNARY_SCC(s_bcnt1_i32_b64, u32, u64, count_bits(a));
        UNARY(s_ff0_i32_b32, u32, u32, first_set(static_cast<u32>(~a)));
        UNARY(s_ff0_i32_b64, u32, u64, first_set(~a));
        UNARY(s_ff1_i32_b32, u32, u32, first_set(a));
        UNARY(s_ff1_i32_b64, u32, u64, first_set(a));
        UNARY(s_flbit_i32_b32, u32, u32, a ? leading_zeros(a) - 32 : -1);
        UNARY(s_flbit_i32_b64, u32, u64, leading_zeros(a));
        // The number of leading bits equal to the sign; -1 if all are.
        UNARY(s_flbit_i32, u32, i32, (a ^ a >> 31) ? leading_zeros(static_cast<u32>(a ^ a >> 31)) - 32 : -1);
        UNARY(s_flbit_i32_i64, u32, i64, leading_zeros(static_cast<u64>(a ^ a >> 63)));
        UNARY(s_sext_i32_i8, u32, u32, static_cast<i32>(static_cast<int8_t>(a)));
        UNARY(s_sext_i32_i16, u32, u32, static_cast<i32>(static_cast<int16_t>(a)));
        UNARY_SCC(s_abs_i32, u32, u32, a >> 31 ? 0 - a : a);
        UNARY(s_bitreplicate_b64_b32, u64, u32, double_bits(a));

        BINARY(s_add_u32, u32, u32, u32, add_wide(a, b, scc));
        BINARY(s_addc_u32, u32, u32, u32, add_wide(a, u64{b} + scc, scc));
        case Opcode::s_sub_u32:
            return binary<u32, u32, u32>([](u32 a, u32 b, u32& scc) -> u32 {
                scc = b > a;
                return a - b;
            });
        case Opcode::s_subb_u32:
            return binary<u32, u32, u32>([](u32 a, u32 b, u32& scc) -> u32 {
                const u64 taken = u64{b} + scc;
                scc = taken > a;
                return static_cast<u32>(a - taken);
            });
            BINARY(s_add_i32, u32, u32, u32, add_signed(a, b, scc));
            BINARY(s_addk_i32, u32, u32, u32, add_signed(a, b, scc));
            BINARY(s_sub_i32, u32, u32, u32, subtract_signed(a, b, scc));
        case Opcode::s_min_i32:
            return binary<i32, i32, i32>([](i32 a, i32 b, u32& scc) {
                scc = a < b;
                return scc ? a : b;
            });
        case Opcode::s_min_u32:
            return binary<u32, u32, u32>([](u32 a, u32 b, u32& scc) {
                scc = a < b;
                return scc ? a : b;
            });
        // SCC when equal: the CDNA3 and CDNA4 manuals define the maximum's SCC by >=, the minimum's by <.
        case Opcode::s_max_i32:
            return binary<i32, i32, i32>([](i32 a, i32 b, u32& scc) {
                scc = a >= b;
                return scc ? a : b;
            });
        case Opcode::s_max_u32:
            return binary<u32, u32, u32>([](u32 a, u32 b, u32& scc) {
                scc = a >= b;
                return scc ? a : b;
            });
            BINARY(s_cselect_b32, u32, u32, u32, scc ? a : b);
            BINARY(s_cselect_b64, u64, u64, u64, scc ? a : b);
            LOGIC(s_and, a & b);
            LOGIC(s_or, a | b);
            LOGIC(s_xor, a ^ b);
            LOGIC(s_andn2, a & ~b);
            LOGIC(s_orn2, a | ~b);
            LOGIC(s_nand, ~(a & b));
            LOGIC(s_nor, ~(a | b));
            LOGIC(s_xnor, ~(a ^ b));
            BINARY_SCC(s_lshl_b32, u32, u32, u32, a << (b & 31));
            BINARY_SCC(s_lshl_b64, u64, u64, u32, a << (b & 63));
            BINARY_SCC(s_lshr_b32, u32, u32, u32, a >> (b & 31));
            BINARY_SCC(s_lshr_b64, u64, u64, u32, a >> (b & 63));
            BINARY_SCC(s_ashr_i32, i32, i32, u32, a >> (b & 31));
            BINARY_SCC(s_ashr_i64, i64, i64, u32, a >> (b & 63));
            BINARY(s_bfm_b32, u32, u32, u32, ((u32{1} << (a & 31)) - 1) << (b & 31));
            BINARY(s_bfm_b64, u64, u32, u32, ((u64{1} << (a & 63)) - 1) << (b & 63));
            BINARY_SCC(s_bfe_u32, u32, u32, u32, bit_field(a, b));
            BINARY_SCC(s_bfe_i32, i32, i32, u32, bit_field(a, b));
            BINARY_SCC(s_bfe_u64, u64, u64, u32, bit_field(a, b));
            BINARY_SCC(s_bfe_i64, i64, i64, u32, bit_field(a, b));
            BINARY(s_mul_i32, u32, u32, u32, a * b);
            BINARY(s_mulk_i32, u32, u32, u32, a * b);
            BINARY(s_mul_hi_u32, u32, u32, u32, u64{a} * b >> 32);
            BINARY(s_mul_hi_i32, u32, i32, i32, i64{a} * b >> 32);
            BINARY_SCC(s_absdiff_i32, u32, u32, u32, (a - b) >> 31 ? b - a : a - b);
            BINARY(s_lshl1_add_u32, u32, u32, u32, add_wide(u64{a} << 1, b, scc));
            BINARY(s_lshl2_add_u32, u32, u32, u32, add_wide(u64{a} << 2, b, scc));
            BINARY(s_lshl3_add_u32, u32, u32, u32, add_wide(u64{a} << 3, b, scc));
            BINARY(s_lshl4_add_u32, u32, u32, u32, add_wide(u64{a} << 4, b, scc));
            BINARY(s_pack_ll_b32_b16, u32, u32, u32, (a & 0xffff) | b << 16);
            BINARY(s_pack_lh_b32_b16, u32, u32, u32, (a & 0xffff) | (b & 0xffff0000));
            BINARY(s_pack_hh_b32_b16, u32, u32, u32, a >> 16 | (b & 0xffff0000));

        // The destination keeps what the operation does not replace: it is the second source `b`.
        case Opcode::s_cmov_b32:
        case Opcode::s_cmovk_i32:
            return update<u32, u32, u32>([](u32 a, u32 b, u32& scc) -> u32 { return scc ? a : b; });
        case Opcode::s_cmov_b64:
            return update<u64, u64, u64>([](u64 a, u64 b, u32& scc) -> u64 { return scc ? a : b; });
        case Opcode::s_bitset0_b32:
            return update<u32, u32, u32>([](u32 a, u32 b, u32&) -> u32 { return b & ~(u32{1} << (a & 31)); });
        case Opcode::s_bitset0_b64:
            return update<u64, u32, u64>([](u32 a, u64 b, u32&) -> u64 { return b & ~(u64{1} << (a & 63)); });
        case Opcode::s_bitset1_b32:
            return update<u32, u32, u32>([](u32 a, u32 b, u32&) -> u32 { return b | u32{1} << (a & 31); });
        case Opcode::s_bitset1_b64:
            return update<u64, u32, u64>([](u32 a, u64 b, u32&) -> u64 { return b | u64{1} << (a & 63); });

            COMPARE_BOTH(eq_i32, i32, a == b);
            COMPARE_BOTH(lg_i32, i32, a != b);
            COMPARE_BOTH(gt_i32, i32, a > b);
            COMPARE_BOTH(ge_i32, i32, a >= b);
            COMPARE_BOTH(lt_i32, i32, a < b);
            COMPARE_BOTH(le_i32, i32, a <= b);
            COMPARE_BOTH(eq_u32, u32, a == b);
            COMPARE_BOTH(lg_u32, u32, a != b);
            COMPARE_BOTH(gt_u32, u32, a > b);
            COMPARE_BOTH(ge_u32, u32, a >= b);
            COMPARE_BOTH(lt_u32, u32, a < b);
            COMPARE_BOTH(le_u32, u32, a <= b);
            COMPARE(s_cmp_eq_u64, u64, a == b);
            COMPARE(s_cmp_lg_u64, u64, a != b);
            COMPARE(s_bitcmp0_b32, u32, !(a >> (b & 31) & 1));
            COMPARE(s_bitcmp1_b32, u32, a >> (b & 31) & 1);
        case Opcode::s_bitcmp0_b64:
            return compare<u64, u32>([](u64 a, u32 b) { return !(a >> (b & 63) & 1); });
        case Opcode::s_bitcmp1_b64:
            return compare<u64, u32>([](u64 a, u32 b) { return bool(a >> (b & 63) & 1); });

            SAVE_EXEC(s_and_saveexec_b64, source & exec);
            SAVE_EXEC(s_or_saveexec_b64, source | exec);
            SAVE_EXEC(s_xor_saveexec_b64, source ^ exec);
            SAVE_EXEC(s_andn2_saveexec_b64, source & ~exec);
            SAVE_EXEC(s_orn2_saveexec_b64, source | ~exec);
            SAVE_EXEC(s_nand_saveexec_b64, ~(source & exec));
            SAVE_EXEC(s_nor_saveexec_b64, ~(source | exec));
            SAVE_EXEC(s_xnor_saveexec_b64, ~(source ^ exec));
            SAVE_EXEC(s_andn1_saveexec_b64, ~source & exec);
            SAVE_EXEC(s_orn1_saveexec_b64, ~source | exec);
            WRITE_EXEC(s_andn1_wrexec_b64, ~source & exec);
            WRITE_EXEC(s_andn2_wrexec_b64, source & ~exec);
        default:
            return {};
    }
}

// vccz, execz and scc have no row of their own: a preceding step puts their value into scratch row `slot`.
StepBuilder::Source source(const Instruction& instruction, const Operand& operand, StepBuilder& builder,
                           int slot) {
    Handler handler = nullptr;
    switch (operand.code) {
        case isa::code::scc:
            handler = [](Wave* wave, const Step* step) {
                write_scalar64(wave, step->destination, wave->scc);
                return step + 1;
            };
            break;
        case isa::code::execz:
            handler = [](Wave* wave, const Step* step) {
                write_scalar64(wave, step->destination, wave->exec == 0);
                return step + 1;
            };
            break;
        case isa::code::vccz:
            handler = [](Wave* wave, const Step* step) {
                write_scalar64(wave, step->destination, read_scalar64(wave, layout::vcc) == 0);
                return step + 1;
            };
            break;
        default:
            break;
    }
    if (operand.type == isa::OperandType::immediate)
        return {builder.constant(static_cast<uint32_t>(operand.immediate)), 0};
    if (!handler) return builder.source(instruction, operand);
    const uint32_t row = builder.scratch_row(slot);
    builder.emit(handler).destination = row;
    return {row, 0};
}

// The unsigned comparisons of SOPK zero-extend their 16 bits.
bool compares_unsigned(Opcode opcode) {
    switch (opcode) {
        case Opcode::s_cmpk_eq_u32:
        case Opcode::s_cmpk_lg_u32:
        case Opcode::s_cmpk_gt_u32:
        case Opcode::s_cmpk_ge_u32:
        case Opcode::s_cmpk_lt_u32:
        case Opcode::s_cmpk_le_u32:
            return true;
        default:
            return false;
    }
}

bool bind_meaning(const Instruction& instruction, const Meaning& meaning, StepBuilder& builder) {
    Operand operands[3] = {instruction.operands[0], instruction.operands[1], instruction.operands[2]};
    for (Operand& operand : operands) {
        // The scalar unit has no 16-bit constants: 1.0 is 0x3f800000 for s_pack too.
        if (operand.type != isa::OperandType::immediate) {
            if (operand.dwords == 1) operand.type = isa::OperandType::b32;
            continue;
        }
        operand.immediate = compares_unsigned(instruction.opcode) ? static_cast<uint16_t>(operand.immediate)
                                                                  : static_cast<int16_t>(operand.immediate);
    }
    StepBuilder::Source a, b = {0, 0};
    uint32_t destination = 0;
    if (meaning.form != Form::compare) destination = builder.offset_of(operands[0].code);
    switch (meaning.form) {
        case Form::unary:
            a = source(instruction, operands[1], builder, 0);
            break;
        case Form::update:
            a = source(instruction, operands[1], builder, 0);
            b = {destination, 0};
            break;
        case Form::compare:
            a = source(instruction, operands[0], builder, 0);
            b = source(instruction, operands[1], builder, 1);
            break;
        default:
            // s_addk and s_mulk have two operands: the destination, which is also their first source, and the
            // constant.
            if (instruction.encoding == isa::Encoding::sopk) {
                a = {destination, 0};
                b = source(instruction, operands[1], builder, 1);
            } else {
                a = source(instruction, operands[1], builder, 0);
                b = source(instruction, operands[2], builder, 1);
            }
    }
    Step& step = builder.emit(meaning.handler);
    step.destination = destination;
    step.source[0] = a.offset;
    step.source[1] = b.offset;
    const bool writes_exec = operands[0].code == isa::code::exec_lo || operands[0].code == isa::code::exec_hi;
    if (meaning.form != Form::compare && writes_exec) builder.emit_exec_update();
    return true;
}

}  // namespace

bool bind_scalar(const Instruction& instruction, StepBuilder& builder) {
    switch (instruction.opcode) {
        // These affect time, caches or profiling; nothing a program can observe here.
        case Opcode::s_nop:
        case Opcode::s_setprio:
        case Opcode::s_icache_inv:
        case Opcode::s_incperflevel:
        case Opcode::s_decperflevel:
        case Opcode::s_ttracedata:
        case Opcode::s_wakeup:
            return true;
        case Opcode::s_sleep:
            // A wave sleeps because it polls: at its next backward branch it yields to the others.
            builder.emit([](Wave* wave, const Step* step) {
                wave->budget = 0;
                return step + 1;
            });
            return true;
        case Opcode::s_getreg_b32:
        case Opcode::s_setreg_b32:
        case Opcode::s_setreg_imm32_b32:
            return bind_hardware_register(instruction, builder);
        default:
            break;
    }
    const Meaning meaning = meaning_of(instruction.opcode);
    return meaning.handler && bind_meaning(instruction, meaning, builder);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
