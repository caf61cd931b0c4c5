// kernels/attention/backward_one_pass_direct.h: the one pass of a target that loads to LDS and transposes what it reads.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"

namespace hipkittens::attention {

// gfx950: a step's rows are loaded straight to LDS, a step ahead, and read both ways.
template <BackwardConfig config>
struct OnePassDirect : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::bounds, Base::delta, Base::delta_now, Base::draws, Base::first_row,
        Base::gradient_k, Base::gradient_q, Base::gradient_v, Base::inverse, Base::lds, Base::own_k,
        Base::own_statistic_at, Base::own_v, Base::place, Base::scores, Base::sequence, Base::slopes,
        Base::slopes_low, Base::start, Base::start_now, Base::sum_at, Base::sum_delta, Base::sum_norm,
        Base::sums_before, Base::turned_k, Base::weights_low;
    using Base::columns, Base::halves, Base::head_dim, Base::key_steps, Base::keys, Base::per_lane,
        Base::pieces, Base::products, Base::queries, Base::query_of, Base::rows, Base::shares,
        Base::statistics_bytes, Base::sums, Base::threads, Base::upper;
    using Base::init_offsets, Base::seen_queries, Base::slope_of, Base::use_statistics;
    using typename Base::Accumulator, typename Base::Fragment, typename Base::KeyTile, typename Base::Product,
        typename Base::SeenQueries, typename Base::T;
    static_assert(Base::direct && queries == statistics_block);

    using Tile = kittens::st<T, queries, head_dim, kittens::Access::rows_and_columns_32>;
    using SlopeTile = kittens::st<T, keys, queries, kittens::Access::columns_32_written_in_runs>;
    using Loads = kittens::global_to_shared<Tile, threads, kittens::Fill::direct>;

    // Two buffers, each with a tile of Q, one of dO and their statistics; two of dS.
    static constexpr int buffer_bytes = 2 * Tile::bytes + statistics_bytes;
    static constexpr int slopes_at = 2 * buffer_bytes;
    static constexpr int lds_bytes = slopes_at + 2 * SlopeTile::bytes;
    static constexpr int keys_at = buffer_bytes, values_at = slopes_at;
    static_assert(KeyTile::bytes <= buffer_bytes && KeyTile::bytes <= 2 * SlopeTile::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes);

    // The products of a step, in order.
    static constexpr int scores_a = 0, dp_a = pieces, scores_b = 2 * pieces, dp_b = 3 * pieces,
                         values_a = 4 * pieces, values_b = 5 * pieces, keys_a = 6 * pieces,
                         sums_at = 8 * pieces;
    // Operands are read from LDS so many products before theirs, and waited for by fours.
    static constexpr int ahead = 8, ring = 10, group = 4;
    static_assert(products % ring == 0 && products % group == 0, "a step ends as it began");
    // Here the step's tile has been read and dS written; every wave may read both others then.
    static constexpr int meeting = sums_at - ahead;
    // A half's 16 registers are exponentiated in as many slots as S has, from the second after its last product on; then the
    // weights are converted and dS is made of them.
    static constexpr int exponents_a = dp_a + 2, exponents_b = dp_b + 2;
    static constexpr int slopes_a = exponents_a + pieces + (pieces > 4),
                         slopes_b = exponents_b + pieces + (pieces > 4);
    static_assert(slopes_a > scores_b && slopes_b > values_a && slopes_b + pieces / 2 <= values_b);
    // Registers of the last step's shares of dQ, where the arithmetic above leaves room: most before the waves meet, the rest
    // before the products that need the registers.
    static constexpr int early_shares = shares * 5 / 8;
    static constexpr int slot_of_share(int share) {
        return share < early_shares
                   ? values_b + share * (meeting - values_b) / early_shares
                   : meeting + 1 + (share - early_shares) * (sums_at - meeting - 1) / (shares - early_shares);
    }
    // Each load of the next tiles has a slot, before all shares.
    static constexpr int loads = 2 * Loads::passes;
    static_assert(slot_of_share(shares - 1) < sums_at && loads < values_b && slopes_b + pieces <= meeting);

