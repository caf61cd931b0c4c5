// torch/delta_rule.cpp: checks the tensors of gated delta rules, plans them and launches them.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <optional>
#include <span>
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
// dfinal is absent where nobody uses final, and dinitial empty without initial. dq and dk (batch, tokens, heads, K): of value heads, of q's
// dtype where these are those of q and k, else float32. dg and dbeta float32.
constexpr const char* backward_schema =
    "gated_delta_rule_backward(Tensor dout, Tensor? dfinal, Tensor q, Tensor k, Tensor v, Tensor g, Tensor "
    "beta, Tensor? initial, Tensor? starts, float scale, bool normalize) -> (Tensor dq, Tensor dk, Tensor "
    "dv, "
    "Tensor dg, Tensor dbeta, Tensor dinitial)";
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
    // Of tokens. What is behind the last packed sequence, which only the device knows, is zero.
    Tensor empty_of_tokens(const Placement& placement, std::span<const int64_t> sizes, Dtype type) const {
        Tensor result = placement.empty(sizes, type);
        if (sequences.starts && result.element_count() > 0) result.set_zero();
        return result;
    }
    Tensor empty_out(const Placement& placement) const {
        return empty_of_tokens(placement, std::array<int64_t, 4>{batch, tokens, heads, value}, dtype);
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
    std::array<int64_t, 4> state_shape() const { return {sequences.count, heads, key, value}; }
    // Contiguous float32 states of all sequences, or none.
    delta_rule::States given_states(std::optional<Tensor>& tensor, const char* name) {
        if (!tensor) return {};
        const auto shape = state_shape();
        const auto sizes = tensor->sizes();
        if (tensor->dtype(where + name) != Dtype::float32 || tensor->dimensions() != 4 ||
            !std::equal(shape.begin(), shape.end(), sizes.begin()) || !(tensor->device() == q.device()))
            fail(where + name + " needs to be float32, (sequences, heads, K, V), on the device of q");
        if (!tensor->is_contiguous()) tensor = contiguous_copy(std::move(*tensor), Dtype::float32);
        regions.push_back({tensor->data(), tensor->extent_bytes(Dtype::float32), name, false});
        return states(*tensor, false);
    }
    delta_rule::States new_states(const Tensor& tensor, const char* name) {
        regions.push_back({tensor.data(), tensor.extent_bytes(Dtype::float32), name, true});
        return states(tensor, false);
    }
};

// What the launches of one call share: the matrices of all chunks.
class ChunkedProblem {
  public:
    ChunkedProblem(Problem& problem, const Placement& placement, float scale, bool normalize, bool gradients)
        : problem_(problem),
          placement_(placement),
          element_(element_type(problem.dtype)),
          chunks_(chunks_of(problem.sequences, problem.tokens)),
          places_(static_cast<int64_t>(chunks_.count) * problem.heads),
          factors_(of_places(chunk_tokens * int64_t{sizeof(RowFactors) / sizeof(float)}, Dtype::float32)),
          matrices_(of_places(
              (gradients ? 4 : 2) * (bytes_of(problem.dtype) == 2 ? 2 : 1) * chunk_tokens * chunk_tokens,
              problem.dtype)) {
        if (problem.key % 8 != 0 || problem.value % 8 != 0)
            fail(problem.where + "K and V need to be multiples of 8");
        for (Tensor* tensor : {&problem.q, &problem.k, &problem.v})
            problem.make_readable(*tensor, 4 / bytes_of(problem.dtype));
        for (const auto& [tensor, name] : {std::pair{&problem.g, "g"}, std::pair{&problem.beta, "beta"}})
            if (tensor->dtype(problem.where + name) != Dtype::float32)
                fail(problem.where + name + " needs to be float32");
        PrepareArguments prepare{};
        problem.describe(prepare);
        common_.q = prepare.q = problem.rows(problem.q, problem.dtype, "q");
        common_.k = prepare.k = problem.rows(problem.k, problem.dtype, "k");
        common_.v = problem.rows(problem.v, problem.dtype, "v");
        prepare.g = problem.rows(problem.g, Dtype::float32, "g");
        prepare.beta = problem.rows(problem.beta, Dtype::float32, "beta");
        problem.describe(common_);
        common_.chunks = prepare.chunks = chunks_;
        common_.factors = prepare.factors = static_cast<RowFactors*>(factors_.data());
        common_.matrices = prepare.matrices = matrices_.data();
        common_.matrices_of_chunk = prepare.matrices_of_chunk = gradients ? 4 : 2;
        common_.value = static_cast<uint32_t>(problem.value);
        common_.scale = scale;
        prepare.normalize = normalize;
        keep(factors_, Dtype::float32, "factors");
        keep(matrices_, problem.dtype, "matrices");
        if (chunks_.count > 0)
            launch(plan_of_chunks<kinds::prepare>(placement.target(), element_, chunks_, common_.heads.value,
                                                  common_.key, 64, prepare));
    }
    const ChunkArguments& common() const { return common_; }
    Tensor of_places(int64_t elements, Dtype type) const {
        return placement_.empty(std::array<int64_t, 2>{places_, elements}, type);
    }
    float* keep(const Tensor& tensor, Dtype type, const char* name) {
        if (tensor.element_count() > 0)
            problem_.regions.push_back({tensor.data(), tensor.extent_bytes(type), name, true});
        return static_cast<float*>(tensor.data());
    }
    void launch(const Launch& launch) const { placement_.launch(launch, problem_.regions); }
    template <class Kind>
    void pass(const typename Kind::Arguments& arguments) const {
        launch(plan_of_states<Kind>(placement_.target(), placement_.shape(), element_, arguments));
    }
    void gradient(const GradientArguments& arguments) const {
        if (chunks_.count > 0)
            launch(plan_of_chunks<kinds::gradient>(placement_.target(), element_, chunks_,
                                                   common_.heads.value, common_.key, 256, arguments));
    }

