// simulator/execute/matrix.cpp: MFMA: maps an instruction to the function that multiplies, and to its operands.
// SPDX-License-Identifier: MIT
#include "simulator/execute/families.h"
#include "simulator/execute/matrix_dot.h"
#include "simulator/execute/matrix_exact.h"
#include "simulator/execute/matrix_mode.h"
#include "simulator/execute/matrix_scaled.h"
#include "simulator/execute/matrix_sparse.h"
#include "simulator/execute/matrix_widened.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

using isa::Instruction;
using isa::Opcode;
using isa::Operand;

typedef void (*Multiply)(const MatrixOperands&);

struct Meaning {
    Multiply multiply = nullptr;
    Handler handler = nullptr;  // multiplies, using the registers in place
    uint8_t size = 0, blocks = 0;
    bool is_f64 = false;
};

HIPKITTENS_INLINE MatrixOperands operands_of(Wave* wave, const Step* step) {
    return {at(wave, step->destination),
            at(wave, step->source[0]),
            at(wave, step->source[1]),
            at(wave, step->source[2]),
            step->extra[0],
            step->stride[2]};
}

template <Multiply multiply>
const Step* run_in_place(Wave* wave, const Step* step) {
    const MatrixMode mode(wave);
    multiply(operands_of(wave, step));
    return step + 1;
}

// Encoded in Step::immediate of run_on_copies.
struct Modifiers {
    uint32_t cbsz : 3, abid : 4, blgp : 3, negate : 3, size : 7, blocks : 5, is_f64 : 1;
};

// CBSZ and ABID: each run of 2^CBSZ blocks uses the A of its block ABID. Returns the lane to read for a lane
// of A.
int a_lane(int lane, Modifiers modifiers) {
    if (modifiers.cbsz == 0) return lane;
    const int size = modifiers.size;
    const int block = lane / size % modifiers.blocks,
              source = (block >> modifiers.cbsz << modifiers.cbsz) + modifiers.abid;
    return lane + (source - block) * size;
}

// BLGP: 1, 2 the first or second 32 lanes for all; 3 rotated by 16; 4..7 one of the four groups of 16 for
// all.
int b_lane(int lane, uint32_t blgp) {
    if (blgp == 0) return lane;
    if (blgp <= 2) return lane % 32 + (static_cast<int>(blgp) - 1) * 32;
    if (blgp == 3) return (lane + 16) % 64;
    return lane % 16 + (static_cast<int>(blgp) - 4) * 16;
}

// For operands that overlap the destination, and for permuted or negated operands.
const Step* run_on_copies(Wave* wave, const Step* step) {
    constexpr int most_ab = 8, most_c = 32;  // registers
    alignas(64) uint32_t a[most_ab * 64], b[most_ab * 64], c[most_c * 64];
    MatrixOperands operands = operands_of(wave, step);
    Modifiers modifiers;
    memcpy(&modifiers, &step->immediate, sizeof(modifiers));
    const int a_registers = step->dwords & 15, b_registers = step->dwords >> 4, c_registers = step->extra[1];
    for (int lane = 0; lane < 64; ++lane) {
        const int from_a = a_lane(lane, modifiers), from_b = b_lane(lane, modifiers.blgp);
        for (int i = 0; i < a_registers; ++i) memcpy(&a[i * 64 + lane], operands.a + i * 256 + from_a * 4, 4);
        for (int i = 0; i < b_registers; ++i) memcpy(&b[i * 64 + lane], operands.b + i * 256 + from_b * 4, 4);
        for (int i = 0; i < c_registers; ++i) {
            const int from_c =
                operands.c_register_bytes == layout::scalar_row_bytes ? i % 2 : i;  // an f64 constant
            memcpy(&c[i * 64 + lane], c_place(operands, from_c, lane), 4);
        }
        if (!modifiers.is_f64) continue;
        for (int i = 1; i < a_registers; i += 2) a[i * 64 + lane] ^= (modifiers.negate & 1u) << 31;
        for (int i = 1; i < b_registers; i += 2) b[i * 64 + lane] ^= (modifiers.negate >> 1 & 1u) << 31;
        for (int i = 1; i < c_registers; i += 2) c[i * 64 + lane] ^= (modifiers.negate >> 2 & 1u) << 31;
    }
    operands.a = reinterpret_cast<const uint8_t*>(a);
    operands.b = reinterpret_cast<const uint8_t*>(b);
    operands.c = reinterpret_cast<const uint8_t*>(c);
    operands.c_register_bytes = 256;
    operands.c_quarter_bytes = 64;
    const MatrixMode mode(wave);
    reinterpret_cast<Multiply>(const_cast<void*>(step->data))(operands);
    return step + 1;
}

