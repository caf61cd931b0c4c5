// kernels/attention/backward.h: the gradients of one tile of queries, or of one tile of keys or values.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "backward_scores.h"
#include "forward_tiles.h"
#include "mask.h"
#include "pointwise_weights.h"
#include "row_tiles.h"
#include "store_row.h"

namespace hipkittens::attention {

// With S = scale Q K^T, P = exp(S - LSE) and dP = dO V^T: dS = P (dP + delta), dQ = scale dS K, dK = scale dS^T Q,
// dV = P^T dO. If elements of P were dropped (M is 0, or the scale of those that are kept): dV = (M P)^T dO and
// dS = P (M dP + delta). With pointwise weights, P is the weight in the gradient of V and its derivative in dS = P dP; their
// divisor is part of the scale. A workgroup keeps the rows of one side in registers and iterates over the rows of the other
// side, which stream through LDS; every kernel recomputes P and dS. Nothing is accumulated across workgroups, so every sum
// has a fixed order. (own, streamed) is (Q, K) and (dO, V) for the gradient of the queries, otherwise (K, Q) and (V, dO).
template <BackwardConfig config>
struct Backward {
    using T = typename element_of<config.input>::value;
    static constexpr bool of_keys = config.gradient_of != GradientTarget::queries,
                          of_values = config.gradient_of == GradientTarget::values,
                          pointwise = is_pointwise(config.terms);
    using Arguments = BackwardArgumentsOf<config.terms>;
    using Range = choose<of_keys, QueryRange, KeyRange>;  // of the streamed rows
    static constexpr int threads = config.threads(), head_dim = config.head_dim, rows = config.rows_per_wave,
                         columns = config.stream_rows, per_lane = 16;
    static_assert(rows == 32 && columns == 32, "S of a wave is one accumulator");
    static_assert(config.value_dim == head_dim, "tiles of both sizes have the same width");
    // Row-major for S and dP, transposed for the gradients.
    using RowMajor = KeyTiles<T, columns, head_dim, threads>;
    using Transposed = ValueTiles<T, columns, head_dim, threads>;
    using RowMajorTile = typename RowMajor::Tile;
    using TransposedTile = typename Transposed::Tile;
    static constexpr bool direct = forward_fill == Fill::direct;
    // The first tile is used for S, the second for dP, which the gradient of V does not need.
    static constexpr int buffers = direct ? 2 : 1, row_major_tiles = of_values ? 1 : 2,
                         buffer_bytes = row_major_tiles * RowMajorTile::bytes + TransposedTile::bytes,
                         lds_bytes = buffers * buffer_bytes;
    static_assert(lds_bytes <= target.lds_bytes, "the tiles in flight fit in LDS");

    static constexpr int pieces = head_dim / RowMajor::step;
    using Own = rt<T, rows, RowMajor::step, row_l, rt_32x16>;
    using Shape = rt_32x32;
    using Accumulator = vec<float, 16>;
    using Gradient = rt<float, rows, head_dim, row_l, Shape>;
    // Matrix steps of S followed by those of dP; and those of the gradient, with two halves of the streamed rows along K.
    static constexpr int steps = head_dim / 16, score_steps = row_major_tiles * steps,
                         gradient_steps = 2 * Gradient::width;

    const Arguments& arguments;
    shared_byte* lds;
    TileCoordinate coordinate;
    SequenceOf<choose<pointwise, HistoryMask, Mask>> sequence;
    Own own[row_major_tiles][pieces];
    Accumulator p, ds;  // P overwrites S and dS overwrites dP, each in the same registers
    choose<pointwise, SiluWeights, Weights<config.terms, per_lane>> weights;
    Gradient gradient;
    int first_row;  // of the wave
    // For this lane's query; where queries stream, for that of register lane % 16 of S, in this tile and in the next.
    QueryStatistics statistics, next_statistics;
    RowMajor row_major_rows[row_major_tiles];
    Transposed transposed_rows;  // of the second tensor for the gradient of V, otherwise of the first
    RowTiles<2, columns> tiles;  // the rows to stream next
    DropoutDraws draws;          // for a kernel with dropout

