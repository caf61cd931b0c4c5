// kernels/attention/quantized_forward.h: attention with int8 Q and K and 8-bit floats of V.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "code_softmax.h"
#include "forward_output.h"
#include "forward_tiles.h"
#include "mask.h"
#include "quantized_arguments.h"

namespace hipkittens::attention {

// Quantized values are moved in pairs by the functions for 16-bit elements.
using code_pair = short;

// A wave has 32 queries, one per pair of lanes. All waves of a workgroup iterate over the same tiles of 64 keys: the next tile is
// loaded while the current one is attended to.
template <QuantizedConfig config>
struct QuantizedForward {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = config.threads(), waves_per_simd = config.head_dim > 128 ? 1 : 2;
    static constexpr int queries = config.queries_per_wave, keys = config.keys_per_tile,
                         head_dim = config.head_dim, pairs = head_dim / 2;
    static constexpr Fill fill = forward_fill;
    static constexpr bool direct = fill == Fill::direct;

    // Row r of a tile of K in LDS is key tile_key(r) of the tile. The accumulators of Q K^T give a lane runs of 4 of its rows, 8 apart;
    // in this order, lanes 0 .. 31 hold keys 0 .. 31 in the order of their registers and the other lanes keys 32 .. 63, which is what a
    // lane needs as an operand of the second product (reference: CDNA3 ISA manual 7.1.4).
    static constexpr int tile_key(int row) { return (row & 3) | (row >> 1 & 0x1c) | (row & 4) << 3; }
    using KeyColumns = base_shape<32, 64, 32>;

    using KeyTile = st<code_pair, keys, pairs, Access::rows>;
    using ValueTile = st<code_pair, head_dim, keys / 2, Access::rows>;
    using KeyLoads = global_to_shared<KeyTile, threads, fill>;
    using ValueLoads = global_to_shared<ValueTile, threads, fill>;
    static constexpr int step = 32, pieces = pairs / step;
    using Query = rt<code_pair, queries, step, row_l, rt_32x16>;
    using KeyRows = rt<code_pair, keys, step, row_l, rt_32x16>;
    using Channels = rt<code_pair, head_dim, keys / 2, row_l, base_shape<32, 32, 16>>;
    using Scores = rt<float, queries, keys, row_l, KeyColumns>;
    using Output = rt<float, queries, head_dim, row_l, rt_32x32>;

    static constexpr int buffers = 2, tile_bytes = KeyTile::bytes + ValueTile::bytes,
                         lds_bytes = buffers * tile_bytes;
    static_assert(lds_bytes <= target.lds_bytes, "the tiles in flight fit in LDS");

    const QuantizedArguments& arguments;
    shared_byte* lds;
    TileCoordinate coordinate;
    int key_head, first_query;  // of the wave
    KeyRange all, own;  // the keys that the workgroup loads, and the part of them that this wave needs
    float q_scale;
    const float* k_scales;
    Query query[pieces];
    Output output;
    CodeSoftmax softmax;

