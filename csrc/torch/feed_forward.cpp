// torch/feed_forward.cpp: validates the tensors of a linear layer with its activation or gate, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/gemm/plan_activated.h"
#include "torch/element_type.h"
#include "torch/gemm_operand.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

using activation::Activation;

// x (rows, k), weight (n, k), bias (n). activation: 0 silu, 1 gelu_tanh, 2 gelu, 3 relu. sums: the
// pre-activation values, rounded to x's dtype, (rows, n); empty unless they are kept.
constexpr const char* activated_schema =
    "linear_activated(Tensor x, Tensor weight, Tensor? bias, int activation, bool keep_sums, ScalarType "
    "out_dtype) -> (Tensor result, Tensor sums)";
// weight (2 n, k) and bias (2 n): n gates followed by the n partners they multiply, or interleaved.
// activation: also 4 tanh, 5 swiglu; limit below 0: none. sums: each row holds n gates and then n partners.
constexpr const char* gated_schema =
    "linear_gated(Tensor x, Tensor weight, Tensor? bias, int activation, bool interleaved, float alpha, "
    "float limit, bool keep_sums, ScalarType out_dtype) -> (Tensor result, Tensor sums)";

struct Function {
    const char* name;
    bool gated = false, interleaved = false, keeps_sums = false;
    int32_t activation = 0;
    float alpha = 1, limit = 0;
};

[[noreturn]] void refuse(const Function& function, const std::string& text) {
    fail(std::string(function.name) + ": " + text);
}

void check(const Function& function, const Tensor& x, const Tensor& weight,
           const std::optional<Tensor>& bias) {
    const auto sx = x.sizes(), sw = weight.sizes();
    if (sx.size() != 2 || sw.size() != 2 || sx[1] != sw[1])
        refuse(function, "x (rows, k) and weight (n, k) are needed; x is " + shape_text(sx) + ", weight is " +
                             shape_text(sw));
    if (function.gated && sw[0] % 2 != 0)
        refuse(function, "weight needs an even number of rows; it is " + shape_text(sw));
    if (sx[1] == 0) refuse(function, "k is 0");
    const Dtype dtype = x.dtype("linear_activated: x"), other = weight.dtype("linear_activated: weight");
    if (dtype == Dtype::float32 || other != dtype)
        refuse(function, std::string("x is ") + name(dtype) + ", weight is " + name(other) +
                             "; both must be bfloat16, or both float16");
    if (!(x.device() == weight.device())) refuse(function, "x and weight are on different devices");
    if (bias && (bias->dimensions() != 1 || bias->sizes()[0] != sw[0] || !bias->is_contiguous() ||
                 !(bias->device() == x.device())))
        refuse(function, "bias needs to be contiguous, of the shape (" + std::to_string(sw[0]) +
                             "), and on x's device; it is " + shape_text(bias->sizes()));
}

struct Results {
    Tensor result, sums;
};

Results product(const Function& function, Tensor x_tensor, Tensor weight_tensor,
                const std::optional<Tensor>& bias, Dtype out_dtype) {
    check(function, x_tensor, weight_tensor, bias);
    const Dtype dtype = x_tensor.dtype("linear_activated: x");
    const int64_t m = x_tensor.sizes()[0], k = x_tensor.sizes()[1], columns = weight_tensor.sizes()[0],
                  n = columns / (function.gated ? 2 : 1);
    const Placement placement(x_tensor.device());
    const std::vector<int64_t> sizes_of_sums =
        function.keeps_sums ? std::vector<int64_t>{m, columns} : std::vector<int64_t>{0};
    Results results{placement.empty(std::vector<int64_t>{m, n}, out_dtype),
                    placement.empty(sizes_of_sums, dtype)};
    const Tensor &out = results.result, &sums = results.sums;
    if (out.element_count() == 0) return results;
    const Operand x = make_operand(std::move(x_tensor), dtype, false);
    const Operand weight = make_operand(std::move(weight_tensor), dtype, false);

    gemm::ActivatedProblem problem;
    problem.device = placement.shape();
    problem.a_type = problem.b_type = element_type(dtype);
    problem.output = element_type(out_dtype);
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.a = x.matrix;
    problem.b = weight.matrix;
    problem.b.transposed = true;
    problem.c = {out.data(), n, 0, false};
    problem.activation = function.activation;
    problem.alpha = function.alpha;
    problem.limit = function.limit;
    if (function.gated) gemm::set_partners(problem, function.interleaved);
    if (function.keeps_sums) problem.sums = {sums.data(), columns, 0, false};
    std::vector<runtime::Region> regions = {
        {x.tensor.data(), x.tensor.extent_bytes(dtype), "x", false},
        {weight.tensor.data(), weight.tensor.extent_bytes(dtype), "weight", false},
        {out.data(), out.extent_bytes(out_dtype), "out", true},
    };
    if (bias) {
        const Dtype bias_dtype = bias->dtype("linear_activated: bias");
        problem.bias = bias->data();
        problem.bias_type = element_type(bias_dtype);
        regions.push_back({bias->data(), bias->extent_bytes(bias_dtype), "bias", false});
    }
    if (function.keeps_sums) regions.push_back({sums.data(), sums.extent_bytes(dtype), "sums", true});
    for (const Launch& launch : gemm::plan(problem).launches) placement.launch(launch, regions);
    return results;
}

int32_t activation_of(const Function& function, int64_t number, Activation last) {
    if (number < 0 || number > static_cast<int64_t>(last))
        refuse(function, "activation is " + std::to_string(number) + "; 0 .. " +
                             std::to_string(static_cast<int64_t>(last)) + " are allowed");
    return static_cast<int32_t>(number);
}

void put(StableIValue* stack, Results results) {
    stack[0] = to_result(std::move(results.result));
    stack[1] = to_result(std::move(results.sums));
}

void linear_activated(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 || result_count != 2) fail("linear_activated is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor x = arguments.tensor();
    Tensor weight = arguments.tensor();
    const std::optional<Tensor> bias = arguments.optional_tensor();
    Function function{"linear_activated"};
    function.activation = activation_of(function, arguments.integer(), Activation::relu);
    function.keeps_sums = arguments.boolean();
    const Dtype out_dtype = dtype_from_torch(arguments.dtype(), "linear_activated: out_dtype");
    put(stack, product(function, std::move(x), std::move(weight), bias, out_dtype));
}

void linear_gated(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 2) fail("linear_gated is registered with another schema");
    Arguments arguments(stack, argument_count);
    Tensor x = arguments.tensor();
    Tensor weight = arguments.tensor();
    const std::optional<Tensor> bias = arguments.optional_tensor();
    Function function{"linear_gated", true};
    function.activation = activation_of(function, arguments.integer(), Activation::swiglu);
    function.interleaved = arguments.boolean();
    function.alpha = static_cast<float>(arguments.number());
    function.limit = arguments.upper_bound();
    function.keeps_sums = arguments.boolean();
    const Dtype out_dtype = dtype_from_torch(arguments.dtype(), "linear_gated: out_dtype");
    put(stack, product(function, std::move(x), std::move(weight), bias, out_dtype));
}

const Registration registration{{
    {activated_schema, &linear_activated},
    {gated_schema, &linear_gated},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
