// torch/delta_rule.cpp: gated delta rules and their gradients; long inputs run in chunks.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

#include "torch/delta_rule_chunks.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// q, k (batch, tokens, key heads, K), v (batch, tokens, heads, V), g and beta (batch, tokens, heads). starts:
// int32, contiguous: the start of each sequence of a batch of one, then the end of the last. initial
// (sequences, heads, K, V) float32, like final. g and beta float32.
constexpr const char* rule_schema =
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial, Tensor? starts, "
    "float scale, bool normalize) -> (Tensor out, Tensor final)";
// dfinal is absent if final is unused, and dinitial is empty without initial. dq and dk (batch, tokens, heads, K) are
// per value head, of q's dtype if there are as many value heads as key heads, else float32. dg and dbeta float32.
constexpr const char* backward_schema =
    "gated_delta_rule_backward(Tensor dout, Tensor? dfinal, Tensor q, Tensor k, Tensor v, Tensor g, Tensor "
    "beta, Tensor? initial, Tensor? starts, float scale, bool normalize) -> (Tensor dq, Tensor dk, Tensor "
    "dv, "
    "Tensor dg, Tensor dbeta, Tensor dinitial)";

using namespace delta_rule;
using Problem = DeltaRuleProblem;

void rule(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 2) fail("gated_delta_rule is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("gated_delta_rule: ", given);
    std::optional<Tensor> initial = given.optional_tensor();
    const std::optional<Tensor> starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number());
    const bool normalize = given.boolean();
    problem.set_starts(starts);
    const Placement placement(problem.q.device());
    Tensor out = problem.empty_out(placement), final = placement.empty(problem.state_shape(), Dtype::float32);
    run_rule<kinds::scan, kinds::step>(
        problem, placement, out, final, initial, scale,
        [&](ChunkedProblem& chunked) { chunked.prepare(normalize); },
        [&](StepArguments& arguments) { arguments.normalize = normalize; });
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(final));
}

void backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 6)
        fail("gated_delta_rule_backward is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor dout = given.tensor();
    std::optional<Tensor> dfinal = given.optional_tensor();
    Problem problem("gated_delta_rule_backward: ", given);
    std::optional<Tensor> initial = given.optional_tensor();
    const std::optional<Tensor> starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number());
    const bool normalize = given.boolean();
    problem.set_starts(starts);
    const auto wanted = problem.v.sizes(), there = dout.sizes();
    if (!std::equal(wanted.begin(), wanted.end(), there.begin(), there.end()) ||
        dout.dtype(problem.where + "dout") != problem.dtype || !(dout.device() == problem.q.device()))
        fail(problem.where + "dout needs the shape, the dtype and the device of v");
    const Placement placement(problem.q.device());
    const int target = placement.target(),
              largest = largest_key_of<kinds::gradient>(target, element_type(problem.dtype));
    if (problem.key > largest)
        fail(problem.where + "keys have " + std::to_string(problem.key) + " elements; gradients have gfx" +
             std::to_string(target) + " kernels of up to " + std::to_string(largest));
    const std::array<int64_t, 4> of_keys = {problem.batch, problem.tokens, problem.heads, problem.key};
    const std::array<int64_t, 3> of_heads = {problem.batch, problem.tokens, problem.heads};
    const bool wide = problem.heads != problem.key_heads;
    const Dtype key_dtype = wide ? Dtype::float32 : problem.dtype;
    const auto of_tokens = [&](std::span<const int64_t> sizes, Dtype type) {
        return problem.empty_of_tokens(placement, sizes, type);
    };
    Tensor dq = of_tokens(of_keys, key_dtype), dk = of_tokens(of_keys, key_dtype),
           dv = problem.empty_out(placement), dg = of_tokens(of_heads, Dtype::float32),
           dbeta = of_tokens(of_heads, Dtype::float32);
    auto initial_shape = problem.state_shape();
    if (!initial) initial_shape[0] = 0;
    Tensor dinitial = placement.empty(initial_shape, Dtype::float32);
    const auto any = problem.state_shape();
    if (any[0] * any[1] * any[2] * any[3] > 0) {
        const delta_rule::States before = problem.given_states(initial, "initial"),
                                 after = problem.given_states(dfinal, "dfinal");
        ChunkedProblem chunked(problem, placement, scale, true);
        chunked.prepare(normalize);
        dout = problem.readable_chunks(std::move(dout), problem.dtype);
        const int64_t state = problem.key * problem.value, rows = chunk_tokens * problem.value;
        const Tensor states = chunked.of_places(state, Dtype::float32),
                     dstates = chunked.of_places(state, Dtype::float32),
                     changes = chunked.of_places(rows, Dtype::float32),
                     solved = chunked.of_places(rows, Dtype::float32);
        ScanArguments scan{};
        scan.common = chunked.common();
        scan.initial = before;
        scan.states = chunked.keep(states, Dtype::float32, "states");
        scan.changes = chunked.keep(changes, Dtype::float32, "changes");
        chunked.pass<kinds::scan>(scan, scan_threads);

        ReverseArguments reverse{};
        reverse.common = chunked.common();
        reverse.dout = problem.rows(dout, problem.dtype, "dout");
        reverse.dv = problem.rows(dv, problem.dtype, "dv", true);
        reverse.final = after;
        if (initial) reverse.initial = problem.new_states(dinitial, "dinitial");
        reverse.dstates = chunked.keep(dstates, Dtype::float32, "dstates");
        reverse.solved = chunked.keep(solved, Dtype::float32, "solved");
        chunked.pass<kinds::reverse>(reverse, reverse_threads);

        GradientArguments gradient{};
        gradient.common = chunked.common();
        gradient.dout = reverse.dout;
        gradient.dq = problem.rows(dq, key_dtype, "dq", true);
        gradient.dk = problem.rows(dk, key_dtype, "dk", true);
        gradient.dg = problem.rows(dg, Dtype::float32, "dg", true);
        gradient.dbeta = problem.rows(dbeta, Dtype::float32, "dbeta", true);
        gradient.states = scan.states;
        gradient.changes = scan.changes;
        gradient.dstates = reverse.dstates;
        gradient.solved = reverse.solved;
        gradient.normalize = normalize;
        gradient.wide = wide;
        chunked.gradient(gradient);
    } else {
        for (const Tensor* tensor : {&dq, &dk, &dv, &dg, &dbeta, &dinitial}) tensor->set_zero();
    }
    stack[0] = to_result(std::move(dq));
    stack[1] = to_result(std::move(dk));
    stack[2] = to_result(std::move(dv));
    stack[3] = to_result(std::move(dg));
    stack[4] = to_result(std::move(dbeta));
    stack[5] = to_result(std::move(dinitial));
}

const Registration registration{{
    {rule_schema, &rule},
    {backward_schema, &backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
