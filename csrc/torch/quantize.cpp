// torch/quantize.cpp: checks the tensors of a quantisation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "torch/element_type.h"
#include "torch/quantization.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// The options: torch/quantization.h. scales is empty if the scale is given.
constexpr const char* quantize_schema =
    "quantize(Tensor x, Tensor? scale, int code, int group, int layout, float floor, float bound, float "
    "zero_scale, "
    "int power_exponent, int power_threshold, bool other_rounding) -> (Tensor codes, Tensor scales)";

void quantize(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 11 || result_count != 2) fail("quantize is registered with another schema");
    const std::string where = "quantize: ";
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    std::optional<Tensor> scale = given.optional_tensor();
    Quantization how(where, given);
    const Dtype dtype = x.dtype(where + "x");
    if (x.dimensions() < 1) fail(where + "x needs at least 1 dimension");
    const Placement placement(x.device());
    Quantization::Results results =
        how.results(placement, {x.sizes().begin(), x.sizes().end()}, scale, x.device());
    const int64_t columns = x.sizes().back(), rows = columns > 0 ? x.element_count() / columns : 0;
    if (rows > 0) {
        quantize::QuantizeArguments& arguments = how.arguments;
        const std::vector<Tensor*> tensors = {&x};
        const RowView view(tensors, dtype);
        arguments.x = view.rows(x, 0);
        arguments.rows = view.counts();
        arguments.aligned = view.aligned(tensors);
        const bool maxima = how.granularity == quantize::Granularity::tensor && !scale;
        const std::vector<int64_t> workspace = {maxima ? quantize::maxima_count(rows, columns) : 0};
        const Tensor partial = placement.empty(workspace, Dtype::float32);
        arguments.maxima = static_cast<float*>(partial.data());
        std::vector<runtime::Region> regions = {{x.data(), x.extent_bytes(dtype), "x", false}};
        how.add_regions(results, scale, regions);
        if (maxima) regions.push_back({partial.data(), partial.extent_bytes(Dtype::float32), "maxima", true});
        for (const Launch& each :
             quantize::plan(placement.target(), element_type(dtype), how.granularity, how.group, arguments))
            placement.launch(each, regions);
    }
    stack[0] = to_result(std::move(results.codes));
    stack[1] = to_result(std::move(results.scales));
}

const Registration registration{{{quantize_schema, &quantize}}};

}  // namespace
}  // namespace hipkittens::torch_binding
