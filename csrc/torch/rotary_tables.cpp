// torch/rotary_tables.cpp: tables, positions and options of a rotation.
// SPDX-License-Identifier: MIT
#include "torch/rotary_tables.h"

#include <algorithm>

#include "torch/element_type.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

int64_t number_at(const Tensor& numbers, int64_t i, int64_t j) {
    const int64_t index = i * numbers.strides()[0] + j * numbers.strides()[1];
    if (numbers.dtype_number() == aoti_torch_dtype_int64())
        return static_cast<const int64_t*>(numbers.data())[index];
    return static_cast<const int32_t*>(numbers.data())[index];
}

rotary::TokenNumbers describe_numbers(const std::string& where, const Tensor& numbers, const char* name,
                                      Device device, int64_t batch, int64_t tokens,
                                      std::vector<runtime::Region>& regions) {
    const bool wide = numbers.dtype_number() == aoti_torch_dtype_int64();
    if (!wide && numbers.dtype_number() != aoti_torch_dtype_int32())
        fail(where + name + " need to be int32 or int64");
    if (numbers.dimensions() != 2 || numbers.sizes()[0] != batch || numbers.sizes()[1] != tokens)
        fail(where + name + " need the shape (batch, tokens)");
    if (!(numbers.device() == device)) fail(where + name + " are on another device");
    const rotary::TokenNumbers described{numbers.data(), numbers.strides()[0], numbers.strides()[1],
                                         wide ? 8 : 4, 0};
    const uint64_t last = static_cast<uint64_t>(batch - 1) * described.batch +
                          static_cast<uint64_t>(tokens - 1) * described.token;
    regions.push_back({numbers.data(), (last + 1) * described.bytes, name, false});
    return described;
}

// Positions are checked before the launch where the host can read them; on a GPU an out-of-range row gives
// NaN.
void check_rows(const std::string& where, const RotationTensors& given, int64_t batch, int64_t tokens) {
    const int64_t rows = given.cos.sizes()[0];
    for (int64_t i = 0; i < batch; ++i) {
        for (int64_t j = 0; j < tokens; ++j) {
            int64_t row = (given.positions ? number_at(*given.positions, i, j) : j) + given.offset;
            if (given.offsets) row += number_at(*given.offsets, i, j);
            if (row < 0 || row >= rows)
                fail(where + "position " + std::to_string(row) + " at [" + std::to_string(i) + ", " +
                     std::to_string(j) + "]; cos and sin have " + std::to_string(rows) + " rows");
        }
    }
}

rotary::AngleTable describe_table(const std::string& where, Tensor& cos, Tensor& sin, Dtype dtype,
                                  Device device, const char* cos_name, const char* sin_name,
                                  std::vector<runtime::Region>& regions) {
    if (!(cos.device() == device) || !(sin.device() == device))
        fail(where + "the tensors are on different devices");
    cos = with_unit_stride(std::move(cos), dtype);
    sin = with_unit_stride(std::move(sin), dtype);
    regions.push_back({cos.data(), cos.extent_bytes(dtype), cos_name, false});
    regions.push_back({sin.data(), sin.extent_bytes(dtype), sin_name, false});
    return {cos.data(), sin.data(), cos.strides()[0], sin.strides()[0], cos.sizes()[0]};
}

}  // namespace

RotationTensors read_rotation(Arguments& arguments) {
    Tensor cos = arguments.tensor(), sin = arguments.tensor();
    std::optional<Tensor> positions = arguments.optional_tensor(), offsets = arguments.optional_tensor();
    std::optional<Tensor> column_cos = arguments.optional_tensor(), column_sin = arguments.optional_tensor();
    const int64_t offset = arguments.integer();
    const bool interleaved = arguments.boolean(), nope_first = arguments.boolean();
    const bool full_tables = arguments.boolean(), inverse = arguments.boolean();
    return {std::move(cos),
            std::move(sin),
            std::move(positions),
            std::move(offsets),
            std::move(column_cos),
            std::move(column_sin),
            offset,
            interleaved,
            nope_first,
            full_tables,
            inverse};
}

