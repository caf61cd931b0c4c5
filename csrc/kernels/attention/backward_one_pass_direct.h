// kernels/attention/backward_one_pass_direct.h: the one-pass backward for a target that loads directly to LDS and transposes when reading.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"
#include "queries_in_buffers.h"

namespace hipkittens::attention {

// gfx950: the rows of a step are loaded directly to LDS, one or two steps ahead, and read in both orientations. With 64 queries a
// step ends with its own dQ; with 32 it has that of the previous step.
template <BackwardConfig config>
struct OnePassDirect : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::k_transposed, Base::lds;
    using Base::dq_of_previous, Base::dq_registers, Base::dq_tiles, Base::head_dim, Base::key_steps,
        Base::keys, Base::per_lane, Base::pieces, Base::products, Base::queries, Base::shared_key_steps,
        Base::threads, Base::tiles, Base::value_dim, Base::value_pieces;
    using typename Base::Accumulator, typename Base::Fragment, typename Base::KeyTile, typename Base::Product,
        typename Base::T, typename Base::ValueTile;
    static_assert(Base::direct);

    // Short steps end before the loads that they begin.
    static constexpr int tiles_ahead = head_dim > 64 && queries == statistics_block ? 1 : 2,
                         buffers = tiles_ahead + 1;
    using Rows = QueriesInBuffers<T, queries, head_dim, value_dim, keys, threads, buffers>;
    using Buffer = typename Rows::Buffer;
    using DsTile = typename Rows::DsTile;
    template <int which>
    using Loads = typename Rows::template Loads<which>;
    // Keys and values are where the last buffer and dS will be.
    static constexpr int keys_at = Rows::ds_at - Rows::buffer_bytes,
                         values_at =
                             KeyTile::bytes <= Rows::buffer_bytes ? Rows::ds_at : keys_at + KeyTile::bytes,
                         past_values = values_at + ValueTile::bytes,
                         lds_bytes = Rows::bytes < past_values ? past_values : Rows::bytes;
    static_assert(lds_bytes <= target.lds_bytes);

    // Operands are read from LDS this many products ahead, and waited for in groups of four.
    static constexpr int ahead = 8, group = 4, ring = products % 10 == 0 ? 10 : 13;
    static_assert(products % ring == 0 && products % group == 0, "a step ends as it began");
    static constexpr int dv_first = Base::first_of(Product::dv), dq_first = Base::first_of(Product::dq);
    // At this slot, the step's tile has been read and dS written; from here on every wave may read the other buffers of both.
    static constexpr int barrier_slot = (dq_of_previous ? products : dq_first) - ahead;
    // The 16 registers of 32 queries: exponentials of S from the second slot after its last step on; then P is converted, and dS is
    // computed from it.
    static constexpr int exponents = pieces + 2,
                         exponents_past = dq_of_previous ? dv_first - 6 : exponents + pieces,
                         ds_first = exponents_past + (pieces > 4), p_past = ds_first + pieces / 2,
                         ds_past = ds_first + pieces, apart = 2 * pieces;
    static_assert(pieces == value_pieces || Base::halves == 1);
    // dQ is added where the arithmetic above leaves room: some of it before the barrier, more after it, and the rest before
    // the products that need the registers. Where a step begins with the last of these products, that is in the next step.
    static constexpr int early_first = dq_of_previous ? dv_first - 1 : dv_first + pieces,
                         early = dq_registers * (dq_of_previous ? 3 : 5) / 8,
                         middle_past = dq_of_previous ? products : dq_first,
                         middle = dq_of_previous ? dq_registers / 4 : dq_registers - early,
                         late = dq_registers - early - middle;
    // Each load of the next tiles has its own slot, ahead of all of these.
    static constexpr int issues = Loads<0>::passes + Loads<1>::passes;
    // Statistics are those of the next step, loaded in this step by the first wave. In flight at the barrier is everything issued
    // after the last load that the next step reads: rows for later steps, and additions to dQ.
    static constexpr load_pipeline<3> memory{products,
                                             {{0, barrier_slot + 1, 0, 1},
                                              {issues, barrier_slot + 1, tiles_ahead - 1, issues},
                                              {barrier_slot - 1, products, 1, early + late}}};
    static_assert(issues < early_first && ds_past + (Base::halves - 1) * apart <= barrier_slot);

    Fragment fragments[ring];
    uint32_t ds_write_at, statistic_at, lane_bytes;
    int wave;
    Rows rows;
    char* late_destination;  // of the dQ whose last registers are being added

    KITTENS_DEVICE OnePassDirect(const BackwardArguments& arguments, shared_byte* lds)
        : Base(arguments, lds), rows(lds, Base::dq_query(), Base::shared_dq_key()) {}

