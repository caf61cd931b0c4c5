// kernels/gemm/interleaved_loop.h: every wave alternates single matrix steps with single memory steps.
// SPDX-License-Identifier: MIT
#pragma once
#include "main_loop.h"

namespace hipkittens::gemm {

// Several K tiles are in LDS; where loads go through registers, two are in LDS and others in flight. While a wave
// multiplies a step of K, it reads the operands of the next step into other registers and, in the last step of a tile,
// the first ones of the next tile: there is one barrier per tile, with matrix instructions in flight.
template <GemmConfig config, class Policy>
struct InterleavedLoop : MainLoop<config, Policy, 1> {
    using Base = MainLoop<config, Policy, 1>;
    using Base::direct, Base::alternate, Base::buffers, Base::steps, Base::step_k, Base::height, Base::width,
        Base::products, Base::loads_per_tile, Base::promotes;
    using Base::range, Base::in_flight, Base::sums, Base::row, Base::col, Base::a_tile, Base::b_tile;
    using typename Base::A, typename Base::B, typename Base::Accumulation;
    static_assert(buffers >= 2);

    static constexpr bool is_power_of_two(int value) { return (value & (value - 1)) == 0; }
    static_assert(is_power_of_two(config.wave_m()) &&
                      (is_power_of_two(config.wave_n()) || B::access == Access::rows),
                  "a wave's base tiles begin where the keys of their rows do");
    // K tile t > 0 comes through set (t - 1) % sets of the registers that loads fill, tile 0 through the last one.
    static constexpr int sets = alternate ? 2 : direct ? 1 : config.in_registers;
    static_assert(!alternate || buffers == 4, "two tiles of one operand, then two of the other");
    static_assert(!alternate || !Base::StepFactors::present, "factors are loaded with both operands");

    // A slot is a matrix step. The barrier is in the middle of a tile's last step of K: the reads for this step have
    // arrived by then, and the matrix cores have work meanwhile. Direct loads are issued after it, to the buffer that is
    // no longer read; data that comes through registers is written to LDS before it.
    static constexpr int slots = steps * products, barrier_slot = slots - products + products / 2,
                         issue_slot =
                             barrier_slot +
                             (height < products - products / 2 ? height : products - products / 2 - 1);
    // The base tiles of the next step are read two slots apart, A's in even slots and B's in odd ones, but B's not
    // before the products that use its predecessor in the same registers; those of the next tile after the barrier.
    struct Reads {
        int base_tiles, begin, products_of_each;
        bool last;  // no tile comes after this one
        bool fenced = true;
        constexpr int size() const { return base_tiles * (steps - last); }
        constexpr int slot(int item) const {
            const int step = item / base_tiles, n = item % base_tiles;
            const int first = step == steps - 1 ? products / 2 : 0;
            const int own = first + begin + 2 * n, free = (n + 1) * products_of_each - 1;
            const int product = own > free ? own : free;
            return step * products + (product < products ? product : products - 1);
        }
    };
    // Loads that may be in flight at the barrier of an even (odd) K tile. Alternate loads: after an odd tile t, the first
    // operand of t + 3 and t + 4; after an even one, the second operand of t + 2 and t + 3.
    template <int odd>
    static constexpr int loads_in_flight() {
        constexpr int needed = barrier_slot - slots, half = loads_per_tile / 2,
                      more = Accumulation::loads_per_tile;
        if constexpr (alternate)
            return load_pipeline<6>{2 * slots,
                                    {{issue_slot, needed, 2, more},
                                     {slots + issue_slot, needed + slots, 2, more},
                                     {slots + issue_slot, needed, 2, half},
                                     {slots + issue_slot, needed + slots, 2, half},
                                     {issue_slot, needed, 1, half},
                                     {issue_slot, needed + slots, 1, half}}}
                .in_flight(odd * slots + barrier_slot - 1, slots);
        else
            return load_pipeline<1>{slots, {{issue_slot, needed, buffers, loads_per_tile + more}}}.in_flight(
                barrier_slot - 1, slots);
    }

    // Promotion of the sums of one K tile, where they are not accumulated directly.
    struct Promotions {
        int items;
        bool fenced = true;
        constexpr int size() const { return items; }
        constexpr int slot(int n) const {  // after the product's latency, where a tile ended before
            return n + 2 < products ? slots - products + n + 2 : slots - 1;
        }
    };
    static_assert(!promotes || direct || steps % 2 == 0, "no tile past the last");

    typename Base::template RegistersA<step_k> a_registers[2];
    typename Base::template RegistersB<step_k> b_registers;
    typename Base::StepFactors::template Registers<height> a_scales[2];
    typename Base::StepFactors::template Registers<width> b_scales[2];

