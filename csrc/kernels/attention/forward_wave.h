// kernels/attention/forward_wave.h: the 32 queries of one wave: their scores, weights and output.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "config.h"
#include "dropout.h"
#include "forward_output.h"
#include "forward_tiles.h"
#include "mask.h"
#include "online_softmax.h"

namespace hipkittens::attention {

// One query per pair of lanes. All waves of a workgroup go over the same tiles of keys.
template <ForwardConfig config>
struct ForwardWave {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, keys = config.keys_per_tile,
                         queries = config.queries_per_wave;
    using Keys = KeyTiles<T, keys, head_dim, threads>;
    using Values = ValueTiles<T, keys, head_dim, threads>;
    using KeyTile = typename Keys::Tile;
    using ValueTile = typename Values::Tile;
    static constexpr bool direct = forward_fill == kittens::Fill::direct;
    static constexpr bool queries_through_lds = direct && config.schedule == Schedule::interleaved;

    static constexpr int pieces = head_dim / Keys::step;
    using Query = kittens::rt<T, queries, Keys::step, kittens::row_l, kittens::rt_32x16>;
    template <int count>
    using Product = kittens::rt<float, queries, count, kittens::row_l, kittens::rt_32x32>;
    // The product's registers, its columns in the order of the keys (tile_key), as operands of the second product.
    using Scores = kittens::rt<float, queries, keys, kittens::row_l, kittens::rt_32x16>;
    template <int count>
    using Probabilities = kittens::rt<T, queries, count, kittens::row_l, kittens::rt_32x16>;
    using Output = kittens::rt<float, queries, head_dim, kittens::row_l, kittens::rt_32x32>;

    const ForwardArguments& arguments;
    TileCoordinate coordinate;
    Sequence sequence;
    int first_query;
    KeyRange all, own;  // the keys that the workgroup loads, and those of them that this wave needs
    Query query[pieces];
    Output output;
    OnlineSoftmax softmax;
    DropoutDraws draws;  // of a kernel that drops

    KITTENS_DEVICE explicit ForwardWave(const ForwardArguments& arguments)
        : arguments(arguments),
          coordinate(coordinate_of_workgroup(kittens::workgroup_id_x(), arguments.order)),
          sequence(sequence_of(coordinate.batch, arguments.mask, arguments.packed)),
          first_query(coordinate.tile * config.queries() + kittens::wave_id() * queries),
          all(KeyRange(sequence.mask, coordinate.tile * config.queries(),
                       (coordinate.tile + 1) * config.queries())
                  .split_of(coordinate.split, arguments.order.splits, keys)),
          own(sequence.mask, first_query, first_query + queries),
          softmax(arguments.scale_log2) {
        if constexpr (!queries_through_lds)
            load_own_rows(query, queries_of(arguments.q), first_query, query_sign());
        kittens::zero(output);
        if constexpr (config.dropout) draws.start(arguments.dropout);
    }

    KITTENS_DEVICE kittens::global_matrix<const T> queries_of(const TensorArgument& tensor) const {
        return query_matrix<T>(tensor, sequence, coordinate.head, arguments.head_dim);
    }
    KITTENS_DEVICE kittens::global_matrix<const T> keys_of(const TensorArgument& tensor) const {
        return key_matrix<T>(tensor, sequence, key_head_of(coordinate.head, arguments.group),
                             arguments.head_dim);
    }
    KITTENS_DEVICE uint32_t query_sign() const { return arguments.negated ? 0x80008000u : 0; }
    KITTENS_DEVICE int first_tile_key() const { return all.first / keys * keys; }

