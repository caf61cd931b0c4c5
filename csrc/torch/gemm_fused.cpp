// torch/gemm_fused.cpp: products of quantized operands together with what follows them in the same launch.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/plan_fused.h"
#include "torch/element_type.h"
#include "torch/gemm_operand.h"
#include "torch/gemm_scaled_operands.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// result * factor + addend, or factor * addend + result if `adds_result`. Terms have two dimensions, each of
// M or N elements or of one; without a tensor, a term is its number.
constexpr const char* schema_of_multiply_add =
    "scaled_gemm_multiply_add(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, "
    "Tensor? factor, Tensor? addend, float factor_number, float addend_number, bool adds_result, "
    "int format_a, int format_b, int scaling_a, int scaling_b, int activation, ScalarType out_dtype) -> "
    "Tensor";

// The result as (M, heads, first + second): its first part before `joined` (M, heads, features), and its
// second part.
constexpr const char* schema_of_concat_heads =
    "scaled_gemm_concat_heads(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, "
    "Tensor joined, int first, int second, int format_a, int format_b, int scaling_a, int scaling_b, "
    "ScalarType out_dtype) -> (Tensor, Tensor)";

void launch(const Placement& placement, gemm::FusedProblem& problem, ScaledOperands& operands,
            std::vector<runtime::Region>& regions) {
    if (!operands.scale_a || !operands.scale_b) refuse_scaled("both operands need a scale");
    operands.begin_on_dwords();
    problem.device = placement.shape();
    operands.set(problem, regions);
    check_has_kernel(gemm::fused_variants(), problem,
                     "these formats and scalings with what follows the product");
    for (const Launch& launch : gemm::plan(problem).launches) placement.launch(launch, regions);
}

// A term as kernels read it; copied if its columns are neither side by side nor the same element.
gemm::TermArgument term(const char* name, std::optional<Tensor>& tensor, double number, int64_t m, int64_t n,
                        std::vector<runtime::Region>& regions) {
    if (!tensor) return {nullptr, 0, 0, ElementType::f32, 0, static_cast<float>(number)};
    const Dtype dtype = tensor->dtype(std::string("scaled_gemm_multiply_add: ") + name);
    const std::vector<int64_t> sizes(tensor->sizes().begin(), tensor->sizes().end());
    if (sizes.size() != 2 || (sizes[0] != m && sizes[0] != 1) || (sizes[1] != n && sizes[1] != 1))
        refuse_scaled(std::string(name) + " needs the shape " + shape_text(std::vector<int64_t>{m, n}) +
                      ", where either may be 1; it is " + shape_text(sizes));
    const auto stride = [&](int dimension) {
        return sizes[dimension] == 1 ? 0 : tensor->strides()[dimension];
    };
    if (stride(0) < 0 || stride(1) < 0 || stride(1) > 1) tensor = contiguous_copy(std::move(*tensor), dtype);
    regions.push_back({tensor->data(), tensor->extent_bytes(dtype), name, false});
    return {tensor->data(), stride(0), static_cast<int32_t>(stride(1)), element_type(dtype), 0, 0};
}

Tensor multiply_add(Arguments& given) {
    ScaledOperands operands(given);
    std::optional<Tensor> factor = given.optional_tensor(), addend = given.optional_tensor();
    const double factor_number = given.number(), addend_number = given.number();
    const bool adds_result = given.boolean();
    operands.read_formats(given);
    operands.read_scalings(given);
    operands.read_activation(given);
    const Dtype dtype = dtype_from_torch(given.dtype(), "scaled_gemm_multiply_add: out_dtype");
    operands.check({factor ? &*factor : nullptr, addend ? &*addend : nullptr});

    const Placement placement(operands.a.device());
    Tensor out = placement.empty(std::vector<int64_t>{operands.m, operands.n}, dtype);
    if (out.element_count() == 0) return out;
    std::vector<runtime::Region> regions = {{out.data(), out.extent_bytes(dtype), "out", true}};
    gemm::FusedProblem problem;
    problem.output = element_type(dtype);
    problem.c = {out.data(), operands.n, 0, false};
    problem.multiplies = adds_result ? gemm::Multiplies::addend : gemm::Multiplies::result;
    problem.factor = term("factor", factor, factor_number, operands.m, operands.n, regions);
    problem.addend = term("addend", addend, addend_number, operands.m, operands.n, regions);
    launch(placement, problem, operands, regions);
    return out;
}

std::pair<Tensor, Tensor> concat_heads(Arguments& given) {
    ScaledOperands operands(given);
    Tensor joined = given.tensor();
    const int64_t first = given.integer(), second = given.integer();
    operands.read_formats(given);
    operands.read_scalings(given);
    const Dtype dtype = dtype_from_torch(given.dtype(), "scaled_gemm_concat_heads: out_dtype");
    operands.check({&joined});
    if (joined.dtype("scaled_gemm_concat_heads: joined") != dtype)
        refuse_scaled("joined needs the dtype of the result");
    const std::vector<int64_t> sizes(joined.sizes().begin(), joined.sizes().end());
    if (sizes.size() != 3 || sizes[0] != operands.m || first < 0 || second < 0 ||
        sizes[1] * (first + second) != operands.n)
        refuse_scaled("joined has the shape " + shape_text(sizes) + "; it needs " +
                      std::to_string(operands.m) + " rows, and as many heads as there are of " +
                      std::to_string(first) + " + " + std::to_string(second) + " columns in " +
                      std::to_string(operands.n));
    const auto strides = joined.strides();
    if (strides[0] < 0 || strides[1] < 0 || (strides[2] != 1 && sizes[2] > 1))
        joined = contiguous_copy(std::move(joined), dtype);

    const Placement placement(operands.a.device());
    Tensor keys = placement.empty(std::vector<int64_t>{sizes[0], sizes[1], first + sizes[2]}, dtype),
           rest = placement.empty(std::vector<int64_t>{sizes[0], sizes[1], second}, dtype);
    if (operands.m == 0 || operands.n == 0) return {std::move(keys), std::move(rest)};
    std::vector<runtime::Region> regions = {{keys.data(), keys.extent_bytes(dtype), "first result", true},
                                            {rest.data(), rest.extent_bytes(dtype), "second result", true},
                                            {joined.data(), joined.extent_bytes(dtype), "joined", false}};
    std::erase_if(regions, [](const runtime::Region& region) { return region.bytes == 0; });
    gemm::FusedProblem problem;
    problem.output = element_type(dtype);
    problem.c = {keys.data() ? keys.data() : rest.data(), operands.n, 0, false};
    problem.heads = {first + second,      first,      sizes[2], joined.data(), joined.strides()[0],
                     joined.strides()[1], rest.data()};
    launch(placement, problem, operands, regions);
    return {std::move(keys), std::move(rest)};
}

void scaled_gemm_multiply_add(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 16 || result_count != 1)
        fail("scaled_gemm_multiply_add is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(multiply_add(given));
}

void scaled_gemm_concat_heads(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 13 || result_count != 2)
        fail("scaled_gemm_concat_heads is registered with another schema");
    Arguments given(stack, argument_count);
    auto [keys, rest] = concat_heads(given);
    stack[0] = to_result(std::move(keys));
    stack[1] = to_result(std::move(rest));
}

const Registration registration{{
    {schema_of_multiply_add, &scaled_gemm_multiply_add},
    {schema_of_concat_heads, &scaled_gemm_concat_heads},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
