// torch/norm.cpp: validates the tensors of a norm, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/norm/plan.h"
#include "torch/element_type.h"
#include "torch/norm_operands.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// seed: two int64 on x's device, passed exactly when dropout_p > 0. Unneeded results are empty: sum without
// residual and dropout; mean and rstd unless requested (the gradient then recomputes them); dresidual without
// dropout; dweight and dbias unless requested.
constexpr const char* layer_norm_schema =
    "layer_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, float dropout_p, "
    "Tensor? seed, bool need_statistics=True) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)";
constexpr const char* rms_norm_schema =
    "rms_norm(Tensor x, Tensor? residual, Tensor? weight, float eps, bool need_statistics=True) "
    "-> (Tensor y, Tensor sum, Tensor rstd)";
constexpr const char* norm_backward_schema =
    "norm_backward(Tensor dy, Tensor? dsum, Tensor z, Tensor? weight, Tensor? mean, Tensor rstd, float "
    "dropout_p, "
    "Tensor? seed, bool need_weight, bool need_bias) "
    "-> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)";

norm::Rows rows_of(const RowView& view, int64_t cols) {
    const auto& sizes = view.sizes();
    return {static_cast<uint32_t>(sizes[0] * sizes[1] * sizes[2]), static_cast<uint32_t>(sizes[1]),
            static_cast<uint32_t>(sizes[0]), static_cast<int32_t>(cols)};
}

norm::RowTensor described(const Tensor& tensor, const std::array<int64_t, 3>& strides) {
    return {tensor.data(), strides[2], strides[1], strides[0]};
}

struct Results {
    Tensor y, sum, mean, rstd;
};

Results forward(const std::string& where, Tensor x, std::optional<Tensor> residual, NormParameters parameters,
                double eps, double dropout_p, std::optional<Tensor> seed, bool centred,
                bool need_statistics) {
    const Dtype dtype = x.dtype(where + "x");
    if (x.dimensions() < 1) fail(where + "x needs at least 1 dimension");
    if (residual) check_like(*residual, x, dtype, where + "residual");
    parameters.take("weight", parameters.weight, where, x);
    parameters.take("bias", parameters.bias, where, x);
    const norm::Dropout dropout = dropout_of(dropout_p, seed, where);
    const Placement placement(x.device());
    const std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    const std::vector<int64_t> none = {0};
    const std::span<const int64_t> leading(sizes.data(), sizes.size() - 1);
    const bool has_sum = residual || seed;
    Results results{placement.empty(sizes, dtype), placement.empty(has_sum ? sizes : none, dtype),
                    placement.empty(centred && need_statistics ? leading : none, Dtype::float32),
                    placement.empty(need_statistics ? leading : none, Dtype::float32)};
    const int64_t cols = sizes.back();
    if (results.y.element_count() == 0) {
        if (std::find(leading.begin(), leading.end(), 0) == leading.end())
            fail(where + "rows have no elements");
        return results;
    }
    norm::check(x.element_count() / cols, cols);

    std::vector<Tensor*> tensors = {&x};
    if (residual) tensors.push_back(&*residual);
    const RowView view(tensors, dtype);
    norm::ForwardArguments arguments{};
    arguments.x = described(x, view.strides(0));
    if (residual) arguments.residual = described(*residual, view.strides(1));
    arguments.y = results.y.data();
    arguments.sum = has_sum ? results.sum.data() : nullptr;
    arguments.mean = centred && need_statistics ? static_cast<float*>(results.mean.data()) : nullptr;
    arguments.rstd = need_statistics ? static_cast<float*>(results.rstd.data()) : nullptr;
    arguments.centred = centred;
    arguments.weight = parameters.weight ? parameters.weight->data() : nullptr;
    arguments.bias = parameters.bias ? parameters.bias->data() : nullptr;
    arguments.dropout = dropout;
    arguments.rows = rows_of(view, cols);
    arguments.parameter_type = element_type(parameters.dtype);
    arguments.epsilon = static_cast<float>(eps);
    arguments.wide = cols % 8 == 0 && view.aligned(tensors);
    arguments.wide_parameters = cols % 8 == 0 && parameters.aligned;

    std::vector<runtime::Region> regions = std::move(parameters.regions);
    regions.push_back({x.data(), x.extent_bytes(dtype), "x", false});
    if (residual) regions.push_back({residual->data(), residual->extent_bytes(dtype), "residual", false});
    if (seed) regions.push_back({seed->data(), 16, "seed", false});
    regions.push_back({results.y.data(), results.y.extent_bytes(dtype), "y", true});
    if (has_sum) regions.push_back({results.sum.data(), results.sum.extent_bytes(dtype), "sum", true});
    if (arguments.mean)
        regions.push_back({results.mean.data(), results.mean.extent_bytes(Dtype::float32), "mean", true});
    if (arguments.rstd)
        regions.push_back({results.rstd.data(), results.rstd.extent_bytes(Dtype::float32), "rstd", true});
    placement.launch(norm::plan_forward(placement.target(), element_type(dtype), arguments), regions);
    return results;
}