    Fragment fragments[ring];
    uint32_t straight_at, turned_at, slope_read_at, slope_write_at, statistic_at;

    using Base::Base;

    KITTENS_DEVICE static constexpr int at_buffer(int buffer, int which) {
        return buffer * buffer_bytes + which * Tile::bytes;
    }
    KITTENS_DEVICE Tile tile(int buffer, int which) const { return {lds + at_buffer(buffer, which)}; }
    KITTENS_DEVICE SlopeTile slope_tile(int buffer) const {
        return {lds + slopes_at + buffer * SlopeTile::bytes};
    }

    template <class Of>
    KITTENS_DEVICE Fragment read_turned(kittens::shared_byte* data, uint32_t lane_at, int row, int step,
                                        int col) const {
        const kittens::vec<T, 4> low = kittens::lds_read_transposed<T>(
                                     data + kittens::stepped_offset<Of>(lane_at, row, col)),
                                 high = kittens::lds_read_transposed<T>(
                                     data + kittens::stepped_offset<Of>(lane_at, row + step, col));
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }

    // The operand from LDS of product i of a step; `straight` and so on are lanes' places in the step's buffer.
    struct Places {
        uint32_t straight, turned, slopes;
    };
    KITTENS_DEVICE Places places(int buffer) const {
        return {straight_at + buffer * buffer_bytes, turned_at + buffer * buffer_bytes,
                slope_read_at + buffer * SlopeTile::bytes};
    }
    template <int i>
    KITTENS_DEVICE void read(Fragment& to, const Places& at) const {
        if constexpr (i < values_a) {
            constexpr int half = i / (2 * pieces), which = i / pieces % 2, piece = i % pieces;
            to = kittens::lds_read<Fragment>(
                lds + kittens::stepped_offset<Tile>(at.straight, half * 32, piece * 16) +
                which * Tile::bytes);
        } else if constexpr (i < sums_at) {
            constexpr int which = i < keys_a, half = (i - values_a) / pieces % halves, n = i % pieces;
            to = read_turned<Tile>(lds + which * Tile::bytes, at.turned, half * 32 + n / columns * 16, 8,
                                   n % columns * 32);
        } else {
            constexpr int n = i - sums_at;
            to =
                read_turned<SlopeTile>(lds + slopes_at, at.slopes, n % key_steps * 16, 4, n / key_steps * 32);
        }
    }
    // LDS reads of the operands of products first .. past-1.
    static constexpr int reads_between(int first, int past) {
        int reads = 0;
        for (int i = first; i < past; ++i) reads += i % products < values_a ? 1 : 2;
        return reads;
    }
    template <int i>
    KITTENS_DEVICE void multiply(const Fragment& read) {
        constexpr int half = i / (2 * pieces), piece = i % pieces;
        if constexpr (i < values_a) {
            const auto& own = i / pieces % 2 ? own_v : own_k;
            constexpr bool of_scores = i / pieces % 2 == 0;
            auto& product = of_scores ? scores[half] : slopes[half];
            if constexpr (of_scores && piece == 0) product = Accumulator{};
            product = kittens::multiply_base<kittens::row_l, Product>(own[piece], read, product);
        } else if constexpr (i < sums_at) {
            constexpr int side = (i - values_a) / pieces % halves, n = i % pieces;
            const auto& low = i < keys_a ? weights_low : slopes_low;
            auto& gradient = (i < keys_a ? gradient_v : gradient_k)[n % columns];
            gradient =
                kittens::multiply_base<kittens::row_l, Product>(low[side][n / columns], read, gradient);
        } else {
            constexpr int n = i - sums_at;
            auto& sum = gradient_q[n / key_steps];
            if constexpr (n % key_steps == 0) sum = Accumulator{};
            sum = kittens::multiply_base<kittens::row_l, Product>(read, turned_k[n % key_steps], sum);
        }
    }

