// kernels/attention/forward.h: softmax(scale Q K^T) V for one tile of queries of one head.
// SPDX-License-Identifier: MIT
#pragma once
#include "config.h"
#include "forward_tiles.h"
#include "mask.h"
#include "online_softmax.h"

namespace hipkittens::attention {

template <Input input>
struct element_of {
    using type = kittens::bf16;
};
template <>
struct element_of<Input::f16> {
    using type = kittens::half;
};

// A wave owns 32 queries, one per pair of lanes, and goes over the keys in tiles that the whole workgroup loads.
template <ForwardConfig config>
struct Forward {
    using T = typename element_of<config.input>::type;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, keys = config.keys_per_tile,
                         queries = config.queries_per_wave;
    using Keys = KeyTiles<T, keys, head_dim, threads>;
    using Values = ValueTiles<T, keys, head_dim, threads>;
    using KeyTile = typename Keys::Tile;
    using ValueTile = typename Values::Tile;
    static constexpr bool direct = forward_fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (KeyTile::bytes + ValueTile::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the tiles under way fit in LDS");

    static constexpr int pieces = head_dim / Keys::step;
    using Query = kittens::rt<T, queries, Keys::step, kittens::row_l, kittens::rt_32x16>;
    using Product = kittens::rt<float, queries, keys, kittens::row_l, kittens::rt_32x32>;
    // The product's registers, its columns in the order of the keys (tile_key), as operands of the second product.
    using Scores = kittens::rt<float, queries, keys, kittens::row_l, kittens::rt_32x16>;
    using Powers = kittens::rt<T, queries, Values::step, kittens::row_l, kittens::rt_32x16>;
    using Output = kittens::rt<float, queries, head_dim, kittens::row_l, kittens::rt_32x32>;

    const ForwardArguments& arguments;
    kittens::shared_byte* lds;
    Query query[pieces];
    Output output;
    OnlineSoftmax softmax;
    int first_query;  // of the wave

    KITTENS_DEVICE Forward(const ForwardArguments& arguments, kittens::shared_byte* lds)
        : arguments(arguments), lds(lds), softmax(arguments.scale_log2) {}

    KITTENS_DEVICE KeyTile key_tile(int buffer) const { return {lds + buffer * KeyTile::bytes}; }
    KITTENS_DEVICE ValueTile value_tile(int buffer) const {
        return {lds + buffers * KeyTile::bytes + buffer * ValueTile::bytes};
    }

    // Straight to registers: a wave's queries are nobody else's. Rows beyond the last read zero.
    KITTENS_DEVICE void load_queries(const kittens::global_matrix<const T>& source) {
        const kittens::Coordinate own = kittens::row_layout(Query::shape::value(), kittens::lane_id(), 0);
        const bool inside = first_query < source.rows;
        kittens::buffer view = source.window(inside ? first_query : 0, 0).view();
        if (!inside) view.bytes = 0;
        const uint32_t sign = arguments.negated ? 0x80008000u : 0;
        const uint32_t row = own.row * static_cast<uint32_t>(source.row_bytes());
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
            for (int j = 0; j < Query::width; ++j) {
                const int col = piece * Keys::step + j * Query::shape::cols + own.col;
                const kittens::chunk values = kittens::buffer_load<kittens::chunk>(
                    view, col < source.cols ? row + col * sizeof(T) : kittens::out_of_range);
                query[piece].tiles[0][j] = __builtin_bit_cast(typename Query::fragment, values ^ sign);
            }
    }

    KITTENS_DEVICE void score(Scores& scores, KeyTile tile) {
        Product product;
        zero(product);
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            typename Keys::Registers registers;
            load(registers, tile, 0, piece * Keys::step);
            mma_ABt(product, query[piece], registers, product);
        }
        kittens::for_each_register<Scores>(
            [&](int, int j, int e) { scores.tiles[0][j][e] = product.tiles[0][j / 2][j % 2 * 8 + e]; });
    }

    KITTENS_DEVICE void weigh(const Scores& scores, ValueTile tile) {
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            Powers powers;
            powers.tiles[0][0] = __builtin_convertvector(scores.tiles[0][j], typename Powers::fragment);
            typename Values::Registers registers;
            Values::read(registers, tile, j * Values::step);
            Values::multiply(output, powers, registers);
        }
    }

