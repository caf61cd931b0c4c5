// torch/delta_rule.cpp: checks the tensors of gated delta rules, plans them and launches them.
// SPDX-License-Identifier: MIT
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/delta_rule/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// q, k (batch, tokens, key heads, K), v (batch, tokens, heads, V), g and beta (batch, tokens, heads). starts: int32, contiguous, where
// each sequence of a batch of one begins, and where the last one ends. initial (sequences, heads, K, V) float32, as final is.
// g and beta float32.
constexpr const char* rule_schema =
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial, Tensor? starts, "
    "float scale, bool normalize) -> (Tensor out, Tensor final)";
// state (slots, heads, K, V), or (slots, heads, V, K) if value_by_value, with neighbours in the last dimension. slots (sequences, n)
// and accepted (sequences): int32, contiguous. g and beta of q's dtype or float32.
constexpr const char* step_schema =
    "gated_delta_step(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? a_log, Tensor? dt_bias, "
    "Tensor(a!) state, Tensor? slots, Tensor? accepted, Tensor? starts, float scale, float beta_factor, bool "
    "normalize, bool beta_is_logit, bool value_by_value) -> Tensor";

using namespace delta_rule;

struct Problem {
    std::string where;
    Tensor q, k, v, g, beta;
    Dtype dtype;
    int64_t batch = 0, tokens = 0, key_heads = 0, heads = 0, key = 0, value = 0;
    delta_rule::Sequences sequences{};
    std::vector<runtime::Region> regions;

