// kernels/attention/backward_one_pass_through_registers.h: the one pass of a target whose loads to LDS go through registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"
#include "queries_through_registers.h"

namespace hipkittens::attention {

// gfx942: a step's rows are loaded two steps ahead, and committed to LDS both ways where those of the step before have been
// read (queries_through_registers.h).
template <BackwardConfig config>
struct OnePassThroughRegisters : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::dq_destination, Base::k_transposed, Base::lds, Base::coordinate,
        Base::sequence;
    using Base::columns, Base::dq_registers, Base::dq_tiles, Base::halves, Base::head_dim, Base::key_steps,
        Base::keys, Base::per_lane, Base::pieces, Base::products, Base::queries, Base::slots,
        Base::statistics_bytes, Base::upper;
    using typename Base::Fragment, typename Base::KeyTile, typename Base::Product, typename Base::Queries,
        typename Base::Step, typename Base::T;

    using Rows = QueriesThroughRegisters<T, queries, head_dim, keys, config.waves>;
    static constexpr int keys_at = 0, values_at = KeyTile::bytes;
    static constexpr int lds_bytes = Rows::bytes < 2 * KeyTile::bytes ? 2 * KeyTile::bytes : Rows::bytes;
    static_assert(lds_bytes <= kittens::target.lds_bytes);

    static constexpr int dq_first = Base::first_of(Product::dq), dv_first = Base::first_of(Product::dv),
                         dk_first = Base::first_of(Product::dk);
    // Operands are read from LDS so many products before theirs.
    static constexpr int ahead = 4, ring = 5;
    static_assert(products % ring == 0, "a step ends as it began");
    // Barriers: when all waves have read the row-major tiles and the last dS, and when all have read the transposed ones. In
    // between the first are replaced, after that the second.
    static constexpr int first_barrier = 2 * (dv_first - ahead) + 1,
                         second_barrier = 2 * (products - ahead) + 1;
    // Operands are read in the first slot of a product: behind a barrier, but not right before it, which waits for all reads.
    struct operand_reads {
        bool fenced = false;
        constexpr int size() const { return products; }
        constexpr int slot(int i) const {
            return 2 * i + (2 * i + 1 == first_barrier || 2 * i + 1 == second_barrier);
        }
    };
    // Exponentials from S on, P until dV needs it, dS from dP on until dK needs it.
    static constexpr int exponents = 2 * pieces, p_first = exponents + 17,
                         p_past = halves == 1 ? 2 * dv_first - 2 : p_first + 16;
    static constexpr int ds_first = halves == 1 ? p_past - 4 : first_barrier + 1,
                         ds_past = ds_first + (halves == 1 ? 20 : 15), ds_apart = 14,
                         lag = halves == 1 ? 2 : 1;
    static_assert(ds_first + 2 * lag > first_barrier &&
                  ds_past + (halves - 1) * ds_apart + 2 * lag <= second_barrier);
    template <class Placement>
    static constexpr each_half<Placement> each(Placement of_half, int apart = 4 * pieces) {
        return {of_half, halves, apart};
    }
    static constexpr each_half<kittens::spread> after_ds(int items, int slots) {
        return each(kittens::spread{items, ds_first + slots, ds_past + slots}, ds_apart);
    }

    Rows rows;
    Fragment fragments[ring];
    const float *statistics, *next_statistics;  // of the queries of the step, and of the next

