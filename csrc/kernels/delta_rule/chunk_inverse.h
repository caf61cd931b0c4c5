// kernels/delta_rule/chunk_inverse.h: the inverse of a chunk's system, and where the matrices of chunks are stored.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// Over the lanes of one column: those 16 and 32 apart.
KITTENS_DEVICE float sum_of_quarters(float x) {
    x += kittens::exchange_16(x);
    return x + kittens::exchange_32(x);
}

// A chunk's system in LDS, without the part above the base tiles of the diagonal. Rows are padded, and so is every second row of tiles, so
// that elements that are read at the same time are in different banks.
inline constexpr int system_tiles = chunk_tokens / 16;
constexpr int system_pitch(int tile) { return 16 * tile + 20; }
constexpr int system_start(int tile) { return 128 * tile * (tile - 1) + 320 * tile + 24 * ((tile + 1) / 2); }
inline constexpr int system_bytes =
    (system_start(system_tiles - 1) + 16 * system_pitch(system_tiles - 1)) * 4;
// The byte offset of an element in row 16 tile + row.
constexpr int system_byte(int tile, int row, int column) {
    return (system_start(tile) + row * system_pitch(tile) + column) * 4;
}

// The part of PrepareArguments::matrices that belongs to one chunk.
template <class T>
struct ChunkMatrices {
    global<T> first;
    uint32_t of_chunk;

    KITTENS_DEVICE ChunkMatrices(void* all, uint32_t matrices_of_chunk, int64_t place)
        : first((global<T>)all + place * (matrices_of_chunk * matrix_bytes<T> / sizeof(T))),
          of_chunk(matrices_of_chunk) {}
    // A lane's part of base tile (i, j): row 16 i + lane % 16 and columns 16 j + 4 (lane / 16) .. + 3. Elements that no reader of
    // triangular matrices (MatrixRows) reads are not written.
    KITTENS_DEVICE void store(ChunkMatrix which, int i, int j, four values) const {
        if (i < j / 2 * 2) return;
        const Sum<T, 4> sum(values);
        const int row = 16 * i + kittens::lane_id() % 16, column = 16 * j + 4 * (kittens::lane_id() / 16);
#pragma unroll
        for (int n = 0; n < parts<T>; ++n) {
            auto* to = first + (static_cast<int>(which) * parts<T> + n) * chunk_tokens * chunk_tokens;
            *(global<kittens::vec<T, 4>>)(to + matrix_element(row, column)) = sum.part[n];
            if (of_chunk > 2) {
                to += 2 * parts<T> * chunk_tokens * chunk_tokens;
#pragma unroll
                for (int e = 0; e < 4; ++e) to[matrix_element(column + e, row)] = sum.part[n][e];
            }
        }
    }
};

// T = (I + A)^-1 for the A below the diagonal of `system`, where blocks of T overwrite those of A. Executed by one wave.
//
// (I + A) T = I by forward substitution: its rounding errors act like errors of a right-hand side, which T damps like values.
// Those of T (I + A) = I would be added to T itself, and with equal keys and rates near 2 they are all that remains of a state.
template <class T>
KITTENS_DEVICE void store_inverse(kittens::shared_byte* system, const ChunkMatrices<T>& matrices) {
    const int column = kittens::lane_id() % 16, quarter = kittens::lane_id() / 16;
    // The diagonal blocks: each lane has a column of one of them.
    {
        auto* block = system + system_byte(quarter, 0, 16 * quarter);
        const int row_bytes = system_pitch(quarter) * 4;
        float of_column[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            of_column[i] = column == i ? 1.0f : 0.0f;
#pragma unroll
            for (int m = 0; m < i; ++m)
                of_column[i] = __builtin_fmaf(-kittens::lds_read<float>(block + i * row_bytes + m * 4),
                                              of_column[m], of_column[i]);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) kittens::lds_write(of_column[i], block + i * row_bytes + column * 4);
    }
    // Adjacent elements of a row of a block, as in a left operand and in memory; and of a column, as in a right operand and in results.
    const auto of_row = [&](int i, int j) {
        return kittens::lds_read<four>(system + system_byte(i, column, 16 * j + 4 * quarter));
    };
    const auto byte_of_column = [&](int i, int j, int e) {
        return system_byte(i, 4 * quarter + e, 16 * j + column);
    };
    const auto add_product = [&](four a, four b, four sum) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum = kittens::matrix_16x16(a[e], b[e], sum);
        return sum;
    };
    // Below it T_ij = -T_ii (sum over j <= m < i of A_im T_mj). No later column needs A's blocks of column j.
#pragma unroll
    for (int j = 0; j < system_tiles - 1; ++j) {
        four inverse[system_tiles];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            inverse[j][e] = kittens::lds_read<float>(system + byte_of_column(j, j, e));
#pragma unroll
        for (int i = j + 1; i < system_tiles; ++i) {
            four sum = 0;
#pragma unroll
            for (int m = j; m < i; ++m) sum = add_product(of_row(i, m), inverse[m], sum);
            inverse[i] = add_product(of_row(i, i), -sum, four(0.0f));
        }
#pragma unroll
        for (int i = j + 1; i < system_tiles; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) kittens::lds_write(inverse[i][e], system + byte_of_column(i, j, e));
    }
#pragma unroll
    for (int i = 0; i < system_tiles; ++i)
#pragma unroll
        for (int j = 0; j < system_tiles; ++j)
            matrices.store(ChunkMatrix::inverse, i, j, j <= i ? of_row(i, j) : four(0.0f));
}

}  // namespace hipkittens::delta_rule
