// kernels/attention/plan_problem.cpp: checks of a problem, and arguments from it, that both plans share.
// SPDX-License-Identifier: MIT
#include "plan_problem.h"

#include <algorithm>
#include <cmath>

namespace hipkittens::attention {

void refuse(const std::string& text) { throw std::invalid_argument("attention: " + text); }

void check(const Problem& p) {
    if (p.device.target != 942 && p.device.target != 950)
        refuse("target gfx" + std::to_string(p.device.target) + " has no kernels; gfx942 and gfx950 have");
    if (p.device.compute_units < 1 || p.device.xcds < 1) refuse("the device has no compute units or no XCDs");
    auto extent = [&](const char* name, int64_t value, int64_t smallest) {
        if (value < smallest || value > longest_sequence)
            refuse(std::string(name) + " = " + std::to_string(value) + " is not in " +
                   std::to_string(smallest) + " .. " + std::to_string(longest_sequence));
    };
    extent("batch", p.batch, 1);
    extent("n_q", p.n_q, 1);
    extent("n_k", p.n_k, 0);
    extent("heads", p.heads, 1);
    extent("key heads", p.key_heads, 1);
    if (p.heads % p.key_heads)
        refuse(std::to_string(p.heads) + " heads are not a multiple of " + std::to_string(p.key_heads) +
               " key heads");
    if (p.head_dim < 8 || p.head_dim > 256 || p.head_dim % 8)
        refuse("head_dim = " + std::to_string(p.head_dim) + " is not a multiple of 8 in 8 .. 256");
    if (p.value_dim < 8 || p.value_dim > 256 || p.value_dim % 8)
        refuse("value_dim = " + std::to_string(p.value_dim) + " is not a multiple of 8 in 8 .. 256");
    if (!std::isfinite(p.scale)) refuse("scale is not finite");
    if (!(p.softcap >= 0 && std::isfinite(p.softcap)))
        refuse("softcap = " + std::to_string(p.softcap) + " is not finite and 0 or more");
    if (p.dropout_p > 0 && terms_of(p) != ScoreTerms::none)
        refuse("no kernel has dropout together with a softcap or ALiBi");
    if (!p.first_q != !p.first_k) refuse("packed sequences need the first rows of both queries and keys");
    if (p.first_q) {
        extent("all rows of q", p.rows_q, 1);
        extent("all rows of k", p.rows_k, 0);
    }
    if (!(p.dropout_p >= 0 && p.dropout_p < 1))
        refuse("dropout_p = " + std::to_string(p.dropout_p) + " is not in [0, 1)");
    if ((p.dropout_p > 0) != (p.seed != nullptr)) refuse("a seed is needed exactly when dropout_p > 0");
}

// 16-byte loads need rows that are 4-byte aligned (CDNA3 ISA manual 9.1: buffer dwords are aligned).
void check_tensor(const Problem& p, const char* name, const TensorLayout& tensor, int64_t rows) {
    if (rows == 0) return;
    if (!tensor.data) refuse(std::string(name) + " has no data");
    auto stride = [&](const char* which, int64_t value, int64_t count) {
        if (count > 1 && (value < 0 || value % 2))
            refuse(std::string(name) + ": the stride of its " + which + " is " + std::to_string(value) +
                   " elements; it must be even and not negative");
    };
    stride("batch", tensor.batch_stride, tensor_batch(p));
    stride("rows", tensor.row_stride, rows);
    stride("heads", tensor.head_stride, p.heads);
    if (reinterpret_cast<uintptr_t>(tensor.data) % 4)
        refuse(std::string(name) + " does not begin on 4 bytes");
}

TensorArgument argument_of(const TensorLayout& tensor) {
    return {tensor.data, tensor.batch_stride, tensor.row_stride, tensor.head_stride};
}

static int32_t limit(int64_t window) {
    return window < 0 || window >= unlimited ? unlimited : static_cast<int32_t>(window);
}

Mask mask_of(const Problem& p) {
    Mask mask{static_cast<int32_t>(p.n_q), static_cast<int32_t>(p.n_k), limit(p.window_left),
              limit(p.window_right)};
    if (p.causal) mask.right = std::min(mask.right, 0);
    return mask;
}

PackedSequences packed_of(const Problem& p) { return {p.first_q, p.first_k, p.first_q ? p.rows_q : 0}; }

Dropout dropout_of(const Problem& p) {
    const auto threshold = std::min<uint32_t>(static_cast<uint32_t>(std::lround(p.dropout_p * 65536)), 65535);
    return {p.seed, threshold, 65536.0f / static_cast<float>(65536 - threshold)};
}

static constexpr double log2_e = 1.4426950408889634;

ScoreTerms terms_of(const Problem& p) {
    if (p.softcap > 0) return ScoreTerms::softcap;
    return p.slopes ? ScoreTerms::alibi : ScoreTerms::none;
}

ScoreTermArguments term_arguments_of(const Problem& p, double scale) {
    ScoreTermArguments arguments{};
    arguments.slopes = p.slopes;
    arguments.slopes_of_sequence = p.slopes_of_sequence;
    if (p.softcap > 0) {
        arguments.cap_log2 = static_cast<float>(p.softcap * log2_e);
        arguments.inner_log2 = static_cast<float>(2 * scale / p.softcap * log2_e);
    }
    return arguments;
}

float absolute_scale_log2(const Problem& p) {
    return static_cast<float>(std::max(std::fabs(p.scale) * log2_e, 1e-30));
}

void check_reach(int64_t tile_rows, int64_t row, int64_t head_dim) {
    if ((tile_rows * row + head_dim) * 2 >= reach_bytes)
        refuse("rows " + std::to_string(row) + " elements apart: a tile of rows must lie within 4 GiB");
}

}  // namespace hipkittens::attention
