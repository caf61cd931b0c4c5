// kernels/attention/backward_one_pass_through_registers.h: the one-pass backward for a target that loads to LDS through registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"

namespace hipkittens::attention {

// gfx942: the rows of a step are loaded two steps ahead, and committed to LDS in both orientations once those of the
// previous step have been read (queries_through_registers.h).
template <BackwardConfig config>
struct OnePassThroughRegisters : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::k_transposed, Base::lds;
    using Base::dq_registers, Base::dq_tiles, Base::halves, Base::head_dim, Base::key_steps, Base::keys,
        Base::per_lane, Base::pieces, Base::products, Base::shared_key_steps, Base::slots, Base::tiles,
        Base::upper;
    using typename Base::Fragment, typename Base::KeyTile, typename Base::Product, typename Base::T,
        typename Base::ValueTile;
    using Rows = typename Base::ThroughRegisters;

    // Keys and values are in LDS at the same time, or one after the other.
    static constexpr bool together = KeyTile::bytes + ValueTile::bytes <= target.lds_bytes;
    static constexpr int keys_at = 0, values_at = together ? KeyTile::bytes : keys_at,
                         past_keys = together ? values_at + ValueTile::bytes : KeyTile::bytes,
                         lds_bytes = Rows::bytes < past_keys ? past_keys : Rows::bytes;
    static_assert(lds_bytes <= target.lds_bytes);

    static constexpr int dq_first = Base::first_of(Product::dq), dv_first = Base::first_of(Product::dv),
                         dk_first = Base::first_of(Product::dk);
    // Operands are read from LDS this many products ahead.
    static constexpr int ahead = 4, ring = products % 5 == 0 ? 5 : 13;
    static_assert(products % ring == 0, "a step ends as it began");
    // Barriers: when all waves have read the row-major tiles and the last dS, and when all have read the transposed tiles.
    // The row-major tiles are replaced between the two barriers, the transposed ones after the second.
    static constexpr int first_barrier = 2 * (dv_first - ahead) + 1,
                         second_barrier = 2 * (products - ahead) + 1;
    // Operands are read in the first slot of a product: after a barrier, but not right before it, since the barrier waits for all reads.
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
    // With several tiles of dQ per wave, dS is computed while P is converted. It is converted `lag` slots later, and written to LDS
    // `write_lag` slots later, after the first barrier.
    static constexpr bool wide = dq_tiles > 1;
    struct DsSlots {
        int first, count, lag, write_lag;
    };
    static constexpr DsSlots ds_slots = wide          ? DsSlots{p_first + 5, 24, 2, 12}
                                        : halves == 1 ? DsSlots{p_past - 4, 20, 2, 4}
                                                      : DsSlots{first_barrier + 1, 15, 1, 2};
    static constexpr int ds_apart = 14;
    static_assert(ds_slots.first + ds_slots.write_lag > first_barrier &&
                  ds_slots.first + ds_slots.count + (halves - 1) * ds_apart + ds_slots.write_lag <=
                      second_barrier);
    // dQ is added while dK is multiplied and, if there are several tiles, in the next step until they are multiplied again.
    static constexpr int late = wide ? dq_registers / 2 : 0, late_first = 10,
                         adds_first = 2 * (wide ? dv_first + 4 : dk_first),
                         adds_past = wide ? second_barrier - 1 : slots;
    static constexpr each_half<spread> after_ds(int items, int slots) {
        return Base::each(spread{items, ds_slots.first + slots, ds_slots.first + ds_slots.count + slots},
                          ds_apart);
    }

    Rows rows;
    Fragment fragments[ring];
    char* late_destination;  // of the dQ whose last registers are being added

    KITTENS_DEVICE OnePassThroughRegisters(const BackwardArguments& arguments, shared_byte* lds)
        : Base(arguments, lds), rows(lds, Base::shared_dq_key()) {}

    // The statistics of a step's queries, in memory from `first` on; `lane_at`: the first one of the lane.
    template <class Index>
    KITTENS_DEVICE static auto statistics_in(const float* first, Index lane_at) {
        return [=](Statistic which, int query) {
            return first[lane_at + (query + static_cast<int>(which) * statistics_block)];
        };
    }
    KITTENS_DEVICE void load_statistics() {
        const int lane = lane_id();
        Base::load_statistics(
            statistics_in(this->next.statistics, Base::query_of(lane % 16) + lane / 32 * upper));
    }

