// kernels/attention/forward_wave.h: the 32 query rows of one wave, with their scores and output.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "../sink_weight.h"
#include "config.h"
#include "dropout.h"
#include "forward_output.h"
#include "forward_tiles.h"
#include "mask.h"
#include "online_softmax.h"
#include "pointwise_weights.h"
#include "score_terms.h"
#include "store_row.h"

namespace hipkittens::attention {

// One row per pair of lanes. All waves of a workgroup iterate over the same tiles of keys.
template <ForwardConfig config>
struct ForwardWave {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, value_dim = config.value_dim,
                         keys = config.keys_per_tile, queries = config.queries_per_wave;
    // Keys of a tile in LDS: half of them where the interleaved schedule would not have room for two tiles of each.
    static constexpr bool halves =
        config.schedule == Schedule::interleaved &&
        2 * keys * (tile_width(head_dim) + value_dim) * int(sizeof(T)) > target.lds_bytes;
    static constexpr int tile_keys = halves ? keys / 2 : keys;
    using Keys = KeyTiles<T, tile_keys, head_dim, threads>;
    using Values = ValueTiles<T, tile_keys, value_dim, threads>;
    using KeyTile = typename Keys::Tile;
    using ValueTile = typename Values::Tile;
    static constexpr bool direct = forward_fill == Fill::direct;
    static constexpr bool grouped = config.query_rows == QueryRows::of_group;
    static_assert(!grouped || !config.dropout, "draws are of a head's neighbouring queries");
    static constexpr bool plain = config.terms == ScoreTerms::none, pointwise = is_pointwise(config.terms);
    using Arguments = ForwardArgumentsOf<config.terms>;
    using RowWeights = choose<pointwise, SiluWeights, OnlineSoftmax>;
    static_assert(plain || !(grouped || config.dropout),
                  "a tile has one slope; dropped scores have no terms");
    // If they fit beside the first tiles of keys and values.
    static constexpr bool queries_through_lds =
        direct && config.schedule == Schedule::interleaved && !grouped && head_dim == value_dim;

    static constexpr int pieces = head_dim / Keys::step;
    using Query = rt<T, queries, Keys::step, row_l, rt_32x16>;
    template <int count>
    using Product = rt<float, queries, count, row_l, rt_32x32>;
    // The registers of the product, with columns in the order of the keys (tile_key), used as operands of the second product.
    using Scores = rt<float, queries, keys, row_l, rt_32x16>;
    template <int count>
    using Probabilities = rt<T, queries, count, row_l, rt_32x16>;
    using Output = rt<float, queries, value_dim, row_l, rt_32x32>;

    const Arguments& arguments;
    TileCoordinate coordinate;  // of rows of a key head if heads are grouped
    SequenceOf<choose<pointwise, HistoryMask, Mask>> sequence;
    int first_row, first_query, past_query;  // of the wave; the queries of its rows
    int own_query, own_head;                 // of the lane's row, if heads are grouped
    KeyRange all, own;  // the keys that the workgroup loads, and the part of them that this wave needs
    Query query[pieces];
    Output output;
    RowWeights weights;
    DropoutDraws draws;  // for a kernel with dropout
    float slope_log2;    // for a kernel with score terms

    KITTENS_DEVICE explicit ForwardWave(const Arguments& arguments)
        : arguments(arguments),
          coordinate(coordinate_of_workgroup(workgroup_id_x(), arguments.order)),
          sequence(sequence_of(coordinate.batch, arguments)),
          first_row(coordinate.tile * config.queries() + wave_id() * queries),
          first_query(query_of(first_row)),
          past_query(query_past(first_row + queries)),
          all(KeyRange(sequence.mask, query_of(coordinate.tile * config.queries()),
                       query_past((coordinate.tile + 1) * config.queries()))
                  .split_of(coordinate.split, arguments.order.splits, keys)),
          own(sequence.mask, first_query, past_query),
          weights(weights_of(arguments)) {
        if constexpr (grouped)
            load_grouped_queries();
        else if constexpr (!queries_through_lds)
            load_own_rows(query, queries_of(arguments.q), first_query, query_sign());
        zero(output);
        if constexpr (config.dropout) draws.start(arguments.dropout);
        if constexpr (!plain && !pointwise)
            slope_log2 = slope_log2_of(arguments.terms, coordinate.batch, coordinate.head);
    }

