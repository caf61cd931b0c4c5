// kernels/quantize/kinds.h: the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../quantization/arguments.h"
#include "../row.h"

namespace hipkittens::quantize {

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
// Likewise of a token, or of a short gated row; longer ones have other kernels.
struct HeldRowConfig {
    ElementType element;
    int waves, chunks;
};

// Where ranges of rows end, whole numbers on the device that no host reads.
struct RangeEnds {
    const int32_t* ends;
    uint32_t count;
    uint32_t padding;  // named, so that the bytes of the same launch are the same
};

// Shuffled scales in bands of rows that begin with each range: row_bands.h. Rows of a band that are in no range are not written.
struct BandedQuantizeArguments : QuantizeArguments {
    RangeEnds ranges;
};
// A token x[t] of x (tokens, columns) is read once: its codes have the rows places[t choices + i], and what is no row is not stored. Row r
// is zeros where entries[r] is out of range. Rows begin on 4 bytes, and 8 divides their columns; 64 choices at most. Not of codes of 6 bits or of
// other_rounding. codes_of_tokens: codes have the rows of x, for a
// product that gathers them, and scales alone those of places.
struct TokenQuantizeArguments : QuantizeArguments {
    const int32_t* places;
    RangeEnds ranges;  // null: of shuffled scales alone
    Divisor parts;     // workgroups of a token
    uint32_t codes_of_tokens;
    uint32_t token_padding;  // as above
};
// Of rows (rows, columns) that are aligned, of columns that 8 divides, without a bias; not of codes of 6 bits or of other_rounding.
struct GatedRowsArguments : QuantizeArguments {
    uint32_t workgroups;  // a row of each after the other
    uint32_t padding;     // as above
};
// Bytes of scales (rows, columns), in that order.
struct BandsArguments {
    const void* scales;
    void* result;
    int64_t row_step, column_step;
    RangeEnds ranges;
    uint32_t rows, columns;
    Divisor padded_columns;  // threads of a row
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

// A scale for each row, for each group of 32, 64 or 128 columns, for each block of rows and columns, and for the whole tensor.
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
