// simulator/execute/vector_meaning.h: what a vector instruction computes, as one expression over lane vectors.
// SPDX-License-Identifier: MIT
//
//   MEANING(v_lshl_or_b32, u32x16, (u32x16 a, u32x16 b, u32x16 c), (a << (b & 31)) | c)
//
// names the opcode, the kind of the result, the sources with the kinds they are read as, and the value. A kind is a lane
// vector (one dword per lane) or one of the structs below. The macros generate a handler and the row that binds it.
#pragma once

#include <utility>

#include "isa/instruction.h"
#include "simulator/execute/lanes.h"
#include "simulator/execute/vector_formats.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// ---- Kinds of operands: `read` gives the value of a quarter, `write` stores it under `mask`.

template <class Kind>
struct Access {  // a lane vector itself
    HIPKITTENS_INLINE Kind read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return load_quarter<Kind>(wave, offset, stride, quarter);
    }
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Kind value) {
        store_quarter(wave, offset, quarter, mask, value);
    }
};

struct Half {};        // f16 in the low half, computed as f32
struct PackedHalf {};  // two f16, computed as f32
struct PlainHalf {};   // the same, keeping signaling NaNs: minimum and maximum tell them from quiet ones
struct LowU16 {};      // u16 in the low half; a result has zeros in the upper half
struct LowI16 {};      // the same, sign extended when read
struct U64 {};         // register pairs, computed as two vectors of eight
struct I64 {};
struct F64 {};
struct U32As64 {};  // one register, extended to 64 bits; as a result: the low dwords
struct I32As64 {};
struct F32As64 {};   // f32 widened to f64; as a result: rounded once
struct LaneMask {};  // a scalar pair, one bit per lane: -1 where the bit is set

inline constexpr uint32_t fp16_overflow_bit = 1u << 23;  // MODE.FP16_OVFL

// With MODE.FP16_OVFL a finite result out of range of f16 becomes the largest f16 instead of infinity (CDNA3
// ISA manual, "Mode Register"); infinities are unchanged.
HIPKITTENS_INLINE f32x16 within_half(const Wave* wave, f32x16 value) {
    if (__builtin_expect(!(wave->mode & fp16_overflow_bit), 1)) return value;
    const u32x16 bits = (u32x16)value, magnitude = bits & 0x7fffffff;
    const auto beyond = (magnitude > 0x477fe000) & (magnitude < 0x7f800000);
    return (f32x16)pick(beyond, (bits & 0x80000000) | 0x477fe000, bits);
}

template <>
struct Access<Half> {
    HIPKITTENS_INLINE f32x16 read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return half_to_float(load_quarter<u32x16>(wave, offset, stride, quarter));
    }
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, f32x16 value) {
        store_quarter(wave, offset, quarter, mask, float_to_half(within_half(wave, value)));
    }
};

template <>
struct Access<PackedHalf> {
    HIPKITTENS_INLINE Wide<f32x16> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        const u32x16 both = load_quarter<u32x16>(wave, offset, stride, quarter);
        return {half_to_float(both), half_to_float(both >> 16)};
    }
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask,
                                 Wide<f32x16> value) {
        store_quarter(wave, offset, quarter, mask,
                      float_to_half(within_half(wave, value.first)) |
                          float_to_half(within_half(wave, value.second)) << 16);
    }
};
template <>
struct Access<PlainHalf> : Access<Half> {
    HIPKITTENS_INLINE f32x16 read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return half_to_float_unquieted(load_quarter<u32x16>(wave, offset, stride, quarter));
    }
};

template <>
struct Access<LowU16> {
    HIPKITTENS_INLINE u32x16 read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return load_quarter<u32x16>(wave, offset, stride, quarter) & 0xffff;
    }
    template <class Vector>
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Vector value) {
        store_quarter(wave, offset, quarter, mask, (u32x16)value & 0xffff);
    }
};
template <>
struct Access<LowI16> : Access<LowU16> {
    HIPKITTENS_INLINE i32x16 read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return (load_quarter<i32x16>(wave, offset, stride, quarter) << 16) >> 16;
    }
};

