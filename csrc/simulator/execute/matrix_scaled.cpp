// simulator/execute/matrix_scaled.cpp: gfx950's products of 8-, 6- and 4-bit floats, with or without block
// scales.
// SPDX-License-Identifier: MIT
//
// A lane holds 32 elements of one row of A (column of B), lowest bits first; CBSZ and BLGP select the formats.
// 6- and 4-bit elements are 32 consecutive k; 8-bit ones are two runs of 16, half of the depth apart (as in AMD's
// rocjitsu). A scale is a power of two, 2^(byte - 127), for 32 consecutive k of a row: that of k
// block j is in lane j * size + row, in the byte that OP_SEL (low bit) and OP_SEL_HI select; 255 is NaN.
// Every k is one fused multiply-add of the scaled product, rounded once: no rule of the hardware is published, so
// arithmetic exact is strict. Fast sums the scaled elements like bf16 ones (matrix_arithmetic.h).
#include "simulator/execute/matrix_scaled.h"

#include "simulator/execute/matrix_dot.h"
#include "simulator/execute/matrix_mode.h"
#include "simulator/execute/matrix_strict.h"
#include "simulator/execute/matrix_widened.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

using isa::Opcode;

enum FormatCode : uint32_t { fp8, bf8, fp6, bf6, fp4, format_count };
constexpr int bits_of[format_count] = {8, 8, 6, 6, 4};

constexpr float power_of_two(int n) {
    float value = 1;
    for (; n < 0; ++n) value /= 2;
    for (; n > 0; --n) value *= 2;
    return value;
}

// Every bit pattern of a format with its value (OCP 8-bit floating point; OCP microscaling
// formats).
struct Values {
    float of[256];
};
constexpr Values make_values(int bits, int fraction_bits, int bias) {
    Values values = {};
    for (int pattern = 0; pattern < 1 << bits; ++pattern) {
        const int magnitude = pattern & ((1 << (bits - 1)) - 1);
        const int exponent = magnitude >> fraction_bits, fraction = magnitude & ((1 << fraction_bits) - 1);
        const int significand = exponent ? fraction | 1 << fraction_bits : fraction;
        float value =
            static_cast<float>(significand) * power_of_two((exponent ? exponent : 1) - bias - fraction_bits);
        if (bits == 8 && fraction_bits == 3 && magnitude == 0x7f) value = __builtin_nanf("");
        if (bits == 8 && fraction_bits == 2 && magnitude >= 0x7c)
            value = fraction ? __builtin_nanf("") : __builtin_inff();
        values.of[pattern] = pattern >> (bits - 1) ? -value : value;
    }
    return values;
}
constexpr Values values_of[format_count] = {make_values(8, 3, 7), make_values(8, 2, 15), make_values(6, 3, 1),
                                            make_values(6, 2, 3), make_values(4, 1, 1)};

template <int size, int depth>
struct Unpacked {
    alignas(64) float value[depth * size];
    int exponent[depth / 32][size];  // of the scale
    bool is_plain;                   // all scales are close enough to 1 for f32 to hold the scaled elements
};

template <int size, int depth>
void unpack(const uint8_t* from, uint32_t format, const uint8_t* scales, uint32_t scale_stride, uint32_t byte,
            bool is_scaled, Unpacked<size, depth>& to) {
    const int bits = bits_of[format], groups = 64 / size;
    const uint32_t mask = (1u << bits) - 1;
    to.is_plain = true;
    for (int block = 0; block < depth / 32; ++block) {
        for (int row = 0; row < size; ++row) {
            const int lane = block * size + row;
            const int scale = is_scaled ? scales[lane / 16 * scale_stride + lane % 16 * 4 + byte] : 127;
            to.exponent[block][row] = scale == 255 ? 255 : scale - 127;
        }
    }
    for (int lane = 0; lane < 64; ++lane) {
        const int row = lane % size, group = lane / size;
        uint64_t window = 0;
        int available = 0, next = 0;
        for (int e = 0; e < 32; ++e) {
            if (available < bits) {
                uint32_t dword;
                memcpy(&dword, from + next++ * 256 + lane * 4, 4);
                window |= uint64_t{dword} << available;
                available += 32;
            }
            const int k = bits == 8 ? e % 16 + 16 * group + e / 16 * 16 * groups : 32 * group + e;
            to.value[k * size + row] = values_of[format].of[window & mask];
            window >>= bits;
            available -= bits;
        }
    }
    for (int block = 0; block < depth / 32; ++block) {
        for (int row = 0; row < size; ++row) {
            int& exponent = to.exponent[block][row];
            if (exponent > -90 && exponent < 90) continue;
            // Zeros stay zeros for any scale: past the end of memory, buffer loads return zeros for both.
            bool has_values = exponent == 255;
            for (int k = block * 32; k < block * 32 + 32; ++k) has_values |= to.value[k * size + row] != 0;
            if (has_values)
                to.is_plain = false;
            else
                exponent = 0;
        }
    }
}