    KITTENS_DEVICE OnePassThroughRegisters(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : Base(arguments, lds), rows(lds) {}

    // Those of a step's queries, in memory from `first` on; `lane_at`: the lane's first one.
    template <class Index>
    KITTENS_DEVICE static auto statistics_in(const float* first, Index lane_at) {
        return [=](Statistic which, int query) {
            return first[lane_at + (query + static_cast<int>(which) * statistics_block)];
        };
    }
    KITTENS_DEVICE void load_statistics() {
        const int lane = kittens::lane_id();
        Base::load_statistics(statistics_in(next_statistics, Base::query_of(lane % 16) + lane / 32 * upper));
    }

    // begin_issue(): the rows of the step after the next; advance(): to the next step's statistics.
    template <class Begin, class Advance>
    KITTENS_DEVICE void compute(const Step& step, const Begin& begin_issue, const Advance& advance) {
        using namespace kittens;
        buffer rows_to_come;
        const auto meet = [](auto) { barrier(); };
        interleave<slots>(
            work<in_slot{0, true, true}>([&](auto) { this->use_statistics(); }),
            work<in_slot{first_barrier, true, true}>(meet), work<in_slot{second_barrier, true, true}>(meet),
            work<every_slot{0, slots, 1, true}>(
                [&](auto at) { this->template multiply<at.value>(fragments[at.value / 2 % ring]); }),
            work<operand_reads{}>([&](auto i) {
                constexpr int to = i.value + ahead;
                fragments[to % ring] = this->template read<to % products>(rows);
            }),
            work<after_ds(per_lane, 0)>([&](auto n) { this->template make_ds<n.value>(); }),
            work<after_ds(8, lag)>([&](auto n) { this->template convert_ds<n.value>(); }),
            work<after_ds(per_lane, 2 * lag)>([&](auto n) {
                constexpr int half = n.value / per_lane, e = n.value % per_lane;
                rows.template write_ds<half * 32 + Base::query_of(e)>(this->ds_operand[half][e / 8][e % 8]);
            }),
            work<each(spread{8, p_first, p_past})>([&](auto n) { this->template convert_p<n.value>(); }),
            work<each(in_slot{exponents + 16})>([&](auto half) { this->template mask_p<half.value>(step); }),
            work<each(spread{per_lane, exponents, exponents + 16})>(
                [&](auto n) { this->template make_p<n.value>(); }),
            // The next step's rows: transposed, what dP is added to, and row-major; then the loads of those after.
            work<spread{Rows::columns, 1, 16}>(
                [&](auto n) { rows.loads.template commit_column<n.value>(rows.transposed_tile); }),
            work<spread{halves * per_lane, 0, 16}>([&](auto n) { this->template start_dp<n.value>(); }),
            work<in_slot{4}>([&](auto) { advance(); }),
            work<in_slot{9}>([&](auto) { rows_to_come = begin_issue(); }),
            work<in_slot{2 * dq_first + 2}>([&](auto) { load_statistics(); }),
            work<spread{Rows::rows, first_barrier + 2, first_barrier + 14}>(
                [&](auto n) { rows.loads.template commit_row<n.value>(rows.row_major_tile); }),
            work<in_slot{2 * dk_first - 4}>([&](auto) { this->use_dq_statistics(); }),
            work<in_slot{2 * dk_first - 3}>([&](auto) {
                this->load_dq_statistics(statistics_in(statistics, this->dq_statistic_at / 4));
            }),
            work<spread{dq_registers, 2 * dk_first, slots}>(
                [&](auto n) { this->template add_dq<n.value>(); }),
            work<spread{Rows::columns, second_barrier - 10, second_barrier - 2}>(
                [&](auto n) { rows.loads.template turn<n.value>(); }),
            work<spread{Rows::rows, second_barrier - 1, second_barrier + 7}>(
                [&](auto n) { rows.loads.template issue<n.value>(rows_to_come); }),
            work<every_slot{0, slots, 1, true}>([](auto) {}));
    }

    template <class CommitKeys>
    KITTENS_DEVICE void loop(const Queries& all, const CommitKeys& commit_keys) {
        const Mask& mask = sequence.mask;
        const int begin = coordinate.tile * keys, wave = kittens::wave_id(), lane = kittens::lane_id();
        const int low = lane % 32, high = lane / 32;
        const int steps_of_head = (all.past - all.first + queries - 1) / queries;

        // The rows that are loaded next, of Q or of dO.
        const bool of_do = Rows::which(wave) != 0;
        const int64_t row_bytes =
            (of_do ? arguments.grad_out : arguments.q).row_stride * static_cast<int64_t>(sizeof(T));
        rows.loads.init_offsets(kittens::thread_id() % (config.threads() / 2), row_bytes, arguments.head_dim);
        int head = all.first_head - 1, column = all.past,
            left_to_load = steps_of_head * (all.past_head - all.first_head);
        int steps = left_to_load;
        kittens::global_window window;
        const auto begin_issue = [&] {
            if (__builtin_expect(column >= all.past, false)) {
                // Read again: in the loop, scalar registers are short.
                const auto again = kittens::reload_arguments<BackwardArguments>();
                if (left_to_load > 0) ++head;
                column = all.first;
                window = query_matrix<T>(of_do ? again.grad_out : again.q, sequence, head, again.head_dim)
                             .window(all.first, 0);
            }
            kittens::buffer view = window.view();
            if (left_to_load-- <= 0) view.bytes = 0;
            column += queries;
            window.advance(queries * row_bytes);
            return view;
        };
        const auto issue = [&] {
            const kittens::buffer view = begin_issue();
            kittens::for_each_index<Rows::rows>([&](auto n) { rows.loads.template issue<n.value>(view); });
        };
        // Behind the last load, so that all of them are waited for once.
        issue();
        this->start_loop();
        commit_keys();
        kittens::barrier();
        this->template read_keys<keys_at, values_at>(wave, lane);
        const int dq_column = wave % columns * 32, dq_query = wave / columns * 32;
        kittens::for_each_index<key_steps>([&](auto n) {
            kittens::for_each_index<8>([&](auto e) {
                k_transposed[n.value][e.value] = kittens::lds_read<T>(
                    lds + keys_at + KeyTile::offset(n.value * 16 + high * 8 + e.value, dq_column + low));
            });
            kittens::keep_in_accumulator(k_transposed[n.value]);
        });
        this->dq_statistic_at = (dq_query + low) * 4;
        this->dq_at = wave * dq_tile_bytes + lane * 4;
        kittens::barrier();

        // Of the step that is computed next.
        const auto row_of = [&](int head) { return this->statistics_row_of(arguments, head, all.first); };
        const auto statistics_of = [&](int64_t row) {
            return arguments.statistics + statistic_index(Statistic::start, row);
        };
        const auto dq_of = [&](int64_t row) {
            return reinterpret_cast<char*>(arguments.dq_accumulator) + row * head_dim * 4;
        };
        Step now{all.first_head, all.first}, next = now;
        statistics = next_statistics = statistics_of(row_of(all.first_head));
        char *dq = dq_of(row_of(all.first_head)), *next_dq = dq;
        const auto advance = [&] {
            next.column += queries;
            next_dq += queries * head_dim * 4;
            // Further on in the block, or to the next one.
            next_statistics += next.column % statistics_block
                                   ? queries
                                   : statistics_bytes / 4 - (statistics_block - queries);
            if (__builtin_expect(next.column >= all.past, false)) {
                next.column = all.first;
                // Past the last step its statistics are loaded again.
                if (next.head + 1 < all.past_head) ++next.head;
                next_statistics = statistics_of(row_of(next.head));
                next_dq = dq_of(row_of(next.head));
            }
        };

        // Before the first step there is no dS, and nothing to add.
        rows.clear_ds();
        for (int tile = 0; tile < dq_tiles; ++tile) this->dq_delta[tile] = this->dq_norm[tile] = 0;
        dq_destination = dq;
        kittens::for_each_index<Rows::rows>(
            [&](auto n) { rows.loads.template commit_row<n.value>(rows.row_major_tile); });
        kittens::for_each_index<Rows::columns>([&](auto n) { rows.loads.template turn<n.value>(); });
        load_statistics();
        issue();
        // Here, or the compiler has every step wait as if it were the first.
        kittens::wait_vector_memory<Rows::rows>();
        kittens::barrier();
        kittens::for_each_index<ahead>(
            [&](auto n) { fragments[n.value] = this->template read<n.value>(rows); });

        const auto seen = this->seen_queries(low, high);
        const int first_clear = mask.first_query(begin + keys - 1),
                  last_clear = mask.last_query(begin) + 1 - queries;
        const bool some_invisible_rows = begin + keys > mask.n_k;
        for (; steps > 0; --steps) {
            // Without branches, which would part the loop.
            const bool visible =
                !some_invisible_rows & (first_clear <= now.column) & (now.column <= last_clear);
            now.masked = !visible;
            now.visible = {seen.left(now.column), seen.span};
            compute(now, begin_issue, advance);
            dq_destination = dq;
            dq = next_dq;
            statistics = next_statistics;
            now.column = next.column;
            now.head = next.head;
        }
        this->use_dq_statistics();
        kittens::for_each_index<2 * dv_first, 2 * dq_first>([&](auto slot) {
            this->template multiply<slot.value>(this->template read<slot.value / 2>(rows));
        });
        kittens::for_each_index<dq_registers>([&](auto n) { this->template add_dq<n.value>(); });
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        OnePassThroughRegisters pass(arguments, lds);
        pass.Base::template run<keys_at, values_at>(
            [&](const Queries& all, const auto& commit_keys) { pass.loop(all, commit_keys); });
    }
};

}  // namespace hipkittens::attention
