// torch/scaled_gemm.cpp: validates the tensors of a product of quantized operands, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/plan_codes.h"
#include "torch/element_type.h"
#include "torch/gemm_codes.h"
#include "torch/gemm_launch.h"
#include "torch/gemm_operand.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// a (M, K) and b (N, K) are bytes of quantized values, in the formats of kernels/element_type.h; b may be
// preshuffled into panels (gemm_operand.h). Numbers of formats, scalings and activations:
// hipkittens/scaled_gemm.py.
constexpr const char* schema =
    "scaled_gemm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, int format_a, int "
    "format_b, int scaling_a, int scaling_b, int scale_layout, int activation, ScalarType out_dtype) -> "
    "Tensor";

// fp8 x fp8 with a result in the target's fp8, as bytes: scale_result, one float32, multiplies values before
// they are quantized.
constexpr const char* schema_of_codes =
    "scaled_gemm_codes(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? "
    "scale_result, int "
    "scaling_a, int scaling_b, int activation) -> Tensor";

constexpr const char* operation = "scaled_gemm";

// Size limit of an operand of 6-bit values: the reach of a buffer instruction, less what the compiler adds to
// offsets.
constexpr int64_t most_six_bit_bytes = int64_t{4095} << 20;

[[noreturn]] void refuse(const std::string& text) { fail(std::string(operation) + ": " + text); }

bool has_kernel(const gemm::Problem& problem) {
    for (const gemm::GemmVariant& variant : gemm::gemm_variants())
        if (includes(variant.targets, problem.device.target) && variant.config.a == problem.a_type &&
            variant.config.b == problem.b_type && variant.config.scales == problem.scales)
            return true;
    return false;
}

Dtype out_dtype(int32_t number) {
    return number == aoti_torch_dtype_int32() ? Dtype::int32
                                              : dtype_from_torch(number, "scaled_gemm: out_dtype");
}

// Returns rows of unit stride that do not overlap, copying if needed.
Tensor operand(const char* name, Tensor tensor) {
    if (tensor.dimensions() != 2 || tensor.dtype_number() != aoti_torch_dtype_uint8())
        refuse(std::string(name) + " needs two dimensions and dtype uint8; its shape is " +
               shape_text(tensor.sizes()));
    return make_operand(std::move(tensor), Dtype::uint8, false).tensor;
}

// B as its kernels read it: n rows of quantized values, or panels of them.
struct Weights {
    Tensor tensor;
    int64_t n, row_bytes;
    int panel_rows;

    bool in_panels() const { return panel_rows != 0; }
};
Weights weights(Tensor b) {
    if (b.dtype_number() == aoti_torch_dtype_uint8())
        if (const auto panels = panels_of(operation, b, 0, 1))
            return {std::move(b), panels->rows, panels->row_elements, panels->panel_rows};
    Tensor rows = operand("b", std::move(b));
    const int64_t n = rows.sizes()[0], bytes = rows.sizes()[1];
    return {std::move(rows), n, bytes, 0};
}

// The scale of each row of an operand, or a single one.
gemm::ScaleArgument outer_scale(const char* name, const Tensor& scale, int64_t scaling, int64_t rows) {
    if (scaling != tensor_wise && scaling != row_wise)
        refuse(std::string("no kernel has scaling ") + std::to_string(scaling) + " of " + name +
               "; allowed: 0 (tensor), 1 (row), 3 (1x32), 4 (1x128), 5 (128x128)");
    if (scale.dtype_number() != aoti_torch_dtype_float32() || !scale.is_contiguous() ||
        scale.element_count() != (scaling == row_wise ? rows : 1))
        refuse(std::string(name) + " needs " + std::to_string(scaling == row_wise ? rows : 1) +
               " contiguous float32 elements; its shape is " + shape_text(scale.sizes()));
    return {scale.data(), scaling == row_wise ? 1 : 0, 0, 0, 1};
}

