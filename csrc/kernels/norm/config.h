// kernels/norm/config.h: what is fixed when a norm kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::norm {

// A row is held in the registers of `waves` waves, `chunks` times 8 elements in each lane.
struct RowShape {
    int waves, chunks;
    int workgroup_waves = waves == 1 ? 4 : waves;
    int lanes = 64;  // of a wave, for a row: with fewer than 64 the wave takes several rows
    constexpr int capacity() const { return waves * lanes * 8 * chunks; }
    constexpr int rows_per_wave() const { return 64 / lanes; }
    constexpr int rows_per_workgroup() const { return workgroup_waves / waves * rows_per_wave(); }
    constexpr int threads() const { return workgroup_waves * 64; }
};

enum class Kind { forward, layer, rms, backward };

struct RowVariant {
    const char* name;
    Kind kind;
    ElementType element;
    RowShape shape;
};

// Sixteen waves leave 128 registers to a lane. Backward has two values per element, and beside them two sums over
// rows: rows of more than 8192 elements get those from NORM_COLUMNS, and of more than 32768 are read twice.
constexpr bool sums_columns(RowShape shape) { return shape.waves <= 4; }
constexpr bool holds_gradient(RowShape shape) { return shape.chunks <= 4; }

inline constexpr int columns_per_wave = 512, column_waves = 4;
inline constexpr int reduce_waves = 16, reduce_columns = 64;
inline constexpr int largest_cols = 65536;

#define NORM_FORWARD(name, targets, element, waves, chunks) \
    inline constexpr RowVariant variant_##name{#name, Kind::forward, ElementType::element, {waves, chunks}};
#define NORM_PLAIN(name, targets, kind, element, ...) \
    inline constexpr RowVariant variant_##name{#name, Kind::kind, ElementType::element, {__VA_ARGS__}};
#define NORM_BACKWARD(name, targets, element, waves, chunks) \
    inline constexpr RowVariant variant_##name{#name, Kind::backward, ElementType::element, {waves, chunks}};
#define NORM_COLUMNS(name, targets, element)
#define NORM_REDUCE(name, targets)
#include "variants.def"
#undef NORM_FORWARD
#undef NORM_PLAIN
#undef NORM_BACKWARD

inline constexpr RowVariant row_variants[] = {
#define NORM_FORWARD(name, ...) variant_##name,
#define NORM_PLAIN(name, ...) variant_##name,
#define NORM_BACKWARD(name, ...) variant_##name,
#include "variants.def"
#undef NORM_FORWARD
#undef NORM_PLAIN
#undef NORM_BACKWARD
#undef NORM_COLUMNS
#undef NORM_REDUCE
};

}  // namespace hipkittens::norm
