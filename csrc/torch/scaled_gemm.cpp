// torch/scaled_gemm.cpp: validates the tensors of a product of quantized operands, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/plan_codes.h"
#include "torch/element_type.h"
#include "torch/gemm_launch.h"
#include "torch/gemm_operand.h"
#include "torch/gemm_scaled_operands.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// Operands: gemm_scaled_operands.h.
constexpr const char* schema =
    "scaled_gemm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, int format_a, int "
    "format_b, int scaling_a, int scaling_b, int scale_layout, int activation, ScalarType out_dtype) -> "
    "Tensor";

// fp8 x fp8 with a result in the target's fp8, as bytes: scale_result, one float32, multiplies values before
// they are quantized.
constexpr const char* schema_of_codes =
    "scaled_gemm_codes(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, Tensor? "
    "scale_result, int scaling_a, int scaling_b, int activation) -> Tensor";

Dtype out_dtype(int32_t number) {
    return number == aoti_torch_dtype_int32() ? Dtype::int32
                                              : dtype_from_torch(number, "scaled_gemm: out_dtype");
}

Tensor product(Arguments& given) {
    ScaledOperands operands(given);
    operands.read_formats(given);
    operands.read_scalings(given);
    const int64_t scale_layout = given.integer();
    operands.read_activation(given);
    const Dtype dtype = out_dtype(given.dtype());
    operands.check();
    if (scale_layout != 0)
        refuse_scaled("scale_layout is " + std::to_string(scale_layout) + "; allowed: 0 (rows)");
    const bool integers = dtype == Dtype::int32, of_b = operands.scales() == gemm::Scales::of_b;
    if (integers && operands.format_a != ElementType::i8) refuse_scaled("only int8 operands have int32 sums");
    const bool a_scaled = operands.scale_a.has_value(), b_scaled = operands.scale_b.has_value();
    if (integers ? a_scaled || b_scaled : (!a_scaled && !of_b) || !b_scaled)
        refuse_scaled(integers ? "int32 sums have no scales" : "both operands need a scale");

    const Placement placement(operands.a.device());
    Tensor out = placement.empty(std::vector<int64_t>{operands.m, operands.n}, dtype);
    if (out.element_count() == 0) return out;
    // Other kernels have a variant for any number of rows.
    if (operands.of_matrix_steps() || is_6_bits(operands.format_a) ||
        operands.scales() == gemm::Scales::row_blocks)
        operands.begin_on_dwords();
    gemm::Problem problem;
    problem.device = placement.shape();
    problem.output = integers ? ElementType::i32 : element_type(dtype);
    problem.c = {out.data(), operands.n, 0, false};
    std::vector<runtime::Region> regions = {{out.data(), out.extent_bytes(dtype), "out", true}};
    operands.set(problem, regions);
    check_has_kernel(gemm::gemm_variants(), problem, "these formats and scalings");
    launch_product(placement, problem, regions);
    return out;
}

void scaled_gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 12 || result_count != 1) fail("scaled_gemm is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(product(given));
}

Tensor product_in_codes(Arguments& given) {
    ScaledOperands operands(given);
    const std::optional<Tensor> scale_result = given.optional_tensor();
    operands.read_scalings(given);
    operands.read_activation(given);
    operands.check({scale_result ? &*scale_result : nullptr});
    if (!operands.scale_a || !operands.scale_b) refuse_scaled("both operands need a scale");
    if (scale_result &&
        (scale_result->dtype_number() != aoti_torch_dtype_float32() || scale_result->element_count() != 1))
        refuse_scaled("scale_result needs one float32 element; its shape is " +
                      shape_text(scale_result->sizes()));

    const Placement placement(operands.a.device());
    Tensor out = placement.empty(std::vector<int64_t>{operands.m, operands.n}, Dtype::uint8);
    if (out.element_count() == 0) return out;
    operands.begin_on_dwords();
    gemm::CodesProblem problem;
    problem.device = placement.shape();
    problem.output = ElementType::fp8;
    problem.c = {out.data(), operands.n, 0, false};
    std::vector<runtime::Region> regions = {{out.data(), out.extent_bytes(Dtype::uint8), "out", true}};
    operands.set(problem, regions);
    if (scale_result) {
        problem.c_scale = static_cast<const float*>(scale_result->data());
        regions.push_back(
            {scale_result->data(), scale_result->extent_bytes(Dtype::float32), "scale_result", false});
    }
    for (const Launch& launch : gemm::plan(problem).launches) placement.launch(launch, regions);
    return out;
}

void scaled_gemm_codes(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 1) fail("scaled_gemm_codes is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(product_in_codes(given));
}

const Registration registration{{
    {schema, &scaled_gemm},
    {schema_of_codes, &scaled_gemm_codes},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
