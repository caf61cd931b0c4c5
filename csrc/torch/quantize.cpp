// torch/quantize.cpp: validates the tensors of a quantization, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/quantize/plan.h"
#include "torch/element_type.h"
#include "torch/quantization.h"
#include "torch/quantize_range_ends.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// The options: torch/quantization.h. scales is empty if the scale is passed in. smooth (rows, columns)
// float32 multiplies the values, and ids int32 selects the row of smooth for each row; without ids, the first
// row. entries int32 (rows,): row r is row entries[r] / choices of x (tokens, columns), or zeros where
// entries[r] is not in 0 .. tokens choices - 1; places int32 (tokens, choices) is the row of each pair, of
// which entries numbers as many, so that a token need not be read again for each row; with codes_of_tokens the
// quantized values are (tokens, columns), and only the scales are per row. ends int32, of ranges of rows:
// shuffled scales are in bands of 32 rows that begin with each range, and rows of bands outside every range
// are not written (kernels/quantize/row_bands.h).
constexpr const char* quantize_schema =
    "quantize(Tensor x, Tensor? scale, Tensor? smooth, Tensor? ids, Tensor? entries, Tensor? places, "
    "Tensor? ends, int choices, bool codes_of_tokens, int code, int group, int layout, float floor, float "
    "bound, float zero_scale, "
    "int power_exponent, int power_threshold, bool other_rounding) -> (Tensor codes, Tensor scales)";

// The same for activation(x) * other, rounded to x's dtype; without other, x (..., 2 d) holds both.
// activation, alpha and limit as in gated_activation.
constexpr const char* gated_quantize_schema =
    "gated_activation_quantize(Tensor x, Tensor? other, Tensor? bias, Tensor? scale, Tensor? ends, int "
    "activation, float "
    "alpha, float "
    "limit, int code, int group, int layout, float floor, float bound, float zero_scale, int power_exponent, "
    "int power_threshold, bool other_rounding) -> (Tensor codes, Tensor scales)";

struct Gate {
    activation::Activation activation;
    float alpha, limit;

    Gate(const std::string& where, Arguments& given) {
        const int64_t number = given.integer();
        constexpr auto last = static_cast<int64_t>(activation::Activation::swiglu);
        if (number < 0 || number > last)
            fail(where + "activation is " + std::to_string(number) + "; 0 .. " + std::to_string(last) +
                 " are allowed");
        activation = static_cast<activation::Activation>(number);
        alpha = static_cast<float>(given.number());
        limit = given.upper_bound();
    }
};

// Sizes of the gated tensor.
std::vector<int64_t> gated_sizes(const std::string& where, const Tensor& x,
                                 const std::optional<Tensor>& other) {
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    if (other) {
        if (!std::equal(sizes.begin(), sizes.end(), other->sizes().begin(), other->sizes().end()) ||
            other->dtype(where, "other") != x.dtype(where, "x") || !(other->device() == x.device()))
            fail(where + "other needs the shape, dtype and device of x");
        return sizes;
    }
    if (sizes.back() % 2)
        fail(where + "x needs rows of an even number of elements, the gate and what it multiplies");
    sizes.back() /= 2;
    return sizes;
}

void check_bias(const std::string& where, Tensor& bias, const Tensor& x, int64_t columns) {
    const Dtype dtype = x.dtype(where, "x");
    if (bias.dimensions() != 1 || bias.sizes()[0] != 2 * columns)
        fail(where + "bias needs one dimension with the elements of a row of x and of other");
    if (bias.dtype(where, "bias") != dtype || !(bias.device() == x.device()))
        fail(where + "bias needs the dtype and the device of x");
    bias = with_unit_stride(std::move(bias), dtype);
}

