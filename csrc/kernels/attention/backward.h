// kernels/attention/backward.h: gradients of one tile of queries, or of one tile of keys and values.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "mask.h"

namespace hipkittens::attention {

// With S = scale Q K^T, P = exp(S - LSE) and dP = dO V^T: dS = P (dP - delta), dQ = scale dS K, dK = scale dS^T Q,
// dV = P^T dO; where weights were dropped, M being 0 or the scale of those that stay, dV = (M P)^T dO and
// dS = P (M dP - delta). A workgroup owns rows of one side, which stay in registers, and goes over the rows of the other side,
// which pass through LDS; every kernel recomputes P and dS. Nothing is added across workgroups, so every sum has one
// order. Names below are of the owner's view: (own, stream) is (Q, K) and (dO, V) for queries, (K, Q) and (V, dO) for keys.
template <BackwardConfig config>
struct Backward {
    using T = typename element_of<config.input>::value;
    // Own rows are keys; the gradient is that of V and not of Q or K.
    static constexpr bool of_keys = config.owner != Owner::queries, of_values = config.owner == Owner::values;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, rows = config.rows_per_wave,
                         columns = config.stream_rows;
    // The same rows twice: as they lie for S and dP, transposed for the gradients.
    using Straight = KeyTiles<T, columns, head_dim, threads>;
    using Turned = ValueTiles<T, columns, head_dim, threads>;
    using StraightTile = typename Straight::Tile;
    using TurnedTile = typename Turned::Tile;
    static constexpr bool direct = forward_fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? 2 : 1;
    // The first stream makes S, the second dP, which the gradient of V does not need.
    static constexpr int straight_tiles = of_values ? 1 : 2;
    static constexpr int buffer_bytes = straight_tiles * StraightTile::bytes + TurnedTile::bytes;
    static constexpr int lds_bytes = buffers * buffer_bytes;
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the tiles under way fit in LDS");
    static_assert(statistics_block % columns == 0, "a tile of queries has its statistics");

    static constexpr int pieces = head_dim / Straight::step;
    using Own = kittens::rt<T, rows, Straight::step, kittens::row_l, kittens::rt_32x16>;
    using Product = kittens::rt<float, rows, columns, kittens::row_l, kittens::rt_32x32>;
    // The product's registers, its columns in the order of the streamed rows (tile_key).
    using Scores = kittens::rt<float, rows, columns, kittens::row_l, kittens::rt_32x16>;
    using Weights = kittens::rt<T, rows, Turned::step, kittens::row_l, kittens::rt_32x16>;
    using Gradient = kittens::rt<float, rows, head_dim, kittens::row_l, kittens::rt_32x32>;
    static constexpr int statistic_registers = Scores::width * Scores::per_lane / 16;
    static_assert(Scores::per_lane == 8 && Scores::width % 2 == 0);

    const BackwardArguments& arguments;
    kittens::shared_byte* lds;
    TileCoordinate place;
    Sequence sequence;
    Own own_first[pieces], own_second[pieces];
    Gradient gradient;
    int first_row;  // of the wave
    // Of the queries of the tile attended to, and of the next.
    float start_of_streamed[statistic_registers], delta_of_streamed[statistic_registers];
    float next_start[statistic_registers], next_delta[statistic_registers];
    float start_of_own, delta_of_own;  // of a query that a lane owns
    Straight straight_first, straight_second;
    Turned turned_rows;                       // of the second stream for the gradient of V, else of the first
    kittens::buffer next_first, next_second;  // what is streamed next; of no bytes behind the last
    DropoutDraws draws;                       // of a kernel that drops

