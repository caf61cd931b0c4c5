// torch/quantize.cpp: checks the tensors of a quantisation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/quantize/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// codes: bytes of the shape of x, half as long of e2m1. scales: float32, or bytes of powers of two (e8m0); empty if the scale is given.
// code: 0 fp8, 1 bf8, 2 int8, 3 e2m1. group: 0 the tensor, -1 rows, else columns. layout: 0 rows, 1 columns, 2 shuffled.
// power_exponent: -1 for float32 scales; power_threshold in mantissa bits.
constexpr const char* quantize_schema =
    "quantize(Tensor x, Tensor? scale, int code, int group, int layout, float floor, float bound, float "
    "zero_scale, "
    "int power_exponent, int power_threshold, bool other_rounding) -> (Tensor codes, Tensor scales)";

// The same of activation(x) * other, rounded to x's dtype; without other, x (..., 2 d) holds both. activation, alpha and limit as in
// gated_activation.
constexpr const char* gated_quantize_schema =
    "gated_activation_quantize(Tensor x, Tensor? other, Tensor? scale, int activation, float alpha, float "
    "limit, int code, int group, int layout, float floor, float bound, float zero_scale, int power_exponent, "
    "int power_threshold, bool other_rounding) -> (Tensor codes, Tensor scales)";

using quantize::Code;
using quantize::Granularity;
using quantize::ScaleLayout;

template <class Choice>
Choice choice(int64_t number, Choice last, const std::string& what) {
    if (number < 0 || number > static_cast<int64_t>(last))
        fail(what + " is " + std::to_string(number) + "; 0 .. " + std::to_string(static_cast<int64_t>(last)) +
             " are allowed");
    return static_cast<Choice>(number);
}

// The largest finite code.
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
    }
    return 0;
}

template <bool gated>
void quantize(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    const std::string name = gated ? "gated_activation_quantize" : "quantize", where = name + ": ";
    if (argument_count != (gated ? 15 : 11) || result_count != 2)
        fail(name + " is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    std::optional<Tensor> other;
    if (gated) other = given.optional_tensor();
    std::optional<Tensor> scale = given.optional_tensor();
    quantize::QuantizeArguments arguments{};
    if (gated) {
        arguments.activation = choice(given.integer(), activation::Activation::swiglu, where + "activation");
        arguments.alpha = static_cast<float>(given.number());
        arguments.limit = static_cast<float>(given.number());
    }
    arguments.code = choice(given.integer(), Code::e2m1, where + "code");
    const int64_t group = given.integer();
    arguments.layout = choice(given.integer(), ScaleLayout::shuffled, where + "layout");
    arguments.floor = static_cast<float>(given.number());
    arguments.bound = static_cast<float>(given.number());
    arguments.zero_scale = static_cast<float>(given.number());
    const int64_t power_exponent = given.integer();
    arguments.powers = power_exponent >= 0;
    arguments.power_exponent = static_cast<int32_t>(power_exponent);
    arguments.power_threshold = static_cast<uint32_t>(given.integer());
    arguments.other_rounding = given.boolean();

    const Dtype dtype = x.dtype(where + "x");
    if (x.dimensions() < 1) fail(where + "x needs at least 1 dimension");
    const Granularity granularity = group == 0    ? Granularity::tensor
                                    : group == -1 ? Granularity::row
                                                  : Granularity::group;
    if (granularity != Granularity::group && (arguments.powers || arguments.layout != ScaleLayout::rows))
        fail(where + "powers of two and layouts of scales are for groups");
    if (arguments.powers != (arguments.layout == ScaleLayout::shuffled) &&
        arguments.layout == ScaleLayout::shuffled)
        fail(where + "only powers of two are shuffled");
    if (scale) {
        if (granularity != Granularity::tensor || scale->element_count() != 1 ||
            scale->dtype(where + "scale") != Dtype::float32 || !(scale->device() == x.device()))
            fail(where + "scale needs to be one float32 on the device of x, for the tensor");
        arguments.given = static_cast<const float*>(scale->data());
    }
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    if (other) {
        if (!std::equal(sizes.begin(), sizes.end(), other->sizes().begin(), other->sizes().end()) ||
            other->dtype(where + "other") != dtype || !(other->device() == x.device()))
            fail(where + "other needs the shape, dtype and device of x");
    } else if (gated) {
        if (sizes.back() % 2)
            fail(where + "x needs rows of an even number of elements, the gate and what it multiplies");
        sizes.back() /= 2;
    }
    const int64_t columns = sizes.back();
    if (arguments.code == Code::e2m1) {
        if (columns % 2) fail(where + "rows of e2m1 need an even number of elements");
        sizes.back() /= 2;
    }
    const Placement placement(x.device());
    arguments.largest = largest_of(arguments.code, placement.target());
    Tensor codes = placement.empty(sizes, Dtype::uint8);
    const Dtype scale_dtype = arguments.powers ? Dtype::uint8 : Dtype::float32;
    const int64_t rows = columns > 0 ? x.element_count() / x.sizes().back() : 0;
    std::vector<int64_t> scale_sizes = {0};
    if (!scale && rows > 0) {
        const auto count = quantize::scale_count(rows, columns, granularity, group, arguments.layout);
        scale_sizes = {count.rows, count.groups};
        if (arguments.layout == ScaleLayout::columns) scale_sizes = {count.groups, count.rows};
    }
    Tensor scales = placement.empty(scale_sizes, scale_dtype);
    if (rows > 0) {
        std::vector<Tensor*> tensors = {&x};
        if (other) tensors.push_back(&*other);
        const RowView view(tensors, dtype);
        const int64_t size = bytes_of(dtype);
        arguments.x = view.rows(x, 0);
        if (other) {
            arguments.other = view.rows(*other, 1);
        } else if (gated) {
            arguments.other = arguments.x;
            arguments.other.data = static_cast<const char*>(x.data()) + columns * size;
        }
        arguments.rows = view.counts();
        arguments.columns = static_cast<uint32_t>(columns);
        arguments.aligned = view.aligned(tensors) && (other || !gated || columns * size % 4 == 0);
        arguments.codes = codes.data();
        arguments.scales = scales.data();
        const bool maxima = granularity == Granularity::tensor && !scale;
        const std::vector<int64_t> workspace = {maxima ? quantize::maxima_count(rows, columns) : 0};
        const Tensor partial = placement.empty(workspace, Dtype::float32);
        arguments.maxima = static_cast<float*>(partial.data());
        std::vector<runtime::Region> regions = {
            {x.data(), x.extent_bytes(dtype), "x", false},
            {codes.data(), codes.extent_bytes(Dtype::uint8), "codes", true}};
        if (other) regions.push_back({other->data(), other->extent_bytes(dtype), "other", false});
        if (scale)
            regions.push_back({scale->data(), 4, "scale", false});
        else
            regions.push_back({scales.data(), scales.extent_bytes(scale_dtype), "scales", true});
        if (maxima) regions.push_back({partial.data(), partial.extent_bytes(Dtype::float32), "maxima", true});
        for (const Launch& each :
             quantize::plan(placement.target(), element_type(dtype), granularity, group, gated, arguments))
            placement.launch(each, regions);
    }
    stack[0] = to_result(std::move(codes));
    stack[1] = to_result(std::move(scales));
}

const Registration registration{{
    {quantize_schema, &quantize<false>},
    {gated_quantize_schema, &quantize<true>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