    template <int half, int e>
    KITTENS_DEVICE void slope() {
        kittens::vec<float, 2> pair;
        kittens::for_each_index<2>([&](auto n) {
            constexpr int at = e + n.value;
            const float own_delta = config.dropout ? kittens::broadcast_in_16<at>(delta_now[half]) : 0.0f;
            pair[n.value] = slope_of(scores[half][at], slopes[half][at], own_delta);
        });
        kittens::prevent_vectorization(pair);
        const auto low = kittens::narrowed<T>(pair);
        slopes_low[half][e / 8][e % 8] = low[0];
        slopes_low[half][e / 8][e % 8 + 1] = low[1];
    }
    template <int half, int e>
    KITTENS_DEVICE void write_slopes(uint32_t to) const {
        kittens::vec<T, 4> run;
        kittens::for_each_index<4>([&](auto n) { run[n.value] = slopes_low[half][e / 8][e % 8 + n.value]; });
        kittens::lds_write(
            run, lds + slopes_at + kittens::stepped_offset<SlopeTile>(to, 0, half * 32 + query_of(e)));
    }
    // From the slot before `first` on.
    template <int half, int first, int i>
    KITTENS_DEVICE void arithmetic_of_slopes(int head, int column, bool masked, int left, uint32_t span,
                                             uint32_t to) {
        if constexpr (i == first - 1) {
            if (__builtin_expect(masked, false)) this->template clear_invisible<half>(left, span);
            if constexpr (config.dropout) {
                this->template mark_dropped<half>(0, head, column);
                this->template mark_dropped<half>(1, head, column);
            }
        }
        if constexpr (i >= first && i < first + pieces / 2)
            this->template convert_weights<half>((i - first) * 2 * per_lane / pieces, 2 * per_lane / pieces);
        if constexpr (i >= first && i < first + pieces) {
            constexpr int share = per_lane / pieces, at = (i - first) * share;
            kittens::for_each_index<share / 2>([&](auto n) { slope<half, at + n.value * 2>(); });
            if constexpr ((at + share) % 4 == 0) write_slopes<half, at + share - 4>(to);
        }
    }

    template <class Begin, class Load>
    KITTENS_DEVICE void step(int buffer, int head, int column, bool masked, int left, uint32_t span,
                             const Begin& begin, const Load& load) {
        const Places now = places(buffer), then = places(buffer ^ 1);
        const uint32_t slopes_to = slope_write_at + buffer * SlopeTile::bytes;
        kittens::for_each_index<products>([&](auto index) {
            constexpr int i = index.value;
            if constexpr (i == 0) begin();
            if constexpr (i > 0 && i <= loads) load(kittens::index<i - 1>{});
            if constexpr (i == meeting) {
                kittens::wait_vector_memory<early_shares>();
                kittens::barrier();
            }
            if constexpr (i == meeting - 1) read_own_statistics(buffer);
            if constexpr (i == meeting + 1) read_statistics(buffer ^ 1);
            if constexpr (i == sums_at) use_statistics();
            if constexpr (i == 0) {
                kittens::for_each_index<2>([&](auto half) {
                    start_now[half.value] = start[half.value];
                    delta_now[half.value] = delta[half.value];
                });
            }
            if constexpr (i >= sums_at)
                this->template spread_delta<(i - sums_at) * per_lane / pieces, per_lane / pieces>();
            // Those of the next fours may be under way.
            if constexpr (i % group == 0) kittens::wait_lds<reads_between(i + group, i + ahead)>();
            multiply<i>(fragments[i % ring]);
            kittens::schedule_fence();
            if constexpr (i + ahead < products)
                read<i + ahead>(fragments[(i + ahead) % ring], now);
            else
                read<i + ahead - products>(fragments[(i + ahead) % ring], then);
            // Shares of the arithmetic: 16 registers in as many slots as a product of S or dP has.
            constexpr int share = per_lane / pieces;
            const auto of = [](int first) { return i >= first && i < first + pieces; };
            if constexpr (of(exponents_a)) this->template exponentiate<0, (i - exponents_a) * share, share>();
            if constexpr (of(exponents_b)) this->template exponentiate<1, (i - exponents_b) * share, share>();
            arithmetic_of_slopes<0, slopes_a, i>(head, column, masked, left, span, slopes_to);
            arithmetic_of_slopes<1, slopes_b, i>(head, column, masked, left, span, slopes_to);
            kittens::for_each_index<shares>([&](auto share) {
                if constexpr (slot_of_share(share.value) == i) this->template add_share<share.value>();
            });
            kittens::schedule_fence();
        });
    }