    KITTENS_DEVICE Backward(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          place(coordinate_of_workgroup(kittens::workgroup_id_x(), arguments.order)),
          sequence(sequence_of(place.batch, arguments.mask, arguments.packed)) {}

    KITTENS_DEVICE StraightTile straight(int buffer, int which) const {
        return {lds + buffer * buffer_bytes + which * StraightTile::bytes};
    }
    KITTENS_DEVICE TurnedTile turned(int buffer) const {
        return {lds + buffer * buffer_bytes + straight_tiles * StraightTile::bytes};
    }

    // One wave works on a SIMD: what the vector units do stands between the matrix steps of something else. `beside(step)` is
    // called behind each of a product's score_steps. What a step multiplies is read from LDS during the piece before.
    static constexpr int score_steps = pieces * Own::width * Product::width;
    template <class Beside>
    KITTENS_DEVICE static void score(Scores& scores, const Own (&own)[pieces], StraightTile tile,
                                     const Beside& beside) {
        Product product;
        zero(product);
        typename Straight::Registers registers[2];
        load(registers[0], tile, 0, 0);
        kittens::for_each_index<score_steps>([&](auto step) {
            constexpr int half = step.value % Product::width, k = step.value / Product::width % Own::width,
                          piece = step.value / Product::width / Own::width;
            if constexpr (half == 0 && k == 0 && piece + 1 < pieces) {
                kittens::schedule_fence();
                load(registers[(piece + 1) % 2], tile, 0, (piece + 1) * Straight::step);
            }
            kittens::schedule_fence();
            product.tiles[0][half] = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(
                own[piece].tiles[0][k], registers[piece % 2].tiles[half][k], product.tiles[0][half]);
            kittens::schedule_fence();
            beside(step);
        });
        kittens::for_each_register<Scores>(
            [&](int, int j, int e) { scores.tiles[0][j][e] = product.tiles[0][j / 2][j % 2 * 8 + e]; });
    }

    // weight(number): that of a register of Scores, when it is its turn. The next fragment's are made between steps of one.
    template <class Weight, class Beside>
    KITTENS_DEVICE static void weigh(Gradient& gradient, const Weight& weight, TurnedTile tile,
                                     const Beside& beside) {
        constexpr int pairs = Scores::per_lane / 2, steps = Gradient::width;
        typename Weights::fragment weights[2];
        const auto make = [&](auto number) {
            constexpr int pair = number.value % pairs, fragment = number.value / pairs;
            constexpr int first = fragment * Scores::per_lane + 2 * pair;
            const auto rounded = kittens::narrowed<T>(
                kittens::vec<float, 2>{weight(kittens::index<first>{}), weight(kittens::index<first + 1>{})});
            weights[fragment % 2][2 * pair] = rounded[0];
            weights[fragment % 2][2 * pair + 1] = rounded[1];
        };
        typename Turned::Registers registers[2];
        Turned::read(registers[0], tile, 0);
        kittens::for_each_index<pairs>(make);
        kittens::for_each_index<Scores::width * steps>([&](auto number) {
            constexpr int step = number.value % steps, j = number.value / steps;
            constexpr bool has_next = j + 1 < Scores::width;
            if constexpr (step == 0 && has_next) {
                kittens::schedule_fence();
                Turned::read(registers[(j + 1) % 2], tile, (j + 1) * Turned::step);
            }
            kittens::schedule_fence();
            gradient.tiles[0][step] = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(
                weights[j % 2], Turned::template base_of<step>(registers[j % 2]), gradient.tiles[0][step]);
            kittens::schedule_fence();
            kittens::for_each_index<pairs>([&](auto pair) {
                if constexpr (has_next && pair.value * steps / pairs == step)
                    make(kittens::index<(j + 1) * pairs + pair.value>{});
            });
            beside(number);
        });
    }

    // Of the query of a register of Scores: the owner's, or one of those that stream by.
    template <int number>
    KITTENS_DEVICE static float statistic_of(const float (&streamed)[statistic_registers], float own) {
        if constexpr (of_keys)
            return kittens::broadcast_in_16<number % 16>(streamed[number / 16]);
        else
            return own;
    }
    // Loaded before the tile they belong to, since loads return in order: whoever waited for them behind the next tile's
    // would wait for that. Each lane has those of one query in 32, of the register whose number is the lane's in every 16.
    KITTENS_DEVICE void load_streamed(int64_t first) {
        constexpr int per_lane = Scores::per_lane, cols = Scores::shape::cols;
        const int lane = kittens::lane_id(), number = lane % 16;
        const int64_t own = first + number / per_lane * cols + lane / 32 * per_lane + number % per_lane;
        for (int i = 0; i < statistic_registers; ++i) {
            next_start[i] = arguments.statistics[statistic_index(Statistic::start, own + i * 2 * cols)];
            if constexpr (!of_values)
                next_delta[i] = arguments.statistics[statistic_index(Statistic::delta, own + i * 2 * cols)];
        }
    }
    KITTENS_DEVICE void use_streamed() {
        for (int i = 0; i < statistic_registers; ++i) {
            start_of_streamed[i] = next_start[i];
            if constexpr (!of_values) delta_of_streamed[i] = next_delta[i];
        }
    }

    // Do all pairs of the wave's rows and of the streamed tile's see each other?
    KITTENS_DEVICE bool all_visible(int column) const {
        const Mask& mask = sequence.mask;
        if constexpr (of_keys)
            return mask.first_query(first_row + rows - 1) <= column &&
                   column + columns - 1 <= mask.last_query(first_row);
        else
            return KeyRange::all_visible(mask, first_row, first_row + rows, column, columns);
    }

    KITTENS_DEVICE void clear_invisible(Scores& weights, int column) const {
        const Visible visible = of_keys ? visible_queries<KeyColumns>(sequence.mask, first_row, column)
                                        : visible_keys<KeyColumns>(sequence.mask, first_row, column);
        apply_mask<KeyColumns, Scores::per_lane>(weights, visible, 0);
    }

    // A weight is never negative, so a sign can say that it was dropped: dV takes no share of it, and its dP is zero.
    KITTENS_DEVICE void mark_dropped(Scores& weights, int head, int column) const {
        const kittens::Coordinate own = kittens::row_layout(Scores::shape::value(), kittens::lane_id(), 0);
        const uint32_t of_batch = place.batch * arguments.heads + head, row = first_row + own.row;
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            const uint32_t first = column + j * Scores::shape::cols + own.col;
            const DropoutDraws::Words words =
                of_keys ? draws.of_key(of_batch, first, row) : draws.of_query(of_batch, row, first);
#pragma unroll
            for (int e = 0; e < Scores::per_lane; ++e)
                if (words[e] < draws.limit)
                    weights.tiles[0][j][e] = of_values ? 0.0f : -weights.tiles[0][j][e];
        }
    }
    // dS of a weight, whose sign is as above, and its dP.
    KITTENS_DEVICE float slope(float weight, float gradient, float delta) const {
        if constexpr (!config.dropout) return weight * (gradient + delta);
        const bool dropped = __builtin_bit_cast(int32_t, weight) < 0;
        const float kept = __builtin_fmaf(gradient, arguments.dropout.scale, delta);
        return kittens::absolute_value(weight) * (dropped ? delta : kept);
    }

