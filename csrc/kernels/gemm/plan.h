// kernels/gemm/plan.h: plans the launches of a problem. Pure functions: no device, no library, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../activation_kind.h"
#include "../device_shape.h"
#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::gemm {

// A matrix in memory: strides in elements, unit stride along the last dimension. A transposed operand is described by the rows it
// is stored in: a with "t" orientation has k rows of m elements. A transposed B may be in consecutive panels (panels.h) of 16 or
// 32 rows.
struct Matrix {
    const void* data = nullptr;
    int64_t leading_stride = 0;
    int64_t batch_stride = 0;
    bool transposed = false;
    int32_t panel_rows = 0;  // 0: in rows
};

// C[batch, m, n] = A[batch, m, k] B[batch, k, n] (+ bias[n]). Quantized operands have scales, unless the raw sums are requested,
// and an activation may be applied to the result. adds: adds to the contents of C, which is f32.
struct Problem {
    DeviceShape device;
    ElementType a_type = ElementType::bf16, b_type = ElementType::bf16, output = ElementType::bf16;
    int64_t m = 0, n = 0, k = 0, batch = 1;
    Matrix a, b, c;
    const void* bias = nullptr;
    ElementType bias_type = ElementType::bf16;
    LoadOrder load_order = LoadOrder::alternate;  // which of two rows to take that differ in nothing else
    Scales scales = Scales::none;
    ScaleArgument a_scale{}, b_scale{};
    int32_t activation = no_activation;
    bool adds = false;
};

// With fewer K than this, the sum of -128 * -128 products fits in 31 bits.
inline constexpr int64_t exact_i8_products = 1 << 17;
// Lane offsets inside a tile stay below this (tiles/global_layout.h, out_of_range).
inline constexpr int64_t reach_bytes = 0xfff00000;

// A row of any kind that computes products.
struct GemmVariant {
    const char* name;
    Targets targets;
    GemmConfig config;
    bool adds = false;
};
std::span<const GemmVariant> gemm_variants();

struct Launch : hipkittens::Launch {
    // The position in arguments where the workspace's address is added, or -1.
    int workspace_at = -1;
};

struct Plan {
    std::string variant;
    int splits = 1;
    uint64_t workspace_bytes = 0;
    std::vector<Launch> launches;  // in order, on one stream
};

// Throws std::invalid_argument, stating what is wrong and what is expected.
Plan plan(const Problem& problem);

// The plan with every choice forced except the arguments: for tests and tuning. splits >= 1.
Plan plan_variant(const Problem& problem, const GemmVariant& variant, int splits);

// Throws std::invalid_argument unless b is in rows, or in panels that kernels can read.
void check_panels(const Problem& problem);
// GemmArguments::b_panel_shift.
uint32_t panel_shift(const Matrix& b);

// Whether this variant can run this problem at all.
bool suits(const GemmVariant& variant, const Problem& problem);

// Whether a kernel of this configuration can read these operands and write the product, for any grid.
bool suits(Targets targets, const GemmConfig& config, const Problem& problem);

// An estimate of the clocks that the cycle model would report: costs.def.
double predicted_clocks(const Problem& problem, const GemmConfig& config, int splits);

// The average number of tiles along m per batch, in place of those of problem.m, and the clocks that a workgroup takes to find its tile.
struct RowsOfTiles {
    double tiles_m, before;
};
double predicted_clocks(const Problem& problem, const GemmConfig& config, int splits, RowsOfTiles rows);

// The row with the fewest predicted clocks among those that `suits` accepts, for a product whose K is not split. Throws
// std::invalid_argument if there is none.
template <class Suits>
const GemmVariant& cheapest_unsplit(std::span<const GemmVariant> variants, const Problem& problem,
                                    const Suits& suits) {
    const GemmVariant* best = nullptr;
    double best_clocks = 0;
    for (const GemmVariant& variant : variants) {
        if (!suits(variant)) continue;
        const double clocks = predicted_clocks(problem, variant.config, 1);
        if (!best || clocks < best_clocks) {
            best = &variant;
            best_clocks = clocks;
        }
    }
    if (!best)
        throw std::invalid_argument(
            "gemm: no variant reaches this far: the rows of a tile must lie within 4 GiB, begin on 4 bytes "
            "and be whole dwords, and the grid have fewer than 2^32 threads");
    return *best;
}

// Workgroups that a compute unit runs concurrently, and an estimate of their clocks if there are that many: also from costs.def.
int concurrent_workgroups(int target, const GemmConfig& config);
double clocks_of_round(int target, const GemmConfig& config, int64_t k);

// Must be called with workspace_bytes of device memory (aligned to 16) if workspace_bytes is not zero.
void bind_workspace(Plan& plan, void* workspace);

}  // namespace hipkittens::gemm
