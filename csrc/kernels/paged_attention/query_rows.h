// kernels/paged_attention/query_rows.h: the tokens and heads of one key head that a workgroup processes, their scores and results.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "../../tiles/transcendental.h"
#include "../element_of.h"
#include "../workgroup_order.h"
#include "key_tile.h"
#include "row_softmax.h"
#include "sequence_of.h"

namespace hipkittens::paged_attention {

// Row r of a key head is query head r % group of token r / group, so that all heads of a group share the loaded keys. The waves
// of a workgroup have the same rows and take tiles of keys in turn; their results are combined at the end, always in the same
// order.
// rows_apart: each wave has its own rows, and all of them the same keys.
template <PagedConfig config, bool rows_apart = false>
struct QueryRows {
    using T = typename element_of<config.element>::value;
    using Cached = typename element_of<config.cache>::value;
    static constexpr int row_tiles = rows_apart ? config.row_tiles / waves : config.row_tiles,
                         rows = config.rows(), steps = config.head_dim / 32, value_dim = config.value_dim(),
                         outputs = value_dim / 16;
    static constexpr int threads = waves * wave_lanes;
    static constexpr float log2_e = 1.4426950408889634f;

    const PagedArguments& arguments;
    // Of the workgroup. `part` is its split, with a plan among those of all sequences.
    uint32_t part, split, key_head, sequence;
    int first_row, first_token, queries, length;
    float scale, value_scale;
    KeyBounds bounds;
    // For the lane's row in each tile of rows. It sees keys first_key .. past_key - 1.
    int query[row_tiles], head[row_tiles], first_key[row_tiles], past_key[row_tiles];
    float slope[row_tiles];
    vec<T, 8> q[row_tiles][steps];
    vec<float, 4> output[row_tiles][outputs];
    RowSoftmax softmax[row_tiles];

    KITTENS_DEVICE explicit QueryRows(const PagedArguments& arguments) : arguments(arguments) {}

    // The key position of a query, where both sequences end together.
    KITTENS_DEVICE int place_of(int query) const { return query + length - queries; }

    // The pages of the workgroup's sequence.
    KITTENS_DEVICE const int32_t* table() const {
        if (arguments.table_starts) return arguments.table + arguments.table_starts[sequence];
        return arguments.table + sequence * arguments.table_stride;
    }

    // Returns false if the workgroup has no rows.
    KITTENS_DEVICE bool begin() {
        const uint32_t count = arguments.row_tiles.value * arguments.splits.value *
                               arguments.key_heads.value * (arguments.plan ? 1 : arguments.sequences.count);
        uint32_t item = chunked_workgroup(workgroup_id_x(), count, arguments.xcds, arguments.chunk);
        const auto next = [&](const Divisor& divisor) {
            const uint32_t quotient = divisor.quotient(item), rest = item - quotient * divisor.value;
            item = quotient;
            return uniform(rest);
        };
        const uint32_t row_tile = next(arguments.row_tiles);
        part = split = next(arguments.splits);
        key_head = next(arguments.key_heads);
        sequence = uniform(item);

        const Sequences& sequences = arguments.sequences;
        if (arguments.plan) {
            const int32_t* begins = arguments.plan + 1;
            if (static_cast<int>(part) >= begins[sequences.count]) return false;
            sequence = sequence_of(part, begins, sequences.count);
            split = part - begins[sequence];
        }
        first_token = sequence * sequences.queries;
        queries = sequences.queries;
        if (sequences.ends) {
            first_token = sequences.ends[sequence];
            queries = sequences.ends[sequence + 1] - first_token;
            queries = queries < sequences.queries ? queries : sequences.queries;
        }
        const int group = arguments.group.value;
        first_row = row_tile * rows;
        if (first_row >= queries * group) return false;
        length = sequences.lengths[sequence];
        length = length < arguments.most_keys ? length : arguments.most_keys;
        length = length > 0 ? length : 0;
        scale = arguments.scale;
        if constexpr (!same_type<T, Cached>) {
            value_scale = arguments.value_factor;
            if constexpr (config.scaling != CacheScaling::by_key) {
                scale *= scale_of(arguments.key_scales);
                value_scale *= scale_of(arguments.value_scales);
            }
        }

        const int last_row = first_row + rows < queries * group ? first_row + rows - 1 : queries * group - 1;
        const auto token_of = [&](int row) {
            return static_cast<int>(uniform(arguments.group.quotient(row)));
        };
        const int least = place_of(token_of(first_row)) - arguments.left,
                  most = place_of(token_of(last_row)) + arguments.right;
        take_split({least > 0 ? least : 0, most < length ? most : length - 1});
        load_rows();
        return true;
    }

    KITTENS_DEVICE float scale_of(const CacheScales& scales) const {
        return scales.data ? scales.data[sequence * scales.sequence_step + key_head * scales.head_step]
                           : 1.0f;
    }

    KITTENS_DEVICE bool is_partial() const { return arguments.splits.value > 1 || arguments.plan; }

    // Takes this split's share of keys first .. last: whole tiles, the same number in each split except the last ones.
    KITTENS_DEVICE void take_split(KeyBounds all) {
        bounds = all;
        if (!is_partial() || all.last < all.first) return;
        const int begin = all.first / tile_keys;
        const uint32_t tiles = all.last / tile_keys + 1 - begin;
        uint32_t share = arguments.splits.quotient(tiles + arguments.splits.value - 1);
        if (share < static_cast<uint32_t>(arguments.shortest_split)) share = arguments.shortest_split;
        if (arguments.plan) share = arguments.plan[0];
        share = uniform(share);
        // A split may be so far past the last key that 32 bits overflow.
        const int64_t from = (begin + static_cast<int64_t>(split) * share) * tile_keys;
        const int64_t past = from + static_cast<int64_t>(share) * tile_keys;
        if (from > bounds.last) {
            bounds = {0, -1};
            return;
        }
        if (from > bounds.first) bounds.first = static_cast<int>(from);
        if (past <= bounds.last) bounds.last = static_cast<int>(past - 1);
    }

