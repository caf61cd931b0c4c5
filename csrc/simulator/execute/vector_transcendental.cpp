// simulator/execute/vector_transcendental.cpp: exponentials, logarithms, roots, reciprocals, sine and cosine.
// SPDX-License-Identifier: MIT
#include "simulator/execute/transcendental.h"

#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

// clang-format off: one row an instruction
const Meaning rows[] = {
    MEANING1(v_exp_f32, f32x16, f32x16, exponential2(a))
    MEANING1(v_exp_legacy_f32, f32x16, f32x16, exponential2(a))
    MEANING1(v_log_f32, f32x16, f32x16, logarithm2(a))
    MEANING1(v_log_legacy_f32, f32x16, f32x16, logarithm2(a))
    FLOAT1(v_rcp_f32, f32x16, 1.0f / a)
    FLOAT1(v_rcp_iflag_f32, f32x16, 1.0f / a)
    FLOAT1(v_rsq_f32, f32x16, reciprocal_square_root(a))
    FLOAT1(v_sqrt_f32, f32x16, square_root(a))
    MEANING1(v_sin_f32, f32x16, f32x16, sine_of_turns<false>(a))
    MEANING1(v_cos_f32, f32x16, f32x16, sine_of_turns<true>(a))

    MEANING1(v_exp_f16, Half, Half, exponential2(a))
    MEANING1(v_log_f16, Half, Half, logarithm2(a))
    FLOAT1(v_rcp_f16, Half, 1.0f / a)
    FLOAT1(v_rsq_f16, Half, reciprocal_square_root(a))
    FLOAT1(v_sqrt_f16, Half, square_root(a))
    MEANING1(v_sin_f16, Half, Half, sine_of_turns<false>(a))
    MEANING1(v_cos_f16, Half, Half, sine_of_turns<true>(a))

    FLOAT1(v_rcp_f64, F64, 1.0 / a)
    FLOAT1(v_rsq_f64, F64, 1.0 / square_root(a))
    FLOAT1(v_sqrt_f64, F64, square_root(a))
};
// clang-format on

}  // namespace

MeaningList transcendental_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
