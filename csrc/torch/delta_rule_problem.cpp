// torch/delta_rule_problem.cpp: validates the tensors of gated delta rules and describes them to kernels.
// SPDX-License-Identifier: MIT
#include "torch/delta_rule_problem.h"

#include <algorithm>

#include "torch/element_type.h"

namespace hipkittens::torch_binding {

using namespace delta_rule;

DeltaRuleProblem::DeltaRuleProblem(std::string name, Arguments& given, Decay decays)
    : where(std::move(name)),
      decay(decays),
      q(given.tensor()),
      k(given.tensor()),
      v(given.tensor()),
      g(given.tensor()),
      beta(given.tensor()),
      dtype(q.dtype(where + "q")) {
    const bool of_channels = decay == Decay::channel;
    if (q.dimensions() != 4 || k.dimensions() != 4 || v.dimensions() != 4 ||
        g.dimensions() != (of_channels ? 4 : 3) || beta.dimensions() != 3)
        fail(where + (of_channels ? "q, k, v and g need 4 dimensions, beta 3"
                                  : "q, k and v need 4 dimensions, g and beta 3"));
    batch = v.sizes()[0];
    tokens = v.sizes()[1];
    heads = v.sizes()[2];
    value = v.sizes()[3];
    key_heads = k.sizes()[2];
    key = k.sizes()[3];
    for (const Tensor* tensor : {&q, &k})
        if (tensor->sizes()[0] != batch || tensor->sizes()[1] != tokens || tensor->sizes()[2] != key_heads ||
            tensor->sizes()[3] != key)
            fail(where + "q and k need one shape, and the batch and tokens of v");
    for (const Tensor* tensor : {&g, &beta})
        if (tensor->sizes()[0] != batch || tensor->sizes()[1] != tokens || tensor->sizes()[2] != heads)
            fail(where + "g and beta need the batch, tokens and heads of v");
    if (of_channels && g.sizes()[3] != key) fail(where + "g needs an element for each element of k");
    for (const Tensor* tensor : {&k, &v, &g, &beta})
        if (!(tensor->device() == q.device())) fail(where + "all tensors need one device");
    if (k.dtype(where + "k") != dtype || v.dtype(where + "v") != dtype)
        fail(where + "q, k and v need one dtype");
    if (key_heads < 1 || heads % key_heads != 0)
        fail(where + "v has " + std::to_string(heads) + " heads; a multiple of those of q and k, " +
             std::to_string(key_heads) + ", is allowed");
}

void DeltaRuleProblem::set_starts(const std::optional<Tensor>& starts) {
    int64_t count = batch;
    if (starts) {
        if (batch != 1) fail(where + "starts are for a batch of one");
        count = starts->element_count() - 1;
        if (count < 0) fail(where + "starts need at least one element");
        sequences.starts = integers(*starts, "starts", count + 1);
    }
    delta_rule::check(where, count, batch * tokens, heads, key, value);
    sequences.count = static_cast<uint32_t>(count);
    sequences.length = static_cast<uint32_t>(tokens);
}

const int32_t* DeltaRuleProblem::integers(const Tensor& tensor, const char* name, int64_t count) {
    if (tensor.dtype_number() != aoti_torch_dtype_int32() || tensor.element_count() != count ||
        !tensor.is_contiguous() || !(tensor.device() == q.device()))
        fail(where + name + " need to be int32, contiguous, on the device of q, with " +
             std::to_string(count) + " elements");
    if (count > 0) regions.push_back({tensor.data(), tensor.extent_bytes(Dtype::int32), name, false});
    return static_cast<const int32_t*>(tensor.data());
}

const float* DeltaRuleProblem::parameters(const std::optional<Tensor>& tensor, const char* name,
                                          int64_t count) {
    if (!tensor) return nullptr;
    if (tensor->dtype(where + name) != Dtype::float32 || tensor->element_count() != count ||
        !tensor->is_contiguous() || !(tensor->device() == q.device()))
        fail(where + name + " needs to be float32, contiguous, on the device of q, with " +
             std::to_string(count) + " elements");
    regions.push_back({tensor->data(), tensor->extent_bytes(Dtype::float32), name, false});
    return static_cast<const float*>(tensor->data());
}

Tensor DeltaRuleProblem::readable_chunks(Tensor tensor, Dtype type) const {
    tensor = readable(std::move(tensor), type);
    const int64_t steps = std::min<int64_t>(tokens, delta_rule::chunk_tokens) - 1;
    const int64_t elements = steps * tensor.strides()[1] + tensor.sizes()[3];
    return elements * bytes_of(type) <= delta_rule_reach ? std::move(tensor)
                                                         : contiguous_copy(std::move(tensor), type);
}

TokenHeads DeltaRuleProblem::rows(const Tensor& tensor, Dtype type, const char* name, bool written) {
    regions.push_back({tensor.data(), tensor.extent_bytes(type), name, written});
    const auto strides = tensor.strides();
    return {tensor.data(), sequences.starts ? 0 : strides[0], strides[1], strides[2]};
}

void DeltaRuleProblem::describe_step(StepArguments& arguments, const Tensor& out) {
    const auto [of_g, of_beta] = describe_gates(arguments);
    for (Tensor* tensor : {&q, &k, &v}) *tensor = with_unit_stride(std::move(*tensor), dtype);
    if (decay == Decay::channel) g = with_unit_stride(std::move(g), of_g);
    describe(arguments);
    arguments.q = rows(q, dtype, "q");
    arguments.k = rows(k, dtype, "k");
    arguments.v = rows(v, dtype, "v");
    arguments.g = rows(g, of_g, "g");
    arguments.beta = rows(beta, of_beta, "beta");
    arguments.out = rows(out, dtype, "out", true);
    arguments.sequences = sequences;
    arguments.value = static_cast<uint32_t>(value);
    arguments.beta_factor = 1;
    arguments.slots_per_sequence = 1;
}

Tensor DeltaRuleProblem::empty_of_tokens(const Placement& placement, std::span<const int64_t> sizes,
                                         Dtype type) const {
    Tensor result = placement.empty(sizes, type);
    if (sequences.starts && result.element_count() > 0) result.set_zero();
    return result;
}

States DeltaRuleProblem::states(const Tensor& tensor, bool value_by_value) {
    const auto strides = tensor.strides();
    return {tensor.data(), strides[0], strides[1], strides[value_by_value ? 3 : 2],
            strides[value_by_value ? 2 : 3]};
}

States DeltaRuleProblem::given_states(std::optional<Tensor>& tensor, const char* name) {
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

States DeltaRuleProblem::new_states(const Tensor& tensor, const char* name) {
    regions.push_back({tensor.data(), tensor.extent_bytes(Dtype::float32), name, true});
    return states(tensor, false);
}

}  // namespace hipkittens::torch_binding
