// torch/conv.cpp: validates the tensors of a causal convolution, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "kernels/conv/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// x (sequences, channels, times), or (sequences, times, channels) if channels_last; weight (channels, width) and bias (channels)
// contiguous. starts: int32, contiguous: the start of each sequence of a single packed x (1, ..), then the end of the last.
constexpr const char* conv_schema =
    "causal_conv1d(Tensor x, Tensor weight, Tensor? bias, Tensor? starts, bool channels_last, bool silu) -> "
    "Tensor";
// dbias is empty without bias.
constexpr const char* conv_backward_schema =
    "causal_conv1d_backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias, Tensor? starts, bool "
    "channels_last, bool silu) -> (Tensor dx, Tensor dweight, Tensor dbias)";
// states (slots, channels, columns); slots, positions, accepted: int32, present: uint8, contiguous, one for each sequence.
constexpr const char* conv_states_schema =
    "causal_conv1d_states(Tensor x, Tensor weight, Tensor? bias, Tensor? starts, Tensor(a!) states, Tensor? "
    "slots, Tensor? present, Tensor? positions, Tensor? accepted, bool channels_last, bool silu) -> Tensor";
// The same, with the channels of the result split into three tensors: the first, the next and the remaining
// ones.
constexpr const char* conv_split_schema =
    "causal_conv1d_split(Tensor x, Tensor weight, Tensor? bias, Tensor? starts, bool channels_last, bool "
    "silu, int first, int second) -> (Tensor, Tensor, Tensor)";
constexpr const char* conv_states_split_schema =
    "causal_conv1d_states_split(Tensor x, Tensor weight, Tensor? bias, Tensor? starts, Tensor(a!) states, "
    "Tensor? slots, Tensor? present, Tensor? positions, Tensor? accepted, bool channels_last, bool silu, int "
    "first, int second) -> (Tensor, Tensor, Tensor)";

struct Problem {
    std::string where;
    Tensor x, weight;
    std::optional<Tensor> bias, starts;
    bool channels_last = false, silu = false;
    Dtype dtype;
    int64_t channels = 0, width = 0;
    conv::Sequences sequences{};
    std::vector<runtime::Region> regions;

    Problem(std::string name, Arguments& given)
        : where(std::move(name)),
          x(given.tensor()),
          weight(given.tensor()),
          bias(given.optional_tensor()),
          starts(given.optional_tensor()),
          dtype(x.dtype(where + "x")) {}

    void check(bool is_channels_last, bool with_silu) {
        channels_last = is_channels_last;
        silu = with_silu;
        if (x.dimensions() != 3 || weight.dimensions() != 2)
            fail(where + "x needs 3 dimensions and weight 2");
        channels = weight.sizes()[0];
        width = weight.sizes()[1];
        const int64_t times = x.sizes()[channels_last ? 1 : 2];
        if (x.sizes()[channels_last ? 2 : 1] != channels)
            fail(where + "weight needs as many rows as x has channels");
        check_parameter(weight, "weight");
        if (bias) {
            check_parameter(*bias, "bias");
            if (bias->element_count() != channels) fail(where + "bias needs an element for each channel");
        }
        int64_t count = x.sizes()[0];
        if (starts) {
            if (count != 1) fail(where + "starts are for one packed x, of size 1 in its first dimension");
            count = starts->element_count() - 1;
            if (count < 0) fail(where + "starts needs at least one element");
        }
        conv::check(count, times, channels, width, starts.has_value());
        sequences.count = static_cast<uint32_t>(count);
        sequences.length = static_cast<uint32_t>(times);
        if (starts)
            sequences.starts = static_cast<const int32_t*>(
                of_sequences(*starts, "starts", aoti_torch_dtype_int32(), Dtype::int32, count + 1));
    }
    void check_parameter(const Tensor& tensor, const char* name) {
        if (tensor.dtype(where + name) != dtype || !(tensor.device() == x.device()))
            fail(where + name + " needs the dtype and the device of x");
        if (!tensor.is_contiguous()) fail(where + name + " needs to be contiguous");
        regions.push_back({tensor.data(), tensor.extent_bytes(dtype), name, false});
    }
    const void* of_sequences(const Tensor& tensor, const char* name, int32_t number, Dtype type,
                             int64_t count) {
        if (tensor.dtype_number() != number || tensor.element_count() != count || !tensor.is_contiguous() ||
            !(tensor.device() == x.device()))
            fail(where + name + " needs to be " + torch_binding::name(type) +
                 ", contiguous, on the device of x, with " + std::to_string(count) + " elements");
        if (count > 0) regions.push_back({tensor.data(), tensor.extent_bytes(type), name, false});
        return tensor.data();
    }
    bool empty() const { return x.element_count() == 0; }

