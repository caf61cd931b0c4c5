// simulator/execute/matrix_f64.cpp: the two f64 shapes.
// SPDX-License-Identifier: MIT
#include "simulator/execute/matrix_strict.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

// A double is split across the same lane of two registers.
double get(const uint8_t* from, int vgpr, int lane) {
    double value;
    memcpy(&value, from + vgpr * 256 + lane * 4, 4);
    memcpy(reinterpret_cast<char*>(&value) + 4, from + vgpr * 256 + 256 + lane * 4, 4);
    return value;
}
double get_c(const MatrixOperands& operands, int vgpr, int lane) {
    double value;
    // A constant C has the same pair of dwords everywhere.
    const int low = operands.c_register_bytes == layout::vector_row_bytes ? vgpr : 0;
    memcpy(&value, c_place(operands, low, lane), 4);
    memcpy(reinterpret_cast<char*>(&value) + 4, c_place(operands, low + 1, lane), 4);
    return value;
}
void put(const MatrixOperands& operands, int vgpr, int lane, double value) {
    if (value != value) value = __builtin_nan("");
    memcpy(d_place(operands, vgpr, lane), &value, 4);
    memcpy(d_place(operands, vgpr + 1, lane), reinterpret_cast<const char*>(&value) + 4, 4);
}

}  // namespace

void multiply_f64_16x16x4(const MatrixOperands& operands) {
    double a[4][16], sum[16][16];
    f64x8 b[4][2];
    for (int lane = 0; lane < 64; ++lane) {
        a[lane / 16][lane % 16] = get(operands.a, 0, lane);
        b[lane / 16][lane % 16 / 8][lane % 8] = get(operands.b, 0, lane);
        for (int i = 0; i < 4; ++i) sum[4 * i + lane / 16][lane % 16] = get_c(operands, 2 * i, lane);
    }
    for (int row = 0; row < 16; ++row) {
        for (int half = 0; half < 2; ++half) {
            f64x8 total;
            memcpy(&total, &sum[row][8 * half], sizeof(total));
            for (int k = 0; k < 4; ++k) total = fma(a[k][row] - f64x8{}, b[k][half], total);
            memcpy(&sum[row][8 * half], &total, sizeof(total));
        }
    }
    for (int lane = 0; lane < 64; ++lane) {
        for (int i = 0; i < 4; ++i) put(operands, 2 * i, lane, sum[4 * i + lane / 16][lane % 16]);
    }
}

void multiply_f64_4x4x4(const MatrixOperands& operands) {
    f64x8 sum[8];
    for (int lane = 0; lane < 64; ++lane) sum[lane / 8][lane % 8] = get_c(operands, 0, lane);
    for (int k = 0; k < 4; ++k) {
        for (int group = 0; group < 8; ++group) {
            f64x8 a, b;
            for (int i = 0; i < 8; ++i) {
                const int lane = 8 * group + i, row = lane / 16, block = lane / 4 % 4, column = lane % 4;
                a[i] = get(operands.a, 0, row + 4 * block + 16 * k);
                b[i] = get(operands.b, 0, column + 4 * block + 16 * k);
            }
            sum[group] = fma(a, b, sum[group]);
        }
    }
    for (int lane = 0; lane < 64; ++lane) put(operands, 0, lane, sum[lane / 8][lane % 8]);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