template <Multiply multiply, class ShapeOf>
constexpr Meaning meaning() {
    return {multiply, run_in_place<multiply>, ShapeOf::size, ShapeOf::blocks};
}

template <class Format, class ShapeOf>
constexpr Meaning floats(Arithmetic arithmetic) {
    constexpr bool has_rule = Format::group > 1;
    if constexpr (ShapeOf::size == 4) {
        if constexpr (has_rule) {
            if (arithmetic == Arithmetic::exact)
                return meaning<multiply_exact_4x4<Format, ShapeOf::depth>, ShapeOf>();
        }
        return meaning<multiply_strict_4x4<Format, ShapeOf::depth>, ShapeOf>();
    } else {
        if constexpr (has_rule) {
            if (arithmetic == Arithmetic::exact) return meaning<multiply_exact<Format, ShapeOf>, ShapeOf>();
        }
#if defined(__AVX512BF16__)
        if constexpr (Format::is_bf16) {
            if (arithmetic == Arithmetic::fast) return meaning<multiply_dot<ShapeOf>, ShapeOf>();
        }
#endif
        return meaning<multiply_strict<Format, ShapeOf>, ShapeOf>();
    }
}

#if defined(__AVX512BF16__)
template <class Format>
constexpr widened::Format widened_format = [] {
    constexpr bool is_fnuz = Format::bias % 2 == 0;
    if (Format::fraction == 3) return is_fnuz ? widened::Format::fnuz_fp8 : widened::Format::fp8;
    return is_fnuz ? widened::Format::fnuz_bf8 : widened::Format::bf8;
}();

template <class FormatOfA, class FormatOfB, class ShapeOf>
void multiply_widened(const MatrixOperands& operands) {
    constexpr int pairs = ShapeOf::run / 2;
    alignas(64) uint8_t a[pairs * 256], b[pairs * 256];
    widened::widen<widened_format<FormatOfA>, pairs>(operands.a, a);
    widened::widen<widened_format<FormatOfB>, pairs>(operands.b, b);
    MatrixOperands wide = operands;
    wide.a = a;
    wide.b = b;
    multiply_dot<ShapeOf>(wide);
}
#endif

template <template <Float8> class FormatOfA, template <Float8> class FormatOfB, Float8 kind, class ShapeOf>
constexpr Meaning bytes_of_kind(Arithmetic arithmetic) {
    typedef FormatOfA<kind> A;
    typedef FormatOfB<kind> B;
    if (arithmetic == Arithmetic::exact) return meaning<multiply_exact_bytes<A, B, ShapeOf>, ShapeOf>();
#if defined(__AVX512BF16__)
    if (arithmetic == Arithmetic::fast) return meaning<multiply_widened<A, B, ShapeOf>, ShapeOf>();
#endif
    return meaning<multiply_strict<A, ShapeOf, FloatSum, B>, ShapeOf>();
}
template <template <Float8> class FormatOfA, template <Float8> class FormatOfB, class ShapeOf>
constexpr Meaning bytes(Arithmetic arithmetic, isa::Target target) {
    return target == isa::Target::gfx942
               ? bytes_of_kind<FormatOfA, FormatOfB, Float8::fnuz, ShapeOf>(arithmetic)
               : bytes_of_kind<FormatOfA, FormatOfB, Float8::ocp, ShapeOf>(arithmetic);
}