// sizes: those of the quantized elements.
void check_smooth(const std::string& where, std::optional<Tensor>& smooth, std::optional<Tensor>& ids,
                  const Tensor& x, std::span<const int64_t> sizes) {
    if (!smooth) fail(where + "ids are of the rows of smooth, which is not there");
    if (smooth->dimensions() != 2 || smooth->sizes()[1] != x.sizes().back() ||
        smooth->sizes()[0] > INT32_MAX || smooth->dtype(where, "smooth") != Dtype::float32 ||
        !(smooth->device() == x.device()))
        fail(where + "smooth needs to be float32 of rows as long as those of x, on its device");
    if (!smooth->is_contiguous()) smooth = contiguous_copy(std::move(*smooth), Dtype::float32);
    if (!ids) return;
    const auto rows = sizes.first(sizes.size() - 1);
    if (!std::equal(rows.begin(), rows.end(), ids->sizes().begin(), ids->sizes().end()) ||
        ids->dtype_number() != aoti_torch_dtype_int32() || !(ids->device() == x.device()))
        fail(where + "ids need to be int32 of the shape of codes without its last dimension, on x's device");
    if (!ids->is_contiguous()) ids = contiguous_copy(std::move(*ids), Dtype::int32);
}

void check_entries(const std::string& where, std::optional<Tensor>& entries, int64_t choices, const Tensor& x,
                   const Quantization& how) {
    if (choices < 1) fail(where + "choices is " + std::to_string(choices) + "; 1 or more are allowed");
    if (!entries) return;
    if (entries->dimensions() != 1 || entries->dtype_number() != aoti_torch_dtype_int32() ||
        !(entries->device() == x.device()))
        fail(where + "entries need to be int32 of one dimension, on x's device");
    if (x.dimensions() != 2 || x.sizes()[0] > INT32_MAX / choices)
        fail(where + "entries are of x with two dimensions and less than 2^31 choices of its rows");
    if (how.granularity != quantize::Granularity::row && how.granularity != quantize::Granularity::group)
        fail(where + "entries are of rows with scales of their own, for all or for groups of their columns");
    if (!entries->is_contiguous()) entries = contiguous_copy(std::move(*entries), Dtype::int32);
}

void check_places(const std::string& where, std::optional<Tensor>& places,
                  const std::optional<Tensor>& entries, int64_t choices, const Tensor& x) {
    if (!places) return;
    if (!entries || places->dimensions() != 2 || places->sizes()[0] != x.sizes()[0] ||
        places->sizes()[1] != choices || entries->element_count() != places->element_count())
        fail(where + "places are of the choices of each row of x, of which entries number as many");
    if (places->dtype_number() != aoti_torch_dtype_int32() || !(places->device() == x.device()))
        fail(where + "places need to be int32, on x's device");
    if (!places->is_contiguous()) places = contiguous_copy(std::move(*places), Dtype::int32);
}