  private:
    Problem& problem_;
    const Placement& placement_;
    ElementType element_;
    Chunks chunks_;
    int64_t places_;
    Tensor factors_, matrices_;
    ChunkArguments common_{};
};

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
    if (final.element_count() > 0) {
        const delta_rule::States before = problem.given_states(initial, "initial"),
                                 after = problem.new_states(final, "final");
        const ElementType element = element_type(problem.dtype);
        if (runs_in_chunks(placement.target(), element, problem.tokens, problem.key)) {
            ChunkedProblem chunked(problem, placement, scale, normalize, false);
            ScanArguments arguments{};
            arguments.common = chunked.common();
            arguments.out = problem.rows(out, problem.dtype, "out", true);
            arguments.initial = before;
            arguments.final = after;
            chunked.pass<kinds::scan>(arguments);
        } else {
            if (problem.value % 4 != 0) fail(problem.where + "V needs to be a multiple of 4");
            StepArguments arguments{};
            problem.describe_step(arguments, out);
            arguments.initial = before;
            arguments.final = after;
            arguments.scale = scale;
            arguments.normalize = normalize;
            placement.launch(plan_step(placement.target(), element, ElementType::f32, false, arguments),
                             problem.regions);
        }
    }
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
        ChunkedProblem chunked(problem, placement, scale, normalize, true);
        problem.make_readable(dout, 4 / bytes_of(problem.dtype));
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
        chunked.pass<kinds::scan>(scan);

        ReverseArguments reverse{};
        reverse.common = chunked.common();
        reverse.dout = problem.rows(dout, problem.dtype, "dout");
        reverse.dv = problem.rows(dv, problem.dtype, "dv", true);
        reverse.final = after;
        if (initial) reverse.initial = problem.new_states(dinitial, "dinitial");
        reverse.dstates = chunked.keep(dstates, Dtype::float32, "dstates");
        reverse.solved = chunked.keep(solved, Dtype::float32, "solved");
        chunked.pass<kinds::reverse>(reverse);

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

void step(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 16 || result_count != 1) fail("gated_delta_step is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("gated_delta_step: ", given);
    const std::string& where = problem.where;
    const std::optional<Tensor> a_log = given.optional_tensor(), dt_bias = given.optional_tensor();
    const Tensor state = given.tensor();
    const std::optional<Tensor> slots = given.optional_tensor(), accepted = given.optional_tensor(),
                                starts = given.optional_tensor();
    const float scale = static_cast<float>(given.number()), beta_factor = static_cast<float>(given.number());
    const bool normalize = given.boolean(), beta_is_logit = given.boolean(), value_by_value = given.boolean();
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
        fail(where +
             "rows of the state need to be neighbours in memory, a multiple of 4 elements long and apart");
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
            if (slots->dimensions() != 2 || slots->sizes()[0] != problem.sequences.count ||
                slots->sizes()[1] < 1)
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
    {backward_schema, &backward},
    {step_schema, &step},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
