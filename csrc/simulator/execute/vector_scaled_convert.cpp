// simulator/execute/vector_scaled_convert.cpp: gfx950's conversions between f32, f16, bf16 and scaled floats of 8, 6 and 4
// bits (v_cvt_scalef32_*), and the stochastic ones to fp8 and bf8 (v_cvt_sr_*8_f32).
// SPDX-License-Identifier: MIT
//
// Only the exponent field of the scale is used: 2^(field - 127), NaN for 255. Conversions to the small format divide by
// it, conversions from the small format multiply by it; both are exact. op_sel selects bytes or words of the small side.
#include "isa/table.h"
#include "simulator/execute/vector_small_float.h"
#include "simulator/execute/vector_special.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

using isa::Instruction;
using isa::Opcode;
using isa::Operand;

// Element `i` of a source or result: f32 in one register each, 16-bit floats two per register.
struct Single {
    static constexpr int in_register = 1;
    HIPKITTENS_INLINE f32x16 widen(u32x16 dword, int) { return (f32x16)dword; }
    HIPKITTENS_INLINE u32x16 narrow(f32x16 value, int) { return (u32x16)value; }
};
struct HalfFloat {
    static constexpr int in_register = 2;
    HIPKITTENS_INLINE f32x16 widen(u32x16 dword, int which) {
        return half_to_float(dword >> (16 * which) & 0xffff);
    }
    HIPKITTENS_INLINE u32x16 narrow(f32x16 value, int which) { return float_to_half(value) << (16 * which); }
};
struct BrainFloat {
    static constexpr int in_register = 2;
    HIPKITTENS_INLINE f32x16 widen(u32x16 dword, int which) { return bfloat_to_float(dword >> (16 * which)); }
    HIPKITTENS_INLINE u32x16 narrow(f32x16 value, int which) {
        return float_to_bfloat(value) << (16 * which);
    }
};

// Where the elements to convert are stored.
enum class From : uint8_t {
    one_source,   // consecutive registers of source 0
    two_sources,  // the first in source 0, the second in source 1, interleaved if there are more
};

HIPKITTENS_INLINE f32x16 power_of(u32x16 scale, bool inverse) {
    const i32x16 exponent = (i32x16)(scale >> 23 & 0xff) - 127;
    const f32x16 value = __builtin_convertvector(inverse ? -exponent : exponent, f32x16);
    return pick(exponent == 128, (f32x16)(u32x16{} + 0x7fc00000u), value);
}
HIPKITTENS_INLINE u32x16 next_random(u32x16 a) {  // as in v_prng_b32
    return (a << 1) ^ ((u32x16)((i32x16)a >> 31) & 197);
}