template <bool gated>
void quantize(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    const std::string name = gated ? "gated_activation_quantize" : "quantize", where = name + ": ";
    if (argument_count != (gated ? 17 : 18) || result_count != 2)
        fail(name + " is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    std::optional<Tensor> other, bias, smooth, ids, entries, places;
    if constexpr (gated) {
        other = given.optional_tensor();
        bias = given.optional_tensor();
    }
    std::optional<Tensor> scale = given.optional_tensor();
    if constexpr (!gated) {
        smooth = given.optional_tensor();
        ids = given.optional_tensor();
        entries = given.optional_tensor();
        places = given.optional_tensor();
    }
    const std::optional<Tensor> ends = given.optional_tensor();
    if (ends) check_ends(where, *ends, x);
    const int64_t choices = gated ? 1 : given.integer();
    const bool codes_of_tokens = !gated && given.boolean();
    std::optional<Gate> gate;
    if constexpr (gated) gate.emplace(where, given);
    Quantization how(where, given);
    const Dtype dtype = x.dtype(where + "x");
    if (x.dimensions() < 1) fail(where + "x needs at least 1 dimension");
    const Placement placement(x.device());
    check_entries(where, entries, choices, x, how);
    check_places(where, places, entries, choices, x);
    if (codes_of_tokens && !places) fail(where + "codes of tokens need entries and places");
    std::vector<int64_t> sizes =
        gated ? gated_sizes(where, x, other) : std::vector<int64_t>(x.sizes().begin(), x.sizes().end());
    if (entries) sizes[0] = entries->element_count();
    if (bias) check_bias(where, *bias, x, sizes.back());
    if (smooth || ids) check_smooth(where, smooth, ids, x, sizes);
    std::optional<quantize::RangeEnds> ranges;
    if (ends) ranges = ranges_of(*ends);
    Quantization::Results results = how.results(placement, sizes, scale, x.device(),
                                                ends ? std::optional(ends->element_count()) : std::nullopt,
                                                codes_of_tokens ? std::optional(x.sizes()[0]) : std::nullopt);
    const int64_t columns = sizes.back(), tokens = columns > 0 ? x.element_count() / x.sizes().back() : 0,
                  rows = entries && columns > 0 ? sizes[0] : tokens;
    if (rows > 0) {
        quantize::QuantizeArguments& arguments = how.arguments;
        // Kernels that read each token once have no other loads.
        if (codes_of_tokens && !RowView({&x}, dtype).aligned({&x})) x = contiguous_copy(std::move(x), dtype);
        std::vector<Tensor*> tensors = {&x};
        if (other) tensors.push_back(&*other);
        const RowView view(tensors, dtype);
        arguments.x = view.rows(x, 0);
        arguments.rows = view.counts();
        if (entries) {
            arguments.entries = static_cast<const int32_t*>(entries->data());
            arguments.choices = divisor_of(static_cast<uint32_t>(choices));
            arguments.entry_limit = static_cast<uint32_t>(tokens * choices);
            arguments.rows.all = arguments.rows.inner = static_cast<uint32_t>(rows);
        }
        arguments.aligned = view.aligned(tensors);
        if constexpr (gated) {
            arguments.activation = gate->activation;
            arguments.alpha = gate->alpha;
            arguments.limit = gate->limit;
            const int64_t bytes = columns * bytes_of(dtype);
            arguments.other = other ? view.rows(*other, 1) : arguments.x;
            if (!other) arguments.other.data = static_cast<const char*>(x.data()) + bytes;
            arguments.aligned = arguments.aligned && (other || bytes % 4 == 0);
            if (bias) {
                arguments.bias = bias->data();
                arguments.aligned =
                    arguments.aligned && bytes % 4 == 0 && reinterpret_cast<uintptr_t>(bias->data()) % 4 == 0;
            }
        }
        if (smooth) {
            arguments.smooth = static_cast<const float*>(smooth->data());
            arguments.smooth_rows = static_cast<uint32_t>(smooth->sizes()[0]);
            arguments.smooth_ids = ids ? static_cast<const int32_t*>(ids->data()) : nullptr;
        }
        const bool maxima = how.granularity == quantize::Granularity::tensor && !scale;
        const std::vector<int64_t> workspace = {maxima ? quantize::maxima_count(rows, columns) : 0};
        const Tensor partial = placement.empty(workspace, Dtype::float32);
        arguments.maxima = static_cast<float*>(partial.data());
        std::vector<runtime::Region> regions = {{x.data(), x.extent_bytes(dtype), "x", false}};
        if (other) regions.push_back({other->data(), other->extent_bytes(dtype), "other", false});
        if (bias) regions.push_back({bias->data(), bias->extent_bytes(dtype), "bias", false});
        if (smooth)
            regions.push_back({smooth->data(), smooth->extent_bytes(Dtype::float32), "smooth", false});
        if (ids) regions.push_back({ids->data(), ids->extent_bytes(Dtype::int32), "ids", false});
        if (entries)
            regions.push_back({entries->data(), entries->extent_bytes(Dtype::int32), "entries", false});
        if (places) regions.push_back({places->data(), places->extent_bytes(Dtype::int32), "places", false});
        if (ends) add_region(*ends, regions);
        how.add_regions(results, scale, regions);
        if (maxima) regions.push_back({partial.data(), partial.extent_bytes(Dtype::float32), "maxima", true});
        std::optional<quantize::Places> of_choices;
        if (places) of_choices = {static_cast<const int32_t*>(places->data()), codes_of_tokens};
        for (const Launch& each : quantize::plan(placement.target(), element_type(dtype), how.granularity,
                                                 how.group, gated, arguments, ranges, of_choices))
            placement.launch(each, regions);
    }
    stack[0] = to_result(std::move(results.codes));
    stack[1] = to_result(std::move(results.scales));
}

const Registration registration{{
    {quantize_schema, &quantize<false>},
    {gated_quantize_schema, &quantize<true>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
