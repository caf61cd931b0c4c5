// torch/delta_rule_of_channels.cpp: gated delta rules with decays per channel; long inputs run in chunks.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>

#include "torch/delta_rule_chunks.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// Tensors: delta_rule_problem.h. g and beta of q's dtype or float32; a_log (heads) and dt_bias (heads, K)
// float32; lower_bound: 0 for none. initial (sequences, heads, K, V) float32, like final.
constexpr const char* channel_rule_schema =
    "kimi_delta_attention(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? a_log, Tensor? "
    "dt_bias, Tensor? initial, Tensor? starts, float scale, bool normalize, bool beta_is_logit, float "
    "lower_bound) -> (Tensor out, Tensor final)";

using namespace delta_rule;

void channel_rule(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 13 || result_count != 2)
        fail("kimi_delta_attention is registered with another schema");
    Arguments given(stack, argument_count);
    DeltaRuleProblem problem("kimi_delta_attention: ", given, Decay::channel);
    const DeltaRuleGate gate(given);
    std::optional<Tensor> initial = given.optional_tensor();
    const std::optional<Tensor> starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number());
    const bool normalize = given.boolean(), beta_is_logit = given.boolean();
    const float lower_bound = static_cast<float>(given.number());
    problem.set_starts(starts);
    const Placement placement(problem.q.device());
    Tensor out = problem.empty_out(placement), final = placement.empty(problem.state_shape(), Dtype::float32);
    run_rule<kinds::channel_scan, kinds::channel_step>(
        problem, placement, out, final, initial, scale,
        [&](ChunkedProblem& chunked) {
            chunked.prepare_channels(gate, lower_bound, normalize, beta_is_logit);
        },
        [&](StepArguments& arguments) {
            gate.describe(problem, arguments, lower_bound);
            arguments.normalize = normalize;
            arguments.beta_is_logit = beta_is_logit;
        });
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(final));
}

const Registration registration{{
    {channel_rule_schema, &channel_rule},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
