// kernels/paged_attention/key_tile.h: 32 keys and their values, from pages to operands of matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "kinds.h"
#include "widen.h"

namespace hipkittens::paged_attention {

using namespace kittens;

template <class T>
using global = __attribute__((address_space(1))) T*;
// 16-byte accesses need dword alignment.
template <class V>
KITTENS_DEVICE V load_at(global<const char> address) {
    typedef V vector __attribute__((aligned(4)));
    return *(global<const vector>)address;
}

// Keys first .. last of a sequence. Nothing else is read: for keys outside, one of the two is read.
struct KeyBounds {
    int first, last;
    KITTENS_DEVICE int nearest(int key) const {
        key = key < last ? key : last;
        return key > first ? key : first;
    }
};

// The 8 consecutive keys of a tile whose columns a lane loads.
inline constexpr int lane_keys = 8;
KITTENS_DEVICE int first_key_of_lane() { return lane_id() / 16 * lane_keys; }

// The pages of a tile's keys, looked up one tile ahead of the loads that need them. Lanes n and 8 + n of every 16 have key n of those
// that the 16 load, and pass its location to the others: a page may begin at any key.
struct KeyPages {
    int page;

    KITTENS_DEVICE static int key_of_lane(int tile, const KeyBounds& bounds) {
        return bounds.nearest(tile + first_key_of_lane() + lane_id() % lane_keys);
    }
    KITTENS_DEVICE void look_up(const PagedArguments& arguments, const int32_t* table, int tile,
                                const KeyBounds& bounds) {
        page = ((global<const int32_t>)table)[arguments.page.quotient(key_of_lane(tile, bounds))];
    }
    // The slot of a key in its page.
    KITTENS_DEVICE static uint32_t slot_of(const PagedArguments& arguments, int key) {
        return key - arguments.page.quotient(key) * arguments.page.value;
    }
    // The row of the lane's own key in `tensor`, whose head begins at `data`.
    KITTENS_DEVICE global<const char> row(const PagedArguments& arguments, const PagedTensor& tensor,
                                          global<const char> data, int tile, const KeyBounds& bounds) const {
        return data + page * tensor.page_bytes +
               static_cast<uint64_t>(slot_of(arguments, key_of_lane(tile, bounds))) * tensor.slot_bytes;
    }
    // addresses[n]: of the n-th key's row; `own`: of the lane's key.
    KITTENS_DEVICE static void rows_of_16(global<const char> (&addresses)[lane_keys],
                                          global<const char> own) {
        for_each_index<lane_keys>([&](auto n)
                                      KITTENS_INLINE { addresses[n.value] = broadcast_in_16<n.value>(own); });
    }
};

// Bands of columns: 16 lanes share a whole row of a band, with `columns` adjacent columns each, so that a load touches few cache
// lines.
template <int head_dim>
struct ColumnBands {
    static constexpr int columns = head_dim < 128 ? head_dim / 16 : 8, bands = head_dim / (16 * columns);
};

// In the layout of memory.
template <class Cached, int head_dim>
struct TileRows {
    static constexpr int columns = ColumnBands<head_dim>::columns, bands = ColumnBands<head_dim>::bands;
    using Columns = vec<Cached, columns>;
    Columns rows[bands][lane_keys];

    // `addresses`: of the lane's keys.
    KITTENS_DEVICE void load(const global<const char> (&addresses)[lane_keys]) {
#pragma unroll
        for (int n = 0; n < lane_keys; ++n)
#pragma unroll
            for (int band = 0; band < bands; ++band)
                rows[band][n] = load_at<Columns>(addresses[n] + (lane_id() % 16 + band * 16) *
                                                                    static_cast<int>(sizeof(Columns)));
    }
    // The address in `tensor` from which the lane loads.
    KITTENS_DEVICE static global<const char> begin(const KeyPages& pages, const PagedArguments& arguments,
                                                   const PagedTensor& tensor, global<const char> data,
                                                   int tile, const KeyBounds& bounds) {
        return pages.row(arguments, tensor, data, tile, bounds);
    }
    KITTENS_DEVICE void load(global<const char> begin, const PagedTensor&) {
        global<const char> addresses[lane_keys];
        KeyPages::rows_of_16(addresses, begin);
        load(addresses);
    }
};

// Keys in a wave's own LDS, where rows are rearranged into operands. A matrix instruction with keys as its 16 rows leaves four
// adjacent ones in a lane, for the query of the lane's column. The rows of the two instructions of a tile are keys ordered so that a
// lane holds 8 consecutive keys, as the second product needs for its operand.
template <class T, int head_dim>
struct KeyTile {
    static constexpr int steps = head_dim / 32, row_bytes = head_dim * static_cast<int>(sizeof(T)),
                         bytes = tile_keys * row_bytes, chunks = row_bytes / b128_bytes;

