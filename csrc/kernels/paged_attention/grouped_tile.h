// kernels/paged_attention/grouped_tile.h: 32 keys and their values from caches that store a key's features in groups of 16 bytes, and
// the values of consecutive keys for one feature contiguously.
// SPDX-License-Identifier: MIT
#pragma once
#include "key_tile.h"

namespace hipkittens::paged_attention {

// Of every 16 lanes, 8 load one group of features of 8 keys, which are adjacent in memory, and 8 load the next group.
template <class Cached, int head_dim>
struct GroupedKeys {
    static constexpr int features = 16 / static_cast<int>(sizeof(Cached)), loads = head_dim / features / 2;
    vec<Cached, features> groups[loads];

    // In the tile: the lane's key, and the first of its groups; the others follow in steps of 2.
    KITTENS_DEVICE static int key() { return first_key_of_lane() + lane_id() % lane_keys; }
    KITTENS_DEVICE static int first_group() { return lane_id() % 16 / lane_keys; }

    // The address in `tensor` from which the lane loads.
    KITTENS_DEVICE static global<const char> begin(const KeyPages& pages, const PagedArguments& arguments,
                                                   const PagedTensor& tensor, global<const char> data,
                                                   int tile, const KeyBounds& bounds) {
        return pages.row(arguments, tensor, data, tile, bounds) +
               static_cast<uint32_t>(first_group()) * tensor.group_bytes;
    }
    KITTENS_DEVICE void load(global<const char> from, const PagedTensor& tensor) {
#pragma unroll
        for (int n = 0; n < loads; ++n) {
            groups[n] = load_at<vec<Cached, features>>(from);
            from += 2 * tensor.group_bytes;
        }
    }
    template <class T>
    KITTENS_DEVICE void put(shared_byte* lds) const {
        using Tile = KeyTile<T, head_dim>;
        constexpr int chunks = features / 8;  // in LDS
#pragma unroll
        for (int n = 0; n < loads; ++n) {
            const vec<T, features> wide = widened<T>(groups[n]);
#pragma unroll
            for (int c = 0; c < chunks; ++c) {
                vec<T, 8> chunk;
#pragma unroll
                for (int e = 0; e < 8; ++e) chunk[e] = wide[c * 8 + e];
                lds_write(chunk, lds + key() * Tile::row_bytes +
                                     Tile::place((2 * n + first_group()) * chunks + c, Tile::row_of(key())));
            }
        }
    }
};

// What the second product needs in a lane, as stored in memory: 8 keys of one feature. Row m of instruction n is feature 16 n + m.
template <class Cached, int head_dim>
struct GroupedValues {
    static constexpr int count = head_dim / 16, keys_of_group = 16 / static_cast<int>(sizeof(Cached));
    using Keys = vec<Cached, lane_keys>;
    using Words = vec<uint32_t, sizeof(Keys) / 4>;
    Keys features[count];

    // The address in `tensor` from which the lane loads.
    KITTENS_DEVICE static global<const char> begin(const KeyPages& pages, const PagedArguments& arguments,
                                                   const PagedTensor& tensor, global<const char> data,
                                                   int tile, const KeyBounds& bounds) {
        const uint32_t slot = KeyPages::slot_of(arguments, KeyPages::key_of_lane(tile, bounds)) & -lane_keys;
        return data + pages.page * tensor.page_bytes +
               static_cast<uint64_t>(slot / keys_of_group) * tensor.group_bytes +
               slot % keys_of_group * static_cast<uint32_t>(sizeof(Cached)) +
               static_cast<uint32_t>(lane_id() % 16) * tensor.feature_bytes;
    }
    KITTENS_DEVICE void load(global<const char> from, const PagedTensor& tensor) {
#pragma unroll
        for (int n = 0; n < count; ++n) {
            features[n] = load_at<Keys>(from);
            from += 16 * tensor.feature_bytes;
        }
    }
    // Zeroes the values in a group that are outside the sequence's keys, which may be NaN.
    KITTENS_DEVICE void mask(int tile, const KeyBounds& bounds) {
        if (tile >= bounds.first && tile + tile_keys - 1 <= bounds.last) return;
        constexpr int keys_of_word = 4 / static_cast<int>(sizeof(Cached)), bits = 32 / keys_of_word;
        Words kept;
#pragma unroll
        for (int w = 0; w < static_cast<int>(sizeof(Words) / 4); ++w) {
            kept[w] = 0;
#pragma unroll
            for (int e = 0; e < keys_of_word; ++e) {
                const int key = tile + first_key_of_lane() + w * keys_of_word + e;
                if (key >= bounds.first && key <= bounds.last) kept[w] |= ((1u << bits) - 1) << e * bits;
            }
        }
#pragma unroll
        for (int n = 0; n < count; ++n)
            features[n] = __builtin_bit_cast(Keys, __builtin_bit_cast(Words, features[n]) & kept);
    }
};

}  // namespace hipkittens::paged_attention
