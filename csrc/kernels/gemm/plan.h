// kernels/gemm/plan.h: from a problem to launches. Pure: no device, no library, nothing remembered.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../activation_kind.h"
#include "../device_shape.h"
#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::gemm {

// A matrix as it lies in memory: strides in elements, unit stride along the last dimension. A transposed
// operand is described by the rows it is stored in: a of "t" orientation has k rows of m elements. A transposed B may be in panels
// (panels.h) of 16 or 32 rows, which follow each other.
struct Matrix {
    const void* data = nullptr;
    int64_t leading_stride = 0;
    int64_t batch_stride = 0;
    bool transposed = false;
    int32_t panel_rows = 0;  // or in rows
};

// C[batch, m, n] = A[batch, m, k] B[batch, k, n] (+ bias[n]). Quantised operands have scales, unless the sums are wanted as they
// are, and C may be an activation of it all. adds: to what C, which is f32, holds already.
struct Problem {
    DeviceShape device;
    ElementType a_type = ElementType::bf16, b_type = ElementType::bf16, output = ElementType::bf16;
    int64_t m = 0, n = 0, k = 0, batch = 1;
    Matrix a, b, c;
    const void* bias = nullptr;
    ElementType bias_type = ElementType::bf16;
    LoadOrder load_order = LoadOrder::alternate;  // of two rows that differ in nothing else, which to take
    Scales scales = Scales::none;
    ScaleArgument a_scale{}, b_scale{};
    int32_t activation = no_activation;
    bool adds = false;
};

// -128 * -128 for each of fewer K than these fits in 31 bits.
inline constexpr int64_t exact_i8_products = 1 << 17;
// Lane offsets inside a tile stay below this (tiles/global_layout.h, out_of_range).
inline constexpr int64_t reach_bytes = 0xfff00000;

// A row that computes products, of whichever kind.
struct GemmVariant {
    const char* name;
    Targets targets;
    GemmConfig config;
    bool adds = false;
};
std::span<const GemmVariant> gemm_variants();

struct Launch : hipkittens::Launch {
    // Where in arguments the workspace's address is added, or -1.
    int workspace_at = -1;
};

struct Plan {
    std::string variant;
    int splits = 1;
    uint64_t workspace_bytes = 0;
    std::vector<Launch> launches;  // in order, on one stream
};

// Throws std::invalid_argument with what is wrong and what would be right.
Plan plan(const Problem& problem);

// The plan with every choice forced but the arguments: for tests and tuning. splits >= 1.
Plan plan_variant(const Problem& problem, const GemmVariant& variant, int splits);

// Throws std::invalid_argument unless b is in rows, or in panels as kernels read them.
void check_panels(const Problem& problem);
// GemmArguments::b_panel_shift.
uint32_t panel_shift(const Matrix& b);

// May this variant run this problem at all?
bool suits(const GemmVariant& variant, const Problem& problem);

// Can a kernel of this configuration read these operands and write the product, whatever the grid?
bool suits(Targets targets, const GemmConfig& config, const Problem& problem);

// What the cycle model would give, about: costs.def.
double predicted_clocks(const Problem& problem, const GemmConfig& config, int splits);

// Tiles along m of each of a batch on average, in place of those of problem.m, and clocks that a workgroup takes until it knows its tile.
struct RowsOfTiles {
    double tiles_m, before;
};
double predicted_clocks(const Problem& problem, const GemmConfig& config, int splits, RowsOfTiles rows);

// Workgroups that a compute unit runs side by side, and for how many clocks, about, where there are as many: costs.def, too.
int concurrent_workgroups(int target, const GemmConfig& config);
double clocks_of_round(int target, const GemmConfig& config, int64_t k);

// Must be called with workspace_bytes of device memory (aligned to 16) when workspace_bytes is not zero.
void bind_workspace(Plan& plan, void* workspace);

}  // namespace hipkittens::gemm
