// simulator/execute/matrix_layout.h: which lane of which register holds which matrix element.
// SPDX-License-Identifier: MIT
//
// As given by AMD's matrix instruction calculator. A shape multiplies `blocks` pairs of matrices, A (size x
// depth) and B (depth x size). Lane l holds row (of A) or column (of B) l % size. With one block, the lane
// groups l / size hold consecutive runs of k; with more, group l / size belongs to block l / size. Within a
// lane k runs through the registers, lowest bits first. D and C: sizes 32 and 16 store a row's columns in
// consecutive lanes. Groups of four rows are assigned to lane groups round-robin, the rows of a group to consecutive
// registers, then on to the next four registers; each block has its own registers. Size 4: register i is
// row i, and lane 4 * block + column.
#pragma once

#include "simulator/execute/lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

template <int size_, int depth_, int blocks_ = 1>
struct Shape {
    static constexpr int size = size_, depth = depth_, blocks = blocks_;
    static constexpr int lane_groups = 64 / size;
    static constexpr int run = blocks == 1 ? depth / lane_groups : depth;  // consecutive k in one lane
    static constexpr int registers = size * size * blocks / 64;            // of C and D
    static_assert(blocks == 1 || size * blocks == 64);
};

// Where row `row`, column `column` of a block of D is stored, relative to the block's first register.
template <int size>
HIPKITTENS_INLINE constexpr int output_register(int row) {
    return size == 32 ? 4 * (row / 8) + row % 4 : row % 4;
}
template <int size>
HIPKITTENS_INLINE constexpr int output_lane(int row, int column) {
    return size == 32 ? 32 * (row / 4 % 2) + column : 16 * (row / 4) + column;
}

// The registers of one matrix instruction. C may be a constant: then every register and every quarter is the
// same row.
struct MatrixOperands {
    uint8_t* d;
    const uint8_t* a;
    const uint8_t* b;
    const uint8_t* c;
    uint32_t c_register_bytes, c_quarter_bytes;
};

HIPKITTENS_INLINE const uint8_t* c_place(const MatrixOperands& operands, int vgpr, int lane) {
    return operands.c + vgpr * operands.c_register_bytes + lane / 16 * operands.c_quarter_bytes +
           lane % 16 * 4;
}
HIPKITTENS_INLINE uint8_t* d_place(const MatrixOperands& operands, int vgpr, int lane) {
    return operands.d + vgpr * 256 + lane * 4;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