    KITTENS_DEVICE void compute() {
        const auto wave_barrier = [](auto) { barrier(); };
        interleave<slots>(
            work<in_slot{0, true, true}>([&](auto) { this->statistics = this->next_statistics; }),
            work<in_slot{first_barrier, true, true}>(wave_barrier),
            work<in_slot{second_barrier, true, true}>(wave_barrier),
            work<every_slot{0, slots, 1, true}>(
                [&](auto at) { this->template multiply<at.value>(fragments[at.value / 2 % ring]); }),
            work<operand_reads{}>([&](auto i) {
                constexpr int to = i.value + ahead;
                fragments[to % ring] = this->template read<to % products>(rows);
            }),
            work<after_ds(per_lane, 0)>([&](auto n) { this->make_ds(n); }),
            work<after_ds(8, ds_slots.lag)>([&](auto n) { this->convert_ds(n); }),
            work<after_ds(per_lane, ds_slots.write_lag)>([&](auto n) {
                constexpr int half = n.value / per_lane, e = n.value % per_lane;
                rows.template write_ds<half * 32 + Base::query_of(e)>(this->ds_operand[half][e / 8][e % 8]);
            }),
            work<Base::each(spread{8, p_first, p_past}, 4 * pieces)>([&](auto n) { this->convert_p(n); }),
            work<Base::each(in_slot{exponents + 16}, 4 * pieces)>([&](auto half) { this->mask_p(half); }),
            work<Base::each(spread{per_lane, exponents, exponents + 16}, 4 * pieces)>(
                [&](auto n) { this->make_p(n); }),
            // The next step's rows: transposed, the initial values of dP, and row-major; then the loads of the rows after those.
            work<spread{Rows::columns, 1, 16}>([&](auto n) { rows.template commit_column<n.value>(); }),
            work<spread{halves * per_lane, 0, 16}>([&](auto n) { this->start_dp(n); }),
            work<in_slot{4}>([&](auto) { this->advance(this->next); }),
            work<in_slot{9}>([&](auto) { this->next_rows(); }),
            work<in_slot{2 * dq_first + 2}>([&](auto) { load_statistics(); }),
            work<spread{Rows::rows, first_barrier + 2, first_barrier + (wide ? 26 : 14)}>(
                [&](auto n) { rows.template commit_row<n.value>(); }),
            work<in_slot{adds_first - 4}>([&](auto) { this->use_dq_statistics(); }),
            work<in_slot{adds_first - 3}>([&](auto) {
                this->load_dq_statistics(statistics_in(this->now.statistics, this->dq_statistic_at / 4));
            }),
            work<spread{dq_registers - late, adds_first, adds_past}>([&](auto n) { this->add_dq(n); }),
            work<spread{late, late_first, 2 * dq_first - 2}>(
                [&](auto n) { this->add_dq(index<dq_registers - late + n.value>{}, late_destination); }),
            work<in_slot{2 * dq_first, late != 0}>([&](auto) { late_destination = this->dq_destination; }),
            work<spread{Rows::columns, second_barrier - 10, second_barrier - 2}>(
                [&](auto n) { rows.template transpose_column<n.value>(); }),
            work<spread{Rows::rows, second_barrier - 1, second_barrier + 7}>(
                [&](auto n) { rows.template issue<n.value>(tiles.views); }),
            work<every_slot{0, slots, 1, true}>([](auto) {}));
    }

    // Columns of 16 keys from `key` on, element by element.
    KITTENS_DEVICE Fragment key_columns(int key, int column) const {
        const int lane = lane_id();
        Fragment operand;
        for_each_index<8>([&](auto e) {
            const uint32_t at = KeyTile::offset(key + lane / 32 * 8 + e.value, column + lane % 32);
            operand[e.value] = lds_read<T>(lds + keys_at + at);
        });
        keep_in_accumulator(operand);
        return operand;
    }
    template <class CommitKeys, class CommitValues>
    KITTENS_DEVICE void loop(const CommitKeys& commit_keys, const CommitValues& commit_values) {
        const int wave = wave_id();
        const auto issue = [&] {
            for_each_index<Rows::rows>([&](auto n) { rows.template issue<n.value>(tiles.views); });
        };
        this->begin_rows();
        rows.init_offsets(wave, tiles.row_bytes[0],
                          Rows::which(wave) ? arguments.value_dim : arguments.head_dim,
                          tiles.row_bytes[Base::streams() - 1], arguments.value_dim);
        issue();
        this->load_bounds();
        commit_keys();
        if constexpr (together) commit_values();
        barrier();
        this->template read_keys<KeyTile>(this->k, keys_at);
        if constexpr (together) this->template read_keys<ValueTile>(this->v, values_at);
        for_each_index<key_steps>(
            [&](auto n) { k_transposed[n.value] = key_columns(n.value * 16, Base::dq_column()); });
        for_each_index<shared_key_steps>([&](auto n) {
            k_transposed[key_steps + n.value] =
                key_columns(Base::shared_dq_key() + n.value * 16, Base::shared_dq_column());
        });
        barrier();
        if constexpr (!together) {
            commit_values();
            barrier();
            this->template read_keys<ValueTile>(this->v, values_at);
            barrier();
        }

        // Before the first step there is no dS, and nothing to add.
        rows.clear_ds();
        for (int tile = 0; tile < dq_tiles; ++tile) this->dq_delta[tile] = this->dq_norm[tile] = 0;
        if constexpr (late) {
            late_destination = this->dq_destination;
            for (int tile = 0; tile < dq_tiles; ++tile) {
                this->dq[tile] = typename Base::Accumulator{};
                this->dq_factor[tile] = 0;
            }
        }
        for_each_index<Rows::rows>([&](auto n) { rows.template commit_row<n.value>(); });
        for_each_index<Rows::columns>([&](auto n) { rows.template transpose_column<n.value>(); });
        load_statistics();
        this->next_rows();
        issue();
        // Waited for here; otherwise the compiler makes every step wait as if it were the first.
        wait_vector_memory<Rows::rows>();
        barrier();
        for_each_index<ahead>([&](auto n) { fragments[n.value] = this->template read<n.value>(rows); });
        this->template for_each_step<2>([&] { compute(); });
        for_each_index<late>(
            [&](auto n) { this->add_dq(index<dq_registers - late + n.value>{}, late_destination); });
        this->use_dq_statistics();
        for_each_index<2 * dv_first, 2 * dq_first>([&](auto slot) {
            this->template multiply<slot.value>(this->template read<slot.value / 2>(rows));
        });
        for_each_index<dq_registers>([&](auto n) { this->add_dq(n); });
    }

    KITTENS_DEVICE void run() {
        Base::template run<keys_at, values_at>([&](const auto&... commits) { loop(commits...); });
    }
};

}  // namespace hipkittens::attention