    // Columns first .. of the scores from as many columns of the product.
    template <int first, class Part>
    KITTENS_DEVICE static void place_scores(Scores& scores, const Part& product) {
#pragma unroll
        for (int j = 0; j < Part::cols / Scores::shape::cols; ++j)
#pragma unroll
            for (int e = 0; e < Scores::per_lane; ++e)
                scores.tiles[0][first / Scores::shape::cols + j][e] = product.tiles[0][j / 2][j % 2 * 8 + e];
    }
    KITTENS_DEVICE void hide(Scores& scores, int key) const {
        if (!KeyRange::all_visible(sequence.mask, first_query, first_query + queries, key, keys))
            apply_mask<KeyColumns>(scores, visible_keys<KeyColumns>(sequence.mask, first_query, key),
                                   -__builtin_inff());
    }
    // The weights of keys from `key` on, once they are in the softmax's sum.
    KITTENS_DEVICE void drop(Scores& weights, int key) const {
        const uint32_t head = coordinate.batch * arguments.order.heads + coordinate.head;
        const kittens::Coordinate own = kittens::row_layout(Scores::shape::value(), kittens::lane_id(), 0);
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            const DropoutDraws::Words words =
                draws.of_query(head, first_query + own.row, key + j * Scores::shape::cols + own.col);
#pragma unroll
            for (int e = 0; e < Scores::per_lane; ++e)
                if (words[e] < draws.limit) weights.tiles[0][j][e] = 0;
        }
    }

    // Through `lds`: lds_bytes of the wave's own that nothing is under way to.
    template <int lds_bytes>
    KITTENS_DEVICE void store(kittens::shared_byte* lds) {
        // Read again: in the loop before, scalar registers are short.
        const ForwardArguments arguments = kittens::reload_arguments<ForwardArguments>();
        const TileCoordinate coordinate = coordinate_of_head(this->coordinate.head_of_all, arguments.order);
        const int64_t batch = sequence.batch, head = coordinate.head;
        const float total = softmax.total();
        const float kept = config.dropout ? arguments.dropout.scale : 1.0f;
        kittens::mul(output, output, total == 0.0f ? 0.0f : kept / total);
        const int lane = kittens::recompute_lane_id();
        const kittens::Coordinate own = kittens::row_layout(Output::shape::value(), lane, 0);
        const bool inside = first_query + own.row < sequence.mask.n_q;
        const int64_t row = sequence.first_q + first_query;
        const bool is_packed = arguments.packed.first_q;
        const int64_t rows = is_packed ? arguments.packed.rows_q : arguments.mask.n_q;
        const int64_t statistic = (batch * arguments.order.heads + head) * rows + row + own.row;
        if (arguments.order.splits == 1) {
            if (inside && lane < queries) arguments.lse[statistic] = softmax.log_sum_exp(total);
            constexpr int fit = lds_bytes / (queries * static_cast<int>(sizeof(T)));
            constexpr int columns = fit < head_dim ? fit : head_dim;
            static_assert(head_dim % columns == 0, "whole bands of columns");
            T* out = static_cast<T*>(const_cast<void*>(arguments.out.data)) +
                     batch * arguments.out.batch_stride + head * arguments.out.head_stride +
                     row * arguments.out.row_stride;
#pragma unroll
            for (int first = 0; first < head_dim; first += columns)
                OutputRows<T, columns>::store(output, first, lds, out + first, arguments.out.row_stride,
                                              sequence.mask.n_q - first_query, arguments.head_dim - first);
        } else {
            const int64_t statistics = (is_packed ? 1 : arguments.order.batch) * arguments.order.heads * rows;
            const int64_t partial = coordinate.split * statistics + statistic;
            if (!inside) return;
            if (lane < queries) arguments.partial_lse[partial] = softmax.log_sum_exp(total);
            store_row(arguments.partial_out + partial * arguments.head_dim, own.col, arguments.head_dim);
        }
    }
    // own_col: the first of this lane's columns.
    template <class Element>
    KITTENS_DEVICE void store_row(Element* row, int own_col, int cols) const {
#pragma unroll
        for (int j = 0; j < Output::width; ++j)
#pragma unroll
            for (int e = 0; e < Output::per_lane; e += 4) {
                const auto& all = output.tiles[0][j];
                const kittens::vec<float, 4> values = {all[e], all[e + 1], all[e + 2], all[e + 3]};
                const int col =
                    j * Output::shape::cols + kittens::row_layout(Output::shape::value(), 0, e).col;
                if (col + own_col < cols)
                    *reinterpret_cast<kittens::vec<Element, 4>*>(row + own_col + col) =
                        __builtin_convertvector(values, kittens::vec<Element, 4>);
            }
    }
};

}  // namespace hipkittens::attention