    KITTENS_DEVICE void attend(int key, int buffer) {
        Scores scores;
        score(scores, key_tile(buffer));
        if (!KeyRange::all_visible(arguments.mask, first_query, first_query + queries, key, keys))
            hide_invisible(scores, arguments.mask, first_query, key);
        softmax.update(scores, output);
        weigh(scores, value_tile(buffer));
    }

    KITTENS_DEVICE void store(int64_t batch, int64_t head) {
        const float total = softmax.total();
        kittens::mul(output, output, total == 0.0f ? 0.0f : 1.0f / total);
        const int lane = kittens::lane_id_again();
        const kittens::Coordinate own = kittens::row_layout(Output::shape::value(), lane, 0);
        if (first_query + own.row >= arguments.mask.n_q) return;
        const int64_t row = first_query + own.row;
        if (lane < queries)
            arguments.lse[(batch * arguments.heads + head) * arguments.mask.n_q + row] = softmax.log_sum_exp(total);
        T* out = static_cast<T*>(const_cast<void*>(arguments.out.data)) + batch * arguments.out.batch_stride +
                 head * arguments.out.head_stride + row * arguments.out.row_stride + own.col;
#pragma unroll
        for (int j = 0; j < Output::width; ++j)
#pragma unroll
            for (int e = 0; e < Output::per_lane; e += 4) {
                const auto& all = output.tiles[0][j];
                const kittens::vec<float, 4> values = {all[e], all[e + 1], all[e + 2], all[e + 3]};
                const int col = j * Output::shape::cols + kittens::row_layout(Output::shape::value(), 0, e).col;
                if (col + own.col < arguments.head_dim)
                    *reinterpret_cast<kittens::vec<T, 4>*>(out + col) =
                        __builtin_convertvector(values, kittens::vec<T, 4>);
            }
    }

    KITTENS_DEVICE static void run(const ForwardArguments& arguments, kittens::shared_byte* lds) {
        Forward(arguments, lds).run();
    }

    KITTENS_DEVICE void run() {
        const ForwardPlace place = place_of_workgroup(kittens::workgroup_id_x(), arguments);
        const Mask& mask = arguments.mask;
        const int begin = place.tile * config.queries();
        first_query = begin + kittens::wave_id() * queries;
        load_queries(matrix_of<T>(arguments.q, place.batch, place.head, mask.n_q, arguments.head_dim));
        kittens::zero(output);

        // Tiles of keys that the workgroup loads, and those of them that this wave needs.
        const KeyRange all(mask, begin, begin + config.queries());
        const KeyRange own(mask, first_query, first_query + queries);
        int key = all.first / keys * keys;
        if (key < all.past) {
            const int key_head = static_cast<uint32_t>(place.head) / static_cast<uint32_t>(arguments.group);
            const auto k = matrix_of<T>(arguments.k, place.batch, key_head, mask.n_k, arguments.head_dim);
            const auto v = matrix_of<T>(arguments.v, place.batch, key_head, mask.n_k, arguments.head_dim);
            Keys key_loads;
            Values value_loads;
            key_loads.aim(k.row_bytes(), arguments.head_dim);
            value_loads.loads.aim(v.row_bytes());
            kittens::global_window k_window = k.window(key, 0), v_window = v.window(key, 0);
            auto fetch = [&](int buffer) {
                key_loads.loads.fetch(k_window.view(), key_tile(buffer));
                value_loads.loads.fetch(v_window.view(), value_tile(buffer));
                k_window.advance(keys * k.row_bytes());
                v_window.advance(keys * v.row_bytes());
            };
            // After it every wave may read the tiles whose loads were begun.
            auto settle = [&](int buffer) {
                if constexpr (direct) {
                    kittens::wait_vector_memory<0>();
                } else {
                    key_loads.loads.place(key_tile(buffer));
                    value_loads.loads.place(value_tile(buffer));
                }
                kittens::barrier();
            };
            fetch(0);
            settle(0);
            int buffer = 0;
            for (; key < all.past; key += keys) {
                const bool more = key + keys < all.past;
                const int next = direct ? buffer ^ 1 : 0;
                if (more) fetch(next);
                if (key + keys > own.first && key < own.past) attend(key, buffer);
                if (!more) break;
                if constexpr (!direct) kittens::barrier();
                settle(next);
                buffer = next;
            }
        }
        store(place.batch, place.head);
    }
};

}  // namespace hipkittens::attention