// For scales that f32 cannot hold: products and scales in double, where they are exact.
template <int size, int depth>
void multiply_far(const MatrixOperands& operands, const Unpacked<size, depth>& a,
                  const Unpacked<size, depth>& b) {
    for (int row = 0; row < size; ++row) {
        for (int column = 0; column < size; ++column) {
            const int vgpr = output_register<size>(row), lane = output_lane<size>(row, column);
            float sum;
            memcpy(&sum, c_place(operands, vgpr, lane), 4);
            for (int k = 0; k < depth; ++k) {
                const int x = a.exponent[k / 32][row], y = b.exponent[k / 32][column];
                double product = static_cast<double>(a.value[k * size + row]) * b.value[k * size + column];
                product = x == 255 || y == 255 ? __builtin_nan("") : __builtin_ldexp(product, x + y);
                typedef double One __attribute__((vector_size(16)));
                typedef int64_t OneBits __attribute__((vector_size(16)));
                sum = static_cast<float>(add_round_to_odd<One, OneBits>(One{product, 0}, One{sum, 0})[0]);
            }
            if (sum != sum) sum = __builtin_nanf("");
            memcpy(d_place(operands, vgpr, lane), &sum, 4);
        }
    }
}

template <int size, int depth>
void apply_scales(Unpacked<size, depth>& operand) {
    for (int k = 0; k < depth; ++k) {
        for (int row = 0; row < size; ++row) {
            const uint32_t bits = static_cast<uint32_t>(operand.exponent[k / 32][row] + 127) << 23;
            float scale;
            memcpy(&scale, &bits, 4);
            operand.value[k * size + row] *= scale;
        }
    }
}

template <int size, int depth>
const Step* run(Wave* wave, const Step* step) {
    const MatrixMode mode(wave);
    ScaledControl control;
    memcpy(&control, &step->immediate, sizeof(control));
    MatrixOperands operands = {at(wave, step->destination),
                               at(wave, step->source[0]),
                               at(wave, step->source[1]),
                               at(wave, step->source[2]),
                               step->dwords ? layout::vector_row_bytes : 0,
                               step->stride[2]};
    // A, B and the scales are read here, C element by element before its D: a C that shares some of D's
    // registers, which compilers emit for four-register results, is copied.
    alignas(64) uint8_t copy_of_c[size * size * 4];
    if (__builtin_expect(control.copies_c, 0)) {
        memcpy(copy_of_c, operands.c, sizeof copy_of_c);
        operands.c = copy_of_c;
    }
    Unpacked<size, depth> a, b;
    unpack<size, depth>(operands.a, control.a_format, at(wave, step->extra[0]), step->stride[0],
                        control.a_byte, control.is_scaled, a);
    unpack<size, depth>(operands.b, control.b_format, at(wave, step->extra[1]), step->stride[1],
                        control.b_byte, control.is_scaled, b);
    if (!a.is_plain || !b.is_plain) {
        multiply_far(operands, a, b);
        return step + 1;
    }
    if (control.is_scaled) {
        apply_scales(a);
        apply_scales(b);
    }
    multiply_unpacked<size, depth, FloatSum>(operands, 0, a.value, b.value);
    return step + 1;
}

