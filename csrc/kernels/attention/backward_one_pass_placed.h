// kernels/attention/backward_one_pass_placed.h: the one pass of a target that places rows in LDS through registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"
#include "placed_queries.h"

namespace hipkittens::attention {

// gfx942: a step's rows are loaded two steps ahead, and placed in LDS twice where those of the step before have been read
// (placed_queries.h).
template <BackwardConfig config>
struct OnePassPlaced : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::bounds, Base::delta, Base::delta_now, Base::draws, Base::gradient_k,
        Base::gradient_q, Base::gradient_v, Base::inverse, Base::lds, Base::own_k, Base::own_statistic_at,
        Base::own_v, Base::place, Base::scores, Base::sequence, Base::slopes, Base::slopes_low, Base::start,
        Base::start_now, Base::sum_at, Base::sum_delta, Base::sum_norm, Base::sums_before, Base::turned_k,
        Base::weights_low;
    using Base::columns, Base::halves, Base::head_dim, Base::key_steps, Base::keys, Base::per_lane,
        Base::pieces, Base::products, Base::queries, Base::query_of, Base::shares, Base::statistics_bytes,
        Base::sums, Base::upper;
    using Base::seen_queries, Base::slope_of, Base::use_statistics;
    using typename Base::Accumulator, typename Base::Fragment, typename Base::KeyTile, typename Base::Product,
        typename Base::SeenQueries, typename Base::T;

    using Placed = PlacedQueries<T, queries, head_dim, keys, config.waves>;
    static constexpr int keys_at = 0, values_at = KeyTile::bytes;
    static constexpr int lds_bytes = Placed::bytes < 2 * KeyTile::bytes ? 2 * KeyTile::bytes : Placed::bytes;
    static_assert(lds_bytes <= kittens::target.lds_bytes);

    // The products of a step, in order: S and dP of 32 queries in turn, the last step's dQ, dV and dK. What is made of S and dP
    // has the time of dQ. A slot holds one instruction, of half a product's K.
    static constexpr int slots = 2 * products, sums_first = 2 * halves * pieces,
                         values_first = 3 * halves * pieces, keys_first = 4 * halves * pieces;
    // Operands are read from LDS so many products before theirs.
    static constexpr int ahead = 4, ring = 5;
    static_assert(products % ring == 0, "a step ends as it began");
    // Slots in which the waves meet: when all have read the rows as they lie and the last dS, and when all have read those
    // transposed. In between the first are replaced, after that the second.
    static constexpr int first_meeting = 2 * (values_first - ahead) + 1,
                         second_meeting = 2 * (products - ahead) + 1;
    static constexpr bool is_meeting(int slot) { return slot == first_meeting || slot == second_meeting; }

    Placed placed;
    Fragment fragments[ring];
    const float *statistics_now, *following_statistics;  // of the queries of the step, and of the next

