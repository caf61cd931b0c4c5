// torch/sample.cpp: validates the tensors of sampling one column of each row, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include "kernels/sample/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// logits (.., columns) -> int64 (..). exponentials: float32 (rows, columns), rows of unit stride, and
// temperatures: float32, (rows); both or neither.
constexpr const char* sample_schema =
    "sample(Tensor logits, Tensor? exponentials, Tensor? temperatures, float eps) -> Tensor";

void sample(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 4 || result_count != 1) fail("sample is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor logits = given.tensor();
    const std::optional<Tensor> exponentials = given.optional_tensor(),
                                temperatures = given.optional_tensor();
    const double eps = given.number();
    const Dtype dtype = logits.dtype("sample: logits");
    if (logits.dimensions() < 1) fail("sample: logits needs at least 1 dimension");
    const std::vector<int64_t> sizes(logits.sizes().begin(), logits.sizes().end() - 1);
    const int64_t columns = logits.sizes().back();
    int64_t rows = 1;
    for (const int64_t size : sizes) rows *= size;
    if (exponentials.has_value() != temperatures.has_value())
        fail("sample: exponentials and temperatures go together");
    sample::ChooseArguments arguments{};
    std::vector<runtime::Region> regions;
    if (exponentials) {
        if (exponentials->dtype_number() != aoti_torch_dtype_float32() || exponentials->dimensions() != 2 ||
            exponentials->sizes()[0] != rows || exponentials->sizes()[1] != columns ||
            (columns > 1 && exponentials->strides()[1] != 1) || !(exponentials->device() == logits.device()))
            fail("sample: exponentials needs to be float32, (" + std::to_string(rows) + ", " +
                 std::to_string(columns) + ") with rows of unit stride, on the device of logits");
        if (temperatures->dtype_number() != aoti_torch_dtype_float32() || temperatures->dimensions() != 1 ||
            temperatures->sizes()[0] != rows || !(temperatures->device() == logits.device()))
            fail("sample: temperatures needs to be float32, (" + std::to_string(rows) +
                 "), on the device of logits");
    }
    const Placement placement(logits.device());
    Tensor chosen = placement.empty(sizes, Dtype::int64);
    if (rows > 0) {
        sample::check(rows, columns);
        const std::vector<Tensor*> tensors = {&logits};
        const RowView view(tensors, dtype);
        arguments.x = view.rows(logits, 0);
        arguments.rows = view.counts();
        arguments.columns = static_cast<uint32_t>(columns);
        arguments.wide = columns % 8 == 0 && view.aligned(tensors);
        arguments.eps = static_cast<float>(eps);
        arguments.chosen = static_cast<int64_t*>(chosen.data());
        regions.push_back({logits.data(), logits.extent_bytes(dtype), "logits", false});
        if (exponentials) {
            arguments.exponentials = static_cast<const float*>(exponentials->data());
            arguments.exponential_step = exponentials->strides()[0];
            arguments.temperatures = static_cast<const float*>(temperatures->data());
            arguments.temperature_step = temperatures->strides()[0];
            regions.push_back(
                {exponentials->data(), exponentials->extent_bytes(Dtype::float32), "exponentials", false});
            regions.push_back(
                {temperatures->data(), temperatures->extent_bytes(Dtype::float32), "temperatures", false});
        }
        regions.push_back({chosen.data(), chosen.extent_bytes(Dtype::int64), "chosen", true});
        const int64_t parts = sample::parts(rows, columns);
        const std::vector<int64_t> best_count = {parts > 1 ? rows * parts : 0};
        const Tensor bests = placement.empty(best_count, Dtype::int64);
        if (parts > 1) {
            arguments.bests = static_cast<uint64_t*>(bests.data());
            regions.push_back({bests.data(), bests.extent_bytes(Dtype::int64), "best of each part", true});
        }
        for (const Launch& launch : sample::plan(placement.target(), element_type(dtype), arguments))
            placement.launch(launch, regions);
    }
    stack[0] = to_result(std::move(chosen));
}

const Registration registration{{{sample_schema, &sample}}};

}  // namespace
}  // namespace hipkittens::torch_binding
