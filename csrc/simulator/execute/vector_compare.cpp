// simulator/execute/vector_compare.cpp: v_cmp and v_cmpx of every type, and classification. A v_cmpx row has the meaning
// of its v_cmp; the binder adds the write of EXEC.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

// Bits of the class mask: 0 signaling NaN, 1 quiet NaN, 2..5 -inf -normal -denormal -0, 6..9 +0 +denormal +normal +inf.
template <class Bits>
HIPKITTENS_INLINE auto is_in_class(Bits a, Bits classes, int mantissa_bits, int exponent_bits) {
    const Bits one = Bits{} + 1, exponent_mask = (one << exponent_bits) - 1;
    const Bits exponent = a >> mantissa_bits & exponent_mask, mantissa = a & ((one << mantissa_bits) - 1);
    const auto negative = (a >> (mantissa_bits + exponent_bits) & 1) != 0;
    const Bits of_nan = pick((mantissa >> (mantissa_bits - 1)) != 0, Bits{} + 2, Bits{} + 1);
    const Bits of_special = pick(mantissa != 0, of_nan, pick(negative, Bits{} + 4, Bits{} + 512));
    const Bits of_small = pick(mantissa != 0, pick(negative, Bits{} + 16, Bits{} + 128),
                               pick(negative, Bits{} + 32, Bits{} + 64));
    const Bits of_normal = pick(negative, Bits{} + 8, Bits{} + 256);
    const Bits own = pick(exponent == exponent_mask, of_special, pick(exponent == 0, of_small, of_normal));
    return (own & classes) != 0;
}

#define BOTH(condition, type, A, B, ...)                                  \
    {isa::Opcode::v_cmp_##condition##_##type,                             \
     as_compare<A, B>(HIPKITTENS_LAMBDA((auto a, auto b), __VA_ARGS__))}, \
        {isa::Opcode::v_cmpx_##condition##_##type,                        \
         as_compare<A, B>(HIPKITTENS_LAMBDA((auto a, auto b), __VA_ARGS__))},

#define ORDERINGS(type, Kind)          \
    BOTH(lt, type, Kind, Kind, a < b)  \
    BOTH(eq, type, Kind, Kind, a == b) \
    BOTH(le, type, Kind, Kind, a <= b) \
    BOTH(gt, type, Kind, Kind, a > b)  \
    BOTH(ge, type, Kind, Kind, a >= b) \
    BOTH(f, type, Kind, Kind, (a == b) & 0)

#define INTEGERS(type, Kind)           \
    ORDERINGS(type, Kind)              \
    BOTH(ne, type, Kind, Kind, a != b) \
    BOTH(t, type, Kind, Kind, (a == b) | -1)

#define FLOATS(type, Kind)                            \
    ORDERINGS(type, Kind)                             \
    BOTH(lg, type, Kind, Kind, (a < b) | (a > b))     \
    BOTH(o, type, Kind, Kind, (a == a) & (b == b))    \
    BOTH(u, type, Kind, Kind, (a != a) | (b != b))    \
    BOTH(nge, type, Kind, Kind, ~(a >= b))            \
    BOTH(nlg, type, Kind, Kind, ~((a < b) | (a > b))) \
    BOTH(ngt, type, Kind, Kind, ~(a > b))             \
    BOTH(nle, type, Kind, Kind, ~(a <= b))            \
    BOTH(neq, type, Kind, Kind, a != b)               \
    BOTH(nlt, type, Kind, Kind, ~(a < b))             \
    BOTH(tru, type, Kind, Kind, (a == b) | -1)

// clang-format off: one row an instruction
const Meaning rows[] = {
    INTEGERS(i16, LowI16)
    INTEGERS(u16, LowU16)
    INTEGERS(i32, i32x16)
    INTEGERS(u32, u32x16)
    INTEGERS(i64, I64)
    INTEGERS(u64, U64)
    FLOATS(f16, Half)
    FLOATS(f32, f32x16)
    FLOATS(f64, F64)
    BOTH(class, f16, LowU16, u32x16, is_in_class(a, b, 10, 5))
    BOTH(class, f32, u32x16, u32x16, is_in_class(a, b, 23, 8))
    BOTH(class, f64, U64, U32As64, is_in_class(a, b, 52, 11))
};
// clang-format on

}  // namespace

MeaningList compare_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