template <class Vector>
struct AccessPair {
    HIPKITTENS_INLINE Wide<Vector> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return join<Vector>(load_quarter<u32x16>(wave, offset, stride, quarter),
                            load_quarter<u32x16>(wave, next_register(offset, stride), stride, quarter));
    }
    template <class Any>
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Wide<Any> value) {
        store_quarter(wave, offset, quarter, mask, low_half(value));
        store_quarter(wave, offset + layout::vector_row_bytes, quarter, mask, high_half(value));
    }
};
template <>
struct Access<U64> : AccessPair<u64x8> {};
template <>
struct Access<I64> : AccessPair<i64x8> {};
template <>
struct Access<F64> : AccessPair<f64x8> {};

struct AccessLowDword {
    template <class Any>
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Wide<Any> value) {
        store_quarter(wave, offset, quarter, mask, low_half(value));
    }
};
template <>
struct Access<U32As64> : AccessLowDword {
    HIPKITTENS_INLINE Wide<u64x8> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return join<u64x8>(load_quarter<u32x16>(wave, offset, stride, quarter), u32x16{});
    }
};
template <>
struct Access<I32As64> : AccessLowDword {
    HIPKITTENS_INLINE Wide<i64x8> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        const i32x16 low = load_quarter<i32x16>(wave, offset, stride, quarter);
        return join<i64x8>((u32x16)low, (u32x16)(low >> 31));
    }
};
template <>
struct Access<F32As64> {
    HIPKITTENS_INLINE Wide<f64x8> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return widen(load_quarter<f32x16>(wave, offset, stride, quarter));
    }
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask, Wide<f64x8> value) {
        store_quarter(wave, offset, quarter, mask, narrow(value));
    }
};

template <>
struct Access<LaneMask> {
    HIPKITTENS_INLINE i32x16 read(const Wave* wave, uint32_t offset, uint32_t, int quarter) {
        return lane_mask(read_scalar(wave, offset + (quarter >> 1) * layout::scalar_row_bytes) >>
                             (16 * (quarter & 1)) &
                         0xffff);
    }
};

// Applies to plain vectors, or to each half of Wide ones.
template <class Function, class First, class... More>
HIPKITTENS_INLINE auto evaluate(Function function, const First& first, const More&... more) {
    return function(first, more...);
}
template <class Function, class First, class... More>
HIPKITTENS_INLINE auto evaluate(Function function, const Wide<First>& first, const Wide<More>&... more) {
    auto low = function(first.first, more.first...);
    return Wide<decltype(low)>{low, function(first.second, more.second...)};
}

template <class Kind>
HIPKITTENS_INLINE auto source(const Wave* wave, const Step* step, int index, int quarter) {
    return Access<Kind>::read(wave, step->source[index], step->stride[index], quarter);
}

// The operands of a step, copied so that they stay in registers while rows are written.
struct Operands {
    uint32_t destination, offset[3], stride[3];
    __attribute__((always_inline)) explicit Operands(const Step* step)
        : destination(step->destination),
          offset{step->source[0], step->source[1], step->source[2]},
          stride{step->stride[0], step->stride[1], step->stride[2]} {}
    template <class Kind>
    __attribute__((always_inline)) auto read(const Wave* wave, size_t index, int quarter) const {
        return Access<Kind>::read(wave, offset[index], stride[index], quarter);
    }
};

// ---- f64 next to f32: MXCSR holds the denormal mode of f32, so if the two modes differ f64 sets its own around it.

class Float64Mode {
  public:
    __attribute__((always_inline)) explicit Float64Mode(const Wave* wave) {
        const uint32_t mode_of_f32 = wave->mode >> 4 & 3, mode_of_f64 = wave->mode >> 6 & 3;
        if (__builtin_expect(mode_of_f32 == mode_of_f64, 1)) return;
        saved_ = __builtin_ia32_stmxcsr();
        const uint32_t flush = (mode_of_f64 & 1 ? 0 : 0x40) | (mode_of_f64 & 2 ? 0 : 0x8000);
        __builtin_ia32_ldmxcsr((saved_ & ~0x8040u) | flush);
    }
    __attribute__((always_inline)) ~Float64Mode() {
        if (__builtin_expect(saved_ != 0, 0)) __builtin_ia32_ldmxcsr(saved_);
    }

  private:
    uint32_t saved_ = 0;  // MXCSR is never 0: its exception masks are set
};
struct NoMode {
    __attribute__((always_inline)) explicit NoMode(const Wave*) {}
};
template <class... Kinds>
constexpr bool any_f64 = ((__is_same(Kinds, F64) || __is_same(Kinds, F32As64)) || ...);
template <bool is_f64>
struct ModeOf {
    using Guard = NoMode;
};
template <>
struct ModeOf<true> {
    using Guard = Float64Mode;
};

