// torch/topk.cpp: validates the tensors of a top-k selection, plans its passes and launches them.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/topk/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// x (..., columns) -> values (..., k), indices (..., k) int64. row_starts, row_ends: int32, contiguous, one for each row.
constexpr const char* topk_schema =
    "topk(Tensor x, SymInt k, bool largest, bool sorted, Tensor? row_starts, Tensor? row_ends) -> (Tensor, "
    "Tensor)";

const int32_t* bounds_of(const std::optional<Tensor>& tensor, const char* name, const Tensor& x, int64_t rows,
                         std::vector<runtime::Region>& regions) {
    if (!tensor) return nullptr;
    const std::string who = std::string("topk: ") + name;
    if (tensor->dtype_number() != aoti_torch_dtype_int32()) fail(who + " needs to be int32");
    if (tensor->element_count() != rows || !tensor->is_contiguous())
        fail(who + " needs to be contiguous, with " + std::to_string(rows) + " elements, one for each row");
    if (!(tensor->device() == x.device())) fail(who + " is on another device");
    regions.push_back({tensor->data(), tensor->extent_bytes(Dtype::int32), name, false});
    return static_cast<const int32_t*>(tensor->data());
}

void topk(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 || result_count != 2) fail("topk is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    const int64_t k = given.integer();
    const bool largest = given.boolean(), sorted = given.boolean();
    const std::optional<Tensor> starts = given.optional_tensor(), ends = given.optional_tensor();
    const Dtype dtype = x.dtype("topk: x");
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    if (sizes.empty()) fail("topk: x needs at least 1 dimension");
    const int64_t columns = sizes.back();
    int64_t rows = 1;
    for (size_t axis = 0; axis + 1 < sizes.size(); ++axis) rows *= sizes[axis];
    topk::check(rows, columns, k);
    sizes.back() = k;
    const Placement placement(x.device());
    Tensor values = placement.empty(sizes, dtype), indices = placement.empty(sizes, Dtype::int64);
    if (rows > 0 && k > 0) {
        const std::vector<Tensor*> tensors = {&x};
        const RowView view(tensors, dtype);
        const auto& counts = view.sizes();
        topk::SelectArguments arguments{};
        arguments.x = {x.data(), view.strides(0)[2], view.strides(0)[1], view.strides(0)[0]};
        arguments.rows = {static_cast<uint32_t>(rows), static_cast<uint32_t>(counts[1]),
                          static_cast<uint32_t>(counts[0])};
        arguments.k = static_cast<uint32_t>(k);
        arguments.smallest = !largest;
        arguments.aligned = view.aligned(tensors);
        runtime::Region source = {x.data(), x.extent_bytes(dtype), "x", false};
        std::vector<runtime::Region> bounds;
        arguments.starts = bounds_of(starts, "row_starts", x, rows, bounds);
        arguments.ends = bounds_of(ends, "row_ends", x, rows, bounds);
        std::vector<Tensor> candidates;  // values and columns of every pass but the last
        for (const topk::Pass& pass : topk::passes(placement.shape(), rows, columns, k)) {
            std::vector<runtime::Region> regions = bounds;
            regions.push_back(source);
            if (arguments.ids) {
                const Tensor& ids = candidates.back();
                regions.push_back(
                    {ids.data(), ids.extent_bytes(Dtype::int32), "columns of candidates", false});
            }
            const bool last = pass.parts == 1;
            if (!last) {
                const int64_t all[] = {rows, pass.parts * k};
                candidates.push_back(placement.empty(all, dtype));
                candidates.push_back(placement.empty(all, Dtype::int32));
            }
            const Tensor& kept = last ? values : candidates[candidates.size() - 2];
            const Tensor& found = last ? indices : candidates.back();
            arguments.values = kept.data();
            arguments.indices = found.data();
            arguments.wide_indices = last;
            arguments.sorted = last && sorted;
            regions.push_back({kept.data(), kept.extent_bytes(dtype), "values", true});
            regions.push_back(
                {found.data(), found.extent_bytes(last ? Dtype::int64 : Dtype::int32), "indices", true});
            placement.launch(topk::plan(placement.shape(), element_type(dtype), pass, arguments), regions);
            arguments.x = {kept.data(), 0, 0, pass.parts * k};
            arguments.rows.inner = arguments.rows.all;
            arguments.aligned = pass.parts * k * bytes_of(dtype) % 4 == 0;
            arguments.ids = static_cast<const int32_t*>(found.data());
            arguments.starts = arguments.ends = nullptr;
            bounds.clear();
            source = {kept.data(), kept.extent_bytes(dtype), "candidates", false};
        }
    }
    stack[0] = to_result(std::move(values));
    stack[1] = to_result(std::move(indices));
}

const Registration registration{{{topk_schema, &topk}}};

}  // namespace
}  // namespace hipkittens::torch_binding
