// kernels/rotary/angles.h: the cosines and sines by which the features of a token are rotated.
// SPDX-License-Identifier: MIT
#pragma once
#include "unit.h"

namespace hipkittens::rotary {

// (a, b) -> (a cos - b sin, a sin + b cos), where the first product of each is not rounded; a and b may have different angles.
template <class V>
KITTENS_DEVICE void rotate_pairs(V& a, V& b, V cos_a, V sin_a, V cos_b, V sin_b) {
    const V first = __builtin_elementwise_fma(a, cos_a, -(b * sin_a));
    b = __builtin_elementwise_fma(a, sin_b, b * cos_b);
    a = first;
}
template <class V>
KITTENS_DEVICE void rotate_pairs(V& a, V& b, V cos, V sin) {
    rotate_pairs(a, b, cos, sin, cos, sin);
}

KITTENS_DEVICE int64_t number_of(const TokenNumbers& numbers, uint32_t batch, uint32_t token) {
    const int64_t index = batch * numbers.batch + token * numbers.token;
    return numbers.bytes == 8 ? static_cast<const int64_t*>(numbers.data)[index]
                              : static_cast<const int32_t*>(numbers.data)[index];
}

struct Turn {
    Pairs cos, sin;
    KITTENS_DEVICE void operator()(Pairs& x) const { rotate_pairs(x.a, x.b, cos.a, sin.a, cos.b, sin.b); }
};

// Rows of the tables for a token. A row outside the tables is never read, and yields NaN instead.
class Angles {
    const Rotation& rotation_;
    int64_t row_, column_row_ = 0;
    bool known_;

  public:
    KITTENS_DEVICE Angles(const Rotation& rotation, uint32_t batch, uint32_t token) : rotation_(rotation) {
        row_ = token + rotation.offset;
        if (rotation.positions.data) row_ = number_of(rotation.positions, batch, token) + rotation.offset;
        if (rotation.offsets.data) row_ += number_of(rotation.offsets, batch, token);
        if (rotation.grid_width) {
            row_ = token / rotation.grid_width;
            column_row_ = token - static_cast<uint32_t>(row_) * rotation.grid_width;
        }
        known_ = row_ >= 0 && row_ < rotation.table.rows;
        if (!known_) row_ = 0;
    }

    // For a unit that is rotated.
    KITTENS_DEVICE Turn load(const Unit& unit, bool wide) const {
        const AngleTable& table = unit.axis ? rotation_.column_table : rotation_.table;
        const int64_t row = unit.axis ? column_row_ : row_;
        Unit columns = unit;  // in the table: one column per pair, or per feature
        columns.a = unit.pair;
        columns.step = 1;
        columns.count_b = 0;
        if (rotation_.full) {
            const uint32_t axis_pairs = rotation_.grid_width ? rotation_.pairs / 2 : rotation_.pairs;
            columns.step = unit.step;
            columns.a = unit.pair * unit.step;
            columns.b = unit.step == 1 ? columns.a + axis_pairs : columns.a + 1;
            columns.count_b = unit.count_b;
        }
        const ElementType type = rotation_.table_type;
        Turn turn = {load_unit_as(type, table.cos, row * table.cos_stride, columns, wide),
                     load_unit_as(type, table.sin, row * table.sin_stride, columns, wide)};
        if (!rotation_.full) turn.cos.b = turn.cos.a, turn.sin.b = turn.sin.a;
        const float poison = known_ ? 1.0f : __builtin_nanf("");
        turn.cos.a *= poison;
        turn.cos.b *= poison;
        if (rotation_.inverse) turn.sin = {-turn.sin.b, -turn.sin.a};
        return turn;
    }
};

}  // namespace hipkittens::rotary