#if defined(__AVX512BF16__)
// Sums bf16 products; falls back to sequential sums for scales outside bf16's exponent range.
template <int size, int depth>
const Step* run_widened(Wave* wave, const Step* step) {
    ScaledControl control;
    memcpy(&control, &step->immediate, sizeof(control));
    alignas(64) uint8_t a[16 * 256], b[16 * 256];
    if (!widened::widen_operands<size>(wave, step, control, a, b)) return run<size, depth>(wave, step);
    const MatrixMode mode(wave);
    uint8_t* d = at(wave, step->destination);
    MatrixOperands operands = {
        d, a, b, at(wave, step->source[2]), step->dwords ? layout::vector_row_bytes : 0, step->stride[2]};
    alignas(64) uint8_t copy_of_c[size * size * 4];
    if (__builtin_expect(control.copies_c, 0)) {
        memcpy(copy_of_c, operands.c, sizeof copy_of_c);
        operands.c = copy_of_c;
    }
    for (int part = 0; part < 4; ++part) {
        multiply_dot<Shape<size, depth / 4>>(operands);
        operands = {d, operands.a + 4 * 256,     operands.b + 4 * 256,
                    d, layout::vector_row_bytes, layout::scalar_row_bytes};
    }
    return step + 1;
}
#endif

template <int size, int depth>
Handler handler_of([[maybe_unused]] Arithmetic arithmetic) {
#if defined(__AVX512BF16__)
    if (arithmetic == Arithmetic::fast) return run_widened<size, depth>;
#endif
    return run<size, depth>;
}

}  // namespace

bool bind_scaled_matrix(const isa::Instruction& instruction, StepBuilder& builder) {
    bool is_scaled = false;
    Handler handler = nullptr;
    const Arithmetic arithmetic = builder.settings().arithmetic;
    switch (instruction.opcode) {
        case Opcode::v_mfma_scale_f32_16x16x128_f8f6f4:
            is_scaled = true;
            [[fallthrough]];
        case Opcode::v_mfma_f32_16x16x128_f8f6f4:
            handler = handler_of<16, 128>(arithmetic);
            break;
        case Opcode::v_mfma_scale_f32_32x32x64_f8f6f4:
            is_scaled = true;
            [[fallthrough]];
        case Opcode::v_mfma_f32_32x32x64_f8f6f4:
            handler = handler_of<32, 64>(arithmetic);
            break;
        default:
            return false;
    }
    if (instruction.cbsz >= format_count || instruction.blgp >= format_count) return false;
    const isa::Operand &d = instruction.operands[0], &a = instruction.operands[1],
                       &b = instruction.operands[2];
    isa::Operand c = instruction.operands[3];
    const bool c_is_register = c.is_vgpr() || c.is_agpr();
    if (!c_is_register) c.dwords = 1;
    const bool shifted =
        c_is_register && c.code != d.code && c.code < d.code + d.dwords && d.code < c.code + c.dwords;
    const StepBuilder::Source c_source = builder.source(instruction, c);
    StepBuilder::Source scales[2] = {};
    for (int side = 0; side < 2 && is_scaled; ++side)
        scales[side] = builder.source(instruction, instruction.operands[4 + side]);
    Step& step = builder.emit(handler);
    step.destination = builder.offset_of(d.code);
    step.source[0] = builder.offset_of(a.code);
    step.source[1] = builder.offset_of(b.code);
    step.source[2] = c_source.offset;
    step.stride[2] = c_source.stride;
    step.dwords = c_is_register;
    for (int side = 0; side < 2; ++side) {
        step.extra[side] = scales[side].offset;
        step.stride[side] = scales[side].stride;
    }
    const auto byte = [&](int side) {
        return (instruction.op_sel >> side & 1u) | (instruction.op_sel_hi >> side & 1u) << 1;
    };
    const ScaledControl control = {instruction.cbsz, instruction.blgp, byte(0), byte(1),
                                   is_scaled,        shifted,          0};
    static_assert(sizeof(control) == sizeof(step.immediate));
    memcpy(&step.immediate, &control, sizeof(control));
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
