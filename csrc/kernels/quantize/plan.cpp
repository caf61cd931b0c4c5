// kernels/quantize/plan.cpp: selects the kernels that quantize, and how their threads share rows and groups.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hipkittens::quantize {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Kind>
const Row<Kind>& row_of(ElementType element, bool gated = false) {
    for (const auto& row : variants<Kind>) {
        bool same = true;
        if constexpr (requires { row.config.gated; }) same = row.config.gated == gated;
        if (row.config.element == element && same) return row;
    }
    throw std::invalid_argument("quantize: no kernel has this element type");
}

const Row<kinds::row>& row_kernel(ElementType element, bool gated, int64_t columns) {
    const Row<kinds::row>* best = nullptr;
    const auto capacity = [](const RowConfig& config) { return config.waves * 512 * config.chunks; };
    for (const auto& row : variants<kinds::row>) {
        if (row.config.element != element || row.config.gated != gated) continue;
        const bool holds = capacity(row.config) >= columns;
        // The smallest that holds the row, or else the largest.
        if (!best ||
            (holds ? capacity(row.config) < capacity(best->config) || capacity(best->config) < columns
                   : capacity(row.config) > capacity(best->config)))
            best = &row;
    }
    return *best;
}

// For token_row and gated_rows, the smallest first. Null if there is none for such rows.
template <class Kind>
const Row<Kind>* held_row_kernel(ElementType element, int64_t columns) {
    for (const auto& row : variants<Kind>)
        if (row.config.element == element && row.config.waves * 512 * row.config.chunks >= columns)
            return &row;
    return nullptr;
}

bool has_usual_codes(const QuantizeArguments& arguments) {
    return !arguments.other_rounding && arguments.code != Code::e2m3 && arguments.code != Code::e3m2;
}

// The launch of short gated rows, if supported.
std::optional<Launch> plan_of_gated_rows(int target, ElementType element,
                                         const QuantizeArguments& arguments) {
    const auto* row = held_row_kernel<kinds::gated_rows>(element, arguments.columns);
    if (!row || !arguments.aligned || arguments.columns % columns_of_thread || arguments.bias ||
        arguments.rows.inner != arguments.rows.all || !has_usual_codes(arguments))
        return {};
    // With only enough waves to fill some 128 compute units, each workgroup has one row; with more rows, up to four.
    const uint32_t rows = arguments.rows.all, filling = 4096 / row->config.waves * 2;
    const uint32_t turns = std::clamp(rows / filling, 1u, 4u), workgroups = (rows + turns - 1) / turns;
    return launch_of("quantize", row->name, target, {workgroups, 1, 1}, row->config.waves * 64,
                     GatedRowsArguments{arguments, workgroups});
}

// The launch that reads each token once, if supported.
std::optional<Launch> plan_of_tokens(int target, ElementType element, Granularity granularity,
                                     const TokenQuantizeArguments& given) {
    constexpr uint32_t lanes = 64;  // one per choice
    if (!given.aligned || given.columns % columns_of_thread || given.choices.value > lanes ||
        element == ElementType::f32 || given.smooth || !has_usual_codes(given))
        return {};
    TokenQuantizeArguments arguments = given;
    const uint32_t tokens = arguments.entry_limit / arguments.choices.value;
    const auto launch = [&](const char* name, int64_t workgroups, int block) {
        return launch_of("quantize", name, target, {static_cast<uint32_t>(workgroups), 1, 1}, block,
                         arguments);
    };
    if (granularity == Granularity::row) {
        const auto* row = held_row_kernel<kinds::token_row>(element, arguments.columns);
        return row ? std::optional(launch(row->name, tokens, row->config.waves * 64)) : std::nullopt;
    }
    if (arguments.layout == ScaleLayout::shuffled && !arguments.ranges.ends) return {};  // has padding rows
    const int64_t parts = divide_up(arguments.threads_per_row.value, threads);
    if (tokens * parts > INT32_MAX) return {};
    arguments.parts = divisor_of(static_cast<uint32_t>(parts));
    return launch(row_of<kinds::token_group>(element).name, tokens * parts, threads);
}

}  // namespace

uint32_t maxima_count(int64_t rows, int64_t columns) {
    return static_cast<uint32_t>(
        std::min<int64_t>(divide_up(rows * divide_up(columns, columns_of_thread), threads), largest_maxima));
}