    // Where the statistics of a head of the queries begin, for this sequence.
    KITTENS_DEVICE int64_t statistics_of(int head) const {
        return (sequence.batch * arguments.heads + head) * arguments.statistics_rows +
               (arguments.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
    }

    // Through registers, LDS holds one tile of each kind. While scores are made of the rows as they lie, the next ones
    // are loaded and the transposed ones placed; while those are weighed, the next of them are loaded and the rows as
    // they lie replaced. Waves meet between the two, and each load has half a tile's time. In pieces, between matrix steps:
    enum class Refill { scores, gradients };
    template <Refill during, int piece>
    KITTENS_DEVICE void refill_piece() {
        constexpr bool of_scores = during == Refill::scores;
        using Lying = typename Straight::Loads;
        using Standing = typename Turned::Loads;
        constexpr int lying = of_scores ? Lying::issue_items : Lying::commit_items,
                      standing = of_scores ? Standing::commit_items : Standing::issue_items;
        constexpr int all_lying = lying * straight_tiles;
        // Loads first: what they replace has been placed, and what is placed has had time to arrive.
        constexpr bool lies = of_scores ? piece < all_lying : piece >= standing;
        constexpr int n = of_scores == lies ? piece : piece - (of_scores ? all_lying : standing);
        if constexpr (lies) {
            constexpr bool is_second = n >= lying;
            auto& loads = (is_second ? straight_second : straight_first).loads;
            if constexpr (of_scores)
                loads.template issue_item<n % lying>(is_second ? next_second : next_first);
            else
                loads.template commit_item<n % lying>(straight(0, is_second));
        } else if constexpr (of_scores) {
            turned_rows.loads.template commit_item<n>(turned(0));
        } else {
            turned_rows.loads.template issue_item<n>(of_values ? next_second : next_first);
        }
    }
    static constexpr int pieces_of(Refill during) {
        using Lying = typename Straight::Loads;
        using Standing = typename Turned::Loads;
        return during == Refill::scores ? Lying::issue_items * straight_tiles + Standing::commit_items
                                        : Lying::commit_items * straight_tiles + Standing::issue_items;
    }
    // The pieces of step `step` of `steps`.
    template <Refill during, int step, int steps>
    KITTENS_DEVICE void refill() {
        if constexpr (!direct) {
            constexpr int count = pieces_of(during);
            kittens::for_each_index<(step + 1) * count / steps, step * count / steps>([&](auto piece) {
                refill_piece<during, piece.value>();
                kittens::schedule_fence();
            });
        }
    }

    // head: of the queries; column: the first streamed row.
    KITTENS_DEVICE void attend(int head, int column, int buffer) {
        constexpr int count = Scores::width * Scores::per_lane;
        constexpr int steps = score_steps * straight_tiles, weigh_steps = Scores::width * Gradient::width;
        Scores weights, slopes;
        const auto of = [](auto& scores, auto number) -> auto& {
            return scores.tiles[0][number.value / Scores::per_lane];
        };
        const auto exponentiate = [&](auto number) {
            constexpr int e = number.value % Scores::per_lane;
            const float start = statistic_of<number.value>(start_of_streamed, start_of_own);
            of(weights, number)[e] = kittens::exponential_base_2(
                __builtin_fmaf(of(weights, number)[e], arguments.scale_log2, start));
        };
        score(weights, own_first, straight(buffer, 0),
              [&](auto step) { refill<Refill::scores, step.value, steps>(); });
        if constexpr (!of_values) {
            score(slopes, own_second, straight(buffer, 1), [&](auto step) {
                refill<Refill::scores, score_steps + step.value, steps>();
                kittens::for_each_index<(step.value + 1) * count / score_steps,
                                        step.value * count / score_steps>(exponentiate);
            });
        } else {
            kittens::for_each_index<count>(exponentiate);
        }
        // After the exponential: a hidden score may exceed the LSE by any amount.
        if (!all_visible(column)) clear_invisible(weights, column);
        if constexpr (config.dropout) mark_dropped(weights, head, column);
        if constexpr (!direct) kittens::barrier();
        const auto weight_of = [&](auto number) {
            constexpr int e = number.value % Scores::per_lane;
            const float weight = of(weights, number)[e];
            if constexpr (of_values)
                return weight;
            else
                return slope(weight, of(slopes, number)[e],
                             statistic_of<number.value>(delta_of_streamed, delta_of_own));
        };
        weigh(gradient, weight_of, turned(buffer),
              [&](auto step) { refill<Refill::gradients, step.value, weigh_steps>(); });
    }

    KITTENS_DEVICE void store(const Gradient& gradient, const TensorArgument& destination, int64_t first,
                              int row_count, float factor) const {
        const kittens::Coordinate place =
            kittens::row_layout(Gradient::shape::value(), kittens::recompute_lane_id(), 0);
        const int64_t row = first_row + place.row;
        if (row >= row_count) return;
        T* to = static_cast<T*>(const_cast<void*>(destination.data)) +
                sequence.batch * destination.batch_stride + this->place.head * destination.head_stride +
                (first + row) * destination.row_stride + place.col;
#pragma unroll
        for (int j = 0; j < Gradient::width; ++j)
#pragma unroll
            for (int e = 0; e < Gradient::per_lane; e += 4) {
                const auto& all = gradient.tiles[0][j];
                const kittens::vec<float, 4> values = {all[e] * factor, all[e + 1] * factor,
                                                       all[e + 2] * factor, all[e + 3] * factor};
                const int col =
                    j * Gradient::shape::cols + kittens::row_layout(Gradient::shape::value(), 0, e).col;
                if (col + place.col < arguments.head_dim)
                    *reinterpret_cast<kittens::vec<T, 4>*>(to + col) =
                        __builtin_convertvector(values, kittens::vec<T, 4>);
            }
    }

    // Rows of the stream, first .. past-1, that owners begin .. end-1 need.
    struct Range {
        int first, past;
    };
    KITTENS_DEVICE Range range_of(int begin, int end) const {
        const Mask& mask = sequence.mask;
        if constexpr (of_keys) {
            const int last = (end < mask.n_k ? end : mask.n_k) - 1;
            return {mask.first_query(begin), begin < mask.n_k ? mask.last_query(last) + 1 : 0};
        } else {
            const KeyRange keys(mask, begin, end);
            return {keys.first, keys.past};
        }
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        Backward(arguments, lds).run();
    }

    KITTENS_DEVICE void run() {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * config.rows();
        const int own_rows = of_keys ? mask.n_k : mask.n_q, stream_rows = of_keys ? mask.n_q : mask.n_k;
        first_row = begin + kittens::wave_id() * rows;
        const int64_t own_start = of_keys ? sequence.first_k : sequence.first_q,
                      stream_start = of_keys ? sequence.first_q : sequence.first_k;
        const auto own_matrix = [&](const TensorArgument& tensor) {
            return matrix_of<T>(tensor, sequence.batch, own_start, place.head, own_rows, arguments.head_dim);
        };
        load_own_rows(own_first, own_matrix(of_keys ? arguments.k : arguments.q), first_row);
        if constexpr (!of_values)
            load_own_rows(own_second, own_matrix(of_keys ? arguments.v : arguments.grad_out), first_row);
        const int64_t statistics = statistics_of(of_keys ? place.head * arguments.group : place.head);
        if constexpr (!of_keys) {
            const int row =
                first_row + kittens::row_layout(Scores::shape::value(), kittens::lane_id(), 0).row;
            const bool inside = row < mask.n_q;
            const auto own = [&](Statistic statistic) {
                return arguments.statistics[statistic_index(statistic, statistics + (inside ? row : 0))];
            };
            start_of_own = inside ? own(Statistic::start) : no_start;
            delta_of_own = inside ? own(Statistic::delta) : 0;
        }
        if constexpr (config.dropout) draws.start(arguments.dropout);
        zero(gradient);

        // What the workgroup streams. A wave that sees nothing of a tile attends to it as well: it would wait for the others.
        const Range all = range_of(begin, begin + config.rows());
        const int first_column = all.first / columns * columns;
        if (first_column < all.past) {
            const TensorArgument& first_tensor = of_keys ? arguments.q : arguments.k;
            const TensorArgument& second_tensor = of_keys ? arguments.grad_out : arguments.v;
            const int heads = of_keys ? arguments.group : 1;
            const int stream_head =
                of_keys ? place.head * arguments.group
                        : static_cast<uint32_t>(place.head) / static_cast<uint32_t>(arguments.group);
            const int64_t first_bytes = first_tensor.row_stride * static_cast<int64_t>(sizeof(T)),
                          second_bytes = second_tensor.row_stride * static_cast<int64_t>(sizeof(T));
            straight_first.init_offsets(first_bytes, arguments.head_dim);
            if constexpr (!of_values) straight_second.init_offsets(second_bytes, arguments.head_dim);
            turned_rows.loads.init_offsets(of_values ? second_bytes : first_bytes);
            // The tile that is streamed next.
            auto turn_to = [&](int head, int column) {
                const auto view = [&](const TensorArgument& tensor) {
                    return matrix_of<T>(tensor, sequence.batch, stream_start, stream_head + head, stream_rows,
                                        arguments.head_dim)
                        .window(column, 0)
                        .view();
                };
                next_first = view(first_tensor);
                next_second = view(second_tensor);
                if constexpr (of_keys)
                    load_streamed(statistics + static_cast<int64_t>(head) * arguments.statistics_rows +
                                  column);
            };
            auto issue = [&](int buffer) {
                straight_first.loads.issue(next_first, straight(buffer, 0));
                if constexpr (!of_values) straight_second.loads.issue(next_second, straight(buffer, 1));
                turned_rows.loads.issue(of_values ? next_second : next_first, turned(buffer));
            };
            // After it every wave may read the tile turned to: all of it, or what was placed.
            auto settle = [&] {
                if constexpr (direct) kittens::wait_vector_memory<0>();
                if constexpr (of_keys) use_streamed();
                kittens::barrier();
            };
            int head = 0, column = first_column, buffer = 0;
            turn_to(head, column);
            issue(0);
            if constexpr (!direct) {
                straight_first.loads.commit(straight(0, 0));
                if constexpr (!of_values) straight_second.loads.commit(straight(0, 1));
            }
            settle();
            while (true) {
                int next_head = head, next_column = column + columns;
                if (next_column >= all.past) {
                    ++next_head;
                    next_column = first_column;
                }
                const int next = direct ? buffer ^ 1 : 0;
                const bool is_last = next_head == heads;
                if (is_last)
                    next_first.bytes = next_second.bytes = 0;
                else
                    turn_to(next_head, next_column);
                if (direct && !is_last) issue(next);
                attend(of_keys ? place.head * arguments.group + head : place.head, column, buffer);
                if (is_last) break;
                settle();
                head = next_head;
                column = next_column;
                buffer = next;
            }
        }
        // Read again: in the loop before, scalar registers are short.
        const BackwardArguments results = kittens::reload_arguments<BackwardArguments>();
        const TensorArgument& destination =
            of_values ? results.grad_v : (of_keys ? results.grad_k : results.grad_q);
        const float factor = !of_values ? results.scale : config.dropout ? results.dropout.scale : 1.0f;
        store(gradient, destination, own_start, own_rows, factor);
    }
};

}  // namespace hipkittens::attention