    Problem(std::string name, Arguments& given)
        : where(std::move(name)),
          q(given.tensor()),
          k(given.tensor()),
          v(given.tensor()),
          g(given.tensor()),
          beta(given.tensor()),
          dtype(q.dtype(where + "q")) {
        if (q.dimensions() != 4 || k.dimensions() != 4 || v.dimensions() != 4 || g.dimensions() != 3 ||
            beta.dimensions() != 3)
            fail(where + "q, k and v need 4 dimensions, g and beta 3");
        batch = v.sizes()[0];
        tokens = v.sizes()[1];
        heads = v.sizes()[2];
        value = v.sizes()[3];
        key_heads = k.sizes()[2];
        key = k.sizes()[3];
        for (const Tensor* tensor : {&q, &k})
            if (tensor->sizes()[0] != batch || tensor->sizes()[1] != tokens ||
                tensor->sizes()[2] != key_heads || tensor->sizes()[3] != key)
                fail(where + "q and k need one shape, and the batch and tokens of v");
        for (const Tensor* tensor : {&g, &beta})
            if (tensor->sizes()[0] != batch || tensor->sizes()[1] != tokens || tensor->sizes()[2] != heads)
                fail(where + "g and beta need the batch, tokens and heads of v");
        for (const Tensor* tensor : {&k, &v, &g, &beta})
            if (!(tensor->device() == q.device())) fail(where + "all tensors need one device");
        if (k.dtype(where + "k") != dtype || v.dtype(where + "v") != dtype)
            fail(where + "q, k and v need one dtype");
        if (key_heads < 1 || heads % key_heads != 0)
            fail(where + "v has " + std::to_string(heads) + " heads; a multiple of those of q and k, " +
                 std::to_string(key_heads) + ", is allowed");
    }
    void set_starts(const std::optional<Tensor>& starts) {
        int64_t count = batch;
        if (starts) {
            if (batch != 1) fail(where + "starts are for a batch of one");
            count = starts->element_count() - 1;
            if (count < 0) fail(where + "starts need at least one element");
            sequences.starts = integers(*starts, "starts", count + 1);
        }
        delta_rule::check(count, batch * tokens, heads, key, value);
        sequences.count = static_cast<uint32_t>(count);
        sequences.length = static_cast<uint32_t>(tokens);
    }
    const int32_t* integers(const Tensor& tensor, const char* name, int64_t count) {
        if (tensor.dtype_number() != aoti_torch_dtype_int32() || tensor.element_count() != count ||
            !tensor.is_contiguous() || !(tensor.device() == q.device()))
            fail(where + name + " need to be int32, contiguous, on the device of q, with " +
                 std::to_string(count) + " elements");
        if (count > 0) regions.push_back({tensor.data(), tensor.extent_bytes(Dtype::int32), name, false});
        return static_cast<const int32_t*>(tensor.data());
    }
    const float* of_heads(const std::optional<Tensor>& tensor, const char* name) {
        if (!tensor) return nullptr;
        if (tensor->dtype(where + name) != Dtype::float32 || tensor->element_count() != heads ||
            !tensor->is_contiguous() || !(tensor->device() == q.device()))
            fail(where + name + " needs to be float32, contiguous, on the device of q, with an element for " +
                 "each head of v");
        regions.push_back({tensor->data(), tensor->extent_bytes(Dtype::float32), name, false});
        return static_cast<const float*>(tensor->data());
    }
    TokenHeads rows(const Tensor& tensor, Dtype type, const char* name, bool written = false) {
        regions.push_back({tensor.data(), tensor.extent_bytes(type), name, written});
        const auto strides = tensor.strides();
        return {tensor.data(), sequences.starts ? 0 : strides[0], strides[1], strides[2]};
    }
    // Vectors of `unit` elements begin on 4 bytes.
    void make_readable(Tensor& tensor, int64_t unit) const {
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        bool readable = sizes[3] == 1 || strides[3] == 1;
        for (int dimension = 0; dimension < 3; ++dimension)
            readable = readable && (sizes[dimension] <= 1 || strides[dimension] % unit == 0);
        readable = readable && reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0;
        if (!readable) tensor = contiguous_copy(std::move(tensor), dtype);
    }
    template <class Given>
    void describe(Given& arguments) const {
        arguments.heads = divisor_of(static_cast<uint32_t>(heads));
        arguments.group = divisor_of(static_cast<uint32_t>(heads / key_heads));
        arguments.key = static_cast<uint32_t>(key);
    }
    Tensor empty_out(const Placement& placement) const {
        return placement.empty(std::array<int64_t, 4>{batch, tokens, heads, value}, dtype);
    }
    static delta_rule::States states(const Tensor& tensor, bool value_by_value) {
        const auto strides = tensor.strides();
        return {tensor.data(), strides[0], strides[1], strides[value_by_value ? 3 : 2],
                strides[value_by_value ? 2 : 3]};
    }
    void describe_step(StepArguments& arguments, Tensor& out) {
        for (Tensor* tensor : {&q, &k, &v})
            if (tensor->sizes()[3] > 1 && tensor->strides()[3] != 1)
                *tensor = contiguous_copy(std::move(*tensor), dtype);
        const Dtype of_g = g.dtype(where + "g"), of_beta = beta.dtype(where + "beta");
        for (const Dtype type : {of_g, of_beta})
            if (type != dtype && type != Dtype::float32)
                fail(where + "g and beta need the dtype of q, or float32");
        describe(arguments);
        arguments.q = rows(q, dtype, "q");
        arguments.k = rows(k, dtype, "k");
        arguments.v = rows(v, dtype, "v");
        arguments.g = rows(g, of_g, "g");
        arguments.beta = rows(beta, of_beta, "beta");
        arguments.out = rows(out, dtype, "out", true);
        arguments.wide_g = of_g == Dtype::float32;
        arguments.wide_beta = of_beta == Dtype::float32;
        arguments.sequences = sequences;
        arguments.value = static_cast<uint32_t>(value);
        arguments.beta_factor = 1;
        arguments.slots_per_sequence = 1;
    }
    // Chunk after chunk: the matrices of all chunks first.
    void launch_chunks(const Placement& placement, const Tensor& out, const delta_rule::States& initial,
                       const delta_rule::States& final, float scale, bool normalize) {
        if (key % 8 != 0 || value % 4 != 0)
            fail(where + "K needs to be a multiple of 8, and V of 4");
        for (Tensor* tensor : {&q, &k, &v}) make_readable(*tensor, 4 / bytes_of(dtype));
        for (const auto& [tensor, name] : {std::pair{&g, "g"}, std::pair{&beta, "beta"}})
            if (tensor->dtype(where + name) != Dtype::float32) fail(where + name + " needs to be float32");
        const Chunks chunks = chunks_of(sequences, tokens);
        const int64_t places = static_cast<int64_t>(chunks.count) * heads;
        const Tensor factors = placement.empty(
            std::array<int64_t, 2>{places, chunk_tokens * int64_t{sizeof(RowFactors) / sizeof(float)}},
            Dtype::float32);
        const Tensor matrices =
            placement.empty(std::array<int64_t, 4>{places, matrices_of_chunk, chunk_tokens, chunk_tokens}, dtype);
        const runtime::Region of_factors{factors.data(), factors.extent_bytes(Dtype::float32), "factors", true},
            of_matrices{matrices.data(), matrices.extent_bytes(dtype), "matrices", true};
        const ElementType element = element_type(dtype);

        PrepareArguments prepare{};
        ScanArguments scan{};
        describe(prepare);
        describe(scan);
        prepare.q = scan.q = rows(q, dtype, "q");
        prepare.k = scan.k = rows(k, dtype, "k");
        prepare.g = rows(g, Dtype::float32, "g");
        prepare.beta = rows(beta, Dtype::float32, "beta");
        prepare.chunks = scan.chunks = chunks;
        prepare.factors = static_cast<RowFactors*>(factors.data());
        prepare.matrices = matrices.data();
        prepare.normalize = normalize;
        regions.push_back(of_factors);
        regions.push_back(of_matrices);
        if (chunks.count > 0) placement.launch(plan_prepare(placement.target(), element, prepare), regions);

        scan.v = rows(v, dtype, "v");
        scan.out = rows(out, dtype, "out", true);
        scan.factors = prepare.factors;
        scan.matrices = matrices.data();
        scan.initial = initial;
        scan.final = final;
        scan.value = static_cast<uint32_t>(value);
        scan.scale = scale;
        placement.launch(plan_scan(placement.target(), placement.shape(), element, scan), regions);
    }
};

