// torch/gemm_scaled_operands.cpp: validates the operands, scales and bias of a product of quantized values.
// SPDX-License-Identifier: MIT
#include "torch/gemm_scaled_operands.h"

#include "torch/element_type.h"
#include "torch/gemm_operand.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

constexpr const char* operation = "scaled_gemm";

// Size limit of an operand of 6-bit values: the reach of a buffer instruction, less what the compiler adds to
// offsets.
constexpr int64_t most_six_bit_bytes = int64_t{4095} << 20;

[[noreturn]] void refuse(const std::string& text) { refuse_scaled(text); }

// Returns rows of unit stride that do not overlap, copying if needed.
Tensor operand(const char* name, Tensor tensor) {
    if (tensor.dimensions() != 2 || tensor.dtype_number() != aoti_torch_dtype_uint8())
        refuse(std::string(name) + " needs two dimensions and dtype uint8; its shape is " +
               shape_text(tensor.sizes()));
    return make_operand(std::move(tensor), Dtype::uint8, false).tensor;
}

ScaledOperands::Weights weights(Tensor b) {
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

}  // namespace

void refuse_scaled(const std::string& text) { fail(std::string(operation) + ": " + text); }

void check_has_kernel(std::span<const gemm::GemmVariant> variants, const gemm::Problem& problem,
                      const char* what) {
    for (const gemm::GemmVariant& variant : variants)
        if (includes(variant.targets, problem.device.target) && variant.config.a == problem.a_type &&
            variant.config.b == problem.b_type && variant.config.scales == problem.scales)
            return;
    refuse("gfx" + std::to_string(problem.device.target) + " has no kernel for " + what);
}

ScaledOperands::ScaledOperands(Arguments& given)
    : a(operand("a", given.tensor())),
      b(weights(given.tensor())),
      scale_a(given.optional_tensor()),
      scale_b(given.optional_tensor()),
      bias(given.optional_tensor()) {}

void ScaledOperands::read_formats(Arguments& given) {
    format_a = code_format(operation, "format_a", given.integer());
    format_b = code_format(operation, "format_b", given.integer());
}

void ScaledOperands::read_scalings(Arguments& given) {
    scaling_a = given.integer();
    scaling_b = given.integer();
}

void ScaledOperands::read_activation(Arguments& given) { activation = given.integer(); }

void ScaledOperands::check(std::initializer_list<const Tensor*> others) {
    m = a.sizes()[0], n = b.n, k = codes_in(operation, "a", format_a, a.sizes()[1]);
    if (codes_in(operation, "b", format_b, b.row_bytes) != k)
        refuse("rows of a and b differ in length; a is " + shape_text(a.sizes()) + ", b is " +
               shape_text(b.tensor.sizes()));
    if (activation < gemm::no_activation || activation > static_cast<int64_t>(activation::Activation::relu))
        refuse("activation is " + std::to_string(activation) + "; allowed: -1 (none), 0 .. 3");
    if ((format_a == ElementType::i8) != (format_b == ElementType::i8))
        refuse("one operand is int8 and the other is not");
    const auto check_device = [&](const Tensor* tensor) {
        if (tensor && !(tensor->device() == a.device())) refuse("tensors are on different devices");
    };
    check_device(&b.tensor);
    for (const auto* each : {&scale_a, &scale_b, &bias}) check_device(*each ? &**each : nullptr);
    for (const Tensor* each : others) check_device(each);
    if (scaling_a == mx_wise && !of_matrix_steps()) refuse("a has scales of 32 of K and b has not");
    if (of_matrix_steps() && k % 32 != 0) refuse("K is " + std::to_string(k) + ", no multiple of 32");
    if (in_blocks() && (!is_block_wise(scaling_a) || !is_block_wise(scaling_b)))
        refuse("one operand has scales of blocks and the other has not");
}

gemm::Scales ScaledOperands::scales() const {
    if (of_matrix_steps()) return scaling_a == mx_wise ? gemm::Scales::in_matrix : gemm::Scales::of_b;
    if (!in_blocks()) return gemm::Scales::outer;
    return scaling_a == row_block_wise && scaling_b == block_wise ? gemm::Scales::blocks
                                                                  : gemm::Scales::row_blocks;
}

void ScaledOperands::begin_on_dwords() {
    a = make_operand_on_dwords(std::move(a), Dtype::uint8, false).tensor;
    if (!b.in_panels()) b.tensor = make_operand_on_dwords(std::move(b.tensor), Dtype::uint8, false).tensor;
}

void ScaledOperands::set(gemm::Problem& problem, std::vector<runtime::Region>& regions) {
    problem.a_type = format_a;
    problem.b_type = format_b;
    problem.scales = scales();
    problem.m = m, problem.n = n, problem.k = k;
    const auto rows_of = [](const char* name, const Tensor& tensor, ElementType type) -> gemm::Matrix {
        if (is_6_bits(type)) check_order_of_6_bits(name, tensor);
        const int64_t bytes = tensor.strides()[0], size = size_of(type);
        if (bytes % size != 0 && tensor.sizes()[0] > 1)
            refuse("rows are " + std::to_string(bytes) + " bytes apart, no multiple of " +
                   std::to_string(size));
        return {tensor.data(), bytes / size, 0, false};
    };
    problem.a = rows_of("a", a, format_a);
    if (b.in_panels()) {
        problem.b = {b.tensor.data(), b.row_bytes / size_of(format_b), 0};
        problem.b.panel_rows = b.panel_rows;
    } else {
        problem.b = rows_of("b", b.tensor, format_b);
    }
    problem.b.transposed = true;
    problem.activation = static_cast<int32_t>(activation);
    regions.push_back({a.data(), a.extent_bytes(Dtype::uint8), "a", false});
    regions.push_back({b.tensor.data(), b.tensor.extent_bytes(Dtype::uint8), "b", false});
    const auto scale = [&](const char* name, const Tensor& tensor, int64_t scaling, int64_t rows) {
        const bool of_groups = scaling == mx_wise;
        const Dtype of_scale = of_groups ? Dtype::uint8 : Dtype::float32;
        const gemm::ScaleArgument argument = of_groups     ? mx_scale(name, tensor, rows, k)
                                             : in_blocks() ? block_scale(name, tensor, scaling, rows, k)
                                                           : outer_scale(name, tensor, scaling, rows);
        regions.push_back({tensor.data(), tensor.extent_bytes(of_scale), name, false});
        return argument;
    };
    if (scale_b) {
        if (scale_a) problem.a_scale = scale("scale_a", *scale_a, scaling_a, m);
        problem.b_scale = scale("scale_b", *scale_b, scaling_b, n);
    }
    if (!bias) return;
    const Dtype dtype = bias->dtype("scaled_gemm: bias");
    if (bias->dimensions() != 1 || bias->sizes()[0] != n)
        refuse("bias needs the shape (" + std::to_string(n) + "); it is " + shape_text(bias->sizes()));
    if (!bias->is_contiguous()) bias = contiguous_copy(std::move(*bias), dtype);
    problem.bias = bias->data();
    problem.bias_type = element_type(dtype);
    regions.push_back({bias->data(), bias->extent_bytes(dtype), "bias", false});
}

}  // namespace hipkittens::torch_binding