std::vector<Launch> plan(int target, ElementType element, Granularity granularity, int64_t group, bool gated,
                         QuantizeArguments arguments, const std::optional<RangeEnds>& ranges,
                         const std::optional<Places>& places) {
    if (ranges && (granularity != Granularity::group || arguments.layout != ScaleLayout::shuffled))
        throw std::invalid_argument("quantize: bands of rows are for shuffled scales of groups");
    if (gated && granularity == Granularity::tensor && !arguments.given)
        throw std::invalid_argument("quantize: the scale of a gated tensor must be given");
    if (gated && granularity == Granularity::block)
        throw std::invalid_argument("quantize: no kernel has blocks of gated rows");
    if (arguments.smooth && granularity != Granularity::row && granularity != Granularity::group)
        throw std::invalid_argument("quantize: factors are for scales of rows and of groups");
    arguments = laid_out(granularity, group, arguments);
    const int64_t rows = arguments.rows.all, columns = arguments.columns;
    arguments.threads_per_row = divisor_of(static_cast<uint32_t>(divide_up(columns, columns_of_thread)));
    const auto launch = [&](const char* name, int64_t workgroups, int block) {
        return launch_of("quantize", name, target, {static_cast<uint32_t>(workgroups), 1, 1}, block,
                         arguments);
    };
    if (granularity == Granularity::group)
        arguments.threads_per_row =
            divisor_of(static_cast<uint32_t>(group_threads(columns, arguments.padded_groups, group)));
    if (places) {
        TokenQuantizeArguments of_tokens{arguments, places->data, ranges.value_or(RangeEnds{})};
        of_tokens.codes_of_tokens = places->codes_of_tokens;
        if (const auto launch = plan_of_tokens(target, element, granularity, of_tokens)) return {*launch};
        if (places->codes_of_tokens)
            throw std::invalid_argument(
                "quantize: codes of tokens are for 16-bit rows on 4 bytes, of columns that 8 divides and "
                "with scales of rows at most "
                "8192, at most 64 choices, codes of 8 and 4 bits, and no smooth");
    }
    if (granularity == Granularity::row && gated)
        if (const auto of_gated = plan_of_gated_rows(target, element, arguments)) return {*of_gated};
    if (granularity == Granularity::row) {
        const auto& row = row_kernel(element, gated, columns);
        return {launch(row.name, rows, row.config.waves * 64)};
    }
    if (granularity == Granularity::group) {
        if (ranges) {
            arguments.padded_rows = arguments.rows.all;
            return {launch_of(
                "quantize", row_of<kinds::banded_group>(element, gated).name, target,
                {static_cast<uint32_t>(divide_up(rows * arguments.threads_per_row.value, threads)), 1, 1},
                threads, BandedQuantizeArguments{arguments, *ranges})};
        }
        const int64_t all = int64_t(arguments.padded_rows) * arguments.threads_per_row.value;
        return {launch(row_of<kinds::group>(element, gated).name, divide_up(all, threads), threads)};
    }
    if (granularity == Granularity::block)
        return {launch(row_of<kinds::block>(element).name,
                       int64_t(arguments.padded_rows) * arguments.padded_groups, threads)};
    const int64_t workgroups = divide_up(rows * arguments.threads_per_row.value, threads);
    std::vector<Launch> launches;
    if (!arguments.given) {
        arguments.maxima_count = maxima_count(rows, columns);
        launches.push_back(launch(row_of<kinds::maximum>(element).name, arguments.maxima_count, threads));
    }
    launches.push_back(launch(row_of<kinds::tensor>(element, gated).name, workgroups, threads));
    return launches;
}

Launch plan_bands(int target, BandsArguments arguments) {
    const int64_t columns = banded_scales(arguments.rows, arguments.ranges.count, arguments.columns).groups;
    if (int64_t(arguments.rows) * columns > int64_t(UINT32_MAX) - threads)
        throw std::invalid_argument("scales_in_bands: " + std::to_string(arguments.rows) + " rows of " +
                                    std::to_string(columns) +
                                    " scales; at most 4294967039 scales are allowed");
    arguments.padded_columns = divisor_of(static_cast<uint32_t>(columns));
    return launch_of("quantize", variants<kinds::bands>.begin()->name, target,
                     {static_cast<uint32_t>(divide_up(arguments.rows * columns, threads)), 1, 1}, threads,
                     arguments);
}

}  // namespace hipkittens::quantize