void rule(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 2)
        fail("gated_delta_rule is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("gated_delta_rule: ", given);
    std::optional<Tensor> initial = given.optional_tensor();
    const std::optional<Tensor> starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number());
    const bool normalize = given.boolean();
    problem.set_starts(starts);
    const std::array<int64_t, 4> shape = {problem.sequences.count, problem.heads, problem.key, problem.value};
    const Placement placement(problem.q.device());
    if (initial) {
        const auto sizes = initial->sizes();
        if (initial->dtype(problem.where + "initial") != Dtype::float32 || initial->dimensions() != 4 ||
            !std::equal(shape.begin(), shape.end(), sizes.begin()) ||
            !(initial->device() == problem.q.device()))
            fail(problem.where + "initial needs to be float32, (sequences, heads, K, V), on the device of q");
        if (!initial->is_contiguous()) initial = contiguous_copy(std::move(*initial), Dtype::float32);
        problem.regions.push_back({initial->data(), initial->extent_bytes(Dtype::float32), "initial", false});
    }
    Tensor out = problem.empty_out(placement), final = placement.empty(shape, Dtype::float32);
    if (final.element_count() > 0) {
        problem.regions.push_back({final.data(), final.extent_bytes(Dtype::float32), "final", true});
        const delta_rule::States before =
                                     initial ? Problem::states(*initial, false) : delta_rule::States{},
                                 after = Problem::states(final, false);
        if (runs_in_chunks(element_type(problem.dtype), problem.tokens)) {
            problem.launch_chunks(placement, out, before, after, scale, normalize);
        } else {
            if (problem.value % 4 != 0) fail(problem.where + "V needs to be a multiple of 4");
            StepArguments arguments{};
            problem.describe_step(arguments, out);
            arguments.initial = before;
            arguments.final = after;
            arguments.scale = scale;
            arguments.normalize = normalize;
            placement.launch(plan_step(placement.target(), element_type(problem.dtype), ElementType::f32,
                                       false, arguments),
                             problem.regions);
        }
    }
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(final));
}

