// torch/norm_fused.cpp: validates the tensors of a norm fused with neighboring operations, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/norm/plan.h"
#include "torch/element_type.h"
#include "torch/norm_operands.h"
#include "torch/quantization.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// y is defined by FusedArguments of kernels/norm/arguments.h. Unneeded results are empty, as in norm.cpp: sum
// is returned with residual, x_bias or dropout. y has rows of y_columns.
constexpr const char* norm_schema =
    "norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? x_bias, Tensor? gate, "
    "Tensor? seed, bool centred, float eps, float dropout_p, bool gemma, bool round_before_weight, "
    "bool round_residual, int y_columns, bool need_statistics=True) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)";
// The options from `code` on: torch/quantization.h. y is empty unless need_norm; second_y is rms_norm or layer_norm of second.
constexpr const char* norm_quantize_schema =
    "norm_quantize(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? x_bias, Tensor? gate, "
    "Tensor? smooth, Tensor? scale, Tensor? second, Tensor? second_weight, bool centred, float eps, "
    "bool gemma, bool round_before_weight, bool round_residual, float second_eps, bool need_norm, int code, "
    "int group, int layout, float floor, float bound, float zero_scale, int power_exponent, "
    "int power_threshold, bool other_rounding) "
    "-> (Tensor codes, Tensor scales, Tensor y, Tensor sum, Tensor second_y)";

// The tensors of one norm; `arguments` refers to them and to the results.
struct FusedNorm {
    std::string where;
    Tensor x;
    std::optional<Tensor> residual, gate, seed;
    NormParameters parameters;
    Dtype dtype = Dtype::float32;
    norm::FusedArguments arguments{};
    std::vector<runtime::Region> regions;

    FusedNorm(std::string who, Tensor given) : where(std::move(who)), x(std::move(given)) {}

    std::vector<int64_t> sizes() const { return {x.sizes().begin(), x.sizes().end()}; }
    int64_t columns() const { return x.sizes().back(); }
    int64_t rows() const { return columns() > 0 ? x.element_count() / columns() : 0; }
    bool has_sum() const { return residual || seed || parameters.x_bias; }

    void check(double dropout_p) {
        dtype = x.dtype(where + "x");
        if (x.dimensions() < 1) fail(where + "x needs at least 1 dimension");
        if (residual) check_like(*residual, x, dtype, where + "residual");
        if (gate) check_like(*gate, x, dtype, where + "gate");
        parameters.take("weight", parameters.weight, where, x);
        parameters.take("bias", parameters.bias, where, x);
        parameters.take("x_bias", parameters.x_bias, where, x);
        arguments.dropout = dropout_of(dropout_p, seed, where);
        if (columns() == 0) fail(where + "rows have no elements");
    }

    // Requires at least one row.
    void describe(double eps, bool centred, bool gemma, bool round_before_weight, bool round_residual) {
        std::vector<Tensor*> tensors = {&x};
        if (residual) tensors.push_back(&*residual);
        if (gate) tensors.push_back(&*gate);
        const RowView view(tensors, dtype);
        arguments.x = view.rows(x, 0);
        if (residual) arguments.residual = view.rows(*residual, 1);
        if (gate) arguments.gate = view.rows(*gate, tensors.size() - 1);
        arguments.rows = view.counts();
        arguments.columns = static_cast<uint32_t>(columns());
        arguments.wide = columns() % 8 == 0 && view.aligned(tensors);
        arguments.wide_parameters = columns() % 8 == 0 && parameters.aligned;
        arguments.parameter_type = element_type(parameters.dtype);
        const auto data = [](const std::optional<Tensor>& tensor) {
            return tensor ? tensor->data() : nullptr;
        };
        arguments.weight = data(parameters.weight);
        arguments.bias = data(parameters.bias);
        arguments.x_bias = data(parameters.x_bias);
        arguments.epsilon = static_cast<float>(eps);
        arguments.centred = centred;
        arguments.gemma = gemma;
        arguments.round_before_weight = round_before_weight;
        arguments.round_sum = round_residual;
        regions = parameters.regions;
        const auto reads = [&](const Tensor& tensor, const char* name) {
            regions.push_back({tensor.data(), tensor.extent_bytes(dtype), name, false});
        };
        reads(x, "x");
        if (residual) reads(*residual, "residual");
        if (gate) reads(*gate, "gate");
        if (seed) regions.push_back({seed->data(), 16, "seed", false});
    }
    void writes_y(const Tensor& y, const char* name) {
        arguments.y = y.data();
        arguments.y_columns = static_cast<uint32_t>(y.sizes().back());
        arguments.wide_y = y.sizes().back() % 8 == 0;
        writes(y, name, dtype);
    }
    void writes_sum(const Tensor& sum) {
        if (!has_sum()) return;
        arguments.sum = sum.data();
        writes(sum, "sum", dtype);
    }
    void writes(const Tensor& tensor, const char* name, Dtype of) {
        regions.push_back({tensor.data(), tensor.extent_bytes(of), name, true});
    }
};