    conv::Sequenced rows(Tensor& tensor, const char* name, bool written) {
        if (!written && tensor.sizes()[2] > 1 && tensor.strides()[2] != 1)
            tensor = contiguous_copy(std::move(tensor), dtype);
        regions.push_back({tensor.data(), tensor.extent_bytes(dtype), name, written});
        // The stride of a dimension of size one is meaningless, and packed sequences differ only in their times.
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        return {tensor.data(), starts || sizes[0] == 1 ? 0 : strides[0], sizes[1] == 1 ? 0 : strides[1]};
    }
    bool aligned(const void* data, std::initializer_list<int64_t> strides) const {
        const int64_t unit = 4 / bytes_of(dtype);
        for (const int64_t stride : strides)
            if (stride % unit) return false;
        return reinterpret_cast<uintptr_t>(data) % 4 == 0;
    }
    bool aligned(const conv::Sequenced& of) const { return aligned(of.data, {of.sequence, of.row}); }
    bool parameters_aligned() const {
        return aligned(weight.data(), {}) && (!bias || aligned(bias->data(), {}));
    }
    template <class Given>
    void describe(Given& arguments) const {
        arguments.weight = weight.data();
        arguments.bias = bias ? bias->data() : nullptr;
        arguments.sequences = sequences;
        arguments.channels = static_cast<uint32_t>(channels);
        arguments.width = static_cast<uint32_t>(width);
        arguments.silu = silu;
    }
    // sizes: the number of channels of each result.
    std::vector<Tensor> forward(const Placement& placement, const conv::States& states, bool states_aligned,
                                const std::vector<int64_t>& sizes) {
        std::vector<Tensor> results;
        std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
        for (const int64_t count : sizes) {
            shape[channels_last ? 2 : 1] = count;
            results.push_back(placement.empty(shape, dtype));
        }
        // Sequences of zero times still have states.
        if (channels == 0 || (empty() && !states.data) || (empty() && !starts)) return results;
        conv::ForwardArguments arguments{};
        describe(arguments);
        arguments.x = rows(x, "x", false);
        arguments.states = states;
        bool all_aligned = aligned(arguments.x) && parameters_aligned() && states_aligned;
        for (uint32_t& end : arguments.ends) end = UINT32_MAX;
        int64_t first = 0;
        for (size_t i = 0; i < sizes.size(); ++i) {
            if (i > 0) arguments.ends[i - 1] = static_cast<uint32_t>(first);
            if (sizes[i] == 0) continue;
            arguments.y[i] = rows(results[i], "y", true);
            all_aligned = all_aligned && aligned(arguments.y[i]);
            first += sizes[i];
        }
        placement.launch(conv::plan_forward(placement.target(), element_type(dtype), channels_last,
                                            all_aligned, arguments),
                         regions);
        return results;
    }
    // The channels of the three results of a split.
    std::vector<int64_t> split(int64_t first, int64_t second) const {
        if (first < 0 || second < 0 || first + second > channels)
            fail(where + std::to_string(first) + " and " + std::to_string(second) + " channels of " +
                 std::to_string(channels) + " cannot be apart");
        return {first, second, channels - first - second};
    }
};

void put_results(StableIValue* stack, std::vector<Tensor> results) {
    for (size_t i = 0; i < results.size(); ++i) stack[i] = to_result(std::move(results[i]));
}

void conv_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 || result_count != 1) fail("causal_conv1d is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("causal_conv1d: ", given);
    const bool channels_last = given.boolean(), silu = given.boolean();
    problem.check(channels_last, silu);
    put_results(stack, problem.forward(Placement(problem.x.device()), {}, true, {problem.channels}));
}

void conv_split(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 || result_count != 3)
        fail("causal_conv1d_split is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("causal_conv1d_split: ", given);
    const bool channels_last = given.boolean(), silu = given.boolean();
    const int64_t first = given.integer(), second = given.integer();
    problem.check(channels_last, silu);
    put_results(stack,
                problem.forward(Placement(problem.x.device()), {}, true, problem.split(first, second)));
}