void step(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 16 || result_count != 1)
        fail("gated_delta_step is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("gated_delta_step: ", given);
    const std::string& where = problem.where;
    const std::optional<Tensor> a_log = given.optional_tensor(), dt_bias = given.optional_tensor();
    const Tensor state = given.tensor();
    const std::optional<Tensor> slots = given.optional_tensor(), accepted = given.optional_tensor(),
                                starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number()), beta_factor = static_cast<float>(given.number());
    const bool normalize = given.boolean(), beta_is_logit = given.boolean(),
               value_by_value = given.boolean();
    problem.set_starts(starts);
    const Dtype of_state = state.dtype(where + "state");
    if (!(state.device() == problem.q.device()) || state.dimensions() != 4 ||
        state.sizes()[1] != problem.heads || state.sizes()[value_by_value ? 3 : 2] != problem.key ||
        state.sizes()[value_by_value ? 2 : 3] != problem.value)
        fail(where + "state needs slots, the heads of v, and K x V or V x K, on the device of q");
    const auto strides = state.strides();
    const int64_t unit = 16 / bytes_of(of_state) < 4 ? 16 / bytes_of(of_state) : 4;
    if (strides[3] != 1 || state.sizes()[3] % unit != 0 || strides[0] % unit || strides[1] % unit ||
        strides[2] % unit || reinterpret_cast<uintptr_t>(state.data()) % 4)
        fail(where + "rows of the state need to be neighbours in memory, a multiple of 4 elements long and apart");
    if (a_log.has_value() != dt_bias.has_value()) fail(where + "a_log and dt_bias come together");
    Placement placement(problem.q.device());
    Tensor out = problem.empty_out(placement);
    if (problem.sequences.count > 0 && problem.heads > 0) {
        StepArguments arguments{};
        problem.describe_step(arguments, out);
        arguments.a_log = problem.of_heads(a_log, "a_log");
        arguments.dt_bias = problem.of_heads(dt_bias, "dt_bias");
        arguments.initial = arguments.final = Problem::states(state, value_by_value);
        problem.regions.push_back({state.data(), state.extent_bytes(of_state), "state", true});
        arguments.slot_count = static_cast<uint32_t>(state.sizes()[0]);
        if (slots) {
            if (slots->dimensions() != 2 || slots->sizes()[0] != problem.sequences.count || slots->sizes()[1] < 1)
                fail(where + "slots need two dimensions, and a row for each sequence");
            arguments.slots = problem.integers(*slots, "slots", slots->element_count());
            arguments.slots_per_sequence = static_cast<uint32_t>(slots->sizes()[1]);
        } else if (state.sizes()[0] < problem.sequences.count) {
            fail(where + "state needs a slot for each sequence");
        }
        if (accepted) {
            if (!slots) fail(where + "accepted needs slots");
            arguments.accepted = problem.integers(*accepted, "accepted", problem.sequences.count);
        }
        arguments.scale = scale;
        arguments.beta_factor = beta_factor;
        arguments.normalize = normalize;
        arguments.beta_is_logit = beta_is_logit;
        placement.launch(plan_step(placement.target(), element_type(problem.dtype), element_type(of_state),
                                   value_by_value, arguments),
                         problem.regions);
    }
    stack[0] = to_result(std::move(out));
}

const Registration registration{{
    {rule_schema, &rule},
    {step_schema, &step},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
