// torch/quantization.cpp: quantization options, as passed to the operators that produce quantized values and scales.
// SPDX-License-Identifier: MIT
#include "torch/quantization.h"

#include <utility>

namespace hipkittens::torch_binding {
namespace {

using quantize::Code;
using quantize::Granularity;
using quantize::ScaleLayout;

template <class Choice>
Choice choice(const std::string& where, int64_t number, Choice last, const std::string& what) {
    if (number < 0 || number > static_cast<int64_t>(last))
        fail(where + what + " is " + std::to_string(number) + "; 0 .. " +
             std::to_string(static_cast<int64_t>(last)) + " are allowed");
    return static_cast<Choice>(number);
}

// The largest finite value of the format.
float largest_of(Code code, int target) {
    switch (code) {
        case Code::fp8:
            return target == 942 ? 240 : 448;
        case Code::bf8:
            return 57344;
        case Code::int8:
            return 127;
        case Code::e2m1:
            return 6;
        case Code::e2m3:
            return 7.5f;
        case Code::e3m2:
            return 28;
    }
    return 0;
}

}  // namespace

Quantization::Quantization(std::string who, Arguments& given) : where(std::move(who)) {
    arguments.code = choice(where, given.integer(), Code::e3m2, "code");
    group = given.integer();
    arguments.layout = choice(where, given.integer(), ScaleLayout::shuffled, "layout");
    arguments.floor = static_cast<float>(given.number());
    arguments.bound = given.upper_bound();
    arguments.zero_scale = static_cast<float>(given.number());
    const int64_t power_exponent = given.integer();
    arguments.powers = power_exponent >= 0;
    arguments.power_exponent = static_cast<int32_t>(power_exponent);
    arguments.power_threshold = static_cast<uint32_t>(given.integer());
    arguments.other_rounding = given.boolean();
    granularity = group == 0    ? Granularity::tensor
                  : group == -1 ? Granularity::row
                  : group == -2 ? Granularity::block
                                : Granularity::group;
    if (granularity == Granularity::block && arguments.powers)
        fail(where + "scales of blocks are no powers of two");
    if (granularity != Granularity::group && arguments.layout != ScaleLayout::rows)
        fail(where + "layouts of scales are for groups");
    if (!arguments.powers && arguments.layout == ScaleLayout::shuffled)
        fail(where + "only powers of two are shuffled");
}

Quantization::Results Quantization::results(const Placement& placement, std::vector<int64_t> sizes,
                                            const std::optional<Tensor>& scale, Device device,
                                            const std::optional<int64_t>& ranges,
                                            const std::optional<int64_t>& code_rows) {
    if (scale) {
        if (granularity != Granularity::tensor || scale->element_count() != 1 ||
            scale->dtype(where + "scale") != Dtype::float32 || !(scale->device() == device))
            fail(where + "scale needs to be one float32 on the device of x, for the tensor");
        arguments.given = static_cast<const float*>(scale->data());
    }
    const int64_t columns = sizes.back();
    int64_t rows = columns > 0 ? 1 : 0;
    for (size_t axis = 0; axis + 1 < sizes.size(); ++axis) rows *= sizes[axis];
    if (arguments.code == Code::e2m1) {
        if (columns % 2) fail(where + "rows of e2m1 need an even number of elements");
        sizes.back() /= 2;
    }
    if (arguments.code == Code::e2m3 || arguments.code == Code::e3m2) {
        if (columns % 32) fail(where + "rows of codes of 6 bits need a multiple of 32 elements");
        sizes.back() = columns / 32 * 24;
    }
    if (granularity == Granularity::block) {
        if (sizes.size() < 2) fail(where + "blocks need rows and columns: at least 2 dimensions");
        arguments.matrix_rows = static_cast<uint32_t>(sizes[sizes.size() - 2]);
    }
    arguments.largest = largest_of(arguments.code, placement.target());
    std::vector<int64_t> scale_sizes = {0};
    if (ranges) {
        if (granularity != Granularity::group || arguments.layout != ScaleLayout::shuffled)
            fail(where + "ends are of rows with shuffled scales of groups");
        const auto count = quantize::banded_scales(rows, *ranges, (columns + group - 1) / group);
        scale_sizes = {count.rows, count.groups};
    } else if (!scale && rows > 0) {
        const auto count =
            quantize::scale_count(rows, columns, granularity, group, arguments.layout, arguments.matrix_rows);
        scale_sizes = {count.rows, count.groups};
        if (arguments.layout == ScaleLayout::columns) scale_sizes = {count.groups, count.rows};
    }
    if (code_rows) sizes[0] = *code_rows;
    const Dtype scale_dtype = arguments.powers ? Dtype::uint8 : Dtype::float32;
    Results made{placement.empty(sizes, Dtype::uint8), placement.empty(scale_sizes, scale_dtype),
                 scale_dtype};
    arguments.columns = static_cast<uint32_t>(columns);
    arguments.codes = made.codes.data();
    arguments.scales = made.scales.data();
    return made;
}

void Quantization::add_regions(const Results& made, const std::optional<Tensor>& scale,
                               std::vector<runtime::Region>& regions) const {
    regions.push_back({made.codes.data(), made.codes.extent_bytes(Dtype::uint8), "codes", true});
    if (scale)
        regions.push_back({scale->data(), 4, "scale", false});
    else
        regions.push_back({made.scales.data(), made.scales.extent_bytes(made.scale_dtype), "scales", true});
}

}  // namespace hipkittens::torch_binding
