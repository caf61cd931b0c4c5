// kernels/gemm/arguments.h: what the host hands to a GEMM kernel, by value.
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
    const void* bias;        // n elements or null
    int32_t m, n, k;
    int32_t k_tiles, k_tiles_per_split;
    ElementType output, bias_type;
    int32_t
        vector_stores;  // 16 bytes of a row of C on, all are in that row or none, and they begin on 4 bytes
    TileOrder order;
    uint32_t b_panel_shift;  // B is in panels of 1 << so many rows (panels.h), or 0: in rows
};

// Factors of an operand. Strides in elements, 0 where one factor serves all. Those of matrix steps (Scales::in_matrix) are in the
// order of step_scales.h: `stride` is between bands of 32 rows, and K has none.
struct ScaleArgument {
    const void* data;
    int64_t stride;    // between rows of A (columns of B), or between their blocks
    int64_t k_stride;  // between blocks of K
    int64_t batch_stride;
    int64_t block_rows;  // that share a factor of a block of K: 1 or 128; of a band: 32
};

// Without scales the sums are stored as they are: those of a split, or of integers.
struct ScaledGemmArguments : GemmArguments {
    ScaleArgument a_scale, b_scale;
    int32_t activation;  // activation::Activation, or no_activation
    int32_t padding;
};
inline constexpr int32_t no_activation = -1;

// What is stored are codes of 8 bits, of the sums' results times *c_scale, or of themselves where it is null.
struct CodesGemmArguments : ScaledGemmArguments {
    const float* c_scale;
};

// A function of the sum and its bias.
struct ActivatedGemmArguments : GemmArguments {
    MatrixArgument
        sums;  // a copy of what the function is taken of, as the operands are rounded, for its derivative; or null
    int32_t sums_vector_stores;  // vector_stores of these rows
    int32_t activation;          // activation::Activation
    float alpha;                 // of those that have one
    int32_t activated_padding;
};

// A column of C is made of two of the product, a gate and what it multiplies: rows of B that are `pair_stride` elements apart, where
// leading_stride is between the rows of one gate and the next. Elements of the bias likewise. Rows of `sums` are n gates and then n
// partners.
struct GatedGemmArguments : ActivatedGemmArguments {
    int64_t pair_stride;
    int64_t bias_stride, bias_pair_stride;
    float limit;  // of both: activation::gated
    int32_t gated_padding;
};

// What the products of a grouped GEMM have of their own.
enum class Grouping : int32_t {
    rows,   // a range of rows of A and C, a matrix of B
    inner,  // a range of K, a matrix of C
    none,   // matrices of all three
};

// The range of group g is ends[g - 1] .. ends[g] - 1, whole numbers on the device that no host reads.
struct GroupArguments {
    const int32_t* ends;        // null where nothing is cut into ranges
    int64_t bias_group_stride;  // elements
    int32_t groups;
    Grouping grouping;
    int32_t tiles_of_workgroup;  // neighbours in a row of tiles, which `order` counts as one
    int32_t group_padding;
};

// Row r of A is that of token entries[r] / choices, of `tokens`; without entries it is row r itself.
struct GatherArguments {
    const int32_t* entries;  // as many as there are rows of the product, or null
    Divisor choices;
    int32_t tokens;
    int32_t gather_padding;
};

// A product for each group: batch strides lead from a group's matrix, or its scales, to the next. m and k are those of all ranges
// together, k_tiles of a whole K.
struct GroupedGemmArguments : GemmArguments, GroupArguments {};
struct ScaledGroupedGemmArguments : ScaledGemmArguments, GroupArguments, GatherArguments {};
struct GatedGroupedGemmArguments : GatedGemmArguments, GroupArguments {};

// Those of kernels whose B may be in panels: weights of codes, and of experts. Kernels of other products shall not grow.
template <class Arguments>
concept MayHavePanels = requires(const Arguments& arguments) { arguments.b_scale; } ||
                        requires(const Arguments& arguments) { arguments.groups; };

// Adds the splits in ascending order, then bias and what C holds, then one rounding.
struct ReduceArguments {
    const float* partial;  // [splits][batch][m][n]
    int64_t split_stride;
    MatrixArgument c;
    const void* bias;
    int32_t m, n, splits;
    ElementType output, bias_type;
    int32_t adds;  // to what C holds, in f32
};

// The same of f32 or i32 sums, which are multiplied with their scales before the bias is added.
struct ScaledReduceArguments : ReduceArguments {
    ScaleArgument a_scale, b_scale;
    int32_t activation;
    int32_t scaled_padding;
};

}  // namespace hipkittens::gemm