    // For row m of instruction n.
    KITTENS_DEVICE static int key_of(int m, int n) { return m / 4 * 8 + n * 4 + m % 4; }
    KITTENS_DEVICE static int row_of(int key) { return key / 8 * 4 + key % 4; }
    // The chunks of a row are permuted so that the chunks read in one phase are in different banks.
    KITTENS_DEVICE static int place(int chunk, int m) {
        constexpr int rows_in_window = target.read_b128_window_bytes / row_bytes;
        constexpr int most = chunks < 16 ? chunks - 1 : 15;
        return (chunk ^ ((rows_in_window > 1 ? m / rows_in_window : m) & most)) * b128_bytes;
    }
    template <class Cached>
    KITTENS_DEVICE static void put(const TileRows<Cached, head_dim>& tile, shared_byte* lds) {
        using Rows = TileRows<Cached, head_dim>;
        using Columns = vec<T, Rows::columns>;
#pragma unroll
        for (int n = 0; n < lane_keys; ++n)
#pragma unroll
            for (int band = 0; band < Rows::bands; ++band) {
                const int key = first_key_of_lane() + n,
                          column = (lane_id() % 16 + band * 16) * static_cast<int>(sizeof(Columns));
                lds_write(
                    widened<T>(tile.rows[band][n]),
                    lds + key * row_bytes + place(column / b128_bytes, row_of(key)) + column % b128_bytes);
            }
    }
    template <class Rows>
    KITTENS_DEVICE static void put(const Rows& rows, shared_byte* lds) {
        rows.template put<T>(lds);
    }
    // Reads them back as they were written by put().
    KITTENS_DEVICE static void get(TileRows<T, head_dim>& tile, shared_byte* lds) {
        using Columns = typename TileRows<T, head_dim>::Columns;
#pragma unroll
        for (int n = 0; n < lane_keys; ++n)
#pragma unroll
            for (int band = 0; band < TileRows<T, head_dim>::bands; ++band) {
                const int key = first_key_of_lane() + n,
                          column = (lane_id() % 16 + band * 16) * static_cast<int>(sizeof(Columns));
                tile.rows[band][n] = lds_read<Columns>(
                    lds + key * row_bytes + place(column / b128_bytes, row_of(key)) + column % b128_bytes);
            }
    }
    // 8 elements of the lane's row of instruction n, out of the step's 32.
    KITTENS_DEVICE static vec<T, 8> operand(shared_byte* lds, int n, int step) {
        const int m = lane_id() % 16;
        return lds_read<vec<T, 8>>(lds + key_of(m, n) * row_bytes + place(step * 4 + lane_id() / 16, m));
    }
};

// The second product needs 8 keys of one column in a lane, which already holds them: they are rearranged in its registers. The
// assignment of head columns to instruction rows is free: row m of instruction n of a band is column `columns` m + n of the band.
template <class T, int columns>
struct ValueBand {
    vec<T, columns> rows[lane_keys];

    template <class Rows>
    KITTENS_DEVICE ValueBand(const Rows& tile, int band) {
#pragma unroll
        for (int n = 0; n < lane_keys; ++n) rows[n] = widened<T>(tile.rows[band][n]);
    }
    KITTENS_DEVICE vec<T, 8> operator[](int column) const {
        vec<T, 8> keys;
#pragma unroll
        for (int n = 0; n < lane_keys; ++n) keys[n] = rows[n][column];
        return keys;
    }
};

}  // namespace hipkittens::paged_attention