const std::vector<int64_t> none = {0};

void norm_forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 15 || result_count != 4) fail("norm is registered with another schema");
    Arguments given(stack, argument_count);
    FusedNorm one("norm: ", given.tensor());
    one.residual = given.optional_tensor();
    one.parameters.weight = given.optional_tensor();
    one.parameters.bias = given.optional_tensor();
    one.parameters.x_bias = given.optional_tensor();
    one.gate = given.optional_tensor();
    one.seed = given.optional_tensor();
    const bool centred = given.boolean();
    const double eps = given.number(), dropout_p = given.number();
    const bool gemma = given.boolean(), round_before_weight = given.boolean(),
               round_residual = given.boolean();
    const int64_t y_columns = given.integer();
    const bool need_statistics = given.boolean();

    one.check(dropout_p);
    if (y_columns < one.columns() || y_columns > INT32_MAX)
        fail(one.where + "y_columns is " + std::to_string(y_columns) +
             "; it needs to be the columns of x or more");
    const Placement placement(one.x.device());
    const std::vector<int64_t> sizes = one.sizes();
    std::vector<int64_t> y_sizes = sizes;
    y_sizes.back() = y_columns;
    const std::span<const int64_t> leading(sizes.data(), sizes.size() - 1);
    Tensor y = placement.empty(y_sizes, one.dtype),
           sum = placement.empty(one.has_sum() ? sizes : none, one.dtype),
           mean = placement.empty(centred && need_statistics ? leading : none, Dtype::float32),
           rstd = placement.empty(need_statistics ? leading : none, Dtype::float32);
    if (one.rows() > 0) {
        norm::check(one.rows(), one.columns());
        one.describe(eps, centred, gemma, round_before_weight, round_residual);
        one.writes_y(y, "y");
        one.writes_sum(sum);
        if (need_statistics) {
            one.arguments.rstd = static_cast<float*>(rstd.data());
            one.writes(rstd, "rstd", Dtype::float32);
        }
        if (need_statistics && centred) {
            one.arguments.mean = static_cast<float*>(mean.data());
            one.writes(mean, "mean", Dtype::float32);
        }
        norm::FusedPair pair{};
        pair.first = one.arguments;
        placement.launch(norm::plan_fused(placement.target(), element_type(one.dtype), pair), one.regions);
    }
    stack[0] = to_result(std::move(y));
    stack[1] = to_result(std::move(sum));
    stack[2] = to_result(std::move(mean));
    stack[3] = to_result(std::move(rstd));
}

norm::Codes shared_by(quantize::Granularity granularity) {
    switch (granularity) {
        case quantize::Granularity::tensor:
            return norm::Codes::tensor;
        case quantize::Granularity::row:
            return norm::Codes::row;
        case quantize::Granularity::group:
        case quantize::Granularity::block:  // rejected earlier
            break;
    }
    return norm::Codes::group;
}

