// kernels/attention/plan_pointwise.cpp: plans attention without a softmax, and its gradients.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "plan_order.h"

namespace hipkittens::attention {
namespace {

void check_pointwise(const PointwiseProblem& problem) {
    const Problem& p = problem.shared;
    check(p);
    if (!p.first_q || p.first_q != p.first_k || p.rows_q != p.rows_k || p.n_q != p.n_k)
        refuse("sequences without a softmax are packed, and attend to themselves");
    for (const auto& [name, value] :
         {std::pair{"the context", problem.context}, {"the distance", problem.distance}})
        if (value < 0) refuse(std::string(name) + " is " + std::to_string(value) + "; it must be 0 or more");
}

PointwiseArguments pointwise_of(const PointwiseProblem& problem) {
    const Problem& p = problem.shared;
    PointwiseArguments arguments{};
    arguments.targets = problem.targets;
    arguments.context = static_cast<int32_t>(std::min(problem.context, longest_sequence));
    const bool limited = problem.distance > 0 && problem.distance < unlimited;
    arguments.distance = limited ? static_cast<int32_t>(problem.distance) : unlimited;
    arguments.causal = p.causal;
    arguments.scale = static_cast<float>(p.scale);
    arguments.length = static_cast<float>(p.n_q);
    return arguments;
}

// The arguments that both directions share.
template <class Arguments>
Arguments shared_arguments(const PointwiseProblem& problem) {
    const Problem& p = problem.shared;
    check_pointwise(problem);
    check_tensor(p, "q", problem.q, p.rows_q);
    check_tensor(p, "k", problem.k, p.rows_k);
    check_tensor(p, "v", problem.v, p.rows_k);
    Arguments arguments{};
    arguments.q = argument_of(problem.q);
    arguments.k = argument_of(problem.k);
    arguments.v = argument_of(problem.v);
    arguments.mask = mask_of(p);
    arguments.packed = packed_of(p);
    arguments.group = static_cast<int32_t>(group_of(p));
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.value_dim = static_cast<int32_t>(p.value_dim);
    arguments.pointwise = pointwise_of(problem);
    return arguments;
}

// `ascending`: under a causal mask, the first tiles of a head are the longest. `bytes`: of the other side's rows of one head.
WorkgroupOrder pointwise_order(const PointwiseProblem& problem, int64_t tiles, int64_t heads, int64_t sharing,
                               int threads, int64_t slots_per_unit, bool ascending, int64_t bytes) {
    const Problem& p = problem.shared;
    WorkgroupOrder order = order_of(p, tiles, heads, sharing, 1, threads);
    if (p.causal && problem.distance == 0) {
        take_longest_first(p, heads, sharing, bytes, slots_per_unit, order);
        order.descending = !ascending;
    }
    return order;
}

// The smallest variant that fits the heads.
template <class Kind, class Fits>
const Row<Kind>& smallest(const Problem& p, const Fits& fits) {
    const Row<Kind>* best = nullptr;
    for (const Row<Kind>& row : variants<Kind>)
        if (runs_on(row.targets, row.config.input, p) && fits(row.config) &&
            (!best || row.config.head_dim < best->config.head_dim))
            best = &row;
    if (!best) refuse("no kernel without a softmax has this element type and head_dim");
    return *best;
}

}  // namespace

Plan plan_pointwise_forward(const PointwiseProblem& problem) {
    const Problem& p = problem.shared;
    auto arguments = shared_arguments<PointwiseForwardArguments>(problem);
    check_tensor(p, "out", problem.out, p.rows_q);
    const auto& row = smallest<kinds::pointwise_forward>(p, [&](const ForwardConfig& config) {
        return p.head_dim <= config.head_dim && p.value_dim <= config.value_dim;
    });
    const ForwardConfig& config = row.config;
    const int64_t largest_row = std::max({problem.q.row_stride, problem.k.row_stride, problem.v.row_stride});
    check_reach(config.keys_per_tile, p.rows_q > 1 ? largest_row : 0, config.head_dim);

    arguments.out = argument_of(problem.out);
    arguments.order = pointwise_order(problem, divide_up(p.n_q, config.queries()), p.heads, group_of(p),
                                      config.threads(), 2, false, 2 * p.n_k * (p.head_dim + p.value_dim));

    Plan plan;
    plan.launches.push_back(launch_of(row.name, p, arguments.order, config.threads(), arguments));
    return plan;
}

Plan plan_pointwise_backward(const PointwiseProblem& problem) {
    const Problem& p = problem.shared;
    auto arguments = shared_arguments<PointwiseBackwardArguments>(problem);
    check_tensor(p, "grad_out", problem.grad_out, p.rows_q);
    check_tensor(p, "grad_q", problem.grad_q, p.rows_q);
    check_tensor(p, "grad_k", problem.grad_k, p.rows_k);
    check_tensor(p, "grad_v", problem.grad_v, p.rows_k);
    const int64_t largest_row = std::max(
        {problem.q.row_stride, problem.k.row_stride, problem.v.row_stride, problem.grad_out.row_stride});
    check_reach(statistics_block, p.rows_q > 1 ? largest_row : 0, std::max(p.head_dim, p.value_dim));

    arguments.grad_out = argument_of(problem.grad_out);
    arguments.grad_q = argument_of(problem.grad_q);
    arguments.grad_k = argument_of(problem.grad_k);
    arguments.grad_v = argument_of(problem.grad_v);
    arguments.heads = static_cast<int32_t>(p.heads);
    arguments.scale = static_cast<float>(p.scale / static_cast<double>(p.n_q));

    Plan plan;
    for (const GradientTarget of : {GradientTarget::keys, GradientTarget::values, GradientTarget::queries}) {
        const bool of_queries = of == GradientTarget::queries;
        const auto& row = smallest<kinds::pointwise_backward>(p, [&](const BackwardConfig& config) {
            return config.gradient_of == of && std::max(p.head_dim, p.value_dim) <= config.head_dim;
        });
        const int64_t streamed_rows = of_queries ? p.n_k : p.n_q * group_of(p);
        arguments.order =
            pointwise_order(problem, divide_up(p.n_q, row.config.rows()), of_queries ? p.heads : p.key_heads,
                            of_queries ? group_of(p) : 1, row.config.threads(), 1, !of_queries,
                            2 * streamed_rows * (p.head_dim + p.value_dim));
        plan.launches.push_back(launch_of(row.name, p, arguments.order, row.config.threads(), arguments));
    }
    return plan;
}

}  // namespace hipkittens::attention
