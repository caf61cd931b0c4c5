// kernels/gemm/arguments.h: the arguments that the host passes to a GEMM kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../divisor.h"
#include "../element_type.h"
#include "../workgroup_order.h"

namespace hipkittens::gemm {

// One operand: rows of unit stride. Strides in elements.
struct MatrixArgument {
    const void* data;
    int64_t leading_stride;
    int64_t batch_stride;
};

struct GemmArguments {
    MatrixArgument a, b, c;  // c is written
    int64_t c_split_stride;  // between the partial sums of successive splits
    const void* bias;        // n elements, or null
    int32_t m, n, k;
    int32_t k_tiles, k_tiles_per_split;
    ElementType output, bias_type;
    int32_t
        vector_stores;  // every 16-byte vector of C is either inside its row or outside, and starts on a multiple of 4 bytes
    TileOrder order;
    uint32_t b_panel_shift;  // B is in panels of 1 << this many rows (panels.h), or 0: in rows
};

// Scales of an operand. Strides in elements, 0 if one scale serves all. Scales of matrix steps (Scales::in_matrix) are in the
// layout of step_scales.h: `stride` is between bands of 32 rows, and there is none along K.
struct ScaleArgument {
    const void* data;
    int64_t stride;    // between rows of A (columns of B), or between blocks of them
    int64_t k_stride;  // between blocks of K
    int64_t batch_stride;
    int64_t block_rows;  // rows that share a scale of a block of K: 1 or 128; of a band: 32
};

// Without scales the sums are stored unchanged: those of a split, or of integers.
struct ScaledGemmArguments : GemmArguments {
    ScaleArgument a_scale, b_scale;
    int32_t activation;  // activation::Activation, or no_activation
    int32_t padding;
};
inline constexpr int32_t no_activation = -1;

// The results are stored as 8-bit floats, multiplied by *c_scale, or unscaled if it is null.
struct CodesGemmArguments : ScaledGemmArguments {
    const float* c_scale;
};

// An operand of a multiplication and addition, broadcast over C: the element at row * row_stride + column * column_stride, or the
// number if data is null. Strides in elements.
struct TermArgument {
    const void* data;
    int64_t row_stride;
    int32_t column_stride;  // 0 or 1
    ElementType type;
    int32_t whole;  // four columns at a time, from a multiple of 4 bytes on
    float number;
};

// What follows a product in the same launch. multiplies: each result r becomes r * factor + addend, or factor * addend + r.
enum class Multiplies : int32_t { nothing, result, addend };

// The product consists of heads of head_columns.value columns, or of a single one of all n. The first first_columns of each head are stored
// in C, before joined_columns that are copied from `joined`, and the others in `rest`. leading_stride is between rows and, of `joined`,
// batch_stride between heads; the other two are dense.
struct FusedGemmArguments : ScaledGemmArguments {
    TermArgument factor, addend;
    MatrixArgument joined, rest;
    Divisor head_columns;
    int32_t first_columns, joined_columns;
    Multiplies multiplies;
    Divisor joined_vectors;  // of a row and head: of 16 bytes, or single elements
    int32_t joined_whole;    // 16 bytes at a time
};

// For a function of the sum plus bias.
struct ActivatedGemmArguments : GemmArguments {
    MatrixArgument
        sums;  // a copy of the function's input, rounded like the operands, for its derivative; or null
    int32_t sums_vector_stores;  // vector_stores for these rows
    int32_t activation;          // activation::Activation
    float alpha;                 // for the functions that have one
    int32_t activated_padding;
};

// A column of C is computed from two columns of the product, a gate and its partner: rows of B that are `pair_stride` elements
// apart, while leading_stride is between the rows of one gate and the next. The bias is laid out likewise. Rows of `sums` are n
// gates followed by n partners.
struct GatedGemmArguments : ActivatedGemmArguments {
    int64_t pair_stride;
    int64_t bias_stride, bias_pair_stride;
    float limit;  // of both: activation::gated
    int32_t gated_padding;
};

// What differs between the products of a grouped GEMM.
enum class Grouping : int32_t {
    rows,   // a range of rows of A and C, a matrix of B
    inner,  // a range of K, a matrix of C
    none,   // matrices of all three
};

// The range of group g is ends[g - 1] .. ends[g] - 1. The ends are integers on the device that the host never reads.
struct GroupArguments {
    const int32_t* ends;        // null if nothing is divided into ranges
    int64_t bias_group_stride;  // elements
    int32_t groups;
    Grouping grouping;
    int32_t tiles_of_workgroup;  // adjacent tiles in a row of tiles, which `order` counts as one
    int32_t group_padding;
};

// Row r of A is the row of token entries[r] / choices, of `tokens` rows; without entries it is row r itself.
struct GatherArguments {
    const int32_t* entries;  // one for each row of the product, or null
    Divisor choices;
    int32_t tokens;
    int32_t gather_padding;
};

// One product per group: batch strides are between the matrices, or scales, of consecutive groups. m and k are totals over all
// ranges, k_tiles is that of a whole K.
struct GroupedGemmArguments : GemmArguments, GroupArguments {};
struct ScaledGroupedGemmArguments : ScaledGemmArguments, GroupArguments, GatherArguments {};
struct GatedGroupedGemmArguments : GatedGemmArguments, GroupArguments, GatherArguments {};

// Arguments of kernels whose B may be in panels: quantized weights, and weights of experts. Kernels of other products must not grow.
template <class Arguments>
concept MayHavePanels = requires(const Arguments& arguments) { arguments.b_scale; } ||
                        requires(const Arguments& arguments) { arguments.groups; };

// Adds the splits in ascending order, then the bias and the contents of C, then rounds once.
struct ReduceArguments {
    const float* partial;  // [splits][batch][m][n]
    int64_t split_stride;
    MatrixArgument c;
    const void* bias;
    int32_t m, n, splits;
    ElementType output, bias_type;
    int32_t adds;  // adds to the contents of C, in f32
};

// The same for f32 or i32 sums, which are multiplied by their scales before the bias is added.
struct ScaledReduceArguments : ReduceArguments {
    ScaleArgument a_scale, b_scale;
    int32_t activation;
    int32_t scaled_padding;
};

}  // namespace hipkittens::gemm