    // Number of LDS instructions that read the operands of products first .. past-1.
    static constexpr int reads_between(int first, int past) {
        int reads = 0;
        for (int i = first; i < past; ++i) {
            const Product product = Base::matrix_step(i % products).product;
            reads += product == Product::s || product == Product::dp ? 1 : 2;
        }
        return reads;
    }
    KITTENS_DEVICE void write_ds(auto n, uint32_t to) const {
        constexpr int half = n.value / 4, e = n.value % 4 * 4;
        const Fragment& operand = this->ds_operand[half][e / 8];
        lds_write(vec<T, 4>(e % 8 ? operand.hi : operand.lo),
                  lds + Rows::ds_at + stepped_offset<DsTile>(to, 0, half * 32 + Base::query_of(e)));
    }
    // The statistics of the queries in a buffer, from `at` on.
    KITTENS_DEVICE auto statistics_in(int buffer, uint32_t at) const {
        return [=, this](Statistic which, int query) {
            return lds_read<float>(lds + (Rows::statistics_of(buffer) + at + query * 4) +
                                   static_cast<int>(which) * queries * 4);
        };
    }

    KITTENS_DEVICE void issue_statistics(int to) {
        if (wave == 0)
            buffer_load_to_lds<1>({reinterpret_cast<const char*>(this->next.statistics), statistics_bytes},
                                  &lane_bytes, lds + Rows::statistics_of(to));
    }

    // parity: which dS is written.
    KITTENS_DEVICE void compute(int buffer, int parity) {
        const int following = Rows::later(buffer, 1), loaded = Rows::later(buffer, tiles_ahead);
        const int of_dq = dq_of_previous ? parity ^ 1 : parity;
        const Buffer now = rows.buffer(buffer, of_dq), next = rows.buffer(following, of_dq ^ 1);
        const uint32_t ds_to = Rows::ds_of(ds_write_at, parity);
        interleave<products>(
            work<in_slot{0}>([&](auto) {
                // Advances to the rows of the next step, then to those being loaded; if the two are the same, in the opposite order.
                if constexpr (tiles_ahead == 1) this->next_rows();
                this->advance(this->next);
                if constexpr (tiles_ahead == 2) this->next_rows();
                issue_statistics(following);
            }),
            work<every_slot{1, 1 + issues}>([&](auto n) {
                constexpr int which = n.value / Loads<0>::passes, pass = n.value - which * Loads<0>::passes;
                rows.template loads<which>().template issue_item<pass>(
                    Loads<which>::prepared(tiles.views[which]), rows.template tile<which>(loaded));
            }),
            work<in_slot{barrier_slot}>([&](auto) {
                wait_vector_memory<memory.in_flight(barrier_slot)>();
                barrier();
            }),
            work<in_slot{barrier_slot - 1}>(
                [&](auto) { this->load_dq_statistics(statistics_in(buffer, this->dq_statistic_at)); }),
            work<in_slot{barrier_slot + 1}>(
                [&](auto) { this->load_statistics(statistics_in(following, statistic_at)); }),
            work<in_slot{dq_first}>([&](auto) { this->use_dq_statistics(); }),
            work<in_slot{0}>([&](auto) { this->statistics = this->next_statistics; }),
            work<spread{Base::halves * per_lane, dq_of_previous ? 0 : dq_first,
                        dq_of_previous ? pieces : products}>([&](auto n) { this->start_dp(n); }),
            // The reads of the following groups of four may be in flight.
            work<spread{products / group, 0, products}>([&](auto n) {
                constexpr int i = n.value * group;
                wait_lds<reads_between(i + group, i + ahead)>();
            }),
            work<every_slot{0, products, 1, true}>(
                [&](auto i) { this->template multiply<i.value>(fragments[i.value % ring]); }),
            work<every_slot{0, products}>([&](auto i) {
                constexpr int to = i.value + ahead;
                fragments[to % ring] = this->template read<to % products>(to < products ? now : next);
            }),
            work<Base::each(spread{per_lane, exponents, exponents_past}, apart)>(
                [&](auto n) { this->make_p(n); }),
            work<Base::each(in_slot{ds_first - 1}, apart)>([&](auto half) { this->mask_p(half); }),
            work<Base::each(spread{8, ds_first, p_past}, apart)>([&](auto n) { this->convert_p(n); }),
            work<Base::each(spread{8, ds_first, ds_past}, apart)>([&](auto n) {
                this->make_ds(index<2 * n.value>{});
                this->make_ds(index<2 * n.value + 1>{});
                this->convert_ds(n);
            }),
            work<Base::each(spread_late{4, ds_first, ds_past}, apart)>([&](auto n) { write_ds(n, ds_to); }),
            work<spread{early, early_first, barrier_slot}>([&](auto n) { this->add_dq(n); }),
            work<spread{middle, barrier_slot + 1, middle_past}>(
                [&](auto n) { this->add_dq(index<early + n.value>{}); }),
            work<spread{late, 1, dq_first - 1}>(
                [&](auto n) { this->add_dq(index<early + middle + n.value>{}, late_destination); }),
            work<in_slot{dq_first, late != 0}>([&](auto) { late_destination = this->dq_destination; }),
            work<every_slot{0, products, 1, true}>([](auto) {}));
    }