// ---- NaN: which payload a host's add or fma propagates depends on how the compiler ordered its operands.
// The result here is the first source that is a NaN, quieted; otherwise whatever the host generates.

HIPKITTENS_INLINE f32x16 quiet(f32x16 value) { return (f32x16)((u32x16)value | 0x400000u); }
HIPKITTENS_INLINE f64x8 quiet(f64x8 value) { return (f64x8)((u64x8)value | 0x8000000000000u); }

template <class Vector>
HIPKITTENS_INLINE Vector first_nan(Vector result) {
    return result;
}
template <class Vector, class... More>
HIPKITTENS_INLINE Vector first_nan(Vector result, Vector source, More... more) {
    return pick(is_nan(source), quiet(source), first_nan(result, more...));
}
HIPKITTENS_INLINE bool any(i32x16 truth) { return to_bits(truth) != 0; }
HIPKITTENS_INLINE bool any(i64x8 truth) { return to_bits(truth) != 0; }

// ---- Handlers. A quarter's sources are read before its result is written, so that a destination may be a source.

template <class Function, class Result, class... Kinds, size_t... index>
HIPKITTENS_INLINE const Step* run_elementwise(Wave* wave, const Step* step, std::index_sequence<index...>) {
    [[maybe_unused]] const typename ModeOf<any_f64<Result, Kinds...>>::Guard guard(wave);
    const Operands operands(step);
    const uint64_t exec = wave->exec;
    HIPKITTENS_QUARTERS
    for (int quarter = 0; quarter < 4; ++quarter) {
        Access<Result>::write(wave, operands.destination, quarter, exec,
                              evaluate(Function{}, operands.template read<Kinds>(wave, index, quarter)...));
    }
    return step + 1;
}
template <class Function, class Result, class... Kinds>
const Step* elementwise(Wave* wave, const Step* step) {
    return run_elementwise<Function, Result, Kinds...>(wave, step, std::index_sequence_for<Kinds...>{});
}

template <class Vector, class... More>
HIPKITTENS_INLINE void settle_nan(Vector& result, const More&... sources) {
    if (__builtin_expect(any(is_nan(result)), 0))
        result = pick(is_nan(result), first_nan(result, sources...), result);
}
template <class Vector, class... More>
HIPKITTENS_INLINE void settle_nan(Wide<Vector>& result, const Wide<More>&... sources) {
    settle_nan(result.first, sources.first...);
    settle_nan(result.second, sources.second...);
}

// Float arithmetic, with NaN results as specified above.
template <class Function, class Kind, size_t... index>
HIPKITTENS_INLINE const Step* run_arithmetic(Wave* wave, const Step* step, std::index_sequence<index...>) {
    [[maybe_unused]] const typename ModeOf<any_f64<Kind>>::Guard guard(wave);
    const Operands operands(step);
    const uint64_t exec = wave->exec;
    HIPKITTENS_QUARTERS
    for (int quarter = 0; quarter < 4; ++quarter) {
        [&](const auto&... sources) __attribute__((always_inline)) {
            auto result = evaluate(Function{}, sources...);
            settle_nan(result, sources...);
            Access<Kind>::write(wave, operands.destination, quarter, exec, result);
        }(operands.template read<Kind>(wave, index, quarter)...);
    }
    return step + 1;
}
template <class Function, class Kind, int sources>
const Step* arithmetic(Wave* wave, const Step* step) {
    return run_arithmetic<Function, Kind>(wave, step, std::make_index_sequence<sources>{});
}

HIPKITTENS_INLINE uint32_t lane_bits(i32x16 truth) { return to_bits(truth); }
HIPKITTENS_INLINE uint32_t lane_bits(Wide<i64x8> truth) {
    return to_bits(truth.first) | to_bits(truth.second) << 8;
}

// A comparison: one bit per lane into the scalar pair `destination`, 0 where EXEC is off.
template <class Function, class... Kinds, size_t... index>
HIPKITTENS_INLINE const Step* run_compare(Wave* wave, const Step* step, std::index_sequence<index...>) {
    [[maybe_unused]] const typename ModeOf<any_f64<Kinds...>>::Guard guard(wave);
    const Operands operands(step);
    uint64_t bits = 0;
    HIPKITTENS_QUARTERS
    for (int quarter = 0; quarter < 4; ++quarter) {
        bits |=
            uint64_t{lane_bits(evaluate(Function{}, operands.template read<Kinds>(wave, index, quarter)...))}
            << (16 * quarter);
    }
    write_scalar64(wave, step->destination, bits & wave->exec);
    return step + 1;
}
template <class Function, class... Kinds>
const Step* compare(Wave* wave, const Step* step) {
    return run_compare<Function, Kinds...>(wave, step, std::index_sequence_for<Kinds...>{});
}