// Scales of blocks of 128 of K, for one row of an operand or for 128 rows.
gemm::ScaleArgument block_scale(const char* name, const Tensor& scale, int64_t scaling, int64_t rows,
                                int64_t k) {
    const int64_t block_rows = scaling == block_wise ? 128 : 1;
    const std::vector<int64_t> wanted = {(rows + block_rows - 1) / block_rows, (k + 127) / 128};
    const auto sizes = scale.sizes(), strides = scale.strides();
    if (scale.dtype_number() != aoti_torch_dtype_float32() || sizes.size() != 2 || sizes[0] != wanted[0] ||
        sizes[1] != wanted[1])
        refuse(std::string(name) + " needs dtype float32 and the shape " + shape_text(wanted) +
               "; its shape is " + shape_text(sizes));
    if (strides[0] < 0 || strides[1] < 0) refuse(std::string(name) + " has a negative stride");
    return {scale.data(), sizes[0] == 1 ? 0 : strides[0], sizes[1] == 1 ? 0 : strides[1], 0, block_rows};
}

// e8m0 factors, one per 32 of K, in blocks of 32 rows by 8 factors (kernels/gemm/step_scales.h). There may be
// more rows.
gemm::ScaleArgument mx_scale(const char* name, const Tensor& scale, int64_t rows, int64_t k) {
    const int64_t band = mx_band_bytes(k);
    check_mx_scale(operation, name, scale, (rows + 31) / 32 * band);
    return {scale.data(), band, 0, 0, 32};
}

// The parts of all rows are concatenated in one buffer (tiles/shared_tile_of_6_bits.h).
void check_order_of_6_bits(const char* name, const Tensor& codes) {
    if (!codes.is_contiguous() || codes.element_count() > most_six_bit_bytes)
        refuse(std::string(name) + " has to be contiguous, of at most " + std::to_string(most_six_bit_bytes) +
               " bytes; its shape is " + shape_text(codes.sizes()) + ", its strides are " +
               shape_text(codes.strides()));
}

void add_bias(gemm::Problem& problem, std::optional<Tensor>& bias, std::vector<runtime::Region>& regions) {
    if (!bias) return;
    const Dtype dtype = bias->dtype("scaled_gemm: bias");
    if (bias->dimensions() != 1 || bias->sizes()[0] != problem.n)
        refuse("bias needs the shape (" + std::to_string(problem.n) + "); it is " +
               shape_text(bias->sizes()));
    if (!bias->is_contiguous()) bias = contiguous_copy(std::move(*bias), dtype);
    problem.bias = bias->data();
    problem.bias_type = element_type(dtype);
    regions.push_back({bias->data(), bias->extent_bytes(dtype), "bias", false});
}