    KITTENS_DEVICE void loop() {
        const int lane = lane_id();
        wave = wave_id();
        // Of a block's statistics only those of the step's queries.
        constexpr int lanes = queries * 4 / b128_bytes;
        lane_bytes = lane / lanes * (statistics_block * 4) + lane % lanes * b128_bytes;
        const int low = lane % 32, high = lane / 32, inside = lane % 16;
        const int row = high * 8 + inside / 4, col = low / 16 * 16 + inside % 4 * 4;
        ds_write_at = DsTile::offset(wave * Base::wave_keys + low, high * 4);
        statistic_at = (Base::query_of(inside) + high * 4) * 4;
        const uint32_t key_at = KeyTile::offset(row, Base::dq_column() + col);

        this->begin_rows();
        issue_statistics(0);
        for_each_index<2>([&](auto i) {
            auto& loads = rows.template loads<i.value>();
            loads.init_offsets(tiles.row_bytes[i.value]);
            skip_columns(loads, i.value ? arguments.value_dim : arguments.head_dim);
            loads.issue(tiles.views[i.value], rows.template tile<i.value>(0));
        });
        for_each_index<tiles_ahead, 1>([&](auto n) {
            this->next_rows();
            for_each_index<2>([&](auto i) {
                rows.template loads<i.value>().issue(tiles.views[i.value],
                                                     rows.template tile<i.value>(n.value));
            });
        });
        this->load_bounds();
        wait_vector_memory<0>();
        barrier();
        this->template read_keys<KeyTile>(this->k, keys_at);
        this->template read_keys<ValueTile>(this->v, values_at);
        for_each_index<key_steps>([&](auto n) {
            k_transposed[n.value] = read_transposed<KeyTile, T>(lds + keys_at, key_at, n.value * 16, 4, 0);
        });
        for_each_index<shared_key_steps>([&](auto n) {
            k_transposed[key_steps + n.value] = read_transposed<KeyTile, T>(
                lds + keys_at, KeyTile::offset(Base::shared_dq_key() + row, Base::shared_dq_column() + col),
                n.value * 16, 4, 0);
        });
        for_each_index<ahead>(
            [&](auto n) { fragments[n.value] = this->template read<n.value>(rows.buffer(0, 0)); });
        this->load_statistics(statistics_in(0, statistic_at));
        if constexpr (!dq_of_previous)
            for_each_index<Base::halves * per_lane>([&](auto n) { this->start_dp(n); });
        for_each_index<dq_tiles>([&](auto n) {
            this->dq[n.value] = Accumulator{};
            this->dq_factor[n.value] = 0;
        });
        barrier();
        if constexpr (dq_of_previous) {
            // Before the first step there is no dS, and nothing to add.
            late_destination = this->dq_destination;
            for (int tile = 0; tile < dq_tiles; ++tile) this->dq_delta[tile] = this->dq_norm[tile] = 0;
            for (int at = thread_id() * b128_bytes; at < DsTile::bytes; at += threads * b128_bytes)
                lds_write(b128{}, lds + Rows::ds_at + at);
            barrier();
        }
        int buffer = 0, parity = 0;
        this->template for_each_step<tiles_ahead>([&] {
            compute(buffer, buffers == 2 ? buffer : parity);
            buffer = Rows::later(buffer, 1), parity ^= 1;
        });
        // Loads past the last tile write zeros, which must not hit the gradients being staged out; only additions to dQ follow them.
        if constexpr (tiles_ahead > 1) wait_vector_memory<early + middle>();
        if constexpr (dq_of_previous) {
            for_each_index<late>(
                [&](auto n) { this->add_dq(index<early + middle + n.value>{}, late_destination); });
            this->use_dq_statistics();
            const Buffer last = rows.buffer(0, parity ^ 1);
            for_each_index<dq_first + Base::dq_steps, dq_first>(
                [&](auto i) { this->template multiply<i.value>(this->template read<i.value>(last)); });
        }
        for_each_index<dq_registers>([&](auto n) { this->add_dq(n); });
    }

    KITTENS_DEVICE void run() {
        Base::template run<keys_at, values_at>([&](const auto&, const auto&) { loop(); });
    }
};

}  // namespace hipkittens::attention
