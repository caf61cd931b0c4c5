// kernels/attention/backward_one_pass_direct.h: the one-pass backward for a target that loads directly to LDS and transposes when reading.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_one_pass.h"

namespace hipkittens::attention {

// gfx950: the rows of a step are loaded directly to LDS, one or two steps ahead, and read in both orientations.
template <BackwardConfig config>
struct OnePassDirect : OnePass<config> {
    using Base = OnePass<config>;
    using Base::arguments, Base::k_transposed, Base::lds;
    using Base::dq_registers, Base::dq_tiles, Base::head_dim, Base::key_steps, Base::keys, Base::per_lane,
        Base::pieces, Base::products, Base::queries, Base::statistics_bytes, Base::threads, Base::tiles;
    using typename Base::Accumulator, typename Base::Fragment, typename Base::KeyTile, typename Base::Product,
        typename Base::T;
    static_assert(Base::direct && queries == statistics_block);

    using Tile = st<T, queries, head_dim, Access::rows_and_columns_32>;
    using DsTile = st<T, keys, queries, Access::columns_32_written_in_runs>;
    using Loads = global_to_shared<Tile, threads, Fill::direct>;

    // Buffers, each with a tile of Q, one of dO and their statistics; and two buffers of dS. With small heads, a step is
    // shorter than loads may take.
    static constexpr int tiles_ahead = head_dim > 64 ? 1 : 2, buffers = tiles_ahead + 1;
    static constexpr int buffer_bytes = 2 * Tile::bytes + statistics_bytes, ds_at = buffers * buffer_bytes,
                         lds_bytes = ds_at + 2 * DsTile::bytes, keys_at = ds_at - buffer_bytes,
                         values_at = ds_at;
    static_assert(KeyTile::bytes <= buffer_bytes && KeyTile::bytes <= 2 * DsTile::bytes);
    static_assert(lds_bytes <= target.lds_bytes);

    // Operands are read from LDS this many products ahead, and waited for in groups of four.
    static constexpr int ahead = 8, ring = 10, group = 4;
    static_assert(products % ring == 0 && products % group == 0, "a step ends as it began");
    static constexpr int dv_first = Base::first_of(Product::dv), dq_first = Base::first_of(Product::dq);
    // At this slot, the step's tile has been read and dS written; from here on every wave may read the other buffers of both.
    static constexpr int barrier_slot = dq_first - ahead;
    // The 16 registers of 32 queries are spread over as many slots as a product has: exponentials of S from the second slot
    // after its last step on; then P is converted, and dS is computed from it.
    static constexpr int registers_per_slot = per_lane / pieces, exponents = pieces + 2,
                         ds_first = exponents + pieces + (pieces > 4), apart = 2 * pieces;
    // dQ of the previous step is added where the arithmetic above leaves room: most of it before the barrier, the rest before
    // the products that need the registers.
    static constexpr int early = dq_registers * 5 / 8, early_first = dv_first + pieces;
    // Each load of the next tiles has its own slot, ahead of all of these.
    static constexpr int issues = 2 * Loads::passes;
    // Statistics are those of the next step, loaded in this step by the first wave. In flight at the barrier is everything issued
    // after the last load that the next step reads: rows for later steps, and additions to dQ.
    static constexpr load_pipeline<3> memory{products,
                                             {{0, barrier_slot + 1, 0, 1},
                                              {issues, barrier_slot + 1, tiles_ahead - 1, issues},
                                              {barrier_slot - 1, products, 1, early}}};
    static_assert(issues < early_first && ds_first + apart + pieces <= barrier_slot);

    Fragment fragments[ring];
    uint32_t row_major_at, transposed_at, ds_read_at, ds_write_at, statistic_at, lane_bytes;
    int wave;
    Loads loads[2];

    using Base::Base;

    KITTENS_DEVICE static constexpr int at_buffer(int buffer, int which) {
        return buffer * buffer_bytes + which * Tile::bytes;
    }
    KITTENS_DEVICE Tile tile(int buffer, int which) const { return {lds + at_buffer(buffer, which)}; }