    KITTENS_DEVICE static RowWeights weights_of(const Arguments& arguments) {
        if constexpr (pointwise)
            return RowWeights::of(arguments.pointwise);
        else
            return RowWeights(plain ? arguments.scale_log2 : 1.0f);
    }

    // The query of a row, and one past the query of the last row before `past_row`.
    KITTENS_DEVICE int query_of(int row) const { return grouped ? key_head_of(row, arguments.group) : row; }
    KITTENS_DEVICE int query_past(int past_row) const {
        return grouped ? query_of(past_row - 1) + 1 : past_row;
    }

    KITTENS_DEVICE global_matrix<const T> queries_of(const TensorArgument& tensor) const {
        return query_matrix<T>(tensor, sequence, coordinate.head, arguments.head_dim);
    }
    // The matrix of k or v, whose rows have `size` elements.
    KITTENS_DEVICE global_matrix<const T> keys_of(const TensorArgument& tensor, int size) const {
        const int key_head = grouped ? coordinate.head : key_head_of(coordinate.head, arguments.group);
        return key_matrix<T>(tensor, sequence, key_head, size);
    }
    // Iterates over the tiles of the workgroup's keys.
    template <class Loads>
    KITTENS_DEVICE auto tiles_of(const global_matrix<const T>& matrix) const {
        return tiles_of_rows::iterator<tile_keys>(matrix, first_tile_key(), all.past, Loads::lead);
    }
    KITTENS_DEVICE uint32_t query_sign() const { return arguments.negated ? 0x80008000u : 0; }
    KITTENS_DEVICE int first_tile_key() const { return all.first / keys * keys; }

    KITTENS_DEVICE void load_grouped_queries() {
        const int row = first_row + row_layout(Query::shape::value(), lane_id(), 0).row;
        own_query = query_of(row);
        const int head_in_group = row - own_query * arguments.group;
        const int first_head = coordinate.head * arguments.group;
        own_head = first_head + head_in_group;
        const TensorArgument& q = arguments.q;
        constexpr uint32_t size = sizeof(T);
        const auto row_bytes = static_cast<uint32_t>(q.row_stride) * size,
                   head_bytes = static_cast<uint32_t>(q.head_stride) * size;
        const uint32_t offset = (own_query - first_query) * row_bytes + head_in_group * head_bytes;
        const T* base = static_cast<const T*>(q.data) + sequence.batch * q.batch_stride +
                        (sequence.first_q + first_query) * q.row_stride + first_head * q.head_stride;
        const buffer view{reinterpret_cast<const char*>(base), (past_query - 1 - first_query) * row_bytes +
                                                                   (arguments.group - 1) * head_bytes +
                                                                   arguments.head_dim * size};
        load_own_rows(query, view, own_query < sequence.mask.n_q ? offset : out_of_range, arguments.head_dim,
                      query_sign());
    }

    KITTENS_DEVICE auto visible_keys(int key) const {
        const int row = row_layout(KeyColumns::value(), lane_id(), 0).row;
        return attention::visible_keys<KeyColumns>(sequence.mask, grouped ? own_query : first_query + row,
                                                   key);
    }

