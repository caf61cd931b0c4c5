// kernels/gemm/config.h: the compile-time configuration of a GEMM kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"

namespace hipkittens::gemm {

// First letter A, second B, as in BLAS: n is stored as in C = A B, t transposed.
enum class Orientation { nn, nt, tn, tt };
// vector: rows are 4-byte aligned and hold whole dwords; operands are moved 16 bytes at a time. element:
// anything else.
enum class RowStart { vector, element };
enum class Schedule {
    simple,       // loads the next K tile, multiplies the current one, barrier
    ping_pong,    // two wave groups half a phase apart (tiles/ping_pong.h)
    interleaved,  // memory steps between the matrix steps of each wave
    streamed,     // each wave on its own, through registers: for few rows, whose weights are read once
};

// The order in which the loads of a K tile are issued, where they go directly to LDS (gfx950).
enum class LoadOrder {
    plain,      // A's tiles, then B's
    alternate,  // operands alternate, and half of the workgroups start with B: main_loop.h, interleaved_loop.h
};

// Scales that the products along K are multiplied by.
enum class Scales {
    none,
    outer,  // one per row of A and one per column of B, or one per whole operand: applied after the sum
    blocks,  // f32 per block of 128 of K, 1 row of A or 128 of B: applied to the sum of a K tile (block_scales.h)
    row_blocks,  // the same, where a block has 1 or 128 rows of either operand
    in_matrix,   // e8m0 per row and 32 of K: an operand of the matrix instruction (gfx950)
    of_b,  // the same for B alone, or for the result of converting B; and one scale per row of A, or one, after the sum
};

struct GemmConfig {
    Orientation orientation;
    ElementType a, b;
    Scales scales;
    int tile_m, tile_n, tile_k;  // elements, regardless of their size
    int waves_m, waves_n;
    int matrix;  // rows of the matrix instruction: 16 or 32
    RowStart row_start;
    Schedule schedule;
    // K tiles in LDS with direct loads; through registers, interleaved has two and the others one.
    int buffers;
    int in_registers;  // K tiles in flight through registers, where loads go through registers
    LoadOrder load_order;

    constexpr bool operator==(const GemmConfig&) const = default;
    constexpr bool a_is_transposed() const {
        return orientation == Orientation::tn || orientation == Orientation::tt;
    }
    constexpr bool b_is_transposed() const {
        return orientation == Orientation::nt || orientation == Orientation::tt;
    }
    // Elements of B are converted to those of A after LDS.
    constexpr bool converts_b() const { return size_of(a) == 2 && b == ElementType::fp4; }
    // Whether a workgroup may process several tiles of a group of rows in sequence. A lane's position data stays in registers from one
    // tile to the next; the other schedules have no registers left for it.
    constexpr bool takes_neighbours() const { return schedule == Schedule::interleaved; }
    constexpr int threads() const { return waves_m * waves_n * 64; }
    constexpr int wave_m() const { return tile_m / waves_m; }
    constexpr int wave_n() const { return tile_n / waves_n; }
};

// For rows that reduce a split K.
struct SumConfig {
    ElementType sum;  // of the partial sums: f32 or i32
};

}  // namespace hipkittens::gemm