    KITTENS_DEVICE static int after(int buffer) { return buffer + 1 == buffers ? 0 : buffer + 1; }
    template <int set = 0>
    KITTENS_DEVICE void issue(int buffer) {
        if constexpr (direct) this->accumulation.issue(buffer);
        in_flight.first.template issue<0, set>(buffer);
        in_flight.second.template issue<0, set>(buffer);
        this->advance_both();
        this->scales.issue(buffer);
    }
    template <int odd>
    KITTENS_DEVICE void issue_pair(int buffer) {
        const int before = buffer == 0 ? buffers - 1 : buffer - 1;
        auto& operand = odd ? in_flight.first : in_flight.second;
        operand.issue(odd ? before : (buffer + 2) % buffers);
        operand.k_tiles.advance();
        operand.issue(odd ? buffer : before);
        operand.k_tiles.advance();
    }
    template <int n>
    KITTENS_DEVICE void read_a(int set, int buffer, int k) {
        A::template read<base_tiles<n, n + 1, 0, 1>>(a_registers[set], a_tile(buffer), row, k);
        this->scales.template read_a<n, n + 1>(a_scales[set], buffer);
    }
    template <int n>
    KITTENS_DEVICE void read_b(int set, int buffer, int k) {
        B::template read<base_tiles<n, n + 1, 0, 1>>(b_registers, b_tile(buffer), col, k);
        this->scales.template read_b<n, n + 1>(b_scales[set], buffer);
    }

    // One K tile in buffer `buffer`. `first_set`: the registers that hold its first step of A. `loaded`: the set that
    // the next tile has been loaded to (alternate loads: whether this one is odd). `refilled`: later tiles are loaded.
    // `last`: no other tile comes after it.
    template <int first_set, int loaded, bool refilled, bool last>
    KITTENS_DEVICE void k_tile(int buffer) {
        using FirstStream = decltype(in_flight.first);
        constexpr int moves = direct ? 0 : FirstStream::items + decltype(in_flight.second)::items;
        int next = 0;
        interleave<slots>(
            work<in_slot{direct ? slots - products : 0}>([&](auto) KITTENS_INLINE {
                next = after(buffer);
                this->scales.next_tile();
            }),
            work<in_slot{barrier_slot, !last}>([&](auto) KITTENS_INLINE {
                if constexpr (direct)
                    wait<loads_in_flight<loaded>(), 0>();
                else
                    wait_lds<0>();
                s_barrier();
            }),
            work<in_slot{0, promotes}>([&](auto) KITTENS_INLINE {
                this->accumulation.begin_k_tile();
                this->accumulation.begin_band();
                if constexpr (!direct) this->accumulation.issue(0);
            }),
            work<in_slot{barrier_slot, promotes && !last}>(
                [&](auto) KITTENS_INLINE { this->accumulation.template read<0, 0>(next); }),
            // Down a column of base tiles, then the next column: as soon as a column is done, its base tile of B can be replaced.
            work<every_slot{0, slots, 1, true}>([&](auto slot) KITTENS_INLINE {
                constexpr int i = slot.value % height, j = slot.value % products / height,
                              set = (first_set + slot.value / products) % 2;
                constexpr bool first = slot.value < products;
                this->template multiply<i, j, 0, first, slot.value / products>(
                    sums[0][0], a_registers[set], b_registers, a_scales[set], b_scales[set]);
            }),
            work<Promotions{promotes ? products : 0}>(
                [&](auto n) KITTENS_INLINE { this->template promote<n.value % height, n.value / height>(); }),
            work<Reads{height, 0, 0, last}>([&](auto item) KITTENS_INLINE {
                constexpr int step = item.value / height + 1;
                read_a<item.value % height>((first_set + step) % 2, step == steps ? next : buffer,
                                            step % steps * step_k);
            }),
            work<Reads{width, 1, height, last}>([&](auto item) KITTENS_INLINE {
                constexpr int step = item.value / width + 1;
                read_b<item.value % width>((first_set + step) % 2, step == steps ? next : buffer,
                                           step % steps * step_k);
            }),
            work<spread{last ? 0 : moves, 0, barrier_slot, true}>([&](auto item) KITTENS_INLINE {
                constexpr int of_first = FirstStream::items;
                if constexpr (item.value < of_first)
                    in_flight.first.template commit_and_issue_item<item.value, loaded, refilled>(next);
                else
                    in_flight.second.template commit_and_issue_item<item.value - of_first, loaded, refilled>(
                        next);
                if constexpr (item.value == moves - 1 && refilled) this->advance_both();
            }),
            work<in_slot{issue_slot, direct && !last && (refilled || !alternate), true}>(
                [&](auto) KITTENS_INLINE {
                    if constexpr (alternate) {
                        this->accumulation.issue(buffer);
                        issue_pair<loaded>(buffer);
                    } else {
                        issue(buffer);
                    }
                }));
    }
    template <int loaded, bool refilled>
    KITTENS_DEVICE void next_tile(int& left, int& buffer) {
        k_tile<0, loaded, refilled, false>(buffer);
        buffer = after(buffer);
        --left;
    }
    // The tiles that remain after whole rounds of the sets, except the last one; nothing remains to be loaded.
    template <int loaded = 0>
    KITTENS_DEVICE void tiles_behind(int& left, int& buffer) {
        if constexpr (loaded + 1 < sets)
            if (left > 1) {
                next_tile<loaded, false>(left, buffer);
                tiles_behind<loaded + 1>(left, buffer);
            }
    }

