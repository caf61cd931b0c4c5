// kernels/attention/backward_one_pass.h: all gradients from one loop over the queries of a tile of keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass_step.h"
#include "queries_through_registers.h"
#include "row_tiles.h"
#include "split_partials.h"

namespace hipkittens::attention {

// A workgroup has a tile of keys, 32 per wave, and iterates over the queries of some heads, 64 or 32 per step. dV and dK stay
// in registers. dS is exchanged between the waves through LDS for dQ, which is added in memory as integers (dq_accumulator.h),
// so that the order of workgroups does not matter. This file contains the part shared by the loops of both targets:
// backward_one_pass_direct.h (gfx950), backward_one_pass_through_registers.h (gfx942).
template <BackwardConfig config>
struct OnePass : OnePassStep<config> {
    using Base = OnePassStep<config>;
    using Base::arguments, Base::bounds, Base::coordinate, Base::dk, Base::dq_at, Base::dq_destination,
        Base::dq_statistic_at, Base::draws, Base::dv, Base::first_key, Base::k, Base::lds, Base::masked,
        Base::shared_dq_at, Base::next, Base::now, Base::sequence, Base::v, Base::visible;
    using Base::columns, Base::direct, Base::head_dim, Base::keys, Base::pieces, Base::queries, Base::sharing,
        Base::wave_keys, Base::waves;
    using typename Base::Accumulator, typename Base::Fragment, typename Base::QueryColumns,
        typename Base::Shape, typename Base::Step, typename Base::T;

    // Keys and values pass through LDS before the first step, their gradients after the last one.
    template <int width>
    using TileOf = st<T, keys, tile_width(width), direct ? Access::rows_and_columns_32 : Access::rows>;
    template <class Tile>
    using LoadsOf = global_to_shared<Tile, config.threads(), forward_fill>;
    using KeyTile = TileOf<head_dim>;
    using ValueTile = TileOf<config.value_dim>;
    using KeyLoads = LoadsOf<KeyTile>;
    using ValueLoads = LoadsOf<ValueTile>;

    // Through registers, some waves load Q and the others load dO; all load the part of a narrower dO that these leave.
    using ThroughRegisters = QueriesThroughRegisters<T, queries, head_dim, config.value_dim, keys, waves>;
    static consteval int streams() {
        if constexpr (direct)
            return 2;
        else
            return ThroughRegisters::has_rest ? 2 : 1;
    }
    RowTiles<streams(), queries> tiles;
    int64_t dq_step;  // bytes from the dQ of a step to that of the next one in the inner loop
    // If the queries of a step are half a statistics block: the distance from the statistics of a step to those of the next one that begins
    // a block. All values of one kind are contiguous in a block, so its halves are closer to each other than to those of the next block.
    static constexpr bool whole_block = queries == statistics_block;
    static_assert(whole_block || 2 * queries == statistics_block);
    int64_t statistics_step;

    using Base::Base;

    template <class Loads>
    KITTENS_DEVICE void issue_keys(Loads& loads, const TensorArgument& tensor, int size, int at) const {
        const auto source = key_matrix<T>(tensor, sequence, coordinate.head, size);
        loads.init_offsets(source.row_bytes());
        skip_columns(loads, size);
        loads.issue(source.window(coordinate.tile * keys, 0).view(), {lds + at});
    }
    // Reads the wave's rows of K or V.
    template <class Tile, int count>
    KITTENS_DEVICE void read_keys(Fragment (&to)[count], int at) const {
        const int lane = lane_id();
        const uint32_t lane_at = Tile::offset(wave_id() * wave_keys + lane % 32, lane / 32 * 8);
        for_each_index<count>([&](auto n) {
            to[n.value] = lds_read<Fragment>(lds + at + stepped_offset<Tile>(lane_at, 0, n.value * 16));
        });
    }
    // `at`: LDS for the rows of the workgroup.
    template <class Tile, int count>
    KITTENS_DEVICE void store(const Accumulator (&gradient)[count], int at, const TensorArgument& destination,
                              int head_dim_used, float factor) const {
        using Stager = output_stager<tile_rows<Tile>>;
        const int wave_row = first_key - coordinate.tile * keys, lane = recompute_lane_id();
#pragma unroll
        for (int j = 0; j < count; ++j)
            Stager::template write<Shape>(lds + at, {wave_row + lane % 32, lane / 32 * 4}, 0, j * 32,
                                          gradient[j],
                                          [&](vec<float, 4> run) { return narrowed<T>(run * factor); });
        const int row = first_key + lane / Stager::vectors_per_row, col = lane % Stager::vectors_per_row * 8;
        T* to = row_of<T>(destination, sequence.batch, coordinate.head, sequence.first_k) + col;
        // All are read before the first is stored: after a branch, each read would be waited for separately.
        constexpr int passes = wave_keys / Stager::rows_per_pass;
        b128 runs[passes];
        for_each_index<passes>([&](auto n) {
            runs[n.value] =
                Stager::read(lds + at, wave_row + row - first_key, n.value * Stager::rows_per_pass, col * 2);
        });
        schedule_fence();
        for_each_index<passes>([&](auto n) {
            const int own = row + n.value * Stager::rows_per_pass;
            if (own < sequence.mask.n_k && col < head_dim_used)
                *reinterpret_cast<b128*>(to + own * destination.row_stride) = runs[n.value];
        });
    }

