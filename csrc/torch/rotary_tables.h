// torch/rotary_tables.h: tables, positions and options of a rotation, from operators' arguments to kernels' arguments.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/rotary/arguments.h"
#include "runtime/launch.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// In the order of schemas:
//   cos, sin  (rows, pairs), or (rows, 2 pairs) with full_tables: a column for each rotated feature
//   positions, offsets  int32 or int64, (batch, tokens): their sum and `offset` are the row of a token; without
//   positions, its own index is used
//   column_cos, column_sin  like cos and sin: tokens form a grid as wide as these have rows; a token's grid row
//   rotates the first half of the rotated features, and its grid column the second
//   interleaved, nope_first (the leading features are left unchanged), full_tables, inverse
struct RotationTensors {
    Tensor cos, sin;
    std::optional<Tensor> positions, offsets, column_cos, column_sin;
    int64_t offset;
    bool interleaved, nope_first, full_tables, inverse;
};
inline constexpr uint64_t rotation_arguments = 11;
#define ROTATION_SCHEMA                                                                                    \
    "Tensor cos, Tensor sin, Tensor? positions, Tensor? offsets, Tensor? column_cos, Tensor? column_sin, " \
    "SymInt offset, bool interleaved, bool nope_first, bool full_tables, bool inverse"
RotationTensors read_rotation(Arguments& arguments);

// Checks of the tables that need no token.
void check_rotation(const std::string& where, const RotationTensors& given, int64_t tokens, int64_t features);

// Checks everything, including values of positions in CPU memory, and adds the memory the launch may touch.
// Tables with gaps are replaced by copies.
rotary::Rotation describe_rotation(const std::string& where, RotationTensors& given, Device device,
                                   int64_t batch, int64_t tokens, int64_t features,
                                   std::vector<runtime::Region>& regions);

}  // namespace hipkittens::torch_binding