void layer_norm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 || result_count != 4) fail("layer_norm is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor x = arguments.tensor();
    std::optional<Tensor> residual = arguments.optional_tensor();
    NormParameters parameters;
    parameters.weight = arguments.optional_tensor();
    parameters.bias = arguments.optional_tensor();
    const double eps = arguments.number(), dropout_p = arguments.number();
    std::optional<Tensor> seed = arguments.optional_tensor();
    const bool need_statistics = arguments.boolean();
    Results results = forward("layer_norm: ", std::move(x), std::move(residual), std::move(parameters), eps,
                              dropout_p, std::move(seed), true, need_statistics);
    stack[0] = to_result(std::move(results.y));
    stack[1] = to_result(std::move(results.sum));
    stack[2] = to_result(std::move(results.mean));
    stack[3] = to_result(std::move(results.rstd));
}

void rms_norm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 3) fail("rms_norm is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor x = arguments.tensor();
    std::optional<Tensor> residual = arguments.optional_tensor();
    NormParameters parameters;
    parameters.weight = arguments.optional_tensor();
    const double eps = arguments.number();
    const bool need_statistics = arguments.boolean();
    Results results = forward("rms_norm: ", std::move(x), std::move(residual), std::move(parameters), eps, 0,
                              std::nullopt, false, need_statistics);
    stack[0] = to_result(std::move(results.y));
    stack[1] = to_result(std::move(results.sum));
    stack[2] = to_result(std::move(results.rstd));
}