template <class ShapeOf>
constexpr Meaning integers() {
    if constexpr (ShapeOf::size == 4) {
        return meaning<multiply_strict_4x4<I8, ShapeOf::depth, IntegerSum>, ShapeOf>();
    } else {
        return meaning<multiply_strict<I8, ShapeOf, IntegerSum>, ShapeOf>();
    }
}

Meaning meaning_of(Opcode opcode, isa::Target target, Arithmetic arithmetic) {
    switch (opcode) {
        case Opcode::v_mfma_f32_32x32x16_bf16:
            return floats<Bf16, Shape<32, 16>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x32_bf16:
            return floats<Bf16, Shape<16, 32>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x8_bf16:
            return floats<Bf16, Shape<32, 8>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x16_bf16:
            return floats<Bf16, Shape<16, 16>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x4_2b_bf16:
            return floats<Bf16, Shape<32, 4, 2>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x4_4b_bf16:
            return floats<Bf16, Shape<16, 4, 4>>(arithmetic);
        case Opcode::v_mfma_f32_4x4x4_16b_bf16:
            return floats<Bf16, Shape<4, 4, 16>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x16_f16:
            return floats<F16, Shape<32, 16>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x32_f16:
            return floats<F16, Shape<16, 32>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x8_f16:
            return floats<F16, Shape<32, 8>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x16_f16:
            return floats<F16, Shape<16, 16>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x4_2b_f16:
            return floats<F16, Shape<32, 4, 2>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x4_4b_f16:
            return floats<F16, Shape<16, 4, 4>>(arithmetic);
        case Opcode::v_mfma_f32_4x4x4_16b_f16:
            return floats<F16, Shape<4, 4, 16>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x2_f32:
            return floats<F32, Shape<32, 2>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x4_f32:
            return floats<F32, Shape<16, 4>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x1_2b_f32:
            return floats<F32, Shape<32, 1, 2>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x1_4b_f32:
            return floats<F32, Shape<16, 1, 4>>(arithmetic);
        case Opcode::v_mfma_f32_4x4x1_16b_f32:
            return floats<F32, Shape<4, 1, 16>>(arithmetic);
        case Opcode::v_mfma_f32_32x32x4_xf32:
            return floats<Xf32, Shape<32, 4>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x8_xf32:
            return floats<Xf32, Shape<16, 8>>(arithmetic);
        case Opcode::v_mfma_f32_16x16x32_fp8_fp8:
            return bytes<Fp8, Fp8, Shape<16, 32>>(arithmetic, target);
        case Opcode::v_mfma_f32_16x16x32_fp8_bf8:
            return bytes<Fp8, Bf8, Shape<16, 32>>(arithmetic, target);
        case Opcode::v_mfma_f32_16x16x32_bf8_fp8:
            return bytes<Bf8, Fp8, Shape<16, 32>>(arithmetic, target);
        case Opcode::v_mfma_f32_16x16x32_bf8_bf8:
            return bytes<Bf8, Bf8, Shape<16, 32>>(arithmetic, target);
        case Opcode::v_mfma_f32_32x32x16_fp8_fp8:
            return bytes<Fp8, Fp8, Shape<32, 16>>(arithmetic, target);
        case Opcode::v_mfma_f32_32x32x16_fp8_bf8:
            return bytes<Fp8, Bf8, Shape<32, 16>>(arithmetic, target);
        case Opcode::v_mfma_f32_32x32x16_bf8_fp8:
            return bytes<Bf8, Fp8, Shape<32, 16>>(arithmetic, target);
        case Opcode::v_mfma_f32_32x32x16_bf8_bf8:
            return bytes<Bf8, Bf8, Shape<32, 16>>(arithmetic, target);
        case Opcode::v_mfma_i32_32x32x16_i8:
            return integers<Shape<32, 16>>();
        case Opcode::v_mfma_i32_16x16x32_i8:
            return integers<Shape<16, 32>>();
        case Opcode::v_mfma_i32_32x32x32_i8:
            return integers<Shape<32, 32>>();
        case Opcode::v_mfma_i32_16x16x64_i8:
            return integers<Shape<16, 64>>();
        case Opcode::v_mfma_i32_32x32x4_2b_i8:
            return integers<Shape<32, 4, 2>>();
        case Opcode::v_mfma_i32_16x16x4_4b_i8:
            return integers<Shape<16, 4, 4>>();
        case Opcode::v_mfma_i32_4x4x4_16b_i8:
            return integers<Shape<4, 4, 16>>();
        case Opcode::v_mfma_f64_16x16x4_f64:
            return {multiply_f64_16x16x4, run_in_place<multiply_f64_16x16x4>, 16, 1, true};
        case Opcode::v_mfma_f64_4x4x4_4b_f64:
            return {multiply_f64_4x4x4, run_in_place<multiply_f64_4x4x4>, 4, 4, true};
        default:
            return {};
    }
}