    KITTENS_DEVICE Backward(const Arguments& arguments, shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          coordinate(coordinate_of_workgroup(workgroup_id_x(), arguments.order)),
          sequence(sequence_of(coordinate.batch, arguments)) {}

    // Elements per row of Q and K, or (`second`) of dO and V.
    KITTENS_DEVICE int size(bool second) const { return second ? arguments.value_dim : arguments.head_dim; }
    // Q or K; with `second`, dO or V.
    template <bool of_queries>
    KITTENS_DEVICE global_matrix<const T> matrix(bool second, int head) const {
        return gradient_operand<T, of_queries>(arguments, sequence, second, head, size(second));
    }
    KITTENS_DEVICE RowMajorTile row_major(int buffer, int which) const {
        return {lds + buffer * buffer_bytes + which * RowMajorTile::bytes};
    }
    KITTENS_DEVICE TransposedTile transposed(int buffer) const {
        return {lds + buffer * buffer_bytes + row_major_tiles * RowMajorTile::bytes};
    }

    // The statistic for the query of a register of S: this lane's query, or one of the streamed queries.
    template <int n>
    KITTENS_DEVICE static float statistic(float of_lane) {
        return of_keys ? broadcast_in_16<n>(of_lane) : of_lane;
    }
    // Issued before the loads of their tile: loads return in order, and waiting for statistics issued after the next
    // tile's loads would also wait for those.
    KITTENS_DEVICE void load_streamed_statistics() {
        const int lane = lane_id();
        const int64_t row = first_statistics_row(arguments, sequence, coordinate.batch, tiles.head()) +
                            tiles.row + row_layout(KeyColumns::value(), lane, lane % per_lane).col;
        load_statistics<!of_values>(next_statistics, arguments.statistics, row);
    }
    KITTENS_DEVICE void mask_p(int head, int column) {
        // Applied after the exponential: a masked score may exceed the LSE by any amount.
        if (!Range::all_visible(sequence.mask, first_row, first_row + rows, column, columns)) {
            const int row = first_row + row_layout(KeyColumns::value(), lane_id(), 0).row;
            const auto visible = of_keys ? visible_queries<KeyColumns>(sequence.mask, row, column)
                                         : visible_keys<KeyColumns>(sequence.mask, row, column);
            apply_mask<KeyColumns, 8>(p, 0, visible, 0);
        }
        if constexpr (config.dropout)
            mark_dropped<of_keys>(p, draws, coordinate.batch * arguments.heads + head, first_row, column);
    }
    template <int n>
    KITTENS_DEVICE void make_p() {
        p[n] = p_of<n, of_values>(weights, arguments, p[n], statistic<n>(statistics.start),
                                  row_layout(KeyColumns::value(), 0, n).col);
    }
    // The factor of the gradient's product: P or dS.
    template <int n>
    KITTENS_DEVICE float factor() const {
        if constexpr (of_values)
            return config.dropout && p[n] < 0 ? 0.0f : p[n];
        else if constexpr (pointwise)
            return p[n] * ds[n];
        else if constexpr (config.dropout)
            return ds_of_dropped(p[n], ds[n], statistic<n>(statistics.delta), arguments.dropout.scale);
        else
            return weights.template unscaled<n>(p[n] * (ds[n] + statistic<n>(statistics.delta)));
    }

    // Through registers, LDS holds one tile of each kind. During S and dP, the next row-major tiles are loaded and the
    // transposed one is committed; during the gradient's product it is the other way round. The barrier is between the two, and
    // each load has half a tile's time to complete. Loads are issued first: the registers they overwrite have been committed,
    // and the data that is then committed has had time to arrive.
    using RowMajorLoads = typename RowMajor::Loads;
    using TransposedLoads = typename Transposed::Loads;
    static constexpr int row_major_issues = direct ? 0 : row_major_tiles * RowMajorLoads::issue_items,
                         row_major_commits = direct ? 0 : row_major_tiles * RowMajorLoads::commit_items,
                         transposed_issues = direct ? 0 : TransposedLoads::issue_items,
                         transposed_commits = direct ? 0 : TransposedLoads::commit_items;
    // head: of the queries; column: the first streamed row.
    KITTENS_DEVICE void compute(int head, int column, int buffer) {
        if constexpr (config.terms != ScoreTerms::none && !pointwise) {
            const int ahead = sequence.mask.n_k - sequence.mask.n_q;
            const Coordinate lane_at = row_layout(KeyColumns::value(), lane_id(), 0);
            weights.slope_log2 = slope_log2_of(arguments.terms, coordinate.batch, head);
            weights.distance = column + lane_at.col - first_row - lane_at.row + (of_keys ? ahead : -ahead);
        }
        constexpr every_slot end{0, score_steps, 1, true};
        constexpr int reads = row_major_tiles * pieces;
        typename RowMajor::Registers operands[2];
        const auto read_operands = [&](auto n) {
            load(operands[n.value % 2], row_major(buffer, n.value / pieces), 0,
                 n.value % pieces * RowMajor::step);
        };
        p = ds = Accumulator{};
        read_operands(index<0>{});
        interleave<score_steps>(
            // Each piece is read one piece ahead of its product.
            work<spread{reads - 1, 0, 2 * (reads - 1), true}>(
                [&](auto n) { read_operands(index<n.value + 1>{}); }),
            work<end>([&](auto n) {
                constexpr int piece = n.value % steps / 2, k = n.value % 2;
                auto& product = n.value < steps ? p : ds;
                product = multiply_base<row_l, Shape>(own[n.value / steps][piece].tiles[0][k],
                                                      operands[n.value / 2 % 2].tiles[0][k], product);
            }),
            work<share_of(score_steps, row_major_issues + transposed_commits, 0, row_major_issues)>(
                [&](auto n) {
                    constexpr int count = RowMajorLoads::issue_items;
                    row_major_rows[n.value / count].loads.template issue_item<n.value % count>(
                        tiles.views[n.value / count], row_major(0, n.value / count));
                }),
            work<share_of(score_steps, row_major_issues + transposed_commits, row_major_issues,
                          transposed_commits)>(
                [&](auto n) { transposed_rows.loads.template commit_item<n.value>(transposed(0)); }),
            work<spread_late{of_values ? 0 : per_lane, steps, score_steps}>(
                [&](auto n) { make_p<n.value>(); }),
            work<end>([](auto) {}));
        if constexpr (of_values) for_each_index<per_lane>([&](auto n) { make_p<n.value>(); });
        mask_p(head, column);
        if constexpr (!direct) barrier();

        vec<T, 8> factors[2];
        const auto make_factors = [&](auto n) {
            constexpr int e = n.value * 2;
            const auto pair = narrowed<T>(vec<float, 2>{factor<e>(), factor<e + 1>()});
            factors[e / 8][e % 8] = pair[0];
            factors[e / 8][e % 8 + 1] = pair[1];
        };
        typename Transposed::Registers halves[2];
        Transposed::read(halves[0], transposed(buffer), 0);
        for_each_index<4>(make_factors);
        schedule_fence();
        interleave<gradient_steps>(
            work<in_slot{0, true, true}>(
                [&](auto) { Transposed::read(halves[1], transposed(buffer), Transposed::step); }),
            work<every_slot{0, gradient_steps, 1, true}>([&](auto n) {
                constexpr int half = n.value / Gradient::width, column = n.value % Gradient::width;
                gradient.tiles[0][column] = multiply_base<row_l, Shape>(
                    factors[half], Transposed::template base_of<column>(halves[half]),
                    gradient.tiles[0][column]);
            }),
            work<spread{4, 0, Gradient::width}>([&](auto n) { make_factors(index<n.value + 4>{}); }),
            work<share_of(gradient_steps, transposed_issues + row_major_commits, 0, transposed_issues)>(
                [&](auto n) {
                    transposed_rows.loads.template issue_item<n.value>(tiles.views[of_values], transposed(0));
                }),
            work<share_of(gradient_steps, transposed_issues + row_major_commits, transposed_issues,
                          row_major_commits)>([&](auto n) {
                constexpr int count = RowMajorLoads::commit_items;
                row_major_rows[n.value / count].loads.template commit_item<n.value % count>(
                    row_major(0, n.value / count));
            }),
            work<every_slot{0, gradient_steps, 1, true}>([](auto) {}));
    }

    // Processes all tiles of rows first .. past-1, for each query head of the group where queries stream. A wave that sees nothing of a tile
    // computes it all the same: otherwise it would wait for the others.
    KITTENS_DEVICE void stream(int first, int past) {
        const int first_head =
            of_keys ? coordinate.head * arguments.group : key_head_of(coordinate.head, arguments.group);
        const auto head_bytes = [&](auto i) { return gradient_head_bytes<T, of_keys>(arguments, i.value); };
        tiles.begin(
            {first, past, first_head, of_keys ? arguments.group : 1},
            [&](auto i) { return matrix<of_keys>(i.value, first_head); }, head_bytes);
        const auto next_tile = [&] {
            tiles.next(head_bytes);
            if constexpr (of_keys && !pointwise) load_streamed_statistics();
        };
        const auto issue = [&](int buffer) {
            for_each_index<row_major_tiles>([&](auto i) {
                row_major_rows[i.value].loads.issue(tiles.views[i.value], row_major(buffer, i.value));
            });
            transposed_rows.loads.issue(tiles.views[of_values], transposed(buffer));
        };
        // After this, every wave may read the next tile: all of it, or what was committed.
        const auto settle = [&] {
            if constexpr (direct) wait_vector_memory<0>();
            if constexpr (of_keys && !pointwise) statistics = next_statistics;
            barrier();
        };
        next_tile();
        for_each_index<row_major_tiles>(
            [&](auto i) { row_major_rows[i.value].init_offsets(tiles.row_bytes[i.value], size(i.value)); });
        transposed_rows.loads.init_offsets(tiles.row_bytes[of_values]);
        issue(0);
        if constexpr (!direct)
            for_each_index<row_major_tiles>(
                [&](auto i) { row_major_rows[i.value].loads.commit(row_major(0, i.value)); });
        settle();
        int buffer = 0;
        do {
            const int head = of_keys ? tiles.head() : coordinate.head, column = tiles.row,
                      next = direct ? buffer ^ 1 : 0;
            next_tile();
            if constexpr (direct) issue(next);
            compute(head, column, buffer);
            settle();
            buffer = next;
        } while (tiles.left >= 0);
    }

    KITTENS_DEVICE void run() {
        const auto& mask = sequence.mask;
        const int begin = coordinate.tile * config.rows();
        first_row = begin + wave_id() * rows;
        for_each_index<row_major_tiles>([&](auto i) {
            load_own_rows(own[i.value], matrix<!of_keys>(i.value, coordinate.head), first_row);
        });
        if constexpr (pointwise) {
            weights = SiluWeights::of(arguments.pointwise);
        } else if constexpr (!of_keys) {
            const int row = first_row + row_layout(KeyColumns::value(), lane_id(), 0).row;
            const bool inside = row < mask.n_q;
            const int64_t at = first_statistics_row(arguments, sequence, coordinate.batch, coordinate.head) +
                               (inside ? row : 0);
            const float* all = arguments.statistics;
            statistics.start = inside ? all[statistic_index(Statistic::start, at)] : no_start;
            statistics.delta = inside ? all[statistic_index(Statistic::delta, at)] : 0;
        }
        if constexpr (config.dropout) draws.start(arguments.dropout);
        zero(gradient);
        const Range range(mask, begin, begin + config.rows());
        if (range.first / columns * columns < range.past) stream(range.first / columns * columns, range.past);
        // Read again, since scalar registers are scarce in the preceding loop.
        const Arguments results = reload_arguments<Arguments>();
        mul(gradient, gradient, of_values ? value_scale<config.dropout>(results) : results.scale);
        const TensorArgument& to = of_values ? results.grad_v : of_keys ? results.grad_k : results.grad_q;
        const Coordinate lane_at = row_layout(Shape::value(), recompute_lane_id(), 0);
        const int64_t row = first_row + lane_at.row,
                      begin_of_rows = of_keys ? sequence.first_k : sequence.first_q;
        if (row < (of_keys ? mask.n_k : mask.n_q))
            store_row(gradient, row_of<T>(to, sequence.batch, coordinate.head, begin_of_rows + row),
                      lane_at.col, of_values ? results.value_dim : results.head_dim);
    }
};

}  // namespace hipkittens::attention
