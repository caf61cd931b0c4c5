// torch/delta_rule_steps.cpp: gated delta rules one token at a time, with decays per head or per channel.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>

#include "torch/delta_rule_problem.h"
#include "torch/element_type.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// Tensors: delta_rule_problem.h. state (slots, heads, K, V), or (slots, heads, V, K) if value_by_value, with
// unit stride in the last dimension. slots (sequences, n), accepted (sequences) and starts: int32,
// contiguous. g and beta of q's dtype or float32; a_log (heads) and dt_bias, of g's last dimensions, float32.
constexpr const char* step_schema =
    "gated_delta_step(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? a_log, Tensor? dt_bias, "
    "Tensor(a!) state, Tensor? slots, Tensor? accepted, Tensor? starts, float scale, float beta_factor, bool "
    "normalize, bool beta_is_logit, bool value_by_value) -> Tensor";
// The same with decays per channel. lower_bound: 0 for none.
constexpr const char* channel_step_schema =
    "kimi_delta_step(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? a_log, Tensor? dt_bias, "
    "Tensor(a!) state, Tensor? slots, Tensor? accepted, Tensor? starts, float scale, float beta_factor, bool "
    "normalize, bool beta_is_logit, bool value_by_value, float lower_bound) -> Tensor";

using namespace delta_rule;

void check_state(const DeltaRuleProblem& problem, const Tensor& state, Dtype type, bool value_by_value) {
    const auto sizes = state.sizes(), strides = state.strides();
    if (!(state.device() == problem.q.device()) || state.dimensions() != 4 || sizes[1] != problem.heads ||
        sizes[value_by_value ? 3 : 2] != problem.key || sizes[value_by_value ? 2 : 3] != problem.value)
        fail(problem.where + "state needs slots, the heads of v, and K x V or V x K, on the device of q");
    const int64_t unit = 16 / bytes_of(type) < 4 ? 16 / bytes_of(type) : 4;
    if (strides[3] != 1 || sizes[3] % unit != 0 || strides[0] % unit || strides[1] % unit ||
        strides[2] % unit || reinterpret_cast<uintptr_t>(state.data()) % 4)
        fail(problem.where +
             "rows of the state need to be neighbours in memory, a multiple of 4 elements long and apart");
    if (((sizes[2] - 1) * strides[2] + sizes[3]) * bytes_of(type) > delta_rule_reach)
        fail(problem.where + "the rows of one head's state need to lie within 2 GiB");
}

void describe_slots(DeltaRuleProblem& problem, StepArguments& arguments, int64_t states,
                    const std::optional<Tensor>& slots, const std::optional<Tensor>& accepted) {
    arguments.slot_count = static_cast<uint32_t>(states);
    if (slots) {
        if (slots->dimensions() != 2 || slots->sizes()[0] != problem.sequences.count || slots->sizes()[1] < 1)
            fail(problem.where + "slots need two dimensions, and a row for each sequence");
        arguments.slots = problem.integers(*slots, "slots", slots->element_count());
        arguments.slots_per_sequence = static_cast<uint32_t>(slots->sizes()[1]);
    } else if (states < problem.sequences.count) {
        fail(problem.where + "state needs a slot for each sequence");
    }
    if (accepted) {
        if (!slots) fail(problem.where + "accepted needs slots");
        arguments.accepted = problem.integers(*accepted, "accepted", problem.sequences.count);
    }
}

template <class Kind, Decay decay>
void step(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    const std::string name = decay == Decay::channel ? "kimi_delta_step" : "gated_delta_step";
    if (argument_count != (decay == Decay::channel ? 17 : 16) || result_count != 1)
        fail(name + " is registered with another schema");
    Arguments given(stack, argument_count);
    DeltaRuleProblem problem(name + ": ", given, decay);
    const DeltaRuleGate gate(given);
    const Tensor state = given.tensor();
    const std::optional<Tensor> slots = given.optional_tensor(), accepted = given.optional_tensor(),
                                starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number()), beta_factor = static_cast<float>(given.number());
    const bool normalize = given.boolean(), beta_is_logit = given.boolean(), value_by_value = given.boolean();
    const float lower_bound = decay == Decay::channel ? static_cast<float>(given.number()) : 0.0f;
    problem.set_starts(starts);
    const Dtype of_state = state.dtype(problem.where + "state");
    check_state(problem, state, of_state, value_by_value);
    Placement placement(problem.q.device());
    Tensor out = problem.empty_out(placement);
    if (problem.sequences.count > 0 && problem.heads > 0) {
        StepArguments arguments{};
        problem.describe_step(arguments, out);
        gate.describe(problem, arguments, lower_bound);
        arguments.initial = arguments.final = DeltaRuleProblem::states(state, value_by_value);
        problem.regions.push_back({state.data(), state.extent_bytes(of_state), "state", true});
        describe_slots(problem, arguments, state.sizes()[0], slots, accepted);
        arguments.scale = scale;
        arguments.beta_factor = beta_factor;
        arguments.normalize = normalize;
        arguments.beta_is_logit = beta_is_logit;
        placement.launch(plan_step<Kind>(placement.target(), element_type(problem.dtype),
                                         element_type(of_state), value_by_value, arguments),
                         problem.regions);
    }
    stack[0] = to_result(std::move(out));
}

const Registration registration{{
    {step_schema, &step<kinds::step, Decay::head>},
    {channel_step_schema, &step<kinds::channel_step, Decay::channel>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
