// torch/delta_rule_problem.h: the validated tensors of a gated delta rule, and what is passed of them to its kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/delta_rule/plan.h"
#include "torch/placement.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {

// Limit in bytes of the kernels' offsets within the rows of a chunk, or within one head's state.
inline constexpr int64_t delta_rule_reach = int64_t{1} << 31;

// q, k (batch, tokens, key heads, K), v (batch, tokens, heads, V), beta (batch, tokens, heads) and g of that
// shape, or with decays per channel (batch, tokens, heads, K).
struct DeltaRuleProblem {
    std::string where;  // prefix of messages
    delta_rule::Decay decay;
    Tensor q, k, v, g, beta;
    Dtype dtype;
    int64_t batch = 0, tokens = 0, key_heads = 0, heads = 0, key = 0, value = 0;
    delta_rule::Sequences sequences{};
    std::vector<runtime::Region> regions;  // memory the kernels may touch

    // Consumes the first five tensors of an operator.
    DeltaRuleProblem(std::string name, Arguments& given, delta_rule::Decay decay = delta_rule::Decay::head);

    // int32, contiguous: the start of each sequence of a batch of one, then the end of the last.
    void set_starts(const std::optional<Tensor>& starts);
    const int32_t* integers(const Tensor& tensor, const char* name, int64_t count);
    // Null if the tensor is absent.
    const float* parameters(const std::optional<Tensor>& tensor, const char* name, int64_t count);
    // Makes rows `readable`, and copies where 32-bit offsets do not reach from the first to the last row of a
    // chunk.
    Tensor readable_chunks(Tensor tensor, Dtype type) const;
    delta_rule::TokenHeads rows(const Tensor& tensor, Dtype type, const char* name, bool written = false);

    template <class Given>
    void describe(Given& arguments) const {
        arguments.heads = divisor_of(static_cast<uint32_t>(heads));
        arguments.group = divisor_of(static_cast<uint32_t>(heads / key_heads));
        arguments.key = static_cast<uint32_t>(key);
    }
    void describe_step(delta_rule::StepArguments& arguments, const Tensor& out);
    // Passes on the dtypes of g and beta, for kernels that compute the gate.
    template <class Given>
    std::array<Dtype, 2> describe_gates(Given& arguments) const {
        const std::array<Dtype, 2> types = {g.dtype(where + "g"), beta.dtype(where + "beta")};
        for (const Dtype type : types)
            if (type != dtype && type != Dtype::float32)
                fail(where + "g and beta need the dtype of q, or float32");
        arguments.wide_g = types[0] == Dtype::float32;
        arguments.wide_beta = types[1] == Dtype::float32;
        return types;
    }

    // A tensor with one row per token. Rows past the last packed sequence, whose end only the device knows,
    // are zero.
    Tensor empty_of_tokens(const Placement& placement, std::span<const int64_t> sizes, Dtype type) const;
    Tensor empty_out(const Placement& placement) const {
        return empty_of_tokens(placement, std::array<int64_t, 4>{batch, tokens, heads, value}, dtype);
    }

    std::array<int64_t, 4> state_shape() const { return {sequences.count, heads, key, value}; }
    static delta_rule::States states(const Tensor& tensor, bool value_by_value);
    // Contiguous float32 states of all sequences, or none.
    delta_rule::States given_states(std::optional<Tensor>& tensor, const char* name);
    delta_rule::States new_states(const Tensor& tensor, const char* name);
};

// The parameters of a gate computed in the kernel, or none.
struct DeltaRuleGate {
    std::optional<Tensor> a_log, dt_bias;

    // Consumes two tensors of an operator.
    explicit DeltaRuleGate(Arguments& given)
        : a_log(given.optional_tensor()), dt_bias(given.optional_tensor()) {}
    template <class Given>
    void describe(DeltaRuleProblem& problem, Given& arguments, float lower_bound) const {
        if (a_log.has_value() != dt_bias.has_value()) fail(problem.where + "a_log and dt_bias come together");
        if (lower_bound < 0 && !a_log) fail(problem.where + "lower_bound needs a_log and dt_bias");
        const int64_t channels = problem.decay == delta_rule::Decay::channel ? problem.key : 1;
        arguments.a_log = problem.parameters(a_log, "a_log", problem.heads);
        arguments.dt_bias = problem.parameters(dt_bias, "dt_bias", problem.heads * channels);
        arguments.lower_bound = lower_bound;
    }
};

}  // namespace hipkittens::torch_binding
