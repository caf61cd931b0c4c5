// tiles/swizzle.h: where a shared tile stores its bytes so that the access it is built for has no bank conflicts.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

// The access that reads the tile. The key of a row is XORed with the slot number inside the row. Every key
// is linear over XOR in the bits of the row, so stepping by whole base tiles costs an immediate offset and
// at most one XOR, which is hoisted out of the loop.
enum class Access {
    linear,
    rows,                  // ds_read_b128 of 8 adjacent 16-bit elements of 16 or 32 rows
    rows_written_in_runs,  // the same, filled by ds_write_b64 of four elements of rows 8 apart (gfx942's
                           // transposing fill)
    columns_16,            // ds_read_b64_tr_b16 feeding 16-wide base tiles
    columns_32,            // the same, feeding 32-wide base tiles
    rows_and_columns_32,   // both ds_read_b128 of rows and the transposed read that feeds 32-wide base tiles
    columns_32_written_in_runs,  // the transposed read, filled by ds_write_b64 of four elements of adjacent rows
    rows_in_runs_of_4,  // ds_read_b128 of 16 or 32 rows of 256 bytes, where a lane reads four consecutive 16-byte vectors
};

constexpr unsigned slot_bytes(Access access) {
    if (access == Access::columns_32_written_in_runs) return 8;
    return access == Access::columns_16 ? 32 : access == Access::columns_32 ? 64 : 16;
}

constexpr unsigned swizzle_key(Access access, unsigned row_bytes, unsigned window_bytes, unsigned row) {
    if (access == Access::linear) return 0;
    const unsigned rows_per_window = row_bytes < window_bytes ? window_bytes / row_bytes : 1;
    const unsigned slots = (row_bytes < window_bytes ? row_bytes : window_bytes) / slot_bytes(access);
    // A phase of ds_read_b128 reads 16 (gfx942: 8) different rows; a phase of the transposed read reads rows
    // 0-3 and 8-11 of every 16 (for 32-wide tiles only rows 0-3), whichever four rows the instruction reads.
    unsigned number = row;
    if (access == Access::rows_and_columns_32) {
        // Adjacent rows are in different quarters (halves) of a window, as the transposed read needs; 16 rows use
        // every slot once.
        const unsigned window_row = row / rows_per_window, quarters = slots / 4;
        return (window_row & (quarters - 1)) * 4 | (window_row / quarters & 3);
    }
    // Writes use 32 banks: 16 adjacent rows use every slot of 128 bytes once.
    if (access == Access::columns_32_written_in_runs)
        return (row >> 1 & 1) << 3 | (row >> 2 & 3) << 1 | (row & 1);
    if (access == Access::rows_written_in_runs) number = row ^ row >> 3;
    if (access == Access::columns_16) number = (row & 3) | (row >> 3 & 1) << 2;
    if (access == Access::columns_32) number = row & 3;
    return number / rows_per_window & (slots - 1);
}

// A phase of gfx950's ds_read_b128 reads 8 of 16 rows at one place and the other 8, either the middle or the outer ones, at the next
// place. This key, one per four rows, sends both kinds to different slots if there are four places or places are four slots apart.
constexpr bool has_keys_of_four_rows(Access access, unsigned row_bytes, unsigned window_bytes) {
    return access == Access::rows_in_runs_of_4 ||
           (access == Access::rows && row_bytes == 64 && window_bytes == 256);
}
constexpr unsigned key_of_four_rows(Access access, unsigned row) {
    const unsigned four = row / 4 & 3, key = (four & 1) << 1 ^ (four >> 1) * 3;
    return access == Access::rows_in_runs_of_4 ? (row & 3) | key << 2 : key;
}

constexpr unsigned swizzled_offset(Access access, unsigned row_bytes, unsigned window_bytes, unsigned row,
                                   unsigned byte) {
    return row * row_bytes + (byte ^ swizzle_key(access, row_bytes, window_bytes, row) * slot_bytes(access));
}

}  // namespace kittens