    KITTENS_DEVICE static bool streams_do(auto i) {
        if constexpr (direct || i.value)
            return i.value;
        else
            return ThroughRegisters::which(wave_id());
    }
    KITTENS_DEVICE void next_rows() {
        tiles.next([](auto i) {
            // Read again, since scalar registers are scarce in the loop.
            const auto again = reload_arguments<BackwardArguments>();
            return gradient_head_bytes<T, true>(again, streams_do(i));
        });
    }

    KITTENS_DEVICE int head_of_batch(const Step& step, const BackwardArguments& again) const {
        return step.head - coordinate.batch * again.heads;
    }
    KITTENS_DEVICE void locate(Step& step) const {
        const auto again = reload_arguments<BackwardArguments>();
        const int64_t row =
            first_statistics_row(again, sequence, coordinate.batch, head_of_batch(step, again)) + step.row;
        step.statistics = again.statistics + statistic_index(Statistic::start, row);
        step.dq = reinterpret_cast<char*>(again.dq_accumulator) + row * head_dim * 4;
        if constexpr (config.terms != ScoreTerms::none)
            step.slope_log2 = slope_log2_of(again.terms, coordinate.batch, head_of_batch(step, again));
    }
    // Advances to the rows that are being loaded.
    KITTENS_DEVICE void advance(Step& step) const {
        const Step here = step;
        step.head = tiles.head(), step.row = tiles.row;
        step.dq += dq_step;
        step.statistics += whole_block
                               ? dq_step >> __builtin_ctz(head_dim)
                               : statistics_step - (step.row & tiles.row_step & queries) *
                                                       ((statistics_bytes / 4 - statistics_block) / queries);
        if (__builtin_expect(tiles.turned, false)) {
            // Past the last step, the same statistics are loaded again.
            step.dq = here.dq, step.statistics = here.statistics;
            if (!tiles.ended()) turn(step, here.row);
        }
    }
    KITTENS_DEVICE void turn(Step& step, int before) const {
        const auto again = reload_arguments<BackwardArguments>();
        const int64_t heads = tiles.heads_inside() ? 1 - tiles.inner : 1,
                      rows = heads * again.statistics_rows;
        step.dq += (rows + step.row - before) * (head_dim * 4);
        step.statistics += rows * static_cast<int>(Statistic::count) +
                           statistic_index(Statistic::start, step.row) -
                           statistic_index(Statistic::start, before);
        if constexpr (config.terms != ScoreTerms::none)
            step.slope_log2 = slope_log2_of(again.terms, coordinate.batch, head_of_batch(step, again));
    }
    KITTENS_DEVICE void begin_steps(int first, int past) {
        const int in_group = coordinate.split * arguments.heads_per_split,
                  left_of_group = arguments.group - in_group,
                  heads =
                      left_of_group < arguments.heads_per_split ? left_of_group : arguments.heads_per_split;
        const uint32_t turn = arguments.turn;
        const bool descending = turn && workgroup_id_x() / turn % 2 == 0;
        const int first_head = coordinate.head * arguments.group + in_group;
        const auto tensor_of = [&](auto i) {
            const TensorArgument &q = arguments.q, &grad = arguments.grad_out;
            const bool is_do = streams_do(i);
            // Values, not a choice between addresses to load from, which would keep the arguments in memory.
            return TensorArgument{is_do ? grad.data : q.data, is_do ? grad.batch_stride : q.batch_stride,
                                  is_do ? grad.row_stride : q.row_stride,
                                  is_do ? grad.head_stride : q.head_stride};
        };
        tiles.begin(
            {first, past, coordinate.batch * arguments.heads + first_head, heads, arguments.heads_inside != 0,
             descending},
            [&](auto i) {
                return query_matrix<T>(tensor_of(i), sequence, first_head,
                                       streams_do(i) ? arguments.value_dim : arguments.head_dim);
            },
            [&](auto i) { return gradient_head_bytes<T, true>(arguments, streams_do(i)); });
        dq_step =
            (arguments.heads_inside ? arguments.statistics_rows : tiles.row_step) * int64_t{head_dim * 4};
        if (!whole_block)
            statistics_step = arguments.heads_inside ? dq_step / head_dim
                              : descending           ? -queries
                                                     : statistics_bytes / 4 - queries;
    }
    KITTENS_DEVICE void begin_rows() {
        next_rows();
        next.head = tiles.head(), next.row = tiles.row;
        locate(next);
        now = next;
        dq_destination = now.dq;
    }
    // Issued while the loads of the first step are in flight, so that there is a single wait for all of them.
    KITTENS_DEVICE void load_bounds() {
        bounds = bounds_of(arguments, sequence, coordinate.batch, coordinate.head);
        if constexpr (config.dropout) draws.start(arguments.dropout);
    }
    // compute() advances `next` to the following step and loads the rows of the step that comes `ahead` steps later.
    template <int ahead, class Compute>
    KITTENS_DEVICE void for_each_step(const Compute& compute) {
        const Mask& mask = sequence.mask;
        const int begin = coordinate.tile * keys;
        const int first_clear = mask.first_query(begin + keys - 1),
                  last_clear = mask.last_query(begin) + 1 - queries;
        const bool some_invisible_rows = begin + keys > mask.n_k;
        const int own_key = first_key + lane_id() % 32;
        Visible of_key = visible_queries<QueryColumns>(mask, own_key, 0);
        if (own_key >= mask.n_k) of_key = Visible::between(0, -1);
        const int lane_away = lane_id() / 32 * Base::upper + (mask.n_k - mask.n_q) - own_key;
        do {
            if constexpr (config.terms != ScoreTerms::none) {
                this->weights.slope_log2 = now.slope_log2;
                this->weights.distance = now.row + lane_away;
            }
            // Without branches, which would split the scheduling region of the loop.
            masked = some_invisible_rows | (now.row < first_clear) | (last_clear < now.row);
            visible = {of_key.left == unlimited ? unlimited : of_key.left - now.row, of_key.span};
            compute();
            dq_destination = now.dq;
            now = next;
        } while (tiles.left > -ahead);
    }
    KITTENS_DEVICE static int dq_query() { return wave_id() / columns * 32; }
    KITTENS_DEVICE static int dq_column() { return wave_id() % columns * 32; }
    // With shared tiles: of the wave's one, and its first key.
    KITTENS_DEVICE static int shared_dq_column() { return (waves + wave_id() / sharing) * 32; }
    KITTENS_DEVICE static int shared_dq_key() { return wave_id() % sharing * (keys / sharing); }

