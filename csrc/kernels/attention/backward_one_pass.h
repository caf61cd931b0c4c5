// kernels/attention/backward_one_pass.h: all gradients from one walk over the queries of a tile of keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "key_shares.h"
#include "mask.h"
#include "query_sums.h"

namespace hipkittens::attention {

// The five products of backward.h once each. A workgroup owns a tile of keys, 32 of them to a wave, and goes over the
// queries, a step of 64 or 32 at a time: S and dP, from which dV, dK and, after an exchange of dS among the waves through LDS,
// its share of dQ. Shares are added in memory as whole numbers (query_sums.h), so their order does not matter.
//
// A wave has its SIMD to itself: nothing hides its waits but its own next products. A step is therefore written as slots:
// one matrix instruction, the LDS reads of a later product, and a share of the arithmetic between products. How rows come to
// LDS and from there to registers differs between the targets, and with it the order of a step: backward_one_pass_direct.h
// (gfx950), backward_one_pass_placed.h (gfx942). Here is what they share.
template <BackwardConfig config>
struct OnePass {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, rows = config.rows_per_wave,
                         keys = config.rows(), queries = config.stream_rows;
    static_assert(config.waves == 4 && statistics_block % queries == 0);
    static_assert(head_dim <= largest_one_pass_head_dim);
    static constexpr int statistics_bytes = static_cast<int>(Statistic::count) * statistics_block * 4;

    static constexpr bool direct = kittens::target.transposed_lds_read;
    // Keys and values pass through LDS before the first step, their gradients after the last.
    using KeyTile =
        kittens::st<T, keys, head_dim, direct ? kittens::Access::rows_and_columns_32 : kittens::Access::rows>;
    using KeyLoads = kittens::global_to_shared<KeyTile, threads, forward_fill>;

    using Fragment = kittens::vec<T, 8>;
    using Accumulator = kittens::vec<float, 16>;
    using Product = kittens::rt_32x32;
    static constexpr int per_lane = 16;
    static constexpr int pieces =
        head_dim / 16;  // operands of a row; products of 32 queries in each of S, dP, dV, dK
    static constexpr int columns = head_dim / 32, halves = queries / 32;
    // Tiles of 32 x 32 of dQ: the waves side by side along the heads' columns, then along the queries.
    static constexpr int sums = halves * columns / config.waves, key_steps = keys / 16;
    static_assert(sums * key_steps == halves * pieces);
    static constexpr int products = 5 * halves * pieces;
    static constexpr int shares = sums * per_lane;  // registers of dQ

    const BackwardArguments& arguments;
    kittens::shared_byte* lds;
    TileCoordinate place;
    Sequence sequence;
    int first_row;  // of the wave
    Fragment own_k[pieces], own_v[pieces], turned_k[key_steps];
    Accumulator gradient_k[columns], gradient_v[columns], gradient_q[sums];
    Accumulator scores[halves], slopes[halves];  // of a half of the queries; S, then the weights; dP, then dS
    Fragment weights_low[halves][2], slopes_low[halves][2];
    // Of the query of register lane % 16 of a product; of the lane's own query of dQ.
    float start[halves], start_now[halves], delta[halves], delta_now[halves], inverse[sums], sum_delta[sums],
        sum_norm[sums];
    KeyBounds bounds;
    uint32_t own_statistic_at, sum_at;
    char* sums_before;
    DropoutDraws draws;

