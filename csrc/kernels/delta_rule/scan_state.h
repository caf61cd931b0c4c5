// kernels/delta_rule/scan_state.h: a state in the accumulators of a scan's waves, and the data these exchange through LDS.
// SPDX-License-Identifier: MIT
#pragma once
#include "state_columns.h"

namespace hipkittens::delta_rule {

inline constexpr int row_tiles = chunk_tokens / 16, token_steps = chunk_tokens / 32;

// 32 keys of a state are two base tiles, in which a lane has eight consecutive keys of a column: four in each. Accumulators are
// therefore right operands of products with keys in memory order. For small keys, the first waves have all of them.
template <int key>
struct KeysInPairs {
    static constexpr int pairs = key > 128 ? key / 128 : 1, count = 2 * pairs, waves = key / 32 / pairs;

    // The first of a wave's keys.
    KITTENS_DEVICE static int first_key(const StateColumns& at) { return 32 * pairs * at.wave; }
    KITTENS_DEVICE static int key_of(const StateColumns& at, int tile) {
        return first_key(at) + 32 * (tile / 2) + 8 * at.quarter + 4 * (tile % 2);
    }
    // The key of row `row` of a tile, for a left operand whose rows are those of a state.
    KITTENS_DEVICE static int key_of_row(const StateColumns& at, int tile, int row) {
        return first_key(at) + 32 * (tile / 2) + 8 * (row / 4) + 4 * (tile % 2) + row % 4;
    }
};
template <int key, int columns>
struct StatePairs : StateTiles<KeysInPairs<key>, columns>, KeysInPairs<key> {
    KITTENS_DEVICE kittens::eight pair(int p, int j) const {
        kittens::eight both;
        both.lo = this->tiles[2 * p][j];
        both.hi = this->tiles[2 * p + 1][j];
        return both;
    }
};

// Base tiles of floats in the layout of lanes, of which several waves have partial sums.
template <int waves, int column_tiles>
struct SharedParts {
    static constexpr int bytes = waves * row_tiles * column_tiles * kittens::wave_lanes * 16;
    kittens::shared_byte* base;

    KITTENS_DEVICE kittens::shared_byte* at(int wave, int row_tile, int column_tile) const {
        return base + (((wave * row_tiles + row_tile) * column_tiles + column_tile) * kittens::wave_lanes +
                       kittens::lane_id()) *
                          16;
    }
    KITTENS_DEVICE void write(int wave, int row_tile, int column_tile, four values) const {
        kittens::lds_write(values, at(wave, row_tile, column_tile));
    }
    // In a fixed order of waves.
    KITTENS_DEVICE four sum(int row_tile, int column_tile) const {
        four parts_of[waves];
#pragma unroll
        for (int w = 0; w < waves; ++w) parts_of[w] = kittens::lds_read<four>(at(w, row_tile, column_tile));
#pragma unroll
        for (int distance = 1; distance < waves; distance *= 2)
#pragma unroll
            for (int w = 0; w + distance < waves; w += 2 * distance) parts_of[w] += parts_of[w + distance];
        return parts_of[0];
    }
};

// The rows of one head of a chunk, starting with the first one; `advance` moves to the next chunk. The buffer ends after the chunk's
// last row, so that loads past it return zero without a mask; where all rows are one row (stride 0), what is read there instead is
// multiplied by a beta of zero.
template <class T>
struct WalkedRows {
    const char* base;
    int64_t per_chunk;  // bytes
    uint32_t step, row_bytes, columns;

    KITTENS_DEVICE WalkedRows(const TokenHeads& heads, const Span& span, uint32_t head, uint32_t columns)
        : base((const char*)heads.data +
               (span.sequence * heads.sequence + span.first * heads.token + head * heads.head) *
                   static_cast<int64_t>(sizeof(T))),
          per_chunk(heads.token * chunk_tokens * static_cast<int64_t>(sizeof(T))),
          step(static_cast<uint32_t>(heads.token * sizeof(T))),
          row_bytes(columns * static_cast<uint32_t>(sizeof(T))),
          columns(columns) {}
    KITTENS_DEVICE kittens::buffer memory(int32_t rows) const {
        return {base, rows > 0 ? static_cast<uint32_t>(rows - 1) * step + row_bytes : 0};
    }
    KITTENS_DEVICE void advance(int32_t chunks = 1) { base += chunks * per_chunk; }
    KITTENS_DEVICE uint32_t offset(uint32_t row, uint32_t column) const {
        return column < columns ? row * step + column * sizeof(T) : ~uint32_t{255};
    }
};

// The data of each chunk and head of a sequence, likewise.
struct WalkedPlaces {
    const char* base;
    int64_t per_chunk;
    uint32_t bytes;

    KITTENS_DEVICE WalkedPlaces(const void* all, const ChunksOf& chunks, uint32_t bytes)
        : base((const char*)all + static_cast<int64_t>(chunks.first_place) * bytes),
          per_chunk(static_cast<int64_t>(chunks.heads) * bytes),
          bytes(bytes) {}
    KITTENS_DEVICE kittens::buffer memory(int32_t rows) const { return {base, rows > 0 ? bytes : 0}; }
    KITTENS_DEVICE void advance(int32_t chunks = 1) { base += chunks * per_chunk; }
};

// 16 rows of `keys`: loaded with adjacent lanes along rows, which looks up a cache line once instead of once per row, and rearranged
// in LDS into operands, of which each lane has eight keys of a row. For one wave.
template <class T, int keys>
struct StagedRows {
    static constexpr int slots = keys * static_cast<int>(sizeof(T)) / 16, loads = slots / 4,
                         bytes = 16 * slots * 16;
    four rows[loads];

    KITTENS_DEVICE void load(const WalkedRows<T>& from, kittens::buffer memory, int first_row,
                             int first_key) {
#pragma unroll
        for (int n = 0; n < loads; ++n) {
            const int place = kittens::wave_lanes * n + kittens::lane_id();
            rows[n] = kittens::buffer_load<four>(
                memory, from.offset(first_row + place / slots,
                                    first_key + place % slots * (16 / static_cast<int>(sizeof(T)))));
        }
    }
    KITTENS_DEVICE void write(kittens::shared_byte* lds) const {
#pragma unroll
        for (int n = 0; n < loads; ++n) {
            const int place = kittens::wave_lanes * n + kittens::lane_id();
            kittens::lds_write(rows[n], at(lds, place / slots, place % slots));
        }
    }
    // For keys 32 step ..
    KITTENS_DEVICE static fragment<T> read(kittens::shared_byte* lds, int step) {
        const int row = kittens::lane_id() % 16, of_step = 2 * static_cast<int>(sizeof(T)),
                  slot = of_step * step + kittens::lane_id() / 16 * (of_step / 4);
        if constexpr (kittens::is_16bit<T>) {
            return kittens::lds_read<fragment<T>>(at(lds, row, slot));
        } else {
            fragment<T> result;
            result.lo = kittens::lds_read<four>(at(lds, row, slot));
            result.hi = kittens::lds_read<four>(at(lds, row, slot + 1));
            return result;
        }
    }

  private:
    // 16-byte vectors are permuted depending on their row, so that those read at the same time are in different banks.
    KITTENS_DEVICE static kittens::shared_byte* at(kittens::shared_byte* lds, int row, int slot) {
        return lds + (row * slots + (slot ^ (slots < 8 ? row / 2 % 4 : row & (slots < 16 ? 7 : 15)))) * 16;
    }
};

}  // namespace hipkittens::delta_rule