    // loop(commit_keys, commit_values): over the queries that see any of the keys, with keys and values on their way to LDS.
    template <int keys_at, int values_at, class Loop>
    KITTENS_DEVICE void run(const Loop& loop) {
        const Mask& mask = sequence.mask;
        const int begin = coordinate.tile * keys;
        first_key = begin + wave_id() * wave_keys;
        if (begin >= mask.n_k) return;
        for_each_index<columns>([&](auto j) {
            dk[j.value] = Accumulator{};
            if constexpr (j.value < Base::value_columns) dv[j.value] = Accumulator{};
        });

        const QueryRange range(mask, begin, begin + keys);
        const int first = range.first / queries * queries, past = range.past;
        if (first < past) {
            KeyLoads k_loads;
            ValueLoads v_loads;
            issue_keys(k_loads, arguments.k, arguments.head_dim, keys_at);
            issue_keys(v_loads, arguments.v, arguments.value_dim, values_at);
            begin_steps(first, past);
            dq_statistic_at = (dq_query() + lane_id() % 32) * 4;
            dq_at = wave_id() * dq_tile_bytes + lane_id() * 4;
            shared_dq_at = wave_id() / sharing * dq_tile_bytes + lane_id() * 4;
            loop([&] { k_loads.commit({lds + keys_at}); }, [&] { v_loads.commit({lds + values_at}); });
        }
        const auto results = reload_arguments<BackwardArguments>();
        if constexpr (config.dropout) {
            // Computed again: together with the seed for dropout, they would be too many scalars in the loop.
            coordinate = coordinate_of_workgroup(workgroup_id_x(), results.order);
            sequence = sequence_of(coordinate.batch, results.mask, results.packed);
        }
        if (results.splits > 1) {
            if (first_key >= mask.n_k) return;
            store_partial(dk, results, sequence, coordinate, first_key, false);
            store_partial(dv, results, sequence, coordinate, first_key, true);
            return;
        }
        barrier();
        store<KeyTile>(dk, 0, results.grad_k, results.head_dim, results.scale);
        if constexpr (values_at == keys_at) barrier();  // the rows of other waves' dK are in the same place
        store<ValueTile>(dv, values_at - keys_at, results.grad_v, results.value_dim,
                         config.dropout ? results.dropout.scale : 1.0f);
    }
};

}  // namespace hipkittens::attention