// Step: source 0, 1 the elements, or source 1 the random bits; source 2 the scale. immediate: bit of the
// destination where the result goes; extra[0], extra[1]: abs and neg as bits to keep and flip of f32
// elements, by source in bits 31, 30.
template <class Format, class Kind, int count, From from, bool stochastic, bool scaled>
const Step* convert_down(Wave* wave, const Step* step) {
    const Operands operands(step);
    constexpr int bits = count * Format::bits, registers = (bits + 31) / 32;
    const bool saturate = !Format::has_nan || wave->mode & fp16_overflow_bit;
    for (int quarter = 0; quarter < 4; ++quarter) {
        const auto place = [&](int source, int number) __attribute__((always_inline)) {
            return load_quarter<u32x16>(
                wave,
                next_register(operands.offset[source], static_cast<uint8_t>(operands.stride[source]),
                              static_cast<uint32_t>(number)),
                operands.stride[source], quarter);
        };
        f32x16 power{};
        if constexpr (scaled) power = power_of(operands.read<u32x16>(wave, 2, quarter), true);
        u32x16 random{};
        if constexpr (stochastic) random = operands.read<u32x16>(wave, 1, quarter);
        u32x16 packed[registers] = {};
        for (int i = 0; i < count; ++i) {
            const int source = from == From::two_sources ? i % 2 : 0,
                      element = from == From::two_sources ? i / 2 : i;
            u32x16 dword = place(source, element / Kind::in_register);
            if constexpr (Kind::in_register == 1) {
                const uint32_t bit = 1u << source;
                dword = (dword & (step->extra[0] & bit ? 0x7fffffffu : ~0u)) ^
                        (step->extra[1] & bit ? 0x80000000u : 0u);
            }
            f32x16 value = Kind::widen(dword, element % Kind::in_register);
            if constexpr (scaled) value = scale_by_power(value, power);
            u32x16 code;
            if constexpr (stochastic) {
                code = to_small_float_stochastic<Format>(value, random, saturate);
                random = next_random(random);
            } else {
                code = to_small_float<Format>(value, saturate);
            }
            const int bit = i * Format::bits;
            packed[bit / 32] |= code << (bit % 32);
            if (bit % 32 + Format::bits > 32) packed[bit / 32 + 1] |= code >> (32 - bit % 32);
        }
        if constexpr (bits < 32) {
            const uint32_t field = ((1u << bits) - 1) << step->immediate;
            const u32x16 old = load_quarter<u32x16>(wave, operands.destination, 64, quarter);
            packed[0] = (old & ~field) | packed[0] << step->immediate;
        }
        for (int i = 0; i < registers; ++i)
            store_quarter(wave, operands.destination + static_cast<uint32_t>(i) * layout::vector_row_bytes,
                          quarter, packed[i]);
    }
    return step + 1;
}

// immediate: first bit of the source. extra[0]: bit of the destination where a single 16-bit result goes.
template <class Format, class Kind, int count>
const Step* convert_up(Wave* wave, const Step* step) {
    const Operands operands(step);
    constexpr int registers = (count + Kind::in_register - 1) / Kind::in_register;
    for (int quarter = 0; quarter < 4; ++quarter) {
        const f32x16 power = power_of(operands.read<u32x16>(wave, 2, quarter), false);
        u32x16 result[registers] = {};
        for (int i = 0; i < count; ++i) {
            const uint32_t bit =
                static_cast<uint32_t>(step->immediate) + static_cast<uint32_t>(i * Format::bits);
            const auto place = [&](uint32_t number) __attribute__((always_inline)) {
                return load_quarter<u32x16>(
                    wave, next_register(operands.offset[0], static_cast<uint8_t>(operands.stride[0]), number),
                    operands.stride[0], quarter);
            };
            u32x16 code = place(bit / 32) >> (bit % 32);
            if (bit % 32 + Format::bits > 32) code |= place(bit / 32 + 1) << (32 - bit % 32);
            const f32x16 value =
                scale_by_power(from_small_float<Format>(code & ((1u << Format::bits) - 1)), power);
            result[i / Kind::in_register] |= Kind::narrow(value, i % Kind::in_register);
        }
        if constexpr (count < Kind::in_register) {
            const u32x16 old = load_quarter<u32x16>(wave, operands.destination, 64, quarter);
            result[0] = (old & ~(0xffffu << step->extra[0])) | result[0] << step->extra[0];
        }
        for (int i = 0; i < registers; ++i)
            store_quarter(wave, operands.destination + static_cast<uint32_t>(i) * layout::vector_row_bytes,
                          quarter, result[i]);
    }
    return step + 1;
}

// Which bits of op_sel select, and how many bits wide each choice is.
enum class Select : uint8_t {
    nothing,
    destination_word,
    destination_byte,
    source_word,
    source_byte,
    source_byte_and_half
};

struct Conversion {
    Handler handler = nullptr;
    Select select = Select::nothing;
    bool is_down = false, has_random = false, has_scale = true;
};

template <class Format, class Kind, int count, From from = From::one_source, bool stochastic = false,
          bool scaled = true>