    KITTENS_DEVICE QuantizedForward(const QuantizedArguments& arguments, shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          coordinate(coordinate_of_workgroup(workgroup_id_x(), arguments.order)),
          key_head(key_head_of(coordinate.head, arguments.group)),
          first_query(coordinate.tile * config.queries() + wave_id() * queries),
          all(arguments.mask, coordinate.tile * config.queries(), (coordinate.tile + 1) * config.queries()),
          own(arguments.mask, first_query, first_query + queries) {
        const int heads = arguments.order.heads;
        // Waves past the last query have no block.
        const int block = first_query < arguments.mask.n_q ? first_query >> arguments.q_shift : 0;
        const int64_t head = static_cast<int64_t>(coordinate.batch) * heads + coordinate.head;
        q_scale = arguments.q_scale[head * arguments.q_blocks + block];
        const int key_heads = key_head_of(heads, arguments.group);
        k_scales = arguments.k_scale +
                   (static_cast<int64_t>(coordinate.batch) * key_heads + key_head) * arguments.k_blocks;
        load_own_rows(query,
                      matrix_of<code_pair>(arguments.q, coordinate.batch, 0, coordinate.head,
                                           arguments.mask.n_q, arguments.head_dim / 2),
                      first_query);
        zero(output);
    }
    KITTENS_DEVICE static void run(const QuantizedArguments& arguments, shared_byte* lds) {
        QuantizedForward(arguments, lds).attend_to_all();
    }

    KITTENS_DEVICE KeyTile key_tile(int buffer) const { return {lds + buffer * tile_bytes}; }
    KITTENS_DEVICE ValueTile value_tile(int buffer) const {
        return {lds + buffer * tile_bytes + KeyTile::bytes};
    }
    // For keys from `key` on, by a scalar load: a vector load would wait for those of the next tile, which were issued before it.
    KITTENS_DEVICE float scale_of(int key) const {
        using scalars = const __attribute__((address_space(4))) float*;
        const float scale = q_scale * ((scalars)k_scales)[key >> arguments.k_shift];
        // A factor of 0 would turn the -inf of masked scores into NaN.
        return scale == 0.0f ? 1e-30f : scale;
    }

    KITTENS_DEVICE void mma_qk(Scores& scores, KeyTile tile) const {
        using Codes = vec<int8, 16>;
        vec<int, 16> products[2] = {};
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            KeyRows rows;
            load(rows, tile, 0, piece * step);
#pragma unroll
            for (int k = 0; k < KeyRows::width; ++k)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    products[half] =
                        matrix_32x32(__builtin_bit_cast(Codes, rows.tiles[half][k]),
                                     __builtin_bit_cast(Codes, query[piece].tiles[0][k]), products[half]);
        }
#pragma unroll
        for (int e = 0; e < Scores::per_lane; ++e)
            scores.tiles[0][0][e] = static_cast<float>(products[e / 16][e % 16]);
    }

