// kernels/quantize/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../quantization/arguments.h"
#include "../row.h"

namespace hipkittens::quantize {

// Workgroups of the kind `maximum`: enough for every compute unit, and few enough for the threads of one workgroup to read all maxima.
inline constexpr int largest_maxima = 1024;

// gated: the quantized value is the activation of x times `other`, rounded to the element type.
struct GateConfig {
    ElementType element;
    bool gated;
};
// A row is held in the registers of `waves` waves, with `chunks` times 8 elements per lane; longer rows are read twice.
struct RowConfig {
    ElementType element;
    bool gated;
    int waves, chunks;
};
// The same for a token, or a short gated row; longer ones use other kernels.
struct HeldRowConfig {
    ElementType element;
    int waves, chunks;
};

// The ends of ranges of rows, integers on the device that the host never reads.
struct RangeEnds {
    const int32_t* ends;
    uint32_t count;
    uint32_t padding;  // named, so that the argument bytes of equal launches are equal
};

// Shuffled scales in bands of rows that start anew with each range: row_bands.h. Rows of a band that are in no range are not written.
struct BandedQuantizeArguments : QuantizeArguments {
    RangeEnds ranges;
};
// A token x[t] of x (tokens, columns) is read once: its quantized rows are places[t choices + i], and invalid ones are not stored. Row r
// is zeros where entries[r] is out of range. Rows are 4-byte aligned, their columns a multiple of 8; at most 64 choices. Not for 6-bit values
// or other_rounding. codes_of_tokens: the quantized rows are those of x (tokens, columns), for a product that gathers them, and only the
// scales are those of places.
struct TokenQuantizeArguments : QuantizeArguments {
    const int32_t* places;
    RangeEnds ranges;  // null: for shuffled scales only
    Divisor parts;     // workgroups per token
    uint32_t codes_of_tokens;
    uint32_t token_padding;  // as above
};
// For aligned rows (rows, columns), with columns a multiple of 8, without a bias; not for 6-bit values or other_rounding.
struct GatedRowsArguments : QuantizeArguments {
    uint32_t workgroups;  // each processes every workgroups-th row
    uint32_t padding;     // as above
};
// Bytes of scales (rows, columns), in that order.
struct BandsArguments {
    const void* scales;
    void* result;
    int64_t row_step, column_step;
    RangeEnds ranges;
    uint32_t rows, columns;
    Divisor padded_columns;  // threads per row
};

template <RowConfig config>
struct RowKernel;
template <GateConfig config>
struct GroupKernel;
template <GateConfig config>
struct BandedGroupKernel;
template <HeldRowConfig config>
struct TokenRowKernel;
template <ElementConfig config>
struct TokenGroupKernel;
template <HeldRowConfig config>
struct GatedRowsKernel;
template <NoConfig config>
struct BandsKernel;
template <ElementConfig config>
struct BlockKernel;
template <ElementConfig config>
struct MaximumKernel;
template <GateConfig config>
struct TensorKernel;

namespace kinds {

// One scale per row, per group of 32, 64 or 128 columns, per block of rows and columns, and for the whole tensor.
struct row : Kind<RowConfig, QuantizeArguments, RowKernel> {};
struct group : Kind<GateConfig, QuantizeArguments, GroupKernel> {};
struct banded_group : Kind<GateConfig, BandedQuantizeArguments, BandedGroupKernel> {};
struct token_row : Kind<HeldRowConfig, TokenQuantizeArguments, TokenRowKernel> {};
struct token_group : Kind<ElementConfig, TokenQuantizeArguments, TokenGroupKernel> {};
struct gated_rows : Kind<HeldRowConfig, GatedRowsArguments, GatedRowsKernel> {};
struct bands : Kind<NoConfig, BandsArguments, BandsKernel> {};
struct block : Kind<ElementConfig, QuantizeArguments, BlockKernel> {};
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
