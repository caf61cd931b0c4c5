// kernels/quantize/kinds.h: what is passed to quantisation, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../activation_kind.h"
#include "../element_type.h"
#include "../row.h"
#include "../strided_rows.h"

namespace hipkittens::quantize {

// fp8 and bf8: the target's own, e4m3fnuz and e5m2fnuz of gfx942, e4m3fn and e5m2 of gfx950. e2m1: two to a byte, the first one in
// the low half.
enum class Code : int32_t { fp8, bf8, int8, e2m1 };
// Where the scale of a group lies: rows one after the other; columns one after the other; or in the order of the scaled matrix
// instructions, see shuffled_scale.
enum class ScaleLayout : int32_t { rows, columns, shuffled };

// Codes are round(x / scale). The scale of a group is its largest magnitude over `largest`, or a power of two, a byte of e8m0:
// of a largest magnitude m 2^E with 1 <= m < 2, E - power_exponent, and one more from the mantissa bits power_threshold on.
struct QuantizeArguments {
    StridedRows x;
    StridedRows other;  // of gated kernels: what the gate x multiplies
    void* codes;        // rows one after the other
    void* scales;
    const float* given;  // the scale of everything; null: from x
    float* maxima;       // of each workgroup, what the kind `maximum` writes and `tensor` reads
    RowCounts rows;
    uint32_t columns;
    uint32_t threads_per_row;             // of 8 columns each, whole groups of them
    uint32_t aligned;                     // rows begin on 4 bytes
    uint32_t groups;                      // of a row
    uint32_t padded_rows, padded_groups;  // of shuffled scales; the others are the same without padding
    uint32_t group_lanes;                 // threads whose columns share a scale: 4, 8 or 16
    uint32_t maxima_count;
    Code code;
    ScaleLayout layout;
    uint32_t powers;  // scales are bytes of e8m0
    int32_t power_exponent;
    uint32_t power_threshold;
    uint32_t other_rounding;  // int8 toward zero, ties of e2m1 away from zero; without it ties go to even
    float largest;            // code
    float floor, bound;       // of a group's largest magnitude
    float zero_scale;         // of a group of zeros
    activation::Activation activation;
    float alpha, limit;  // as in activation/kinds.h
};

inline constexpr int threads = 256;
// Workgroups of the kind `maximum`: enough for every compute unit, and few enough for one thread each to be read.
inline constexpr int largest_maxima = 1024;

// gated: what is quantised is the activation of x times `other`, rounded to the element type.
struct GateConfig {
    ElementType element;
    bool gated;
};
// A row is held in the registers of `waves` waves, `chunks` times 8 elements in each lane; longer ones are read twice.
struct RowConfig {
    ElementType element;
    bool gated;
    int waves, chunks;
};

template <RowConfig config>
struct RowKernel;
template <GateConfig config>
struct GroupKernel;
template <ElementConfig config>
struct MaximumKernel;
template <GateConfig config>
struct TensorKernel;

namespace kinds {

// A scale for each row, for each group of 32, 64 or 128 columns, and for the whole tensor.
struct row : Kind<RowConfig, QuantizeArguments, RowKernel> {};
struct group : Kind<GateConfig, QuantizeArguments, GroupKernel> {};
struct maximum : Kind<ElementConfig, QuantizeArguments, MaximumKernel> {};
struct tensor : Kind<GateConfig, QuantizeArguments, TensorKernel> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::quantize
