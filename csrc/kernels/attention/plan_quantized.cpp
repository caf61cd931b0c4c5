// kernels/attention/plan_quantized.cpp: plans the launch of attention with quantized operands.
// SPDX-License-Identifier: MIT
#include "plan_quantized.h"

#include <algorithm>
#include <bit>

#include "plan_order.h"

namespace hipkittens::attention {
namespace {

void check_block(const char* name, int64_t block, int64_t shortest) {
    if (block < shortest || block >= unlimited || !std::has_single_bit(static_cast<uint64_t>(block)))
        refuse(std::string(name) + " = " + std::to_string(block) + " is not a power of two from " +
               std::to_string(shortest) + " on");
}

// Rows of bytes as rows of pairs, which are 4-byte aligned.
TensorArgument pairs_of(const char* name, const TensorLayout& tensor) {
    if (!tensor.data) refuse(std::string(name) + " has no data");
    for (const int64_t stride : {tensor.batch_stride, tensor.row_stride, tensor.head_stride})
        if (stride < 0 || stride % 4)
            refuse(std::string(name) + " has a stride of " + std::to_string(stride) +
                   " bytes; it must be a multiple of 4 and not negative");
    if (reinterpret_cast<uintptr_t>(tensor.data) % 4)
        refuse(std::string(name) + " does not begin on 4 bytes");
    return {tensor.data, tensor.batch_stride / 2, tensor.row_stride / 2, tensor.head_stride / 2};
}

const Row<kinds::quantized_forward>& variant_of(const Problem& p) {
    const int64_t size = std::max(p.head_dim, p.value_dim);
    const Row<kinds::quantized_forward>* best = nullptr;
    for (const Row<kinds::quantized_forward>& row : variants<kinds::quantized_forward>)
        if (runs_on(row.targets, row.config.element, p) && size <= row.config.head_dim &&
            (!best || row.config.head_dim < best->config.head_dim))
            best = &row;
    if (!best) refuse("no kernel of quantised operands has this element type and head_dim");
    return *best;
}

}  // namespace

Launch plan_quantized_forward(const QuantizedProblem& problem) {
    const Problem& p = problem.shared;
    check(p);
    if (p.head_dim % 16)
        refuse("head_dim = " + std::to_string(p.head_dim) + " of int8 is not a multiple of 16");
    check_block("query_block", problem.query_block, shortest_query_block);
    check_block("key_block", problem.key_block, shortest_key_block);
    if (problem.value_columns < p.n_k || problem.value_columns % value_columns_step)
        refuse("v has " + std::to_string(problem.value_columns) + " columns; it needs n_k = " +
               std::to_string(p.n_k) + " or more, a multiple of " + std::to_string(value_columns_step));
    const Row<kinds::quantized_forward>& row = variant_of(p);
    const QuantizedConfig& config = row.config;
    // Rows are in bytes, while the checks count elements of two bytes.
    check_reach(config.keys_per_tile, p.n_q > 1 ? problem.q.row_stride / 2 : 0, config.head_dim);
    check_reach(config.keys_per_tile, p.n_k > 1 ? problem.k.row_stride / 2 : 0, config.head_dim);
    check_reach(config.head_dim, problem.v.row_stride / 2, config.keys_per_tile);

    QuantizedArguments arguments{};
    arguments.q = pairs_of("q", problem.q);
    if (p.n_k > 0) {
        arguments.k = pairs_of("k", problem.k);
        arguments.v = pairs_of("v", problem.v);
    }
    check_tensor(p, "out", problem.out, p.n_q);
    if (!problem.lse) refuse("lse has no data");
    arguments.out = argument_of(problem.out);
    arguments.lse = problem.lse;
    arguments.q_scale = problem.q_scale;
    arguments.k_scale = problem.k_scale;
    arguments.v_scale = problem.v_scale;
    arguments.q_blocks = static_cast<int32_t>(blocks_of(p.n_q, problem.query_block));
    arguments.k_blocks = static_cast<int32_t>(blocks_of(p.n_k, problem.key_block));
    arguments.q_shift = std::countr_zero(static_cast<uint64_t>(problem.query_block));
    arguments.k_shift = std::countr_zero(static_cast<uint64_t>(problem.key_block));
    arguments.value_columns = static_cast<int32_t>(problem.value_columns);
    arguments.mask = mask_of(p);
    const int64_t group = group_of(p);
    arguments.order = order_of(p, divide_up(p.n_q, config.queries()), p.heads, group, 1, config.threads());
    if (is_causal(p, arguments.mask)) {
        take_longest_first(p, p.heads, group, p.n_k * (p.head_dim + p.value_dim), 2, arguments.order);
        arguments.order.descending = 1;
    }
    arguments.group = static_cast<int32_t>(group);
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.value_dim = static_cast<int32_t>(p.value_dim);
    return launch_of(row.name, p, arguments.order, config.threads(), arguments);
}

}  // namespace hipkittens::attention