    // Applies the terms to the scores of keys from `key` on.
    template <class Products>
    KITTENS_DEVICE void apply_terms(Products& scores, int key) const {
        if constexpr (!plain && !pointwise) {
            const Mask& mask = sequence.mask;
            const int row = row_layout(KeyColumns::value(), lane_id(), 0).row;
            const ScoreShape<config.terms> shape(arguments.scale_log2, arguments.terms);
            attention::apply_terms<KeyColumns>(scores, shape, slope_log2,
                                               first_query + row + (mask.n_k - mask.n_q) - key);
        }
    }
    // Masks scores or pointwise weights.
    KITTENS_DEVICE void mask_scores(Scores& scores, int key) const {
        if (!KeyRange::all_visible(sequence.mask, first_query, past_query, key, keys))
            apply_mask<KeyColumns>(scores, visible_keys(key), pointwise ? 0.0f : -__builtin_inff());
    }
    // Drops elements of P, for keys from `key` on, after P is included in the sum of the softmax.
    KITTENS_DEVICE void drop(Scores& p, int key) const {
        const uint32_t head = coordinate.batch * arguments.order.heads + coordinate.head;
        const Coordinate own = row_layout(Scores::shape::value(), lane_id(), 0);
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            const DropoutDraws::Words words =
                draws.of_query(head, first_query + own.row, key + j * Scores::shape::cols + own.col);
#pragma unroll
            for (int e = 0; e < Scores::per_lane; ++e)
                if (words[e] < draws.limit) p.tiles[0][j][e] = 0;
        }
    }

    // Stores through `lds`: lds_bytes that belong to the wave alone, with no load to them in flight.
    template <int lds_bytes>
    KITTENS_DEVICE void store(shared_byte* lds) {
        // Read again, since scalar registers are scarce in the preceding loop.
        const Arguments arguments = reload_arguments<Arguments>();
        const TileCoordinate coordinate = coordinate_of_head(this->coordinate.head_of_all, arguments.order);
        const int64_t batch = sequence.batch;
        const float total = weights.total();
        const float kept = config.dropout ? arguments.dropout.scale : 1.0f;
        const int lane = recompute_lane_id();
        const Coordinate own = row_layout(Output::shape::value(), lane, 0);
        const int query = grouped ? own_query : first_query + own.row,
                  head = grouped ? own_head : coordinate.head;
        float divisor = total;
        if constexpr (!pointwise)
            if (arguments.sinks) divisor += sink_weight(arguments.sinks[head], weights.reference);
        mul(output, output, total == 0.0f ? 0.0f : kept / divisor);
        const bool inside = query < sequence.mask.n_q;
        const bool is_packed = arguments.packed.first_q;
        const int64_t rows = is_packed ? arguments.packed.rows_q : arguments.mask.n_q;
        const int64_t heads = arguments.order.heads * config.heads_together(arguments.group);
        const int64_t statistic = (batch * heads + head) * rows + sequence.first_q + query;
        if constexpr (!pointwise) {
            if (arguments.order.splits > 1) {
                const int64_t statistics = (is_packed ? 1 : arguments.order.batch) * heads * rows;
                const int64_t partial = coordinate.split * statistics + statistic;
                if (!inside) return;
                if (lane < queries) arguments.partial_lse[partial] = weights.log_sum_exp(total);
                store_row(output, arguments.partial_out + partial * arguments.value_dim, own.col,
                          arguments.value_dim);
                return;
            }
            if (inside && lane < queries) arguments.lse[statistic] = weights.log_sum_exp(total);
        }
        T* out = row_of<T>(arguments.out, batch, head, 0);
        const int64_t row_stride = arguments.out.row_stride;
        if constexpr (grouped) {
            if (inside)
                store_row(output, out + (sequence.first_q + query) * row_stride, own.col,
                          arguments.value_dim);
        } else {
            constexpr int fit = lds_bytes / (queries * static_cast<int>(sizeof(T)));
            constexpr int columns = fit < value_dim ? tile_width(fit + 1) / 2 : value_dim;
            static_assert(value_dim % columns == 0, "whole bands of columns");
            out += (sequence.first_q + first_query) * row_stride;
#pragma unroll
            for (int first = 0; first < value_dim; first += columns)
                OutputRows<T, columns>::store(output, first, lds, out + first, row_stride,
                                              sequence.mask.n_q - first_query, arguments.value_dim - first);
        }
    }
};

}  // namespace hipkittens::attention
