// torch/scaled_gemm.cpp: checks the tensors of a product of quantised operands, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "torch/element_type.h"
#include "torch/gemm_launch.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// a (M, K) and b (N, K) are bytes of codes. Numbers of formats, scalings and activations: hipkittens/scaled_gemm.py.
constexpr const char* schema =
    "scaled_gemm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, int format_a, int "
    "format_b, int scaling_a, int scaling_b, int scale_layout, int activation, ScalarType out_dtype) -> "
    "Tensor";

[[noreturn]] void refuse(const std::string& text) { fail("scaled_gemm: " + text); }

ElementType format(const char* name, int64_t number) {
    constexpr ElementType formats[] = {ElementType::fp8, ElementType::bf8, ElementType::i8};
    if (number < 0 || number >= static_cast<int64_t>(std::size(formats)))
        refuse(std::string(name) + " is " + std::to_string(number) + "; allowed: 0 (fp8), 1 (bf8), 2 (int8)");
    return formats[number];
}

Dtype out_dtype(int32_t number) {
    return number == aoti_torch_dtype_int32() ? Dtype::int32
                                              : dtype_from_torch(number, "scaled_gemm: out_dtype");
}

Tensor contiguous(Tensor tensor, Dtype dtype) {
    Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
    copy.copy_from(tensor);
    return copy;
}

// Rows of unit stride that do not overlap, or a copy that has them.
Tensor operand(const char* name, Tensor tensor) {
    if (tensor.dimensions() != 2 || tensor.dtype_number() != aoti_torch_dtype_uint8())
        refuse(std::string(name) + " needs two dimensions and dtype uint8; its shape is " +
               shape_text(tensor.sizes()));
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const bool rows = (sizes[1] == 1 || strides[1] == 1) && (sizes[0] == 1 || strides[0] >= sizes[1]);
    return rows ? std::move(tensor) : contiguous(std::move(tensor), Dtype::uint8);
}

enum Scaling : int64_t { tensor_wise = 0, row_wise = 1 };

// Factors of the rows of an operand, or its one.
gemm::ScaleArgument outer_scale(const char* name, const Tensor& scale, int64_t scaling, int64_t rows) {
    if (scaling != tensor_wise && scaling != row_wise)
        refuse(std::string("no kernel has scaling ") + std::to_string(scaling) + " of " + name +
               "; allowed: 0 (tensor), 1 (row)");
    if (scale.dtype_number() != aoti_torch_dtype_float32() || !scale.is_contiguous() ||
        scale.element_count() != (scaling == row_wise ? rows : 1))
        refuse(std::string(name) + " needs " + std::to_string(scaling == row_wise ? rows : 1) +
               " contiguous float32 elements; its shape is " + shape_text(scale.sizes()));
    return {scale.data(), scaling == row_wise ? 1 : 0, 0, 0};
}

Tensor product(Arguments& given) {
    Tensor a = operand("a", given.tensor()), b = operand("b", given.tensor());
    const std::optional<Tensor> scale_a = given.optional_tensor(), scale_b = given.optional_tensor();
    std::optional<Tensor> bias = given.optional_tensor();
    gemm::Problem problem;
    problem.a_type = format("format_a", given.integer());
    problem.b_type = format("format_b", given.integer());
    const int64_t scaling_a = given.integer(), scaling_b = given.integer(), scale_layout = given.integer();
    const int64_t activation = given.integer();
    const Dtype dtype = out_dtype(given.dtype());

    const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[0];
    if (b.sizes()[1] != k)
        refuse("rows of a and b differ in length; a is " + shape_text(a.sizes()) + ", b is " +
               shape_text(b.sizes()));
    if (scale_layout != 0) refuse("scale_layout is " + std::to_string(scale_layout) + "; allowed: 0 (rows)");
    if (activation < gemm::no_activation || activation > static_cast<int64_t>(activation::Activation::relu))
        refuse("activation is " + std::to_string(activation) + "; allowed: -1 (none), 0 .. 3");
    if ((problem.a_type == ElementType::i8) != (problem.b_type == ElementType::i8))
        refuse("one operand is int8 and the other is not");
    const bool integers = dtype == Dtype::int32;
    if (integers && problem.a_type != ElementType::i8) refuse("only int8 operands have int32 sums");
    if (integers ? scale_a || scale_b : !scale_a || !scale_b)
        refuse(integers ? "int32 sums have no scales" : "both operands need a scale");
    for (const auto* each : {&scale_a, &scale_b, static_cast<const std::optional<Tensor>*>(&bias)})
        if (*each && !((*each)->device() == a.device())) refuse("tensors are on different devices");
    if (!(b.device() == a.device())) refuse("tensors are on different devices");

    const Placement placement(a.device());
    Tensor out = placement.empty(std::vector<int64_t>{m, n}, dtype);
    if (out.element_count() == 0) return out;
    problem.device = placement.shape();
    problem.scales = gemm::Scales::outer;
    problem.output = integers ? ElementType::i32 : element_type(dtype);
    problem.m = m, problem.n = n, problem.k = k;
    problem.a = {a.data(), a.strides()[0], 0, false};
    problem.b = {b.data(), b.strides()[0], 0, true};
    problem.c = {out.data(), n, 0, false};
    problem.activation = static_cast<int32_t>(activation);
    std::vector<runtime::Region> regions = {
        {a.data(), a.extent_bytes(Dtype::uint8), "a", false},
        {b.data(), b.extent_bytes(Dtype::uint8), "b", false},
        {out.data(), out.extent_bytes(dtype), "out", true},
    };
    if (scale_a) {
        problem.a_scale = outer_scale("scale_a", *scale_a, scaling_a, m);
        problem.b_scale = outer_scale("scale_b", *scale_b, scaling_b, n);
        regions.push_back({scale_a->data(), scale_a->extent_bytes(Dtype::float32), "scale_a", false});
        regions.push_back({scale_b->data(), scale_b->extent_bytes(Dtype::float32), "scale_b", false});
    }
    if (bias) {
        const Dtype bias_dtype = bias->dtype("scaled_gemm: bias");
        if (bias->dimensions() != 1 || bias->sizes()[0] != n)
            refuse("bias needs the shape (" + std::to_string(n) + "); it is " + shape_text(bias->sizes()));
        if (!bias->is_contiguous()) bias = contiguous(std::move(*bias), bias_dtype);
        problem.bias = bias->data();
        problem.bias_type = element_type(bias_dtype);
        regions.push_back({bias->data(), bias->extent_bytes(bias_dtype), "bias", false});
    }
    launch_product(placement, problem, regions);
    return out;
}

void scaled_gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 12 || result_count != 1) fail("scaled_gemm is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(product(given));
}

const Registration registration{{
    {schema, &scaled_gemm},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