    KITTENS_DEVICE float statistic(int buffer, Statistic which, uint32_t at) const {
        return kittens::lds_read<float>(lds + (at_buffer(buffer, 2) + at) +
                                        static_cast<int>(which) * statistics_block * 4);
    }
    // What the exponents and dP of a step start from.
    KITTENS_DEVICE void read_statistics(int buffer) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            start[half] = statistic(buffer, Statistic::start, statistic_at + half * 128);
            delta[half] = statistic(buffer, Statistic::delta, statistic_at + half * 128);
        }
    }
    // What its shares of dQ need.
    KITTENS_DEVICE void read_own_statistics(int buffer) {
#pragma unroll
        for (int sum = 0; sum < sums; ++sum) {
            sum_delta[sum] = statistic(buffer, Statistic::delta, own_statistic_at + sum * 128);
            sum_norm[sum] = statistic(buffer, Statistic::norm, own_statistic_at + sum * 128);
        }
    }
    KITTENS_DEVICE void walk(int first_column, int past) {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys, wave = kittens::wave_id(), lane = kittens::lane_id();
        Loads first_loads, second_loads;
        const int64_t q_bytes = arguments.q.row_stride * static_cast<int64_t>(sizeof(T)),
                      grad_bytes = arguments.grad_out.row_stride * static_cast<int64_t>(sizeof(T));
        init_offsets(first_loads, q_bytes);
        init_offsets(second_loads, grad_bytes);
        const int64_t q_step = queries * q_bytes, grad_step = queries * grad_bytes;

        // The step that is loaded next.
        const int head_in_group = place.split * arguments.heads_per_part,
                  past_head = head_in_group + arguments.heads_per_part;
        int head = place.head * arguments.group + head_in_group - 1;
        int heads_left = (past_head < arguments.group ? past_head : arguments.group) - head_in_group;
        int next_column = past;
        kittens::global_window q_window, grad_window;
        kittens::buffer q_view, grad_view;
        const char* next_statistics = nullptr;
        char* next_sums = nullptr;
        uint32_t statistics_offset[1] = {static_cast<uint32_t>(lane * kittens::b128_bytes)};
        // Past the last one the buffers are empty: their loads count like any other, so waits stay the same.
        bool more = true;
        const auto begin_issue = [&](int buffer) {
            if (__builtin_expect(next_column >= past, false)) {
                // Read again: in the loop, scalar registers are short.
                const auto again = kittens::reload_arguments<BackwardArguments>();
                more = heads_left-- > 0;
                if (more) ++head;
                next_column = first_column;
                const auto window = [&](const TensorArgument& tensor) {
                    return matrix_of<T>(tensor, sequence.batch, sequence.first_q, head, mask.n_q,
                                        again.head_dim)
                        .window(first_column, 0);
                };
                q_window = window(again.q), grad_window = window(again.grad_out);
                const int64_t row =
                    (sequence.batch * again.heads + head) * again.statistics_rows + first_column +
                    (again.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
                next_statistics = reinterpret_cast<const char*>(again.statistics +
                                                                row * static_cast<int>(Statistic::count));
                next_sums = reinterpret_cast<char*>(again.sums + row * head_dim);
            }
            q_view = q_window.view(), grad_view = grad_window.view();
            if (!more) q_view.bytes = grad_view.bytes = 0;
            if (wave == 0)
                kittens::buffer_load_to_lds<1>({next_statistics, statistics_bytes}, statistics_offset,
                                               lds + at_buffer(buffer, 2));
        };
        const auto advance = [&] {
            next_column += queries;
            q_window.advance(q_step);
            grad_window.advance(grad_step);
            next_statistics += statistics_bytes;
            next_sums += queries * head_dim * 4;
        };

        const int low = lane % 32, high = lane / 32, inside = lane % 16;
        straight_at = Tile::offset(low, high * 8);
        turned_at = Tile::offset(high * 4 + inside / 4, low / 16 * 16 + inside % 4 * 4);
        const int sum_column = wave % columns * 32, sum_query = wave / columns * 32;
        slope_read_at = SlopeTile::offset(high * 8 + inside / 4, sum_query + low / 16 * 16 + inside % 4 * 4);
        slope_write_at = SlopeTile::offset(wave * rows + low, high * 4);
        statistic_at = (query_of(inside) + high * 4) * 4;
        own_statistic_at = (sum_query + low) * 4;
        sum_at = wave * sum_tile_bytes + lane * 4;
        const uint32_t key_at =
            KeyTile::offset(high * 8 + inside / 4, sum_column + low / 16 * 16 + inside % 4 * 4);

        begin_issue(0);
        first_loads.issue(q_view, tile(0, 0));
        second_loads.issue(grad_view, tile(0, 1));
        char* sums_now = next_sums;
        int column_now = next_column, head_now = head;
        advance();
        bounds = bounds_of(arguments, sequence, place.batch, place.head);
        if constexpr (config.dropout) bounds.v *= arguments.dropout.scale;
        if constexpr (config.dropout) draws.start(arguments.dropout);
        kittens::wait_vector_memory<0>();
        kittens::barrier();
        this->template read_keys<keys_at, values_at>(wave, lane);
        kittens::for_each_index<key_steps>([&](auto n) {
            turned_k[n.value] = read_turned<KeyTile>(lds + keys_at, key_at, n.value * 16, 4, 0);
        });
        kittens::for_each_index<ahead>([&](auto n) { read<n.value>(fragments[n.value], places(0)); });
        read_statistics(0);
        this->template spread_delta<0, 2 * per_lane>();
        kittens::for_each_index<sums>([&](auto n) {
            gradient_q[n.value] = Accumulator{};
            inverse[n.value] = 0;
        });
        sums_before = sums_now;
        kittens::barrier();

        const SeenQueries seen = seen_queries(low, high);
        const bool some_invisible_rows = begin + keys > mask.n_k;
        int buffer = 0;
        do {
            const bool visible = !some_invisible_rows && mask.first_query(begin + keys - 1) <= column_now &&
                                 column_now + queries - 1 <= mask.last_query(begin);
            char* following = nullptr;
            int following_column = 0, following_head = 0;
            const auto begin_next = [&] {
                begin_issue(buffer ^ 1);
                following = next_sums;
                following_column = next_column;
                following_head = head;
                advance();
            };
            const auto load_next = [&](auto n) {
                constexpr int pass = n.value % Loads::passes, which = n.value / Loads::passes;
                auto& loads = which ? second_loads : first_loads;
                loads.template issue_pass<pass>(which ? grad_view : q_view, tile(buffer ^ 1, which));
            };
            step(buffer, head_now, column_now, !visible, seen.left(column_now), seen.span, begin_next,
                 load_next);
            sums_before = sums_now;
            sums_now = following;
            column_now = following_column;
            head_now = following_head;
            buffer ^= 1;
        } while (more);
        kittens::for_each_index<shares>([&](auto share) { this->template add_share<share.value>(); });
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        OnePassDirect pass(arguments, lds);
        pass.Base::template run<keys_at, values_at>(
            [&](int first_column, int past, const auto&) { pass.walk(first_column, past); });
    }
};

}  // namespace hipkittens::attention