// A result and one bit per lane, which goes into the scalar pair extra[0].
template <class Vector, class Truth>
struct WithBit {
    Vector value;
    Truth bit;
};
template <class Function, class Result, class... Kinds, size_t... index>
HIPKITTENS_INLINE const Step* run_with_bit(Wave* wave, const Step* step, std::index_sequence<index...>) {
    [[maybe_unused]] const typename ModeOf<any_f64<Result, Kinds...>>::Guard guard(wave);
    const Operands operands(step);
    const uint64_t exec = wave->exec;
    uint64_t bits = 0;
    HIPKITTENS_QUARTERS
    for (int quarter = 0; quarter < 4; ++quarter) {
        const auto both = Function{}(operands.template read<Kinds>(wave, index, quarter)...);
        Access<Result>::write(wave, operands.destination, quarter, exec, both.value);
        bits |= uint64_t{lane_bits(both.bit)} << (16 * quarter);
    }
    write_scalar64(wave, step->extra[0], bits & exec);
    return step + 1;
}
template <class Function, class Result, class... Kinds>
const Step* with_bit(Wave* wave, const Step* step) {
    return run_with_bit<Function, Result, Kinds...>(wave, step, std::index_sequence_for<Kinds...>{});
}

// ---- Rows of meaning.

struct Meaning {
    isa::Opcode opcode;
    Handler handler;
};
struct MeaningList {
    const Meaning* rows;
    int count;
};
template <int count>
HIPKITTENS_INLINE MeaningList list_of(const Meaning (&rows)[count]) {
    return {rows, count};
}
MeaningList integer_meanings();
MeaningList packed_meanings();
MeaningList wide_meanings();
MeaningList float_meanings();
MeaningList transcendental_meanings();
MeaningList conversion_meanings();
MeaningList division_meanings();
MeaningList compare_meanings();
MeaningList float8_meanings(isa::Target target);
MeaningList lanewise_meanings();
MeaningList saturating_meanings();  // with clamp set
MeaningList lanewise_saturating_meanings();

template <class Result, class... Kinds, class Function>
constexpr Handler as_elementwise(Function) {
    return elementwise<Function, Result, Kinds...>;
}
template <class Kind, int sources, class Function>
constexpr Handler as_arithmetic(Function) {
    return arithmetic<Function, Kind, sources>;
}
template <class... Kinds, class Function>
constexpr Handler as_compare(Function) {
    return compare<Function, Kinds...>;
}
template <class Result, class... Kinds, class Function>
constexpr Handler as_with_bit(Function) {
    return with_bit<Function, Result, Kinds...>;
}

#define HIPKITTENS_LAMBDA(parameters, ...) \
    [] parameters __attribute__((always_inline)) { return __VA_ARGS__; }

#define MEANING1(opcode, Result, A, ...) \
    {isa::Opcode::opcode, as_elementwise<Result, A>(HIPKITTENS_LAMBDA((auto a), __VA_ARGS__))},
#define MEANING2(opcode, Result, A, B, ...) \
    {isa::Opcode::opcode, as_elementwise<Result, A, B>(HIPKITTENS_LAMBDA((auto a, auto b), __VA_ARGS__))},
#define MEANING3(opcode, Result, A, B, C, ...) \
    {isa::Opcode::opcode,                      \
     as_elementwise<Result, A, B, C>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), __VA_ARGS__))},

// Float arithmetic: all sources and the result of one kind, with NaN results as specified above.
#define FLOAT1(opcode, Kind, ...) \
    {isa::Opcode::opcode, as_arithmetic<Kind, 1>(HIPKITTENS_LAMBDA((auto a), __VA_ARGS__))},
#define FLOAT2(opcode, Kind, ...) \
    {isa::Opcode::opcode, as_arithmetic<Kind, 2>(HIPKITTENS_LAMBDA((auto a, auto b), __VA_ARGS__))},
#define FLOAT3(opcode, Kind, ...) \
    {isa::Opcode::opcode, as_arithmetic<Kind, 3>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), __VA_ARGS__))},

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