    KITTENS_DEVICE void load_rows() {
        const int group = arguments.group.value;
#pragma unroll
        for (int r = 0; r < row_tiles; ++r) {
            const int tile = rows_apart ? wave_id() * row_tiles + r : r;
            const int row = first_row + tile * 16 + lane_id() % 16;
            query[r] = arguments.group.quotient(row);
            head[r] = key_head * group + row - query[r] * group;
            const bool is_there = query[r] < queries;
            const int place = place_of(query[r]);
            const int least = place - arguments.left, most = place + arguments.right + 1;
            first_key[r] = least > bounds.first ? least : bounds.first;
            past_key[r] = most < bounds.last + 1 ? most : bounds.last + 1;
            if (!is_there) past_key[r] = first_key[r];
            slope[r] = 0;
            if (arguments.slopes && is_there)
                slope[r] =
                    ((global<const float>)arguments.slopes)[sequence * arguments.slopes_stride + head[r]] *
                    log2_e;
            const auto from = (global<const char>)arguments.q +
                              static_cast<int64_t>(first_token + query[r]) * arguments.q_token_bytes +
                              head[r] * arguments.q_head_bytes + lane_id() / 16 * 16;
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                q[r][step] = T();
                if (is_there) q[r][step] = load_at<vec<T, 8>>(from + step * 64);
            }
#pragma unroll
            for (int n = 0; n < outputs; ++n) output[r][n] = 0.0f;
        }
    }

    // Base-2 scores of 8 keys from `key` on, as seen by the lane's row.
    KITTENS_DEVICE void edit(vec<float, 8>& scores, int r, int key) const {
        if (arguments.softcap > 0) {
            const float inverse = scale / arguments.softcap, cap = arguments.softcap * log2_e;
#pragma unroll
            for (int e = 0; e < 8; ++e) scores[e] = cap * hyperbolic_tangent(scores[e] * inverse).value;
        } else {
            const float factor = scale * log2_e;
#pragma unroll
            for (int e = 0; e < 8; ++e) scores[e] *= factor;
        }
        if (arguments.slopes) {
            const int place = place_of(query[r]);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const int away = place - key - e;
                scores[e] = __builtin_fmaf(-slope[r], static_cast<float>(away < 0 ? -away : away), scores[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (key + e < first_key[r] || key + e >= past_key[r]) scores[e] = RowSoftmax::none;
    }

    KITTENS_DEVICE void store() {
#pragma unroll
        for (int r = 0; r < row_tiles; ++r) {
            const float total = softmax[r].total();
            if (query[r] >= queries) continue;
            const int64_t token = first_token + query[r];
            const float lse = softmax[r].log_sum_exp(total);
            const bool is_partial = this->is_partial();
            const int64_t row = arguments.plan
                                    ? static_cast<int64_t>(part) * arguments.sequences.queries + query[r]
                                    : static_cast<int64_t>(part) * arguments.tokens + token;
            const int64_t statistic = row * arguments.heads + head[r];
            float sum = total;
            if (!is_partial && arguments.sinks)
                sum += sink_weight(((global<const float>)arguments.sinks)[head[r]],
                                   RowSoftmax::base_of(softmax[r].reference));
            float factor = total == 0.0f ? 0.0f : 1.0f / sum;
            if constexpr (!same_type<T, Cached>) factor *= value_scale;
            if (lane_id() < 16) {
                if (is_partial)
                    ((global<float>)arguments.partial_lse)[statistic] = lse;
                else
                    ((global<float>)arguments.lse)[head[r] * static_cast<int64_t>(arguments.tokens) + token] =
                        lse;
            }
            const auto to = (global<char>)arguments.out + token * arguments.out_token_bytes +
                            head[r] * arguments.out_head_bytes;
            const auto partial = (global<float>)arguments.partial_out + statistic * value_dim;
            if constexpr (config.grouped) {
#pragma unroll
                for (int n = 0; n < outputs; ++n)
                    put(is_partial, partial, to, n * 16 + lane_id() / 16 * 4, output[r][n] * factor);
            } else {
                constexpr int columns = ColumnBands<value_dim>::columns;
#pragma unroll
                for (int band = 0; band < ColumnBands<value_dim>::bands; ++band)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        vec<float, columns> values;
#pragma unroll
                        for (int n = 0; n < columns; ++n)
                            values[n] = output[r][band * columns + n][e] * factor;
                        put(is_partial, partial, to, band * 128 + columns * (lane_id() / 16 * 4 + e), values);
                    }
            }
        }
    }
    template <int columns>
    KITTENS_DEVICE static void put(bool is_partial, global<float> partial, global<char> to, int column,
                                   vec<float, columns> values) {
        typedef vec<T, columns> narrow __attribute__((aligned(4)));
        if (is_partial)
            *(global<vec<float, columns>>)(partial + column) = values;
        else
            *(global<narrow>)(to + column * static_cast<int>(sizeof(T))) =
                __builtin_convertvector(values, vec<T, columns>);
    }
};

}  // namespace hipkittens::paged_attention
