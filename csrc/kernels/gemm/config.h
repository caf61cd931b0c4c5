// kernels/gemm/config.h: what is fixed when a GEMM kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"

namespace hipkittens::gemm {

// First letter A, second B, as in BLAS: n is stored as in C = A B, t transposed.
enum class Orientation { nn, nt, tn, tt };
// vector: rows begin on 4 bytes and hold whole dwords, operands move 16 bytes at a time. element: anything
// else.
enum class RowStart { vector, element };
enum class Schedule {
    simple,       // load the next K tile, multiply this one, barrier
    ping_pong,    // two wave groups half a phase apart (tiles/ping_pong.h)
    interleaved,  // memory steps between the matrix steps of each wave
    streamed,     // every wave by itself, through registers: few rows, whose weights are read once
};

// In which order the loads of a K tile are issued, where they go to LDS directly (gfx950).
enum class LoadOrder {
    plain,      // A's tiles, then B's
    alternate,  // operands alternate, and half of the workgroups B first: main_loop.h, interleaved_loop.h
};

// What the products of K are multiplied with.
enum class Scales {
    none,
    outer,  // a factor for each row of A and one for each column of B, or one for the whole operand: after the sum
    blocks,  // f32 for blocks of 128 of K, 1 row of A or 128 of B: the sum of a K tile is multiplied (block_scales.h)
    row_blocks,  // the same where a block is 1 or 128 rows of either operand
    in_matrix,   // e8m0 for 1 row by 32 of K: an operand of the matrix instruction (gfx950)
    of_b,  // the same of B alone, or of what B is converted to; and a factor for each row of A after the sum, or one
};

struct GemmConfig {
    Orientation orientation;
    ElementType a, b;
    Scales scales;
    int tile_m, tile_n, tile_k;  // elements, whatever their size
    int waves_m, waves_n;
    int matrix;  // rows of the matrix instruction: 16 or 32
    RowStart row_start;
    Schedule schedule;
    // K tiles in LDS where direct loads fill them; through registers interleaved has two, the others one.
    int buffers;
    int in_registers;  // K tiles on their way through registers, where they take that way
    LoadOrder load_order;

    constexpr bool operator==(const GemmConfig&) const = default;
    constexpr bool a_is_transposed() const {
        return orientation == Orientation::tn || orientation == Orientation::tt;
    }
    constexpr bool b_is_transposed() const {
        return orientation == Orientation::nt || orientation == Orientation::tt;
    }
    // Elements of B become those of A, behind LDS.
    constexpr bool converts_b() const { return size_of(a) == 2 && b == ElementType::fp4; }
    // A workgroup may take several tiles of a group of rows, one after the other. What its lanes know of their places stays in registers
    // from one to the next, of which other schedules have none left.
    constexpr bool takes_neighbours() const { return schedule == Schedule::interleaved; }
    constexpr int threads() const { return waves_m * waves_n * 64; }
    constexpr int wave_m() const { return tile_m / waves_m; }
    constexpr int wave_n() const { return tile_n / waves_n; }
};

// Of rows that reduce a split K.
struct SumConfig {
    ElementType sum;  // of the partial sums: f32 or i32
};

}  // namespace hipkittens::gemm
