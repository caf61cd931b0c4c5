// torch/delta_rule_problem.h: the tensors of a gated delta rule, checked, and what its kernels are passed of them.
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

// q, k (batch, tokens, key heads, K), v (batch, tokens, heads, V), beta (batch, tokens, heads) and g of that shape, or where channels
// have decays (batch, tokens, heads, K).
struct DeltaRuleProblem {
    std::string where;  // begins messages
    delta_rule::Decay decay;
    Tensor q, k, v, g, beta;
    Dtype dtype;
    int64_t batch = 0, tokens = 0, key_heads = 0, heads = 0, key = 0, value = 0;
    delta_rule::Sequences sequences{};
    std::vector<runtime::Region> regions;  // what the kernels may touch

    // Takes the first five tensors of an operator.
    DeltaRuleProblem(std::string name, Arguments& given, delta_rule::Decay decay = delta_rule::Decay::head);

    // int32, contiguous: where each sequence of a batch of one begins, and where the last one ends.
    void set_starts(const std::optional<Tensor>& starts);
    const int32_t* integers(const Tensor& tensor, const char* name, int64_t count);
    // Null where there is none.
    const float* parameters(const std::optional<Tensor>& tensor, const char* name, int64_t count);
    delta_rule::TokenHeads rows(const Tensor& tensor, Dtype type, const char* name, bool written = false);
    // Vectors of `unit` elements begin on 4 bytes.
    void make_readable(Tensor& tensor, int64_t unit) const;

    template <class Given>
    void describe(Given& arguments) const {
        arguments.heads = divisor_of(static_cast<uint32_t>(heads));
        arguments.group = divisor_of(static_cast<uint32_t>(heads / key_heads));
        arguments.key = static_cast<uint32_t>(key);
    }
    void describe_step(delta_rule::StepArguments& arguments, const Tensor& out);

    // Of tokens. What is behind the last packed sequence, which only the device knows, is zero.
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

}  // namespace hipkittens::torch_binding