constexpr Conversion down(Select select) {
    return {convert_down<Format, Kind, count, from, stochastic, scaled>, select, true, stochastic, scaled};
}
template <class Format, class Kind, int count>
constexpr Conversion up(Select select) {
    return {convert_up<Format, Kind, count>, select, false, false, true};
}

template <class Fp8, class Bf8>
Conversion unscaled(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_cvt_sr_fp8_f32:
            return down<Fp8, Single, 1, From::one_source, true, false>(Select::destination_byte);
        case Opcode::v_cvt_sr_bf8_f32:
            return down<Bf8, Single, 1, From::one_source, true, false>(Select::destination_byte);
        default:
            return {};
    }
}

#define EIGHT(format, Format)                                                                 \
    case Opcode::v_cvt_scalef32_pk_##format##_f32:                                            \
        return down<Format, Single, 2, From::two_sources>(Select::destination_word);          \
    case Opcode::v_cvt_scalef32_pk_##format##_f16:                                            \
        return down<Format, HalfFloat, 2>(Select::destination_word);                          \
    case Opcode::v_cvt_scalef32_pk_##format##_bf16:                                           \
        return down<Format, BrainFloat, 2>(Select::destination_word);                         \
    case Opcode::v_cvt_scalef32_sr_##format##_f32:                                            \
        return down<Format, Single, 1, From::one_source, true>(Select::destination_byte);     \
    case Opcode::v_cvt_scalef32_sr_##format##_f16:                                            \
        return down<Format, HalfFloat, 1, From::one_source, true>(Select::destination_byte);  \
    case Opcode::v_cvt_scalef32_sr_##format##_bf16:                                           \
        return down<Format, BrainFloat, 1, From::one_source, true>(Select::destination_byte); \
    case Opcode::v_cvt_scalef32_pk_f32_##format:                                              \
        return up<Format, Single, 2>(Select::source_word);                                    \
    case Opcode::v_cvt_scalef32_pk_f16_##format:                                              \
        return up<Format, HalfFloat, 2>(Select::source_word);                                 \
    case Opcode::v_cvt_scalef32_pk_bf16_##format:                                             \
        return up<Format, BrainFloat, 2>(Select::source_word);                                \
    case Opcode::v_cvt_scalef32_f32_##format:                                                 \
        return up<Format, Single, 1>(Select::source_byte);                                    \
    case Opcode::v_cvt_scalef32_f16_##format:                                                 \
        return up<Format, HalfFloat, 1>(Select::source_byte_and_half);
#define SIX(format, Format)                                                           \
    case Opcode::v_cvt_scalef32_2xpk16_##format##_f32:                                \
        return down<Format, Single, 32, From::two_sources>(Select::nothing);          \
    case Opcode::v_cvt_scalef32_sr_pk32_##format##_f32:                               \
        return down<Format, Single, 32, From::one_source, true>(Select::nothing);     \
    case Opcode::v_cvt_scalef32_pk32_##format##_f16:                                  \
        return down<Format, HalfFloat, 32>(Select::nothing);                          \
    case Opcode::v_cvt_scalef32_pk32_##format##_bf16:                                 \
        return down<Format, BrainFloat, 32>(Select::nothing);                         \
    case Opcode::v_cvt_scalef32_sr_pk32_##format##_f16:                               \
        return down<Format, HalfFloat, 32, From::one_source, true>(Select::nothing);  \
    case Opcode::v_cvt_scalef32_sr_pk32_##format##_bf16:                              \
        return down<Format, BrainFloat, 32, From::one_source, true>(Select::nothing); \
    case Opcode::v_cvt_scalef32_pk32_f32_##format:                                    \
        return up<Format, Single, 32>(Select::nothing);                               \
    case Opcode::v_cvt_scalef32_pk32_f16_##format:                                    \
        return up<Format, HalfFloat, 32>(Select::nothing);                            \
    case Opcode::v_cvt_scalef32_pk32_bf16_##format:                                   \
        return up<Format, BrainFloat, 32>(Select::nothing);

