// kernels/paged_attention/key_tile.h: 32 keys and their values, from pages to operands of matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "kinds.h"

namespace hipkittens::paged_attention {

using namespace kittens;

template <class T>
using global = __attribute__((address_space(1))) T*;
// Accesses of 16 bytes want a dword's alignment.
template <class V>
KITTENS_DEVICE V load_at(global<const char> address) {
    typedef V vector __attribute__((aligned(4)));
    return *(global<const vector>)address;
}

// Keys first .. last of a sequence. Nothing else is read: for others, one of the two is.
struct KeyBounds {
    int first, last;
    KITTENS_DEVICE int nearest(int key) const {
        key = key < last ? key : last;
        return key > first ? key : first;
    }
};

// Where `count` keys of a lane are: number n is key `block` + key_of(n) of a tile, whose block of 8 is the lane's. Pages are looked
// up a tile ahead of the loads that need them.
template <int count, int lookup_keys>
struct KeyPages {
    static constexpr int lookups = lookup_keys == 8 ? 1 : count;
    int page[lookups];

    // The first key of the n-th one's lookup, of `keys` from a multiple of 8 on.
    KITTENS_DEVICE static int looked_up(int block, int key, const KeyBounds& bounds) {
        if constexpr (lookup_keys == 8)
            return KeyBounds{bounds.first & ~7, bounds.last & ~7}.nearest(block);
        else
            return bounds.nearest(block + key);
    }
    template <class KeyOf>
    KITTENS_DEVICE void look_up(const PagedArguments& arguments, const int32_t* table, int block,
                                const KeyOf& key_of, const KeyBounds& bounds) {
#pragma unroll
        for (int n = 0; n < lookups; ++n)
            page[n] =
                ((global<const int32_t>)table)[arguments.page.quotient(looked_up(block, key_of(n), bounds))];
    }
    // addresses[n]: of the n-th key's row in `tensor`, whose head begins at `data`.
    template <class KeyOf>
    KITTENS_DEVICE void find(global<const char> (&addresses)[count], const PagedArguments& arguments,
                             const PagedTensor& tensor, global<const char> data, int block,
                             const KeyOf& key_of, const KeyBounds& bounds) const {
        int first[lookups];
        global<const char> row[lookups];
#pragma unroll
        for (int n = 0; n < lookups; ++n) {
            first[n] = looked_up(block, key_of(n), bounds);
            const uint32_t slot = first[n] - arguments.page.quotient(first[n]) * arguments.page.value;
            row[n] = data + page[n] * tensor.page_bytes + static_cast<uint64_t>(slot) * tensor.slot_bytes;
        }
#pragma unroll
        for (int n = 0; n < count; ++n) {
            if constexpr (lookups == 1)
                addresses[n] = row[0] + static_cast<uint32_t>(bounds.nearest(block + key_of(n)) - first[0]) *
                                            tensor.slot_bytes;
            else
                addresses[n] = row[n];
        }
    }
};

// Neither operand goes through LDS. A matrix instruction with keys as its 16 rows leaves in a lane four neighbouring ones of
// them, for the query of the lane's column. Rows of the two instructions of a tile are keys in such an order that the lane then holds
// 8 neighbouring keys of the tile: what the second product wants of it as an operand.
KITTENS_DEVICE int key_block_of_lane() { return lane_id() % 16 / 4 * 8; }
KITTENS_DEVICE int key_in_block(int tile) { return lane_id() % 4 + 4 * tile; }

template <class T, int head_dim, int lookup_keys>
struct KeyTile {
    static constexpr int steps = head_dim / 32;
    using Pages = KeyPages<2, lookup_keys>;
    vec<T, 8> rows[2][steps];

    KITTENS_DEVICE void load(const Pages& pages, const PagedArguments& arguments, global<const char> data,
                             int tile, const KeyBounds& bounds) {
        global<const char> addresses[2];
        pages.find(addresses, arguments, arguments.k, data, tile + key_block_of_lane(), key_in_block, bounds);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int step = 0; step < steps; ++step)
                rows[n][step] = load_at<vec<T, 8>>(addresses[n] + lane_id() / 16 * 16 + step * 64);
    }
};

// The second product wants 8 keys of one column in a lane, and memory has columns of one key beside each other. Which of
// the head's columns a row of the instruction stands for is free: a lane loads `columns` neighbouring ones of its 8 keys and
// transposes them in its registers, and row m of instruction n is column `columns` m + n.
template <class T, int head_dim, int lookup_keys>
struct ValueTile {
    static constexpr int columns = head_dim < 128 ? head_dim / 16 : 8, bands = head_dim / (16 * columns);
    using Pages = KeyPages<8, lookup_keys>;
    vec<T, columns> rows[bands][8];

    KITTENS_DEVICE static int key(int n) { return n; }
    KITTENS_DEVICE static int block_of_lane() { return lane_id() / 16 * 8; }
    KITTENS_DEVICE void load(const Pages& pages, const PagedArguments& arguments, global<const char> data,
                             int tile, const KeyBounds& bounds) {
        global<const char> addresses[8];
        pages.find(addresses, arguments, arguments.v, data, tile + block_of_lane(), key, bounds);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int band = 0; band < bands; ++band)
                rows[band][n] = load_at<vec<T, columns>>(
                    addresses[n] + (lane_id() % 16 * columns + band * 128) * static_cast<int>(sizeof(T)));
    }
    KITTENS_DEVICE vec<T, 8> operand(int band, int column) const {
        vec<T, 8> keys;
#pragma unroll
        for (int n = 0; n < 8; ++n) keys[n] = rows[band][n][column];
        return keys;
    }
};

}  // namespace hipkittens::paged_attention