    KITTENS_DEVICE OnePassPlaced(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : Base(arguments, lds), placed(lds) {}

    template <int i>
    KITTENS_DEVICE void read(Fragment& to) const {
        if constexpr (i < sums_first) {
            constexpr int half = i / (2 * pieces), which = i / pieces % 2, piece = i % pieces;
            to = placed.template straight<which, half * 32, piece * 16>();
        } else if constexpr (i < values_first) {
            constexpr int n = i - sums_first;
            to = placed.template slopes<n / key_steps * 32, n % key_steps * 16>();
        } else {
            constexpr int which = i < keys_first, half = (i - values_first) / pieces % halves, n = i % pieces;
            to = placed.template turned<which, half * 32 + n / columns * 16, n % columns * 32>();
        }
    }
    template <int i, int part>
    KITTENS_DEVICE void multiply(const Fragment& read) {
        const auto half_of = [](const Fragment& fragment) {
            return part ? kittens::vec<T, 4>(fragment.hi) : kittens::vec<T, 4>(fragment.lo);
        };
        const auto add_product = [&](Accumulator& to, const Fragment& a, const Fragment& b) {
            to = kittens::multiply_base<kittens::row_l, Product>(half_of(a), half_of(b), to);
        };
        if constexpr (i < sums_first) {
            constexpr int half = i / (2 * pieces), piece = i % pieces;
            constexpr bool of_scores = i / pieces % 2 == 0;
            auto& product = of_scores ? scores[half] : slopes[half];
            if constexpr (of_scores && piece == 0 && part == 0) product = Accumulator{};
            add_product(product, (of_scores ? own_k : own_v)[piece], read);
        } else if constexpr (i < values_first) {
            constexpr int n = i - sums_first;
            auto& sum = gradient_q[n / key_steps];
            if constexpr (n % key_steps == 0 && part == 0) sum = Accumulator{};
            add_product(sum, read, turned_k[n % key_steps]);
        } else {
            constexpr int half = (i - values_first) / pieces % halves, n = i % pieces;
            const auto& low = i < keys_first ? weights_low : slopes_low;
            add_product((i < keys_first ? gradient_v : gradient_k)[n % columns], low[half][n / columns],
                        read);
        }
    }

    // Those of `count` whose turn it is in slot `at`, spread evenly over slots first .. past-1.
    template <int at, int first, int past, int count, class Work>
    KITTENS_DEVICE static void spread(const Work& work) {
        if constexpr (at >= first && at < past)
            kittens::for_each_index<count>([&](auto n) {
                if constexpr (first + n.value * (past - first) / count == at) work(n);
            });
    }
    template <int half, int e>
    KITTENS_DEVICE void make_slope() {
        const float own_delta = config.dropout ? kittens::broadcast_in_16<e>(delta_now[half]) : 0.0f;
        float slope = slope_of(scores[half][e], slopes[half][e], own_delta);
        kittens::materialize(slope);
        slopes[half][e] = slope;
    }
    template <int half, int e>
    KITTENS_DEVICE void convert_slopes() {
        auto low = kittens::narrowed<T>(kittens::vec<float, 2>{slopes[half][e], slopes[half][e + 1]});
        kittens::materialize(low);
        slopes_low[half][e / 8][e % 8] = low[0];
        slopes_low[half][e / 8][e % 8 + 1] = low[1];
    }
    // The arithmetic of 32 queries that stands in slot `at`.
    template <int at, int half>
    KITTENS_DEVICE void arithmetic(int head, int column, bool masked, int left, uint32_t span) {
        // Exponentials from S on, weights until dV needs them, dS from dP on until dK needs it.
        constexpr int exponents_first = 2 * (half * 2 + 1) * pieces, exponents_past = exponents_first + 16;
        constexpr int weights_first = exponents_past + 1,
                      weights_past = halves == 1 ? 2 * values_first - 2 : weights_first + 16;
        constexpr int slopes_first = halves == 1 ? weights_past - 4 : first_meeting + 1 + half * 14,
                      slopes_past = slopes_first + (halves == 1 ? 20 : 15), apart = halves == 1 ? 2 : 1;
        static_assert(slopes_first + 2 * apart > first_meeting && slopes_past + 2 * apart <= second_meeting);
        spread<at, exponents_first, exponents_past, per_lane>(
            [&](auto n) { this->template exponentiate<half, n.value, 1>(); });
        if constexpr (at == exponents_past) {
            if (__builtin_expect(masked, false)) this->template clear_invisible<half>(left, span);
            if constexpr (config.dropout) {
                this->template mark_dropped<half>(0, head, column);
                this->template mark_dropped<half>(1, head, column);
            }
        }
        spread<at, weights_first, weights_past, per_lane / 2>(
            [&](auto n) { this->template convert_weights<half>(n.value * 2, 2); });
        spread<at, slopes_first, slopes_past, per_lane>([&](auto n) { make_slope<half, n.value>(); });
        spread<at, slopes_first + apart, slopes_past + apart, per_lane / 2>(
            [&](auto n) { convert_slopes<half, n.value * 2>(); });
        spread<at, slopes_first + 2 * apart, slopes_past + 2 * apart, per_lane>([&](auto n) {
            placed.template write_slope<half * 32 + query_of(n.value)>(
                slopes_low[half][n.value / 8][n.value % 8]);
        });
    }

    // begin_fetch(): the rows of the step after the next; advance(): to the next step's statistics.
    template <class Begin, class Advance>
    KITTENS_DEVICE void step(int head, int column, bool masked, int left, uint32_t span,
                             const Begin& begin_issue, const Advance& advance) {
        kittens::buffer rows_to_come;
        kittens::for_each_index<slots>([&](auto index) {
            constexpr int at = index.value, i = at / 2, part = at % 2;
            if constexpr (at == 0)
                for (int half = 0; half < halves; ++half) {
                    start_now[half] = start[half];
                    delta_now[half] = delta[half];
                }
            if constexpr (is_meeting(at)) kittens::barrier();
            kittens::schedule_fence();
            multiply<i, part>(fragments[i % ring]);
            kittens::schedule_fence();
            // Behind a meeting, not right before it, which waits for all reads.
            if constexpr (is_meeting(at) || (part == 0 && !is_meeting(at + 1)))
                read<(i + ahead) % products>(fragments[(i + ahead) % ring]);
            kittens::for_each_index<halves>(
                [&](auto half) { arithmetic<at, half.value>(head, column, masked, left, span); });

            // The next step's rows: transposed, what dP starts from, and as they lie; then the loads of those after.
            spread<at, 1, 16, Placed::columns>([&](auto n) { placed.template commit_column<n.value>(); });
            spread<at, 0, 16, halves * per_lane>([&](auto n) { this->template spread_delta<n.value, 1>(); });
            if constexpr (at == 4) advance();
            if constexpr (at == 9) rows_to_come = begin_issue();
            if constexpr (at == 2 * sums_first + 2) load_statistics(following_statistics);
            spread<at, first_meeting + 2, first_meeting + 14, Placed::rows>(
                [&](auto n) { placed.template commit_row<n.value>(); });
            if constexpr (at == 2 * keys_first - 4) use_statistics();
            if constexpr (at == 2 * keys_first - 3) load_own_statistics(statistics_now);
            spread<at, 2 * keys_first, slots, shares>([&](auto n) { this->template add_share<n.value>(); });
            spread<at, second_meeting - 10, second_meeting - 2, Placed::columns>(
                [&](auto n) { placed.template turn<n.value>(); });
            spread<at, second_meeting - 1, second_meeting + 7, Placed::rows>(
                [&](auto n) { placed.template issue<n.value>(rows_to_come); });
            kittens::schedule_fence();
        });
    }

    // Of a step whose statistics begin at `from`: of the queries of a lane's registers, and of its own query of dQ.
    KITTENS_DEVICE void load_statistics(const float* from) {
        const int lane = kittens::lane_id(), own = query_of(lane % 16) + lane / 32 * upper;
        for (int half = 0; half < halves; ++half) {
            start[half] = from[own + half * 32];
            delta[half] = from[own + half * 32 + statistics_block];
        }
    }
    KITTENS_DEVICE void load_own_statistics(const float* from) {
        const float* own = from + own_statistic_at / 4;
        for (int sum = 0; sum < sums; ++sum) {
            sum_delta[sum] = own[sum * 32 + static_cast<int>(Statistic::delta) * statistics_block];
            sum_norm[sum] = own[sum * 32 + static_cast<int>(Statistic::norm) * statistics_block];
        }
    }

    template <class Place>
    KITTENS_DEVICE void walk(int first_column, int past, const Place& commit_keys) {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys, wave = kittens::wave_id(), lane = kittens::lane_id();
        const int low = lane % 32, high = lane / 32;
        const int head_in_group = place.split * arguments.heads_per_part,
                  past_head = head_in_group + arguments.heads_per_part,
                  heads = (past_head < arguments.group ? past_head : arguments.group) - head_in_group;
        const int first_head = place.head * arguments.group + head_in_group;
        const int steps_of_head = (past - first_column + queries - 1) / queries;

        // The rows that are loaded next, of Q or of dO.
        const bool of_grad = placed.which(wave) != 0;
        const int64_t row_bytes =
            (of_grad ? arguments.grad_out : arguments.q).row_stride * static_cast<int64_t>(sizeof(T));
        placed.init_offsets(row_bytes, arguments.head_dim);
        int head = first_head - 1, next_column = past, left_to_load = steps_of_head * heads;
        kittens::global_window window;
        const auto begin_issue = [&] {
            if (__builtin_expect(next_column >= past, false)) {
                // Read again: in the loop, scalar registers are short.
                const auto again = kittens::reload_arguments<BackwardArguments>();
                if (left_to_load > 0) ++head;
                next_column = first_column;
                window = matrix_of<T>(of_grad ? again.grad_out : again.q, sequence.batch, sequence.first_q,
                                      head, mask.n_q, again.head_dim)
                             .window(first_column, 0);
            }
            kittens::buffer view = window.view();
            if (left_to_load-- <= 0) view.bytes = 0;
            next_column += queries;
            window.advance(queries * row_bytes);
            return view;
        };
        const auto issue = [&] {
            const kittens::buffer view = begin_issue();
            kittens::for_each_index<Placed::rows>([&](auto n) { placed.template issue<n.value>(view); });
        };
        // Behind the last load, so that all of them are waited for once.
        issue();
        bounds = bounds_of(arguments, sequence, place.batch, place.head);
        if constexpr (config.dropout) bounds.v *= arguments.dropout.scale;
        if constexpr (config.dropout) draws.start(arguments.dropout);
        commit_keys();
        kittens::barrier();
        this->template read_keys<keys_at, values_at>(wave, lane);
        const int sum_column = wave % columns * 32, sum_query = wave / columns * 32;
        kittens::for_each_index<key_steps>([&](auto n) {
            kittens::for_each_index<8>([&](auto e) {
                turned_k[n.value][e.value] = kittens::lds_read<T>(
                    lds + keys_at + KeyTile::offset(n.value * 16 + high * 8 + e.value, sum_column + low));
            });
            kittens::keep_in_accumulator(turned_k[n.value]);
        });
        own_statistic_at = (sum_query + low) * 4;
        sum_at = wave * sum_tile_bytes + lane * 4;
        kittens::barrier();

        // Of the step that is computed next.
        const auto row_of = [&](int head) {
            return (sequence.batch * arguments.heads + head) * arguments.statistics_rows + first_column +
                   (arguments.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
        };
        const auto statistics_of = [&](int64_t row) {
            return arguments.statistics + statistic_index(Statistic::start, row);
        };
        const auto sums_of = [&](int64_t row) {
            return reinterpret_cast<char*>(arguments.sums) + row * head_dim * 4;
        };
        int column_now = first_column, head_now = first_head, following_column = column_now,
            following_head = head_now;
        statistics_now = following_statistics = statistics_of(row_of(first_head));
        char *sums_now = sums_of(row_of(first_head)), *following_sums = sums_now;
        const auto advance = [&] {
            following_column += queries;
            following_sums += queries * head_dim * 4;
            // Further on in the block, or to the next one.
            following_statistics += following_column % statistics_block
                                        ? queries
                                        : statistics_bytes / 4 - (statistics_block - queries);
            if (__builtin_expect(following_column >= past, false)) {
                following_column = first_column;
                // Past the last step its statistics are loaded again.
                if (following_head + 1 < first_head + heads) ++following_head;
                following_statistics = statistics_of(row_of(following_head));
                following_sums = sums_of(row_of(following_head));
            }
        };

        // Before the first step there is no dS, and nothing to add.
        placed.clear_slopes();
        for (int sum = 0; sum < sums; ++sum) sum_delta[sum] = sum_norm[sum] = 0;
        sums_before = sums_now;
        kittens::for_each_index<Placed::rows>([&](auto n) { placed.template commit_row<n.value>(); });
        kittens::for_each_index<Placed::columns>([&](auto n) { placed.template turn<n.value>(); });
        load_statistics(statistics_now);
        issue();
        // Here, or the compiler has every step wait as if it were the first.
        kittens::wait_vector_memory<Placed::rows>();
        kittens::barrier();
        kittens::for_each_index<ahead>([&](auto n) { read<n.value>(fragments[n.value]); });

        const SeenQueries seen = seen_queries(low, high);
        const int first_clear = mask.first_query(begin + keys - 1),
                  last_clear = mask.last_query(begin) + 1 - queries;
        const bool some_invisible_rows = begin + keys > mask.n_k;
        for (int steps = steps_of_head * heads; steps > 0; --steps) {
            // Without branches, which would part the loop.
            const bool visible =
                !some_invisible_rows & (first_clear <= column_now) & (column_now <= last_clear);
            step(head_now, column_now, !visible, seen.left(column_now), seen.span, begin_issue, advance);
            sums_before = sums_now;
            sums_now = following_sums;
            statistics_now = following_statistics;
            column_now = following_column;
            head_now = following_head;
        }
        use_statistics();
        kittens::for_each_index<values_first, sums_first>([&](auto i) {
            Fragment slope;
            read<i.value>(slope);
            multiply<i.value, 0>(slope);
            multiply<i.value, 1>(slope);
        });
        kittens::for_each_index<shares>([&](auto share) { this->template add_share<share.value>(); });
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        OnePassPlaced pass(arguments, lds);
        pass.Base::template run<keys_at, values_at>([&](int first_column, int past, const auto& commit_keys) {
            pass.walk(first_column, past, commit_keys);
        });
    }
};

}  // namespace hipkittens::attention