    // `valid`: number of existing keys in the tile. Values past them are arbitrary, and a NaN among them would corrupt the sum.
    KITTENS_DEVICE void mma_pv(vec<int, 8> weights, ValueTile tile, int valid) {
        using Codes = vec<fp8_e4m3, 32>;
        Channels channels;
        load(channels, tile, 0, 0);
        if (valid < keys) {
            const int left = valid - row_layout(KeyColumns::value(), lane_id(), 0).col;
#pragma unroll
            for (int word = 0; word < 8; ++word) {
                const int bytes = left - 4 * word;
                const uint32_t kept = bytes <= 0 ? 0u : bytes >= 4 ? ~0u : (1u << 8 * bytes) - 1;
#pragma unroll
                for (int j = 0; j < Channels::height; ++j) {
                    auto words = __builtin_bit_cast(vec<uint32_t, 8>, channels.tiles[j][0]);
                    words[word] &= kept;
                    channels.tiles[j][0] = __builtin_bit_cast(typename Channels::fragment, words);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < Channels::height; ++j) {
            const auto codes = __builtin_bit_cast(Codes, channels.tiles[j][0]);
            output.tiles[0][j] = matrix_32x32(codes, __builtin_bit_cast(Codes, weights), output.tiles[0][j]);
        }
    }

    KITTENS_DEVICE void attend(int key, int buffer, float scale) {
        const Mask& mask = arguments.mask;
        Scores scores;
        mma_qk(scores, key_tile(buffer));
        if (!KeyRange::all_visible(mask, first_query, first_query + queries, key, keys)) {
            const int row = row_layout(KeyColumns::value(), lane_id(), 0).row;
            apply_mask<KeyColumns, 8>(scores, visible_keys<KeyColumns>(mask, first_query + row, key),
                                      -__builtin_inff());
        }
        softmax.raise_reference(scores.tiles[0][0], scale, output);
        mma_pv(softmax.weights(scores.tiles[0][0], scale), value_tile(buffer), mask.n_k - key);
    }

    KITTENS_DEVICE void attend_to_all() {
        int key = all.first / keys * keys;
        if (key < all.past) {
            const auto k = matrix_of<code_pair>(arguments.k, coordinate.batch, 0, key_head,
                                                arguments.mask.n_k, arguments.head_dim / 2);
            const auto v = matrix_of<code_pair>(arguments.v, coordinate.batch, 0, key_head,
                                                arguments.value_dim, arguments.value_columns / 2);
            KeyLoads key_loads;
            ValueLoads value_loads;
            const auto row_bytes = static_cast<uint32_t>(k.row_bytes());
            key_loads.init_offsets_of([=](int row) KITTENS_INLINE { return tile_key(row) * row_bytes; });
            skip_columns(key_loads, arguments.head_dim / 2);
            value_loads.init_offsets(v.row_bytes());
            auto k_tiles = tiles_of_rows::iterator<keys>(k, key, all.past, KeyLoads::lead);
            global_window v_window = v.window(0, key / 2);
            auto issue = [&](int buffer) KITTENS_INLINE {
                key_loads.issue_prepared(k_tiles.next(), key_tile(buffer));
                value_loads.issue(v_window.view(), value_tile(buffer));
                v_window.advance(keys);
            };
            // After this, every wave may read the tiles whose loads were issued.
            auto wait_and_barrier = [&](int buffer) KITTENS_INLINE {
                if constexpr (direct) {
                    wait_vector_memory<0>();
                } else {
                    key_loads.commit(key_tile(buffer));
                    value_loads.commit(value_tile(buffer));
                }
                barrier();
            };
            issue(0);
            wait_and_barrier(0);
            int buffer = 0;
            for (; key < all.past; key += keys) {
                const bool more = key + keys < all.past;
                if (more) issue(buffer ^ 1);
                if (key + keys > own.first && key < own.past) attend(key, buffer, scale_of(key));
                if (!more) break;
                wait_and_barrier(buffer ^= 1);
            }
        }
        barrier();  // all waves have read the last tile
        store();
    }

    KITTENS_DEVICE void store() {
        // Read again, since scalar registers are scarce in the preceding loop.
        const QuantizedArguments arguments = reload_arguments<QuantizedArguments>();
        const TileCoordinate coordinate = coordinate_of_head(this->coordinate.head_of_all, arguments.order);
        const float total = softmax.total();
        const int lane = recompute_lane_id();
        const Coordinate place = row_layout(Output::shape::value(), lane, 0);
        const int query = first_query + place.row, n_q = arguments.mask.n_q;
        const int64_t head = static_cast<int64_t>(coordinate.batch) * arguments.order.heads + coordinate.head;
        if (query < n_q && lane < queries) arguments.lse[head * n_q + query] = softmax.log_sum_exp(total);
        const int key_heads = key_head_of(arguments.order.heads, arguments.group),
                  key_head = key_head_of(coordinate.head, arguments.group);
        const int64_t head_of_keys = static_cast<int64_t>(coordinate.batch) * key_heads + key_head;
        scale_channels(arguments.v_scale + head_of_keys * arguments.value_dim, arguments.value_dim,
                       total == 0.0f ? 0.0f : 1.0f / total, place.col);

        constexpr int wave_bytes = lds_bytes / config.waves;
        constexpr int fit = wave_bytes / (queries * static_cast<int>(sizeof(T)));
        constexpr int columns = fit < head_dim ? fit : head_dim;
        static_assert(head_dim % columns == 0, "whole bands of columns");
        T* out = row_of<T>(arguments.out, coordinate.batch, coordinate.head, first_query);
#pragma unroll
        for (int first = 0; first < head_dim; first += columns)
            OutputRows<T, columns>::store(output, first, lds + wave_id() * wave_bytes, out + first,
                                          arguments.out.row_stride, n_q - first_query,
                                          arguments.value_dim - first);
    }
    // Also applies the scales of the channels; the runs of four channels of a lane begin at own_channel.
    KITTENS_DEVICE void scale_channels(const float* scales, int count, float factor, int own_channel) {
        const buffer view{reinterpret_cast<const char*>(scales),
                          count * static_cast<uint32_t>(sizeof(float))};
#pragma unroll
        for (int j = 0; j < Output::width; ++j)
#pragma unroll
            for (int e = 0; e < Output::per_lane; e += 4) {
                const int channel =
                    own_channel + j * Output::shape::cols + row_layout(Output::shape::value(), 0, e).col;
                const auto four = buffer_load<vec<float, 4>>(view, channel * sizeof(float));
#pragma unroll
                for (int n = 0; n < 4; ++n) output.tiles[0][j][e + n] *= factor * four[n];
            }
    }
};

}  // namespace hipkittens::attention
