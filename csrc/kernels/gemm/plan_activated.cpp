// kernels/gemm/plan_activated.cpp: selects the variant; K is never split, since the function needs the whole sum.
// SPDX-License-Identifier: MIT
#include "plan_activated.h"

#include <array>
#include <cstring>
#include <stdexcept>

namespace hipkittens::gemm {
namespace {

constexpr auto all_variants = [] {
    constexpr auto& activated = variants<kinds::activated>;
    constexpr auto& gated = variants<kinds::gated>;
    constexpr auto count = (activated.end() - activated.begin()) + (gated.end() - gated.begin());
    std::array<ActivatedVariant, count> result{};
    auto* next = result.data();
    for (const auto& row : activated) *next++ = {{row.name, row.targets, row.config}, false};
    for (const auto& row : gated) *next++ = {{row.name, row.targets, row.config}, true};
    return result;
}();

// As a row of plain products: a gated tile has half as many columns of C.
GemmVariant in_columns_of_c(const ActivatedVariant& variant) {
    GemmVariant result = variant;
    if (variant.gated) result.config.tile_n /= 2;
    return result;
}

// As a product with all columns that are multiplied.
Problem whole_product(const ActivatedProblem& problem) {
    Problem whole = problem;
    if (problem.gated) whole.n *= 2;
    return whole;
}

}  // namespace

bool reaches_partners(const GemmConfig& config, const Problem& p, const Gate& gate) {
    const int64_t size = size_of(p.b_type), rows = config.tile_n / 2;
    const bool whole_dwords = gate.pair_stride * size % 4 == 0 || config.row_start == RowStart::element;
    return gate.pair_stride >= 0 && whole_dwords &&
           (gate.pair_stride + rows * p.b.leading_stride + p.k) * size < reach_bytes;
}

bool suits(const ActivatedVariant& variant, const ActivatedProblem& p) {
    return variant.gated == p.gated && suits(in_columns_of_c(variant), p) &&
           (!p.gated || reaches_partners(variant.config, p, p));
}

void set_gate(GatedGemmArguments& arguments, const Problem& problem, const Gate& gate) {
    arguments.sums = {gate.sums.data, gate.sums.leading_stride, gate.sums.batch_stride};
    const int64_t per_store = 16 / size_of(problem.a_type);
    arguments.sums_vector_stores = problem.n % per_store == 0 && gate.sums.leading_stride % per_store == 0 &&
                                   reinterpret_cast<uintptr_t>(gate.sums.data) % 4 == 0;
    arguments.activation = problem.activation;
    arguments.alpha = gate.alpha;
    arguments.pair_stride = gate.pair_stride;
    arguments.bias_stride = gate.bias_stride;
    arguments.bias_pair_stride = gate.bias_pair_stride;
    arguments.limit = gate.limit;
}

Plan plan_variant(const ActivatedProblem& problem, const ActivatedVariant& variant) {
    if (!suits(variant, problem))
        throw std::invalid_argument(std::string("gemm: ") + variant.name + " cannot run this problem");
    Plan result = plan_variant(problem, in_columns_of_c(variant), 1);
    for (Launch& launch : result.launches) {
        GatedGemmArguments arguments{};
        std::memcpy(static_cast<GemmArguments*>(&arguments), launch.arguments.data(), sizeof(GemmArguments));
        set_gate(arguments, problem, problem);
        const auto with = [&](const auto& of_kind) {
            return launch_of("gemm", variant.name, problem.device.target, launch.grid,
                             static_cast<int>(launch.block[0]), of_kind);
        };
        launch = {variant.gated ? with(arguments)
                                : with(static_cast<const ActivatedGemmArguments&>(arguments))};
    }
    return result;
}

Plan plan(const ActivatedProblem& problem) {
    const ActivatedVariant* best = nullptr;
    double best_clocks = 0;
    for (const ActivatedVariant& variant : all_variants) {
        if (!suits(variant, problem)) continue;
        const double clocks = predicted_clocks(whole_product(problem), variant.config, 1);
        if (!best || clocks < best_clocks) {
            best = &variant;
            best_clocks = clocks;
        }
    }
    if (!best)
        throw std::invalid_argument(
            "gemm: no variant reaches this far: the rows of a tile and their partners must lie within 4 GiB, "
            "and "
            "the grid have fewer than 2^32 threads");
    return plan_variant(problem, *best);
}

}  // namespace hipkittens::gemm