void conv_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 7 || result_count != 3)
        fail("causal_conv1d_backward is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor dy = given.tensor();
    Problem problem("causal_conv1d_backward: ", given);
    const bool channels_last = given.boolean(), silu = given.boolean();
    problem.check(channels_last, silu);
    const auto wanted = problem.x.sizes(), there = dy.sizes();
    if (!std::equal(wanted.begin(), wanted.end(), there.begin(), there.end()) ||
        dy.dtype(problem.where + "dy") != problem.dtype || !(dy.device() == problem.x.device()))
        fail(problem.where + "dy needs the shape, the dtype and the device of x");
    const Placement placement(problem.x.device());
    Tensor dx = placement.empty(wanted, problem.dtype);
    Tensor dweight = placement.empty(problem.weight.sizes(), problem.dtype);
    const int64_t biases = problem.bias ? problem.channels : 0;
    Tensor dbias = placement.empty({&biases, 1}, problem.dtype);
    if (problem.empty()) {
        dweight.set_zero();
        dbias.set_zero();
    } else {
        const auto slots =
            conv::slots(problem.sequences.count, problem.sequences.length, problem.starts.has_value());
        const int64_t sums[] = {conv::workers(slots, problem.channels, channels_last), problem.width + 1,
                                problem.channels};
        const Tensor partial = placement.empty(sums, Dtype::float32);
        conv::BackwardArguments arguments{};
        problem.describe(arguments);
        arguments.x = problem.rows(problem.x, "x", false);
        arguments.dy = problem.rows(dy, "dy", false);
        arguments.dx = problem.rows(dx, "dx", true);
        arguments.partial = static_cast<float*>(partial.data());
        const bool aligned = problem.aligned(arguments.x) && problem.aligned(arguments.dy) &&
                             problem.aligned(arguments.dx) && problem.parameters_aligned();
        auto& regions = problem.regions;
        regions.push_back({partial.data(), partial.extent_bytes(Dtype::float32), "partial sums", true});
        regions.push_back({dweight.data(), dweight.extent_bytes(problem.dtype), "dweight", true});
        if (problem.bias) regions.push_back({dbias.data(), dbias.extent_bytes(problem.dtype), "dbias", true});
        for (const Launch& launch :
             conv::plan_backward(placement.target(), element_type(problem.dtype), channels_last, aligned,
                                 arguments, dweight.data(), problem.bias ? dbias.data() : nullptr))
            placement.launch(launch, regions);
    }
    stack[0] = to_result(std::move(dx));
    stack[1] = to_result(std::move(dweight));
    stack[2] = to_result(std::move(dbias));
}

void with_states(StableIValue* stack, Arguments& given, bool splits) {
    Problem problem("causal_conv1d_states: ", given);
    const Tensor states = given.tensor();
    const std::optional<Tensor> slots = given.optional_tensor(), present = given.optional_tensor();
    const std::optional<Tensor> positions = given.optional_tensor(), accepted = given.optional_tensor();
    const bool channels_last = given.boolean(), silu = given.boolean();
    problem.check(channels_last, silu);
    std::vector<int64_t> results = {problem.channels};
    if (splits) {
        const int64_t first = given.integer(), second = given.integer();
        results = problem.split(first, second);
    }
    const std::string& where = problem.where;
    if (states.dtype(where + "states") != problem.dtype || !(states.device() == problem.x.device()))
        fail(where + "states need the dtype and the device of x");
    if (states.dimensions() != 3 || states.sizes()[1] != problem.channels)
        fail(where + "states need 3 dimensions, slots, channels and columns, and the channels of x");
    const int64_t columns = states.sizes()[2], before = problem.width - 1, count = problem.sequences.count;
    const int64_t needed = accepted ? before - 1 + problem.sequences.length : before;
    if (columns < needed)
        fail(where + "states have " + std::to_string(columns) + " columns; at least " +
             std::to_string(needed) + " are needed");
    if (accepted && (positions || problem.starts))
        fail(where + "accepted is for sequences of one length whose states are not circular");
    if (!slots && states.sizes()[0] < count) fail(where + "states need a slot for each sequence");
    const auto integers = [&](const std::optional<Tensor>& tensor, const char* name) -> const int32_t* {
        if (!tensor) return nullptr;
        return static_cast<const int32_t*>(
            problem.of_sequences(*tensor, name, aoti_torch_dtype_int32(), Dtype::int32, count));
    };
    conv::States described{};
    described.slots = integers(slots, "slots");
    if (present)
        described.present = static_cast<const uint8_t*>(
            problem.of_sequences(*present, "present", aoti_torch_dtype_uint8(), Dtype::uint8, count));
    described.positions = integers(positions, "positions");
    described.accepted = integers(accepted, "accepted");
    described.slot = states.strides()[0];
    described.channel = states.strides()[1];
    described.column = states.strides()[2];
    described.count = static_cast<uint32_t>(states.sizes()[0]);
    described.columns = static_cast<uint32_t>(columns);
    described.data = states.data();
    problem.regions.push_back({states.data(), states.extent_bytes(problem.dtype), "states", true});
    const bool aligned =
        described.channel != 1 || problem.aligned(described.data, {described.slot, described.column});
    put_results(stack, problem.forward(Placement(problem.x.device()), described, aligned, results));
}

void conv_states(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 1)
        fail("causal_conv1d_states is registered with another schema");
    Arguments given(stack, argument_count);
    with_states(stack, given, false);
}

void conv_states_split(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 13 || result_count != 3)
        fail("causal_conv1d_states_split is registered with another schema");
    Arguments given(stack, argument_count);
    with_states(stack, given, true);
}

const Registration registration{{
    {conv_schema, &conv_forward},
    {conv_backward_schema, &conv_backward},
    {conv_states_schema, &conv_states},
    {conv_split_schema, &conv_split},
    {conv_states_split_schema, &conv_states_split},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