void check_rotation(const std::string& where, const RotationTensors& given, int64_t tokens,
                    int64_t features) {
    const Dtype dtype = given.cos.dtype(where + "cos");
    const auto like_cos = [&](const Tensor& tensor, bool same_rows) {
        return tensor.dimensions() == 2 && tensor.dtype(where + "a table") == dtype &&
               tensor.sizes()[1] == given.cos.sizes()[1] &&
               (!same_rows || tensor.sizes()[0] == given.cos.sizes()[0]);
    };
    if (given.cos.dimensions() != 2 || !like_cos(given.sin, true))
        fail(where + "cos and sin need two dimensions, the same shape and the same dtype");
    const int64_t columns = given.cos.sizes()[1], axes = given.column_cos ? 2 : 1;
    if (columns < 1 || (given.full_tables && columns % 2) ||
        columns * axes * (given.full_tables ? 1 : 2) > features)
        fail(where + "cos has " + std::to_string(columns) + " columns for " + std::to_string(features) +
             " features");
    if (given.column_cos.has_value() != given.column_sin.has_value())
        fail(where + "column_cos and column_sin come together");
    if (given.column_cos) {
        const int64_t width = given.column_cos->sizes()[0];
        if (!like_cos(*given.column_cos, false) || !like_cos(*given.column_sin, false) ||
            given.column_sin->sizes()[0] != width)
            fail(where + "tables of columns need as many columns as cos, and its dtype");
        if (given.positions || given.offsets || given.offset != 0)
            fail(where + "in a grid, tokens have no other positions");
        if (width < 1 || (tokens + width - 1) / width > given.cos.sizes()[0])
            fail(where + std::to_string(tokens) + " tokens in a grid of " +
                 std::to_string(given.cos.sizes()[0]) + " rows and " + std::to_string(width) + " columns");
    } else if (!given.positions && !given.offsets &&
               (given.offset < 0 || given.offset + tokens > given.cos.sizes()[0])) {
        fail(where + "offset " + std::to_string(given.offset) + " and " + std::to_string(tokens) +
             " tokens; cos and sin have " + std::to_string(given.cos.sizes()[0]) + " rows");
    }
}

rotary::Rotation describe_rotation(const std::string& where, RotationTensors& given, Device device,
                                   int64_t batch, int64_t tokens, int64_t features,
                                   std::vector<runtime::Region>& regions) {
    check_rotation(where, given, tokens, features);
    const Dtype dtype = given.cos.dtype(where + "cos");
    rotary::Rotation rotation{};
    rotation.table = describe_table(where, given.cos, given.sin, dtype, device, "cos", "sin", regions);
    if (given.column_cos) {
        rotation.column_table = describe_table(where, *given.column_cos, *given.column_sin, dtype, device,
                                               "column_cos", "column_sin", regions);
        rotation.grid_width = static_cast<uint32_t>(rotation.column_table.rows);
    }
    if (given.positions)
        rotation.positions =
            describe_numbers(where, *given.positions, "positions", device, batch, tokens, regions);
    if (given.offsets)
        rotation.offsets = describe_numbers(where, *given.offsets, "offsets", device, batch, tokens, regions);
    if (device.cpu && (given.positions || given.offsets)) check_rows(where, given, batch, tokens);
    rotation.offset = given.offset;
    rotation.features = static_cast<uint32_t>(features);
    rotation.pairs = static_cast<uint32_t>(given.cos.sizes()[1] * (given.column_cos ? 2 : 1) /
                                           (given.full_tables ? 2 : 1));
    rotation.first = given.nope_first ? rotation.features - 2 * rotation.pairs : 0;
    rotation.table_type = element_type(dtype);
    rotation.full = given.full_tables;
    rotation.interleaved = given.interleaved;
    rotation.inverse = given.inverse;
    return rotation;
}

}  // namespace hipkittens::torch_binding