Tensor product(Arguments& given) {
    Tensor a = operand("a", given.tensor());
    Weights weight = weights(given.tensor());
    Tensor& b = weight.tensor;
    const std::optional<Tensor> scale_a = given.optional_tensor(), scale_b = given.optional_tensor();
    std::optional<Tensor> bias = given.optional_tensor();
    gemm::Problem problem;
    problem.a_type = code_format(operation, "format_a", given.integer());
    problem.b_type = code_format(operation, "format_b", given.integer());
    const int64_t scaling_a = given.integer(), scaling_b = given.integer(), scale_layout = given.integer();
    const int64_t activation = given.integer();
    const Dtype dtype = out_dtype(given.dtype());

    const int64_t m = a.sizes()[0], n = weight.n, k = codes_in(operation, "a", problem.a_type, a.sizes()[1]);
    if (codes_in(operation, "b", problem.b_type, weight.row_bytes) != k)
        refuse("rows of a and b differ in length; a is " + shape_text(a.sizes()) + ", b is " +
               shape_text(b.sizes()));
    if (scale_layout != 0) refuse("scale_layout is " + std::to_string(scale_layout) + "; allowed: 0 (rows)");
    if (activation < gemm::no_activation || activation > static_cast<int64_t>(activation::Activation::relu))
        refuse("activation is " + std::to_string(activation) + "; allowed: -1 (none), 0 .. 3");
    if ((problem.a_type == ElementType::i8) != (problem.b_type == ElementType::i8))
        refuse("one operand is int8 and the other is not");
    const bool integers = dtype == Dtype::int32;
    if (integers && problem.a_type != ElementType::i8) refuse("only int8 operands have int32 sums");
    const bool mx = scaling_b == mx_wise, of_b = mx && scaling_a != mx_wise;
    if (integers ? scale_a || scale_b : (!scale_a && !of_b) || !scale_b)
        refuse(integers ? "int32 sums have no scales" : "both operands need a scale");
    for (const auto* each : {&scale_a, &scale_b, static_cast<const std::optional<Tensor>*>(&bias)})
        if (*each && !((*each)->device() == a.device())) refuse("tensors are on different devices");
    if (!(b.device() == a.device())) refuse("tensors are on different devices");

    const Placement placement(a.device());
    Tensor out = placement.empty(std::vector<int64_t>{m, n}, dtype);
    if (out.element_count() == 0) return out;
    problem.device = placement.shape();
    if (scaling_a == mx_wise && !mx) refuse("a has scales of 32 of K and b has not");
    if (mx && k % 32 != 0) refuse("K is " + std::to_string(k) + ", no multiple of 32");
    const bool blocks = is_block_wise(scaling_a) || is_block_wise(scaling_b);
    if (blocks) {
        if (!is_block_wise(scaling_a) || !is_block_wise(scaling_b))
            refuse("one operand has scales of blocks and the other has not");
    }
    // Other kernels have a variant for any number of rows.
    if (mx || is_6_bits(problem.a_type) ||
        (blocks && (scaling_a != row_block_wise || scaling_b != block_wise))) {
        a = make_operand_on_dwords(std::move(a), Dtype::uint8, false).tensor;
        if (!weight.in_panels()) b = make_operand_on_dwords(std::move(b), Dtype::uint8, false).tensor;
    }
    problem.scales = of_b                                                     ? gemm::Scales::of_b
                     : mx                                                     ? gemm::Scales::in_matrix
                     : !blocks                                                ? gemm::Scales::outer
                     : scaling_a == row_block_wise && scaling_b == block_wise ? gemm::Scales::blocks
                                                                              : gemm::Scales::row_blocks;
    problem.output = integers ? ElementType::i32 : element_type(dtype);
    problem.m = m, problem.n = n, problem.k = k;
    if (!has_kernel(problem))
        refuse("gfx" + std::to_string(problem.device.target) +
               " has no kernel for these formats and scalings");
    const auto rows_of = [](const char* name, const Tensor& tensor, ElementType type) -> gemm::Matrix {
        if (is_6_bits(type)) check_order_of_6_bits(name, tensor);
        const int64_t bytes = tensor.strides()[0], size = size_of(type);
        if (bytes % size != 0 && tensor.sizes()[0] > 1)
            refuse("rows are " + std::to_string(bytes) + " bytes apart, no multiple of " +
                   std::to_string(size));
        return {tensor.data(), bytes / size, 0, false};
    };
    problem.a = rows_of("a", a, problem.a_type);
    if (weight.in_panels()) {
        problem.b = {b.data(), weight.row_bytes / size_of(problem.b_type), 0};
        problem.b.panel_rows = weight.panel_rows;
    } else {
        problem.b = rows_of("b", b, problem.b_type);
    }
    problem.b.transposed = true;
    problem.c = {out.data(), n, 0, false};
    problem.activation = static_cast<int32_t>(activation);
    std::vector<runtime::Region> regions = {
        {a.data(), a.extent_bytes(Dtype::uint8), "a", false},
        {b.data(), b.extent_bytes(Dtype::uint8), "b", false},
        {out.data(), out.extent_bytes(dtype), "out", true},
    };
    if (scale_b) {
        const auto scale = [&](const char* name, const Tensor& tensor, int64_t scaling, int64_t rows) {
            const bool of_groups = scaling == mx_wise;
            const Dtype of_scale = of_groups ? Dtype::uint8 : Dtype::float32;
            const gemm::ScaleArgument argument = of_groups ? mx_scale(name, tensor, rows, k)
                                                 : blocks  ? block_scale(name, tensor, scaling, rows, k)
                                                           : outer_scale(name, tensor, scaling, rows);
            regions.push_back({tensor.data(), tensor.extent_bytes(of_scale), name, false});
            return argument;
        };
        if (scale_a) problem.a_scale = scale("scale_a", *scale_a, scaling_a, m);
        problem.b_scale = scale("scale_b", *scale_b, scaling_b, n);
    }
    add_bias(problem, bias, regions);
    launch_product(placement, problem, regions);
    return out;
}

