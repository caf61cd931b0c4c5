// simulator/execute/vector_float8.cpp: conversions of fp8 (e4m3) and bf8 (e5m2). gfx942 has the FNUZ formats (exponent
// bias one larger, no infinity, no -0, one NaN 0x80), gfx950 the OCP ones.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

struct Fp8Fnuz {
    static constexpr int mantissa_bits = 3, bias = 8;
    static constexpr uint32_t largest = 0x7f, overflow = 0x80, nan = 0x80;
    static constexpr bool is_fnuz = true, has_infinity = false;
};
struct Bf8Fnuz : Fp8Fnuz {
    static constexpr int mantissa_bits = 2, bias = 16;
};
struct Fp8Ocp {
    static constexpr int mantissa_bits = 3, bias = 7;
    static constexpr uint32_t largest = 0x7e, overflow = 0x7f, nan = 0x7f;
    static constexpr bool is_fnuz = false, has_infinity = false;
};
struct Bf8Ocp {
    static constexpr int mantissa_bits = 2, bias = 15;
    static constexpr uint32_t largest = 0x7b, overflow = 0x7c, nan = 0x7f;
    static constexpr bool is_fnuz = false, has_infinity = true;
};

constexpr uint32_t power_of_two(int exponent) {
    return static_cast<uint32_t>(exponent + 127) << 23;
}  // f32 bits

// The low byte of each lane.
template <class Format>
HIPKITTENS_LARGE f32x16 from_float8(u32x16 code) {
    constexpr int shift = 23 - Format::mantissa_bits;
    const u32x16 magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    const u32x16 normal = (magnitude << shift) + (static_cast<uint32_t>(127 - Format::bias) << 23);
    const f32x16 step = (f32x16)(u32x16{} + power_of_two(1 - Format::bias - Format::mantissa_bits));
    const f32x16 tiny = __builtin_convertvector((i32x16)magnitude, f32x16) * step;
    u32x16 bits = pick(magnitude < (1u << Format::mantissa_bits), (u32x16)tiny, normal) | sign;
    const u32x16 quiet_nan = u32x16{} + 0x7fc00000u;
    if constexpr (Format::is_fnuz) {
        bits = pick((code & 0xff) == 0x80, quiet_nan, bits);
    } else {
        bits = pick(magnitude > Format::largest, quiet_nan | sign, bits);
        if constexpr (Format::has_infinity)
            bits = pick(magnitude == Format::overflow, (u32x16{} + 0x7f800000u) | sign, bits);
    }
    return (f32x16)bits;
}

// To nearest even. Beyond the range: infinity or NaN, or the largest value if MODE.FP16_OVFL is set.
template <class Format>
HIPKITTENS_LARGE u32x16 to_float8(f32x16 value, bool saturate) {
    constexpr int shift = 23 - Format::mantissa_bits;
    const u32x16 bits = (u32x16)value, magnitude = bits & 0x7fffffff, sign = (bits >> 24) & 0x80;
    const u32x16 normal = (magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1) -
                           (static_cast<uint32_t>(127 - Format::bias) << 23)) >>
                          shift;
    // The last place of this power of two is the format's denormal step.
    const u32x16 magic = u32x16{} + power_of_two(23 + 1 - Format::bias - Format::mantissa_bits);
    const u32x16 tiny = (u32x16)((f32x16)magnitude + (f32x16)magic) - magic;
    u32x16 code = pick(magnitude < power_of_two(1 - Format::bias), tiny, normal);
    const u32x16 beyond = u32x16{} + (saturate ? Format::largest : Format::overflow);
    const auto special = magnitude >= 0x7f800000;
    code = pick(~special & (code > Format::largest), beyond, code);
    code = pick(special, u32x16{} + Format::overflow, code);
    code = pick(magnitude > 0x7f800000, u32x16{} + Format::nan, code);
    if constexpr (Format::is_fnuz) return pick((code == 0) | (code == 0x80), code, code | sign);
    return code | sign;
}

constexpr uint32_t fp16_overflow_bit = 1u << 23;

template <class Format>
const Step* unpack_one(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        store_quarter(wave, operands.destination, quarter,
                      from_float8<Format>(operands.read<u32x16>(wave, 0, quarter)));
    }
    return step + 1;
}
template <class Format>
const Step* unpack_two(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 both = operands.read<u32x16>(wave, 0, quarter);
        store_quarter(wave, operands.destination, quarter, from_float8<Format>(both));
        store_quarter(wave, operands.destination + layout::vector_row_bytes, quarter,
                      from_float8<Format>(both >> 8));
    }
    return step + 1;
}
template <class Format>
const Step* pack_two(Wave* wave, const Step* step) {
    const Operands operands(step);
    const bool saturate = wave->mode & fp16_overflow_bit;
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 low = to_float8<Format>(operands.read<f32x16>(wave, 0, quarter), saturate);
        store_quarter(wave, operands.destination, quarter,
                      low | to_float8<Format>(operands.read<f32x16>(wave, 1, quarter), saturate) << 8);
    }
    return step + 1;
}

template <class Fp8, class Bf8>
inline constexpr Meaning rows[] = {
    {isa::Opcode::v_cvt_f32_fp8, unpack_one<Fp8>},    {isa::Opcode::v_cvt_f32_bf8, unpack_one<Bf8>},
    {isa::Opcode::v_cvt_pk_f32_fp8, unpack_two<Fp8>}, {isa::Opcode::v_cvt_pk_f32_bf8, unpack_two<Bf8>},
    {isa::Opcode::v_cvt_pk_fp8_f32, pack_two<Fp8>},   {isa::Opcode::v_cvt_pk_bf8_f32, pack_two<Bf8>},
};

}  // namespace

MeaningList float8_meanings(isa::Target target) {
    return target == isa::Target::gfx942 ? list_of(rows<Fp8Fnuz, Bf8Fnuz>) : list_of(rows<Fp8Ocp, Bf8Ocp>);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
