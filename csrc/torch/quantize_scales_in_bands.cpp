// torch/quantize_scales_in_bands.cpp: validates scales to be moved into bands of rows, plans the move and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/quantize/plan.h"
#include "torch/placement.h"
#include "torch/quantize_range_ends.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {

void check_ends(const std::string& where, const Tensor& ends, const Tensor& x) {
    if (ends.dimensions() != 1 || ends.dtype_number() != aoti_torch_dtype_int32() || !ends.is_contiguous() ||
        !(ends.device() == x.device()))
        fail(where + "ends need to be contiguous, int32, of one dimension, and on the device of the rows");
}
quantize::RangeEnds ranges_of(const Tensor& ends) {
    const int64_t count = ends.element_count();
    return {count ? static_cast<const int32_t*>(ends.data()) : nullptr, static_cast<uint32_t>(count)};
}
void add_region(const Tensor& ends, std::vector<runtime::Region>& regions) {
    if (ends.element_count() > 0)
        regions.push_back({ends.data(), ends.extent_bytes(Dtype::int32), "ends", false});
}

namespace {

// scales (rows, columns) uint8, e8m0. Returns them shuffled, in bands of 32 rows that begin with each of the ranges whose ends
// are `ends` (kernels/quantize/row_bands.h): rows outside every range are not written, columns are padded with scales of 1.
constexpr const char* schema = "scales_in_bands(Tensor scales, Tensor ends) -> Tensor";

void scales_in_bands(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 2 || result_count != 1) fail("scales_in_bands is registered with another schema");
    Arguments given(stack, argument_count);
    const Tensor scales = given.tensor(), ends = given.tensor();
    if (scales.dimensions() != 2 || scales.dtype_number() != aoti_torch_dtype_uint8())
        fail("scales_in_bands: scales need to be uint8, of rows and columns");
    check_ends("scales_in_bands: ", ends, scales);
    const int64_t rows = scales.sizes()[0], columns = scales.sizes()[1];
    if (rows > INT32_MAX || columns > INT32_MAX)
        fail("scales_in_bands: at most 2147483647 rows and columns are allowed");
    const auto count = quantize::banded_scales(rows, ends.element_count(), columns);
    const std::vector<int64_t> sizes = {count.rows, count.groups};
    const Placement placement(scales.device());
    Tensor result = placement.empty(sizes, Dtype::uint8);
    if (rows > 0 && columns > 0) {
        quantize::BandsArguments arguments{};
        arguments.scales = scales.data();
        arguments.result = result.data();
        arguments.row_step = scales.strides()[0];
        arguments.column_step = scales.strides()[1];
        arguments.ranges = ranges_of(ends);
        arguments.rows = static_cast<uint32_t>(rows);
        arguments.columns = static_cast<uint32_t>(columns);
        std::vector<runtime::Region> regions = {
            {scales.data(), scales.extent_bytes(Dtype::uint8), "scales", false},
            {result.data(), result.extent_bytes(Dtype::uint8), "result", true}};
        add_region(ends, regions);
        placement.launch(quantize::plan_bands(placement.target(), arguments), regions);
    }
    stack[0] = to_result(std::move(result));
}

const Registration registration{{{schema, &scales_in_bands}}};

}  // namespace
}  // namespace hipkittens::torch_binding