Conversion conversion_of(const Instruction& in) {
    switch (in.opcode) {
        EIGHT(fp8, Fp8Ocp)
        EIGHT(bf8, Bf8Ocp)
        SIX(fp6, Fp6)
        SIX(bf6, Bf6)
        case Opcode::v_cvt_scalef32_pk_fp4_f32:
            return down<Fp4, Single, 2, From::two_sources>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_pk_fp4_f16:
            return down<Fp4, HalfFloat, 2>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_pk_fp4_bf16:
            return down<Fp4, BrainFloat, 2>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_sr_pk_fp4_f32:
            return down<Fp4, Single, 2, From::one_source, true>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_sr_pk_fp4_f16:
            return down<Fp4, HalfFloat, 2, From::one_source, true>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_sr_pk_fp4_bf16:
            return down<Fp4, BrainFloat, 2, From::one_source, true>(Select::destination_byte);
        case Opcode::v_cvt_scalef32_pk_f32_fp4:
            return up<Fp4, Single, 2>(Select::source_byte);
        case Opcode::v_cvt_scalef32_pk_f16_fp4:
            return up<Fp4, HalfFloat, 2>(Select::source_byte);
        case Opcode::v_cvt_scalef32_pk_bf16_fp4:
            return up<Fp4, BrainFloat, 2>(Select::source_byte);
        default:
            return in.target == isa::Target::gfx942 ? unscaled<Fp8Fnuz, Bf8Fnuz>(in.opcode)
                                                    : unscaled<Fp8Ocp, Bf8Ocp>(in.opcode);
    }
}
#undef EIGHT
#undef SIX

}  // namespace

bool bind_scaled_convert(const Instruction& in, StepBuilder& builder) {
    const Conversion conversion = conversion_of(in);
    if (!conversion.handler) return false;
    const int sources = in.operand_count - 1;
    // The signs of f32 elements can be modified; whether hardware also modifies those of packed elements or
    // of the scale is not documented.
    const int element_sources = sources - conversion.has_random - conversion.has_scale;
    const uint8_t signs = in.neg | in.abs,
                  allowed = in.operands[1].type == isa::OperandType::f32 && conversion.is_down
                                ? static_cast<uint8_t>((1 << element_sources) - 1)
                                : uint8_t{0};
    if ((signs & ~allowed) || in.clamp || in.omod) return false;
    StepBuilder::Source places[3] = {};
    for (int i = 0; i < sources; ++i) {
        const bool is_scale = conversion.has_scale && i == sources - 1;
        const Operand& operand = in.operands[1 + i];
        if (operand.dwords > 2 && !operand.is_vgpr() && !operand.is_agpr()) return false;
        places[is_scale ? 2 : i] = builder.source(in, operand);
    }
    Step& step = builder.emit(conversion.handler);
    step.destination = builder.offset_of(in.operands[0].code);
    for (int i = 0; i < 3; ++i) {
        step.source[i] = places[i].offset;
        step.stride[i] = places[i].stride;
    }
    const int low = in.op_sel & 3, high = in.op_sel >> 2 & 3;
    switch (conversion.select) {
        case Select::nothing:
            break;
        case Select::destination_word:
            step.immediate = 16 * (high >> 1);
            break;
        case Select::destination_byte:
            step.immediate = 8 * high;
            break;
        case Select::source_word:
            step.immediate = 16 * (low & 1);
            break;
        case Select::source_byte_and_half:
        case Select::source_byte:
            step.immediate = 8 * low;
            break;
    }
    if (conversion.is_down) {
        step.extra[0] = in.abs;
        step.extra[1] = in.neg;
    } else {
        step.extra[0] =
            conversion.select == Select::source_byte_and_half ? 16u * static_cast<uint32_t>(high >> 1) : 0;
    }
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
