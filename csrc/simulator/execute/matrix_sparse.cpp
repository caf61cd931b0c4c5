// simulator/execute/matrix_sparse.cpp: v_smfmac_*: D = A * B + D, where two of every four k of a row of A are stored.
// SPDX-License-Identifier: MIT
//
// A lane holds half as many elements of A as of B. Each pair of them belongs to the four k at the same position of B, at the
// two places selected by four bits of that lane's index register, lowest pair first. The index needs 8, 16 or 32 bits; if
// several indices fit into the register ABID selects one, unless CBSZ is not 0: then the lowest is used (CDNA3 ISA manual,
// "Sparse matrices"). Every product is one fused multiply-add, in the order of A's elements, in every arithmetic: no rule of
// the hardware is published.
#include "simulator/execute/matrix_sparse.h"

#include "simulator/execute/matrix_mode.h"
#include "simulator/execute/matrix_strict.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

using isa::Opcode;

// Step: sources 0, 1, 2: A, B, the index; extra[0]: its first bit.
template <class FormatOfA, class FormatOfB, int size, int depth, class Sum>
const Step* run(Wave* wave, const Step* step) {
    typedef typename Sum::Vector Vector;
    typedef Shape<size, depth / 2> Sparse;
    typedef Shape<size, depth> Dense;
    const MatrixMode mode(wave);
    MatrixOperands operands = {at(wave, step->destination), at(wave, step->source[0]),
                               at(wave, step->source[1]),   at(wave, step->destination),
                               layout::vector_row_bytes,    64};
    alignas(64) typename Sum::Element a[depth / 2 * size], b[depth * size];
    uint32_t index[64];
    unpack_block<FormatOfA, Sparse>(a, operands.a, 0);
    unpack_block<FormatOfB, Dense>(b, operands.b, 0);
    memcpy(index, at(wave, step->source[2]), sizeof index);
    for (int row = 0; row < size; ++row) {
        for (int column = 0; column < size; column += matrix_width) {
            uint8_t* place = d_place(operands, output_register<size>(row), output_lane<size>(row, column));
            Vector sum = load_vector<Vector>(place);
            for (int element = 0; element < depth / 2; ++element) {
                const int group = element / Sparse::run, e = element % Sparse::run;
                const uint32_t position =
                    index[group * size + row] >> (step->extra[0] + 2 * static_cast<uint32_t>(e)) & 3;
                const int k = group * Dense::run + e / 2 * 4 + static_cast<int>(position);
                sum = Sum::add(a[element * size + row], load_vector<Vector>(b + k * size + column), sum);
            }
            store_vector(place, Sum::finish(sum));
        }
    }
    return step + 1;
}

struct Meaning {
    Handler handler = nullptr;
    uint32_t index_bits = 0;
};
template <class FormatOfA, class FormatOfB, int size, int depth, class Sum = FloatSum>
constexpr Meaning sparse() {
    return {run<FormatOfA, FormatOfB, size, depth, Sum>, Shape<size, depth / 2>::run * 2};
}
template <template <Float8> class FormatOfA, template <Float8> class FormatOfB, int size, int depth>
constexpr Meaning bytes(isa::Target target) {
    return target == isa::Target::gfx942
               ? sparse<FormatOfA<Float8::fnuz>, FormatOfB<Float8::fnuz>, size, depth>()
               : sparse<FormatOfA<Float8::ocp>, FormatOfB<Float8::ocp>, size, depth>();
}

#define BYTES(shape, size, depth)                    \
    case Opcode::v_smfmac_f32_##shape##_fp8_fp8:     \
        return bytes<Fp8, Fp8, size, depth>(target); \
    case Opcode::v_smfmac_f32_##shape##_fp8_bf8:     \
        return bytes<Fp8, Bf8, size, depth>(target); \
    case Opcode::v_smfmac_f32_##shape##_bf8_fp8:     \
        return bytes<Bf8, Fp8, size, depth>(target); \
    case Opcode::v_smfmac_f32_##shape##_bf8_bf8:     \
        return bytes<Bf8, Bf8, size, depth>(target);
#define HALVES(shape, size, depth)              \
    case Opcode::v_smfmac_f32_##shape##_f16:    \
        return sparse<F16, F16, size, depth>(); \
    case Opcode::v_smfmac_f32_##shape##_bf16:   \
        return sparse<Bf16, Bf16, size, depth>();
#define INTEGERS(shape, size, depth)        \
    case Opcode::v_smfmac_i32_##shape##_i8: \
        return sparse<I8, I8, size, depth, IntegerSum>();

Meaning meaning_of(Opcode opcode, isa::Target target) {
    switch (opcode) {
        HALVES(16x16x32, 16, 32)
        HALVES(32x32x16, 32, 16)
        HALVES(16x16x64, 16, 64)
        HALVES(32x32x32, 32, 32)
        INTEGERS(16x16x64, 16, 64)
        INTEGERS(32x32x32, 32, 32)
        INTEGERS(16x16x128, 16, 128)
        INTEGERS(32x32x64, 32, 64)
        BYTES(16x16x64, 16, 64)
        BYTES(32x32x32, 32, 32)
        BYTES(16x16x128, 16, 128)
        BYTES(32x32x64, 32, 64)
        default:
            return {};
    }
}

}  // namespace

bool bind_sparse_matrix(const isa::Instruction& instruction, StepBuilder& builder) {
    const Meaning meaning = meaning_of(instruction.opcode, instruction.target);
    if (!meaning.handler) return false;
    const isa::Operand* operands = instruction.operands;
    const uint32_t sets = 32 / meaning.index_bits, set = instruction.cbsz ? 0 : instruction.abid % sets;
    Step& step = builder.emit(meaning.handler);
    step.destination = builder.offset_of(operands[0].code);
    for (int i = 0; i < 3; ++i) step.source[i] = builder.offset_of(operands[1 + i].code);
    step.extra[0] = set * meaning.index_bits;
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
