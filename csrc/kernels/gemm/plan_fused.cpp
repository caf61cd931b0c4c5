// kernels/gemm/plan_fused.cpp: selects the variant for a product with what follows it.
// SPDX-License-Identifier: MIT
#include "plan_fused.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace hipkittens::gemm {
namespace {

constexpr auto all_variants = [] {
    constexpr auto& rows = variants<kinds::fused>;
    std::array<GemmVariant, rows.end() - rows.begin()> result{};
    auto* next = result.data();
    for (const auto& row : rows) *next++ = {row.name, row.targets, row.config};
    return result;
}();

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument("gemm: " + text); }

bool begins_on_dwords(const void* data) { return reinterpret_cast<uintptr_t>(data) % 4 == 0; }

// The strides, in elements, between rows of all matrices but the operands.
int64_t longest_row(const FusedProblem& p) {
    const HeadsOfColumns& heads = p.heads;
    const int64_t of_c =
        heads.columns ? p.n / heads.columns * (heads.first + heads.joined_columns) : p.c.leading_stride;
    return std::max({of_c, p.n, p.factor.row_stride, p.addend.row_stride, heads.joined_row_stride});
}

void check(const FusedProblem& p) {
    if (p.output != ElementType::bf16 && p.output != ElementType::f16 && p.output != ElementType::f32)
        refuse("results are bf16, f16 or f32");
    const HeadsOfColumns& heads = p.heads;
    for (const TermArgument* term : {&p.factor, &p.addend})
        if (term->row_stride < 0 || term->column_stride < 0 || term->column_stride > 1)
            refuse("a term has the strides " + std::to_string(term->row_stride) + ", " +
                   std::to_string(term->column_stride) + "; rows are 0 or more apart and columns 0 or 1");
    if (!heads.columns) return;
    if (heads.columns < 1 || p.n % heads.columns != 0)
        refuse("heads of " + std::to_string(heads.columns) +
               " columns do not divide n = " + std::to_string(p.n));
    if (heads.first < 0 || heads.first > heads.columns || heads.joined_columns < 0)
        refuse("the first part of a head has " + std::to_string(heads.first) + " of its " +
               std::to_string(heads.columns) + " columns, before " + std::to_string(heads.joined_columns));
    if (heads.joined_columns && !heads.joined) refuse("columns that are joined have no data");
    if (heads.first < heads.columns && !heads.rest) refuse("the last part of the heads has no place");
}

TermArgument with_whole(TermArgument term, int64_t n) {
    const int size = size_of(term.type);
    term.whole = term.data && term.column_stride == 1 && n % 4 == 0 && begins_on_dwords(term.data) &&
                 term.row_stride * size % 4 == 0;
    return term;
}

bool suits_fused(const GemmVariant& variant, const FusedProblem& p) {
    return suits(variant, p) &&
           variant.config.tile_m * longest_row(p) * size_of(ElementType::f32) < reach_bytes;
}

}  // namespace

std::span<const GemmVariant> fused_variants() { return all_variants; }

Plan plan_fused_variant(const FusedProblem& problem, const GemmVariant& variant) {
    check(problem);
    if (!suits_fused(variant, problem)) refuse(std::string(variant.name) + " cannot run this problem");
    const HeadsOfColumns& heads = problem.heads;
    const int64_t n = problem.n, columns = heads.columns ? heads.columns : n,
                  first = heads.columns ? heads.first : n, rest = columns - first,
                  of_c = first + heads.joined_columns, count = n / columns;
    // c is checked as the plan of a product expects it, with rows of n.
    Problem product = problem;
    if (heads.columns) product.c.leading_stride = n;
    Plan result = plan_variant(product, variant, 1);
    for (Launch& launch : result.launches) {
        FusedGemmArguments arguments{};
        std::memcpy(static_cast<ScaledGemmArguments*>(&arguments), launch.arguments.data(),
                    sizeof(ScaledGemmArguments));
        arguments.multiplies = problem.multiplies;
        arguments.factor = with_whole(problem.factor, n);
        arguments.addend = with_whole(problem.addend, n);
        arguments.head_columns = divisor_of(static_cast<uint32_t>(columns));
        arguments.first_columns = static_cast<int32_t>(first);
        arguments.joined_columns = static_cast<int32_t>(heads.joined_columns);
        if (heads.columns) {
            const int64_t vector = 16 / size_of(problem.output);
            const auto whole = [&](int64_t value) { return value % vector == 0; };
            arguments.c.leading_stride = count * of_c;
            arguments.joined = {heads.joined, heads.joined_row_stride, heads.joined_head_stride};
            arguments.rest = {rest ? heads.rest : nullptr, count * rest, 0};
            arguments.vector_stores = whole(first) && whole(rest) && whole(of_c) &&
                                      begins_on_dwords(problem.c.data) && begins_on_dwords(heads.rest);
            arguments.joined_whole = whole(first) && whole(heads.joined_columns) &&
                                     whole(heads.joined_row_stride) && whole(heads.joined_head_stride) &&
                                     begins_on_dwords(heads.joined) && begins_on_dwords(problem.c.data);
            const int64_t vectors = heads.joined_columns / (arguments.joined_whole ? vector : 1);
            arguments.joined_vectors = divisor_of(static_cast<uint32_t>(std::max<int64_t>(vectors, 1)));
        }
        launch = {launch_of("gemm", variant.name, problem.device.target, launch.grid,
                            static_cast<int>(launch.block[0]), arguments)};
    }
    return result;
}

Plan plan(const FusedProblem& problem) {
    return plan_fused_variant(
        problem, cheapest_unsplit(all_variants, problem,
                                  [&](const GemmVariant& variant) { return suits_fused(variant, problem); }));
}

}  // namespace hipkittens::gemm