void scaled_gemm(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 12 || result_count != 1) fail("scaled_gemm is registered with another schema");
    Arguments given(stack, argument_count);
    stack[0] = to_result(product(given));
}

Tensor product_in_codes(Arguments& given) {
    const Tensor a = make_operand_on_dwords(operand("a", given.tensor()), Dtype::uint8, false).tensor;
    Weights weight = weights(given.tensor());
    if (!weight.in_panels()) weight.tensor = make_operand_on_dwords(std::move(weight.tensor), Dtype::uint8, false).tensor;
    const Tensor& b = weight.tensor;
    const Tensor scale_a = given.tensor(), scale_b = given.tensor();
    std::optional<Tensor> bias = given.optional_tensor();
    const std::optional<Tensor> scale_result = given.optional_tensor();
    const int64_t scaling_a = given.integer(), scaling_b = given.integer(), activation = given.integer();

    gemm::CodesProblem problem;
    problem.m = a.sizes()[0], problem.n = weight.n, problem.k = a.sizes()[1];
    if (weight.row_bytes != problem.k)
        refuse("rows of a and b differ in length; a is " + shape_text(a.sizes()) + ", b is " +
               shape_text(b.sizes()));
    if (activation < gemm::no_activation || activation > static_cast<int64_t>(activation::Activation::relu))
        refuse("activation is " + std::to_string(activation) + "; allowed: -1 (none), 0 .. 3");
    if (scale_result &&
        (scale_result->dtype_number() != aoti_torch_dtype_float32() || scale_result->element_count() != 1))
        refuse("scale_result needs one float32 element; its shape is " + shape_text(scale_result->sizes()));
    const Tensor* const others[] = {&b, &scale_a, &scale_b, bias ? &*bias : nullptr,
                                    scale_result ? &*scale_result : nullptr};
    for (const Tensor* each : others)
        if (each && !(each->device() == a.device())) refuse("tensors are on different devices");

    const Placement placement(a.device());
    Tensor out = placement.empty(std::vector<int64_t>{problem.m, problem.n}, Dtype::uint8);
    if (out.element_count() == 0) return out;
    problem.device = placement.shape();
    problem.a_type = problem.b_type = problem.output = ElementType::fp8;
    problem.scales = gemm::Scales::outer;
    problem.a = {a.data(), a.strides()[0], 0, false};
    problem.b = {b.data(), weight.in_panels() ? problem.k : b.strides()[0], 0, true, weight.panel_rows};
    problem.c = {out.data(), problem.n, 0, false};
    problem.a_scale = outer_scale("scale_a", scale_a, scaling_a, problem.m);
    problem.b_scale = outer_scale("scale_b", scale_b, scaling_b, problem.n);
    problem.activation = static_cast<int32_t>(activation);
    std::vector<runtime::Region> regions = {
        {a.data(), a.extent_bytes(Dtype::uint8), "a", false},
        {b.data(), b.extent_bytes(Dtype::uint8), "b", false},
        {scale_a.data(), scale_a.extent_bytes(Dtype::float32), "scale_a", false},
        {scale_b.data(), scale_b.extent_bytes(Dtype::float32), "scale_b", false},
        {out.data(), out.extent_bytes(Dtype::uint8), "out", true},
    };
    if (scale_result) {
        problem.c_scale = static_cast<const float*>(scale_result->data());
        regions.push_back(
            {scale_result->data(), scale_result->extent_bytes(Dtype::float32), "scale_result", false});
    }
    add_bias(problem, bias, regions);
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
