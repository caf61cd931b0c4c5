// kernels/gemm/plan_codes.cpp: selects the variant for a product with results in 8-bit floats.
// SPDX-License-Identifier: MIT
#include "plan_codes.h"

#include <array>
#include <cstring>
#include <stdexcept>

namespace hipkittens::gemm {
namespace {

constexpr auto all_variants = [] {
    constexpr auto& rows = variants<kinds::codes>;
    std::array<GemmVariant, rows.end() - rows.begin()> result{};
    auto* next = result.data();
    for (const auto& row : rows) *next++ = {row.name, row.targets, row.config};
    return result;
}();

}  // namespace

Plan plan_codes_variant(const CodesProblem& problem, const GemmVariant& variant) {
    if (problem.output != ElementType::fp8 || !problem.a_scale.data || !problem.b_scale.data)
        throw std::invalid_argument("gemm: codes are fp8, of operands with scales");
    Plan result = plan_variant(problem, variant, 1);
    for (Launch& launch : result.launches) {
        CodesGemmArguments arguments{};
        std::memcpy(static_cast<ScaledGemmArguments*>(&arguments), launch.arguments.data(),
                    sizeof(ScaledGemmArguments));
        arguments.c_scale = problem.c_scale;
        launch = {launch_of("gemm", variant.name, problem.device.target, launch.grid,
                            static_cast<int>(launch.block[0]), arguments)};
    }
    return result;
}

Plan plan(const CodesProblem& problem) {
    return plan_codes_variant(
        problem, cheapest_unsplit(all_variants, problem,
                                  [&](const GemmVariant& variant) { return suits(variant, problem); }));
}

}  // namespace hipkittens::gemm