    // Not an inherited constructor: that would be inlined late, and the code around it would be worse.
    KITTENS_DEVICE InterleavedLoop(const typename Policy::Arguments& arguments, TileCoordinate tile,
                                   shared_byte* lds)
        : Base(arguments, tile, lds) {}

    // The same where registers are swapped with every tile.
    template <int first_set = 0>
    KITTENS_DEVICE void last_tiles(int& left, int& buffer) {
        if constexpr (first_set == 0)
            if (left > 1) {
                k_tile<0, 0, false, false>(buffer);
                buffer = after(buffer);
                return last_tiles<1>(left, buffer);
            }
        k_tile<first_set, first_set % sets, false, true>(buffer);
    }

    // Loads the first tile and as many after it as fit in LDS; on return the first one is in LDS.
    KITTENS_DEVICE void prologue() {
        this->accumulation.issue_first(0);
        in_flight.first.template issue_first<sets - 1>(0);
        in_flight.second.template issue_first<sets - 1>(0);
        this->scales.issue_first();
        if constexpr (!direct) {
            // In this order: the waits of the loop count from here on.
            for_each_index<sets - 1>([&](auto set) {
                schedule_fence();
                issue<set.value>(0);
            });
            schedule_fence();
            in_flight.first.loads[0].template commit<sets - 1>(a_tile(0));
            in_flight.second.loads[0].template commit<sets - 1>(b_tile(0));
            issue<sets - 1>(0);
            schedule_fence();
        }
        this->clear_past_k();
        if constexpr (alternate) {
            // The compute unit's FIFO load queue is shared by its waves: the first tile of all waves goes before any other.
            s_barrier();
            for (int buffer = 1; buffer < buffers - 1; ++buffer) this->accumulation.issue(buffer);
            in_flight.first.issue(1);
            in_flight.first.k_tiles.advance();
            in_flight.second.issue(1);
            in_flight.second.k_tiles.advance();
            this->accumulation.issue(3);
            issue_pair<1>(3);
            wait_vector_memory<2 * loads_per_tile + 3 * Accumulation::loads_per_tile>();
        } else if constexpr (direct) {
            for (int buffer = 1; buffer < buffers; ++buffer) issue(buffer);
            wait_vector_memory<(buffers - 1) * (loads_per_tile + Accumulation::loads_per_tile)>();
        }
        this->clear_sums();
        barrier();
        for_each_index<height>([&](auto n) { read_a<n.value>(0, 0, 0); });
        for_each_index<width>([&](auto n) { read_b<n.value>(0, 0, 0); });
        this->accumulation.template read<0, 0>(0);
    }
    KITTENS_DEVICE void run(TileCoordinate tile) {
        prologue();
        int left = range.count();
        if constexpr (steps % 2 == 0) {
            int buffer = 0;
            while (left > sets)
                for_each_index<sets>([&](auto set) { next_tile<set.value, true>(left, buffer); });
            tiles_behind(left, buffer);
            k_tile<0, 0, false, true>(buffer);
        } else if constexpr (direct) {
            static_assert(2 % sets == 0);
            int buffer = 0;
            const auto step = [&](auto set) KITTENS_INLINE {
                k_tile<set.value, set.value % sets, true, false>(buffer);
                buffer = after(buffer);
                --left;
            };
            while (left > 2) for_each_index<2>(step);
            last_tiles(left, buffer);
        } else {
            // Registers are swapped with every tile: two tiles at a time, and one of zeros after an odd number.
            static_assert(!direct && buffers == 2, "a tile past the last is zero because registers are");
            static_assert(2 % sets == 0);
            for (; left > 2; left -= 2) {
                k_tile<0, 0, true, false>(0);
                k_tile<1, 1 % sets, true, false>(1);
            }
            k_tile<0, 0, false, false>(0);
            k_tile<1, 1 % sets, false, true>(1);
        }
        this->store(tile);
    }
};

}  // namespace hipkittens::gemm