void norm_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 10 || result_count != 4) fail("norm_backward is registered with another schema");
    const std::string where = "norm_backward: ";
    Arguments given(stack, argument_count);
    Tensor dy = given.tensor();
    std::optional<Tensor> dsum = given.optional_tensor();
    Tensor z = given.tensor();
    NormParameters parameters;
    parameters.weight = given.optional_tensor();
    std::optional<Tensor> mean = given.optional_tensor();
    Tensor rstd = given.tensor();
    const double dropout_p = given.number();
    std::optional<Tensor> seed = given.optional_tensor();
    const bool need_weight = given.boolean(), need_bias = given.boolean();

    const Dtype dtype = z.dtype(where + "z");
    check_like(dy, z, dtype, where + "dy");
    if (dsum) check_like(*dsum, z, dtype, where + "dsum");
    parameters.take("weight", parameters.weight, where, z);
    const norm::Dropout dropout = dropout_of(dropout_p, seed, where);
    const Placement placement(z.device());
    const std::vector<int64_t> sizes(z.sizes().begin(), z.sizes().end());
    if (sizes.empty()) fail(where + "z needs at least 1 dimension");
    const int64_t cols = sizes.back(), rows = cols > 0 ? z.element_count() / cols : 0;
    const auto check_rows = [&](const Tensor& tensor, const char* who) {
        if (tensor.dtype(where + who) != Dtype::float32 || tensor.element_count() != rows)
            fail(where + who + " needs one float32 per row");
    };
    check_rows(rstd, "rstd");
    if (mean) check_rows(*mean, "mean");
    const std::vector<int64_t> none = {0}, vector = {cols};
    Tensor dx = placement.empty(sizes, dtype), dresidual = placement.empty(seed ? sizes : none, dtype);
    Tensor dweight = placement.empty(need_weight ? vector : none, parameters.dtype);
    Tensor dbias = placement.empty(need_bias ? vector : none, parameters.dtype);
    if (rows == 0) {
        dweight.set_zero();
        dbias.set_zero();
    } else {
        norm::check(rows, cols);
        std::vector<Tensor*> tensors = {&dy, &z};
        if (dsum) tensors.push_back(&*dsum);
        const RowView view(tensors, dtype);
        if (mean && rows > 1) mean = contiguous_copy(std::move(*mean), Dtype::float32);
        norm::BackwardArguments arguments{};
        arguments.dy = described(dy, view.strides(0));
        arguments.z = described(z, view.strides(1));
        if (dsum) arguments.dsum = described(*dsum, view.strides(2));
        arguments.mean = mean ? static_cast<const float*>(mean->data()) : nullptr;
        arguments.rstd = static_cast<const float*>(rstd.data());
        arguments.weight = parameters.weight ? parameters.weight->data() : nullptr;
        arguments.dx = dx.data();
        arguments.dresidual = seed ? dresidual.data() : nullptr;
        arguments.dropout = dropout;
        arguments.rows = rows_of(view, cols);
        arguments.parameter_type = element_type(parameters.dtype);
        arguments.wide = cols % 8 == 0 && view.aligned(tensors);
        arguments.wide_parameters = cols % 8 == 0 && parameters.aligned;

        std::vector<runtime::Region> regions = std::move(parameters.regions);
        regions.push_back({dy.data(), dy.extent_bytes(dtype), "dy", false});
        regions.push_back({z.data(), z.extent_bytes(dtype), "z", false});
        if (dsum) regions.push_back({dsum->data(), dsum->extent_bytes(dtype), "dsum", false});
        if (mean) regions.push_back({mean->data(), mean->extent_bytes(Dtype::float32), "mean", false});
        regions.push_back({rstd.data(), rstd.extent_bytes(Dtype::float32), "rstd", false});
        if (seed) regions.push_back({seed->data(), 16, "seed", false});
        regions.push_back({dx.data(), dx.extent_bytes(dtype), "dx", true});
        if (seed) regions.push_back({dresidual.data(), dresidual.extent_bytes(dtype), "dresidual", true});
        const std::vector<int64_t> partial = {need_weight + need_bias, norm::backward_workers(rows, cols),
                                              cols};
        Tensor workspace = placement.empty(partial, Dtype::float32);
        float* next = static_cast<float*>(workspace.data());
        if (need_weight) {
            arguments.partial_weight = next;
            next += partial[1] * cols;
            regions.push_back({dweight.data(), dweight.extent_bytes(parameters.dtype), "dweight", true});
        }
        if (need_bias) {
            arguments.partial_bias = next;
            regions.push_back({dbias.data(), dbias.extent_bytes(parameters.dtype), "dbias", true});
        }
        if (partial[0] > 0)
            regions.push_back(
                {workspace.data(), workspace.extent_bytes(Dtype::float32), "partial sums", true});
        for (const Launch& each : norm::plan_backward(placement.target(), element_type(dtype), arguments,
                                                      dweight.data(), dbias.data()))
            placement.launch(each, regions);
    }
    stack[0] = to_result(std::move(dx));
    stack[1] = to_result(std::move(dresidual));
    stack[2] = to_result(std::move(dweight));
    stack[3] = to_result(std::move(dbias));
}

const Registration registration{{
    {layer_norm_schema, &layer_norm},
    {rms_norm_schema, &rms_norm},
    {norm_backward_schema, &norm_backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