    template <class Of>
    KITTENS_DEVICE static Fragment read_transposed(shared_byte* data, uint32_t lane_at, int row, int step,
                                                   int col) {
        const vec<T, 4> low = lds_read_transposed<T>(data + stepped_offset<Of>(lane_at, row, col)),
                        high = lds_read_transposed<T>(data + stepped_offset<Of>(lane_at, row + step, col));
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    // A lane's operands in one of the buffers; which: 0 for Q, 1 for dO.
    struct Buffer {
        shared_byte* lds;
        uint32_t row_major_at, transposed_at, ds_at;

        template <int which, int row, int col>
        KITTENS_DEVICE Fragment row_major() const {
            return lds_read<Fragment>(lds + stepped_offset<Tile>(row_major_at, row, col) +
                                      which * Tile::bytes);
        }
        template <int which, int row, int col>
        KITTENS_DEVICE Fragment transposed() const {
            return read_transposed<Tile>(lds + which * Tile::bytes, transposed_at, row, 8, col);
        }
        template <int query, int key>
        KITTENS_DEVICE Fragment ds() const {
            return read_transposed<DsTile>(lds + OnePassDirect::ds_at, ds_at, key, 4, query);
        }
    };
    // parity: which of the two dS buffers.
    KITTENS_DEVICE Buffer buffer_at(int number, int parity) const {
        return {lds, row_major_at + number * buffer_bytes, transposed_at + number * buffer_bytes,
                ds_read_at + parity * DsTile::bytes};
    }
    KITTENS_DEVICE static int later(int buffer, int steps) {
        if constexpr (buffers == 2) return buffer ^ steps;
        return buffer + steps < buffers ? buffer + steps : buffer + steps - buffers;
    }
    // Number of LDS instructions that read the operands of products first .. past-1.
    static constexpr int reads_between(int first, int past) {
        int reads = 0;
        for (int i = first; i < past; ++i) reads += i % products < dv_first ? 1 : 2;
        return reads;
    }
    KITTENS_DEVICE void write_ds(auto n, uint32_t to) const {
        constexpr int half = n.value / 4, e = n.value % 4 * 4;
        const Fragment& operand = this->ds_operand[half][e / 8];
        lds_write(vec<T, 4>(e % 8 ? operand.hi : operand.lo),
                  lds + ds_at + stepped_offset<DsTile>(to, 0, half * 32 + Base::query_of(e)));
    }
    // The statistics of the queries in a buffer, from `at` on.
    KITTENS_DEVICE auto statistics_in(int buffer, uint32_t at) const {
        return [=, this](Statistic which, int query) {
            return lds_read<float>(lds + (at_buffer(buffer, 2) + at + query * 4) +
                                   static_cast<int>(which) * statistics_block * 4);
        };
    }

    KITTENS_DEVICE void issue_statistics(int to) {
        if (wave == 0)
            buffer_load_to_lds<1>({reinterpret_cast<const char*>(this->next.statistics), statistics_bytes},
                                  &lane_bytes, lds + at_buffer(to, 2));
    }

    KITTENS_DEVICE void compute(int buffer, int parity) {
        const int following = later(buffer, 1), loaded = later(buffer, tiles_ahead);
        const Buffer now = buffer_at(buffer, parity), next = buffer_at(following, parity ^ 1);
        const uint32_t ds_to = ds_write_at + parity * DsTile::bytes;
        interleave<products>(
            work<in_slot{0}>([&](auto) {
                // Advances to the rows of the next step, then to those being loaded; if the two are the same, in the opposite order.
                if constexpr (tiles_ahead == 1) this->next_rows();
                this->advance(this->next);
                if constexpr (tiles_ahead == 2) this->next_rows();
                issue_statistics(following);
            }),
            work<every_slot{1, 1 + issues}>([&](auto n) {
                constexpr int pass = n.value % Loads::passes, which = n.value / Loads::passes;
                loads[which].template issue_item<pass>(Loads::prepared(tiles.views[which]),
                                                       tile(loaded, which));
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
            work<every_slot{dq_first, products, registers_per_slot}>([&](auto n) { this->start_dp(n); }),
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
            work<Base::each(spread{per_lane, exponents, exponents + pieces}, apart)>(
                [&](auto n) { this->make_p(n); }),
            work<Base::each(in_slot{ds_first - 1}, apart)>([&](auto half) { this->mask_p(half); }),
            work<Base::each(spread{8, ds_first, ds_first + pieces / 2}, apart)>(
                [&](auto n) { this->convert_p(n); }),
            work<Base::each(spread{8, ds_first, ds_first + pieces}, apart)>([&](auto n) {
                this->make_ds(index<2 * n.value>{});
                this->make_ds(index<2 * n.value + 1>{});
                this->convert_ds(n);
            }),
            work<Base::each(spread_late{4, ds_first, ds_first + pieces}, apart)>(
                [&](auto n) { write_ds(n, ds_to); }),
            work<spread{early, early_first, barrier_slot}>([&](auto n) { this->add_dq(n); }),
            work<spread{dq_registers - early, barrier_slot + 1, dq_first}>(
                [&](auto n) { this->add_dq(index<early + n.value>{}); }),
            work<every_slot{0, products, 1, true}>([](auto) {}));
    }

    KITTENS_DEVICE void loop() {
        const int lane = lane_id();
        wave = wave_id(), lane_bytes = lane * b128_bytes;
        const int low = lane % 32, high = lane / 32, inside = lane % 16;
        row_major_at = Tile::offset(low, high * 8);
        transposed_at = Tile::offset(high * 4 + inside / 4, low / 16 * 16 + inside % 4 * 4);
        const int row = high * 8 + inside / 4, col = low / 16 * 16 + inside % 4 * 4;
        ds_read_at = DsTile::offset(row, Base::dq_query() + col);
        ds_write_at = DsTile::offset(wave * Base::wave_keys + low, high * 4);
        statistic_at = (Base::query_of(inside) + high * 4) * 4;
        const uint32_t key_at = KeyTile::offset(row, Base::dq_column() + col);

        this->begin_rows();
        issue_statistics(0);
        for_each_index<2>([&](auto i) {
            loads[i.value].init_offsets(tiles.row_bytes[i.value]);
            skip_columns(loads[i.value], i.value ? arguments.value_dim : arguments.head_dim);
            loads[i.value].issue(tiles.views[i.value], tile(0, i.value));
        });
        for_each_index<tiles_ahead, 1>([&](auto n) {
            this->next_rows();
            for_each_index<2>(
                [&](auto i) { loads[i.value].issue(tiles.views[i.value], tile(n.value, i.value)); });
        });
        this->load_bounds();
        wait_vector_memory<0>();
        barrier();
        this->template read_keys<keys_at, values_at>(wave, lane);
        for_each_index<key_steps>([&](auto n) {
            k_transposed[n.value] = read_transposed<KeyTile>(lds + keys_at, key_at, n.value * 16, 4, 0);
        });
        for_each_index<ahead>(
            [&](auto n) { fragments[n.value] = this->template read<n.value>(buffer_at(0, 0)); });
        this->load_statistics(statistics_in(0, statistic_at));
        for_each_index<2 * per_lane>([&](auto n) { this->start_dp(n); });
        for_each_index<dq_tiles>([&](auto n) {
            this->dq[n.value] = Accumulator{};
            this->dq_factor[n.value] = 0;
        });
        barrier();
        int buffer = 0, parity = 0;
        this->template for_each_step<tiles_ahead>([&] {
            compute(buffer, buffers == 2 ? buffer : parity);
            buffer = later(buffer, 1), parity ^= 1;
        });
        // Loads past the last tile write zeros, which must not hit the gradients being staged out; only additions to dQ follow them.
        if constexpr (tiles_ahead > 1) wait_vector_memory<dq_registers>();
        for_each_index<dq_registers>([&](auto n) { this->add_dq(n); });
    }

    KITTENS_DEVICE void run() {
        Base::template run<keys_at, values_at>([&](const auto&) { loop(); });
    }
};

}  // namespace hipkittens::attention
