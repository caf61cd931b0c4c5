// kernels/norm/config.h: the compile-time configuration of a norm kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::norm {

// A row is held in the registers of `waves` waves, with `chunks` times 8 elements in each lane.
struct RowShape {
    int waves, chunks;
    int workgroup_waves;
    int lanes;  // lanes of a wave per row: with fewer than 64, the wave processes several rows
    constexpr int capacity() const { return waves * lanes * 8 * chunks; }
    constexpr int rows_per_wave() const { return 64 / lanes; }
    constexpr int rows_per_workgroup() const { return workgroup_waves / waves * rows_per_wave(); }
    constexpr int threads() const { return workgroup_waves * 64; }
};

struct RowConfig {
    ElementType element;
    int waves, chunks, workgroup_waves, lanes;
    constexpr RowShape shape() const { return {waves, chunks, workgroup_waves, lanes}; }
};

struct FusedConfig {
    ElementType element;
    int waves, chunks, workgroup_waves;
    // Rows that fit in registers, of whole vectors in one dimension, parameters of their type, no dropout and no bias of x.
    // Otherwise: any arguments, and rows of any length.
    bool usual;
    constexpr RowShape shape() const { return {waves, chunks, workgroup_waves, 64}; }
};

// Sixteen waves leave 128 registers per lane. Backward has two values per element and, in addition, two sums over
// rows: rows of more than 8192 elements leave those to the kind `columns`, and rows of more than 32768 are read twice.
constexpr bool sums_columns(RowShape shape) { return shape.waves <= 4; }
constexpr bool holds_gradient(RowShape shape) { return shape.chunks <= 4; }

inline constexpr int columns_per_wave = 512, column_waves = 4;
inline constexpr int reduce_waves = 16, reduce_columns = 64;
inline constexpr int largest_cols = 65536;

}  // namespace hipkittens::norm