bool overlaps(const Operand& a, const Operand& b) {
    return a.code < b.code + b.dwords && b.code < a.code + a.dwords;
}

}  // namespace

bool bind_matrix(const Instruction& instruction, StepBuilder& builder) {
    const Meaning meaning = meaning_of(instruction.opcode, instruction.target, builder.settings().arithmetic);
    if (!meaning.multiply)
        return bind_sparse_matrix(instruction, builder) || bind_scaled_matrix(instruction, builder);
    const Operand &d = instruction.operands[0], &a = instruction.operands[1], &b = instruction.operands[2];
    Operand c = instruction.operands[3];
    const bool c_is_register = c.is_vgpr() || c.is_agpr();
    const uint32_t negate = meaning.is_f64 ? (instruction.neg | instruction.blgp) & 7u : 0;
    const uint32_t blgp = meaning.is_f64 ? 0 : instruction.blgp;
    // A single block has no other block to broadcast to.
    if ((1 << instruction.cbsz) > meaning.blocks || instruction.abid >= 1 << instruction.cbsz) return false;

    if (!c_is_register) c.dwords = meaning.is_f64 ? 2 : 1;  // a constant is one value, whatever the size of C
    const StepBuilder::Source c_source = builder.source(instruction, c);
    const bool shares =
        overlaps(d, a) || overlaps(d, b) || (c_is_register && overlaps(d, c) && d.code != c.code);
    Step& step = builder.emit(meaning.handler);
    step.destination = builder.offset_of(d.code);
    step.source[0] = builder.offset_of(a.code);
    step.source[1] = builder.offset_of(b.code);
    step.source[2] = c_source.offset;
    step.stride[2] = c_source.stride;
    // Registers of C are separate rows; a constant has one row (two for f64).
    step.extra[0] = c_is_register ? layout::vector_row_bytes : meaning.is_f64 ? layout::scalar_row_bytes : 0;
    step.extra[1] = instruction.operands[0].dwords;
    if (shares || instruction.cbsz || blgp || negate) {
        const Modifiers modifiers = {instruction.cbsz, instruction.abid, blgp,          negate,
                                     meaning.size,     meaning.blocks,   meaning.is_f64};
        static_assert(sizeof(modifiers) == sizeof(step.immediate));
        memcpy(&step.immediate, &modifiers, sizeof(modifiers));
        step.dwords = static_cast<uint8_t>(a.dwords | b.dwords << 4);
        step.data = reinterpret_cast<const void*>(meaning.multiply);
        step.handler = run_on_copies;
    }
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
