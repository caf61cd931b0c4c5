// simulator/execute/vector_float8.cpp: conversions of fp8 and bf8 without a scale.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_small_float.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

template <class Format>
const Step* unpack_one(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        store_quarter(wave, operands.destination, quarter,
                      from_small_float<Format>(operands.read<u32x16>(wave, 0, quarter)));
    }
    return step + 1;
}
template <class Format>
const Step* unpack_two(Wave* wave, const Step* step) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 both = operands.read<u32x16>(wave, 0, quarter);
        store_quarter(wave, operands.destination, quarter, from_small_float<Format>(both));
        store_quarter(wave, operands.destination + layout::vector_row_bytes, quarter,
                      from_small_float<Format>(both >> 8));
    }
    return step + 1;
}
template <class Format>
const Step* pack_two(Wave* wave, const Step* step) {
    const Operands operands(step);
    const bool saturate = wave->mode & fp16_overflow_bit;
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 low = to_small_float<Format>(operands.read<f32x16>(wave, 0, quarter), saturate);
        store_quarter(wave, operands.destination, quarter,
                      low | to_small_float<Format>(operands.read<f32x16>(wave, 1, quarter), saturate) << 8);
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