void norm_quantize(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 26 || result_count != 5) fail("norm_quantize is registered with another schema");
    Arguments given(stack, argument_count);
    FusedNorm one("norm_quantize: ", given.tensor());
    one.residual = given.optional_tensor();
    one.parameters.weight = given.optional_tensor();
    one.parameters.bias = given.optional_tensor();
    one.parameters.x_bias = given.optional_tensor();
    one.gate = given.optional_tensor();
    std::optional<Tensor> smooth = given.optional_tensor(), scale = given.optional_tensor();
    std::optional<Tensor> second_x = given.optional_tensor();
    std::optional<Tensor> second_weight = given.optional_tensor();
    const bool centred = given.boolean();
    const double eps = given.number();
    const bool gemma = given.boolean(), round_before_weight = given.boolean(),
               round_residual = given.boolean();
    const double second_eps = given.number();
    const bool need_norm = given.boolean();
    Quantization how(one.where, given);
    if (how.granularity == quantize::Granularity::block) fail(one.where + "a norm has no codes of blocks");

    one.check(0);
    const int64_t columns = one.columns();
    if (how.granularity == quantize::Granularity::tensor && !scale)
        fail(one.where + "the scale of a tensor needs to be given");
    NormParameters of_smooth;
    if (smooth) {
        of_smooth.take("smooth", smooth, one.where, one.x);
        if (of_smooth.dtype != Dtype::float32) fail(one.where + "smooth needs to be float32");
        one.parameters.aligned &= of_smooth.aligned;
    }
    std::optional<FusedNorm> two;
    if (second_x) {
        two.emplace("norm_quantize: second: ", std::move(*second_x));
        two->parameters.weight = std::move(second_weight);
        two->check(0);
        if (two->dtype != one.dtype || !(two->x.device() == one.x.device()) || two->rows() != one.rows())
            fail(one.where + "second needs the dtype, device and rows of x");
    } else if (second_weight) {
        fail(one.where + "there is second_weight and no second");
    }
    const Placement placement(one.x.device());
    const std::vector<int64_t> sizes = one.sizes();
    Quantization::Results made = how.results(placement, sizes, scale, one.x.device());
    Tensor y = placement.empty(need_norm ? sizes : none, one.dtype),
           sum = placement.empty(one.has_sum() ? sizes : none, one.dtype),
           second_y = placement.empty(two ? two->sizes() : none, one.dtype);
    if (one.rows() > 0) {
        norm::check(one.rows(), columns);
        one.describe(eps, centred, gemma, round_before_weight, round_residual);
        one.writes_sum(sum);
        if (need_norm) one.writes_y(y, "y");
        if (smooth) {
            one.arguments.smooth = static_cast<const float*>(smooth->data());
            one.regions.insert(one.regions.end(), of_smooth.regions.begin(), of_smooth.regions.end());
        }
        how.arguments.rows = one.arguments.rows;
        one.arguments.codes = shared_by(how.granularity);
        one.arguments.quantization = quantize::laid_out(how.granularity, how.group, how.arguments);
        how.add_regions(made, scale, one.regions);
        norm::FusedPair pair{};
        pair.first = one.arguments;
        if (two) {
            norm::check(two->rows(), two->columns());
            two->describe(second_eps, centred, gemma, round_before_weight, true);
            two->writes_y(second_y, "second_y");
            pair.second = two->arguments;
            for (runtime::Region& region : two->regions) one.regions.push_back(region);
        }
        placement.launch(norm::plan_fused(placement.target(), element_type(one.dtype), pair), one.regions);
    }
    stack[0] = to_result(std::move(made.codes));
    stack[1] = to_result(std::move(made.scales));
    stack[2] = to_result(std::move(y));
    stack[3] = to_result(std::move(sum));
    stack[4] = to_result(std::move(second_y));
}

const Registration registration{{
    {norm_schema, &norm_forward},
    {norm_quantize_schema, &norm_quantize},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