    KITTENS_DEVICE OnePass(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          place(coordinate_of_workgroup(kittens::workgroup_id_x(), arguments.order)),
          sequence(sequence_of(place.batch, arguments.mask, arguments.packed)) {}

    // The column of register e of a product, of a lane in the lower half of the wave, and its query, which is `upper` further in
    // the other half: gfx942 has the rows in LDS in an order that makes queries neighbours (tile_key).
    static constexpr int column_of(int e) { return e % 4 + e / 4 * 8; }
    using QueryColumns = kittens::choose<direct, kittens::rt_32x32, KeyColumns>;
    static constexpr int query_of(int e) { return direct ? column_of(e) : e % 8 + e / 8 * 16; }
    static constexpr int upper = direct ? 4 : 8;

    // Registers first .. first+count-1 of the accumulators that the next step's dP starts from.
    template <int first, int count>
    KITTENS_DEVICE void spread_delta() {
        kittens::for_each_index<first + count, first>([&](auto index) {
            constexpr int half = index.value / per_lane, e = index.value % per_lane;
            // Not where weights are dropped: slope_of has it.
            slopes[half][e] = config.dropout ? 0.0f : kittens::broadcast_in_16<e>(delta[half]);
        });
    }

    // S does not start from -LSE: sums of products would be rounded in its units. One fused step cancels them.
    template <int half, int first, int count>
    KITTENS_DEVICE void exponentiate() {
        kittens::for_each_index<first + count, first>([&](auto index) {
            constexpr int e = index.value;
            scores[half][e] = kittens::exponential_base_2(__builtin_fmaf(
                scores[half][e], arguments.scale_log2, kittens::broadcast_in_16<e>(start_now[half])));
        });
    }
    template <int half>
    KITTENS_DEVICE void clear_invisible(int left, uint32_t span) {
        apply_mask<QueryColumns, 4>(scores[half], half * per_lane, Visible{left, span}, 0);
    }
    // A weight is never negative, so a sign can say that it was dropped: dV takes no share of it, and its dP is zero.
    template <int half>
    KITTENS_DEVICE void mark_dropped(int n, int head, int column) {
        const int lane = kittens::lane_id();
        const DropoutDraws::Words words =
            draws.of_key(place.batch * arguments.heads + head,
                         column + half * 32 + n * 16 + lane / 32 * upper, first_row + lane % 32, 12 - upper);
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (words[e] < draws.limit) scores[half][n * 8 + e] = -scores[half][n * 8 + e];
    }
    template <int half>
    KITTENS_DEVICE void convert_weights(int first, int count) {
#pragma unroll
        for (int e = first; e < first + count; e += 2) {
            kittens::vec<float, 2> pair = {scores[half][e], scores[half][e + 1]};
            kittens::prevent_vectorization(pair);
            if constexpr (config.dropout) {
                if (pair[0] < 0) pair[0] = 0;
                if (pair[1] < 0) pair[1] = 0;
            }
            auto low = kittens::narrowed<T>(pair);
            if constexpr (!direct) kittens::materialize(low);
            weights_low[half][e / 8][e % 8] = low[0];
            weights_low[half][e / 8][e % 8 + 1] = low[1];
        }
    }
    // dS of a weight and its dP, from which delta is already taken; a dropped one has no dP.
    KITTENS_DEVICE float slope_of(float weight, float gradient, float delta) const {
        if constexpr (!config.dropout) return weight * gradient;
        const bool dropped = __builtin_bit_cast(int32_t, weight) < 0;
        const float kept = __builtin_fmaf(gradient, arguments.dropout.scale, delta);
        return kittens::absolute_value(weight) * (dropped ? delta : kept);
    }
    // A register of the shares of the step before goes to memory, in the order in which they lie (query_sums.h).
    template <int share>
    KITTENS_DEVICE void add_share() const {
        constexpr int sum = share / per_lane, e = share % per_lane;
        kittens::atomic_add(sums_before + sum * columns * sum_tile_bytes + e * kittens::wave_lanes * 4,
                            sum_at, static_cast<int32_t>(gradient_q[sum][e] * inverse[sum]));
    }

    KITTENS_DEVICE void use_statistics() {
#pragma unroll
        for (int sum = 0; sum < sums; ++sum)
            inverse[sum] = kittens::times_power_of_2(
                1.0f, sum_bits - bound_exponent(bounds.bound(sum_norm[sum], sum_delta[sum])));
    }

    template <class Loads>
    KITTENS_DEVICE void init_offsets(Loads& loads, int64_t row_bytes) const {
        loads.init_offsets(row_bytes);
#pragma unroll
        for (int pass = 0; pass < Loads::passes; ++pass)
            if (Loads::position(pass, kittens::thread_id()).col >= arguments.head_dim)
                loads.offsets[pass] = kittens::out_of_range;
    }

    // Through LDS, where a row's lanes meet: `at` is room for the workgroup's rows.
    KITTENS_DEVICE void store(const Accumulator (&gradient)[columns], int at,
                              const TensorArgument& destination, int64_t first, int row_count,
                              int head_dim_used, float factor) const {
        const KeyTile rows_of_all{lds + at};
        const int wave_row = first_row - place.tile * keys, lane = kittens::recompute_lane_id();
        const uint32_t write_at = KeyTile::offset(wave_row + lane % 32, lane / 32 * 4);
#pragma unroll
        for (int j = 0; j < columns; ++j)
#pragma unroll
            for (int e = 0; e < per_lane; e += 4) {
                const auto& all = gradient[j];
                const kittens::vec<float, 4> values = {all[e] * factor, all[e + 1] * factor,
                                                       all[e + 2] * factor, all[e + 3] * factor};
                kittens::lds_write(
                    kittens::narrowed<T>(values),
                    rows_of_all.data + kittens::stepped_offset<KeyTile>(write_at, 0, j * 32 + column_of(e)));
            }
        constexpr int lanes_per_row = head_dim / 8, rows_at_once = kittens::wave_lanes / lanes_per_row;
        const int col = lane % lanes_per_row * 8;
        T* to = static_cast<T*>(const_cast<void*>(destination.data)) +
                sequence.batch * destination.batch_stride + place.head * destination.head_stride +
                first * destination.row_stride + col;
#pragma unroll
        for (int i = 0; i < rows; i += rows_at_once) {
            const int row = i + lane / lanes_per_row;
            const Fragment run =
                kittens::lds_read<Fragment>(rows_of_all.data + KeyTile::offset(wave_row + row, col));
            if (first_row + row < row_count && col < head_dim_used)
                *reinterpret_cast<Fragment*>(to + (first_row + row) * destination.row_stride) = run;
        }
    }

    KITTENS_DEVICE void issue_keys(KeyLoads& key_loads, const TensorArgument& tensor, int at) const {
        const auto source = matrix_of<T>(tensor, sequence.batch, sequence.first_k, place.head,
                                         sequence.mask.n_k, arguments.head_dim);
        init_offsets(key_loads, source.row_bytes());
        key_loads.issue(source.window(place.tile * keys, 0).view(), {lds + at});
    }
    template <int keys_at, int values_at>
    KITTENS_DEVICE void read_keys(int wave, int lane) {
        const uint32_t own_at = KeyTile::offset(wave * rows + lane % 32, lane / 32 * 8);
        kittens::for_each_index<pieces>([&](auto n) {
            const uint32_t at = kittens::stepped_offset<KeyTile>(own_at, 0, n.value * 16);
            own_k[n.value] = kittens::lds_read<Fragment>(lds + keys_at + at);
            own_v[n.value] = kittens::lds_read<Fragment>(lds + values_at + at);
        });
    }

    // Which of the queries of a step that begins at `column` the lane's key sees: left(column) .. left(column) + span of the
    // lane's half.
    struct SeenQueries {
        int nearest;
        uint32_t span;
        KITTENS_DEVICE int left(int column) const {
            return nearest == unlimited ? unlimited : nearest - column;
        }
    };
    KITTENS_DEVICE SeenQueries seen_queries(int low, int high) const {
        const Mask& mask = sequence.mask;
        const int row = first_row + low;
        const int left_of = row < mask.n_k ? mask.first_query(row) - high * upper : unlimited;
        const int last = mask.last_query(row) - mask.first_query(row);
        return {last < 0 ? unlimited : left_of, last < 0 || row >= mask.n_k ? 0u : last};
    }

    // walk(first, past, place_keys): over the queries that somebody sees, with the keys and values on their way to LDS.
    template <int keys_at, int values_at, class Walk>
    KITTENS_DEVICE void run(const Walk& walk) {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys;
        first_row = begin + kittens::wave_id() * rows;
        if (begin >= mask.n_k) return;
        kittens::for_each_index<columns>([&](auto j) {
            gradient_k[j.value] = Accumulator{};
            gradient_v[j.value] = Accumulator{};
        });

        const int last_row = (begin + keys < mask.n_k ? begin + keys : mask.n_k) - 1;
        const int first_column = mask.first_query(begin) / queries * queries,
                  past = mask.last_query(last_row) + 1;
        if (first_column < past) {
            KeyLoads k_loads, v_loads;
            issue_keys(k_loads, arguments.k, keys_at);
            issue_keys(v_loads, arguments.v, values_at);
            walk(first_column, past, [&] {
                k_loads.commit({lds + keys_at});
                v_loads.commit({lds + values_at});
            });
        }
        const auto results = kittens::reload_arguments<BackwardArguments>();
        if (results.parts > 1) {
            if (first_row >= mask.n_k) return;
            store_key_share(gradient_k, results, sequence, place, first_row, false);
            store_key_share(gradient_v, results, sequence, place, first_row, true);
            return;
        }
        kittens::barrier();
        store(gradient_k, 0, results.grad_k, sequence.first_k, mask.n_k, results.head_dim, results.scale);
        store(gradient_v, values_at - keys_at, results.grad_v, sequence.first_k, mask.n_k, results.head_dim,
              config.dropout ? results.dropout.scale : 1.0f);
    }
};

}  // namespace hipkittens::attention
