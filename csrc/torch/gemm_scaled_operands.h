// torch/gemm_scaled_operands.h: the operands, scales and bias of a product of quantized values, from tensors to a problem.
// SPDX-License-Identifier: MIT
#pragma once
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm/plan.h"
#include "torch/gemm_codes.h"
#include "torch/placement.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// a (M, K) and b (N, K) are bytes of quantized values, in the formats of kernels/element_type.h; b may be
// preshuffled into panels (gemm_operand.h). Numbers of formats, scalings and activations:
// hipkittens/scaled_gemm.py. All functions throw for what no kernel supports.
struct ScaledOperands {
    // B as its kernels read it: n rows of quantized values, or panels of them.
    struct Weights {
        Tensor tensor;
        int64_t n, row_bytes;
        int panel_rows;

        bool in_panels() const { return panel_rows != 0; }
    };

    Tensor a;
    Weights b;
    std::optional<Tensor> scale_a, scale_b, bias;
    ElementType format_a = ElementType::fp8, format_b = ElementType::fp8;
    int64_t scaling_a = tensor_wise, scaling_b = tensor_wise, activation = gemm::no_activation;
    int64_t m = 0, n = 0, k = 0;

    // Reads the five tensors; the numbers are read by the members below, in the order of the schema.
    explicit ScaledOperands(Arguments& given);
    void read_formats(Arguments& given);
    void read_scalings(Arguments& given);
    void read_activation(Arguments& given);

    // After the formats are known: sets the extents. `others`: further tensors, which may be absent.
    void check(std::initializer_list<const Tensor*> others = {});
    bool in_blocks() const { return is_block_wise(scaling_a) || is_block_wise(scaling_b); }
    bool of_matrix_steps() const { return scaling_b == mx_wise; }
    gemm::Scales scales() const;
    // Copies operands that do not begin on 4 bytes, for kernels that need rows of whole dwords.
    void begin_on_dwords();
    // Sets the extents, operands, scales, bias and activation of a problem whose device is set, and adds the memory that a
    // launch reads.
    void set(gemm::Problem& problem, std::vector<runtime::Region>& regions);
};

[[noreturn]] void refuse_scaled(const std::string& text);
// Throws unless one of these rows has the problem's target, formats and scales, whatever its sizes. `what`: for the message.
void check_has_kernel(std::span<const gemm::GemmVariant> variants, const gemm::Problem& problem,
                      const char* what);

}  // namespace hipkittens::torch_binding
