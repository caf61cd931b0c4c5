// tiles/load_global_to_shared.h: a workgroup fills a shared tile from a window of a matrix.
// SPDX-License-Identifier: MIT
#pragma once
#include "global_layout.h"
#include "lane_layout.h"
#include "shared_tile.h"
#include "tile_source.h"
#include "unroll.h"

namespace kittens {

enum class Fill {
    direct,     // memory to LDS, no registers (gfx950)
    registers,  // 16-byte loads, 16-byte LDS writes
    elements,   // one load per element, for rows that are not 4-byte aligned
};

// For rows that are 4-byte aligned and hold whole dwords.
inline constexpr Fill vector_fill = target.direct_to_lds_bytes == 16 ? Fill::direct : Fill::registers;

template <class T, class V, Fill fill>
KITTENS_DEVICE V load_elements(buffer source, uint32_t offset) {
    if constexpr (fill == Fill::elements) {
        constexpr int count = sizeof(V) / sizeof(T);
        vec<T, count> elements;
#pragma unroll
        for (int i = 0; i < count; ++i) elements[i] = buffer_load<T>(source, offset + i * sizeof(T));
        return __builtin_bit_cast(V, elements);
    } else {
        return buffer_load<V>(source, offset);
    }
}

// The 16 bytes with those from `count` on replaced by zero; any count, including negative ones.
KITTENS_DEVICE b128 first_bytes(b128 words, int count) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
        const int left = count - word * 4;
        words[word] &= left >= 4 ? ~0u : left <= 0 ? 0u : ~0u >> (32 - 8 * left);
    }
    return words;
}

// Offsets are computed once (init_offsets) and used for every window with the same row stride. Lanes write LDS in linear order, as
// the direct load requires; the swizzle is therefore applied, inverted, to the global side. The passes of a wave fill adjacent
// blocks. issue() starts the loads: into LDS (direct) or into registers, which commit() then writes to LDS. `sets`: the number of
// fills that can be in flight to registers, each in the set named by its issue and commit. With Threads = 64, each wave fills a tile
// of its own.
template <class Tile, int Threads, Fill fill, int sets = 1>
struct global_to_shared {
    KITTENS_DEVICE static int own_thread() { return Threads == wave_lanes ? lane_id() : thread_id(); }

    using T = typename Tile::element;
    static constexpr int pass_bytes = Threads * b128_bytes;
    static constexpr int passes = (Tile::bytes + pass_bytes - 1) / pass_bytes;
    static constexpr int loads_per_wave = passes;  // what one fill adds to vmcnt
    static_assert(Tile::bytes % (wave_lanes * b128_bytes) == 0, "a tile is filled by whole waves");
    static_assert(fill != Fill::direct || Tile::bytes % pass_bytes == 0,
                  "every wave issues the same number of direct loads, or their waits differ");

    int wave;
    uint32_t offsets[passes];
    b128 data[sets][fill == Fill::direct ? 1 : passes];

    KITTENS_DEVICE bool active(int pass, int thread) const {
        return passes * pass_bytes <= Tile::bytes || linear_offset(pass, thread) < Tile::bytes;
    }

    // Up to four direct loads share one m0 and address their 1024-byte blocks through the offset field.
    // That field also moves the memory address, so the buffer begins `lead` bytes early and the lanes'
    // offsets compensate for it.
    static constexpr int wave_bytes = wave_lanes * b128_bytes;
    static constexpr int lead = fill == Fill::direct ? (passes < 4 ? passes - 1 : 3) * wave_bytes : 0;

    KITTENS_DEVICE static buffer prepared(buffer source) {
        return {source.base - lead, source.bytes + lead, source.scalar_offset};
    }

    KITTENS_DEVICE static int linear_offset(int pass, int thread) {
        return (thread / wave_lanes * passes + pass) * wave_bytes + thread % wave_lanes * b128_bytes;
    }
    KITTENS_DEVICE static Coordinate position(int pass, int thread) {
        return Tile::element_at(linear_offset(pass, thread));
    }

