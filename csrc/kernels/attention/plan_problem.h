// kernels/attention/plan_problem.h: checks of a problem, and arguments from it, that both plans share.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>

#include "plan.h"

namespace hipkittens::attention {

// Lane offsets inside a tile stay below this (tiles/global_layout.h, out_of_range).
inline constexpr int64_t reach_bytes = 0xfff00000;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const std::string& text);
void check(const Problem& p);
void check_tensor(const Problem& p, const char* name, const TensorLayout& tensor, int64_t rows);

// Number of rows along the row dimension of the tensors, and of batches along their batch dimension.
inline int64_t query_rows(const Problem& p) { return p.first_q ? p.rows_q : p.n_q; }
inline int64_t key_rows(const Problem& p) { return p.first_q ? p.rows_k : p.n_k; }
inline int64_t tensor_batch(const Problem& p) { return p.first_q ? 1 : p.batch; }
inline int64_t group_of(const Problem& p) { return p.heads / p.key_heads; }

TensorArgument argument_of(const TensorLayout& tensor);
Mask mask_of(const Problem& p);
PackedSequences packed_of(const Problem& p);
Dropout dropout_of(const Problem& p);
ScoreTerms terms_of(const Problem& p);
// `scale`: with the sign that it has in the kernel's products.
ScoreTermArguments term_arguments_of(const Problem& p, double scale);
// Exponents are base 2. A scale of zero weighs all visible keys equally, which any product with a scale this small does.
float absolute_scale_log2(const Problem& p);

inline bool runs_on(Targets targets, ElementType input, const Problem& p) {
    return includes(targets, p.device.target) && input == p.element;
}
// Checks that a tile of `tile_rows` rows, `row` elements apart, is within the range of a lane's offset.
void check_reach(int64_t tile_rows, int64_t row, int64_t head_dim);

}  // namespace hipkittens::attention