    // Row r of the tile starts `rows`(r) bytes into the buffer: contiguous_rows, listed_rows or any other function. Where the columns
    // of a row are not contiguous, it is a function of both coordinates.
    template <class Rows>
    KITTENS_DEVICE void init_offsets_of(const Rows& rows, int first_col = 0) {
        const int thread = own_thread();
        wave = wave_id();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
            const Coordinate at = position(pass, thread);
            if constexpr (requires { rows(at); })
                offsets[pass] = rows(at);
            else
                offsets[pass] = rows(at.row) + (first_col + at.col) * sizeof(T);
            if constexpr (fill == Fill::direct) offsets[pass] += lead - pass % 4 * wave_bytes;
            if constexpr (Tile::is_padded) offsets[pass] = at.row < Tile::rows ? offsets[pass] : out_of_range;
        }
    }
    // The tile is filled from the window, starting at (first_row, first_col).
    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int first_row = 0, int first_col = 0) {
        init_offsets_of(contiguous_rows{static_cast<uint32_t>(row_bytes), first_row}, first_col);
    }

    template <int set = 0>
    KITTENS_DEVICE void issue(buffer source, Tile tile) {
        issue_at<set>(prepared(source), tile, offsets);
    }
    // The same for a source that is already prepared(): for loops that keep it in registers.
    template <int set = 0>
    KITTENS_DEVICE void issue_prepared(buffer source, Tile tile) {
        issue_at<set>(source, tile, offsets);
    }

    // Rows from valid_rows on and vectors from column valid_cols on read as zero. A vector that straddles
    // valid_cols is loaded whole: see zero_columns.
    template <int set = 0>
    KITTENS_DEVICE void issue_valid(buffer source, Tile tile, int valid_rows, int valid_cols) {
        uint32_t masked[passes];
        mask(masked, valid_rows, valid_cols);
        issue_at<set>(prepared(source), tile, masked);
    }
    KITTENS_DEVICE void mask(uint32_t (&masked)[passes], int valid_rows, int valid_cols) const {
        const int thread = own_thread();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass) {
            const Coordinate at = position(pass, thread);
            masked[pass] = at.row < valid_rows && at.col < valid_cols ? offsets[pass] : out_of_range;
        }
    }

    template <int set = 0>
    KITTENS_DEVICE void issue_at(buffer source, Tile tile, const uint32_t (&at)[passes]) {
        const int thread = own_thread();
        if constexpr (fill == Fill::direct) {
            for_each_index<(passes + 3) / 4>([&](auto group) {
                constexpr int first = group.value * 4, count = passes - first < 4 ? passes - first : 4;
                shared_byte* destination = tile.data + (wave * passes + first) * wave_bytes;
                buffer_load_to_lds<count>(source, at + first, destination);
            });
        } else {
#pragma unroll
            for (int pass = 0; pass < passes; ++pass)
                if (active(pass, thread)) data[set][pass] = load_elements<T, b128, fill>(source, at[pass]);
        }
    }
    template <int set = 0>
    KITTENS_DEVICE void commit(Tile tile) const {
        for_each_index<commit_items>([&](auto piece) { commit_item<piece.value, set>(tile); });
    }

    // After the loads of a set, in its registers: clears the loaded elements from column `first` on.
    template <int set = 0>
    KITTENS_DEVICE void clear_columns(int first) {
        const int thread = own_thread();
#pragma unroll
        for (int pass = 0; pass < passes; ++pass)
            data[set][pass] = first_bytes(data[set][pass],
                                          (first - position(pass, thread).col) * static_cast<int>(sizeof(T)));
    }

    // A single load from prepared(source), and a single write: for schedules that place each separately.
    static constexpr int issue_items = passes, commit_items = fill == Fill::direct ? 0 : passes;
    template <int pass, int set = 0>
    KITTENS_DEVICE void issue_item(buffer source, Tile tile) {
        static_assert(fill != Fill::elements);
        if constexpr (fill == Fill::direct)
            buffer_load_to_lds_one<pass % 4>(source, offsets[pass],
                                             tile.data + (wave * passes + pass / 4 * 4) * wave_bytes);
        else if (active(pass, own_thread()))
            data[set][pass] = buffer_load<b128>(source, offsets[pass]);
    }
    template <int pass, int set = 0>
    KITTENS_DEVICE void commit_item(Tile tile) const {
        const int thread = own_thread();
        if (active(pass, thread)) lds_write(data[set][pass], tile.data + linear_offset(pass, thread));
    }
};

// Clears the out-of-range part of a 16-byte vector that straddles the end of the matrix: columns from `first` on in
// the vector that holds column `first`.
template <int Threads, class Tile>
KITTENS_DEVICE void zero_columns(Tile tile, int first) {
    using T = typename Tile::element;
    constexpr int per_vector = b128_bytes / sizeof(T);
    const int vector_begin = first / per_vector * per_vector;
#pragma clang loop unroll(disable) vectorize(disable)
    for (int index = thread_id(); index < Tile::rows * per_vector; index += Threads) {
        const int row = index / per_vector, col = vector_begin + index % per_vector;
        if (col >= first) lds_write(T(0), tile.data + Tile::offset(row, col));
    }
}

}  // namespace kittens
