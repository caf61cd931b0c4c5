// kernels/gemm/interleaved_loop.h: every wave alternates single matrix steps with single memory steps.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"
#include "operand_stream.h"

namespace hipkittens::gemm {

// Several K tiles lie in LDS; where loads go through registers two do, and others are on their way there. While a wave
// multiplies a step of K, it reads the next step's operands into other registers, and in the last step of a tile the
// next tile's first ones: the workgroup meets once for each tile, with matrix instructions under way.
template <GemmConfig config>
struct InterleavedLoop : LoopOperands<config> {
    using Operands = LoopOperands<config>;
    using typename Operands::A, typename Operands::B, typename Operands::SourceA, typename Operands::SourceB,
        typename Operands::TileA, typename Operands::TileB;
    static constexpr int waves = config.waves_m * config.waves_n;
    static constexpr bool direct = A::fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? config.buffers : 2;
    static constexpr int operand_bytes = buffers * (TileA::bytes + TileB::bytes),
                         product_bytes = waves * config.matrix * ProductRows<float, config.wave_n()>::row_bytes;
    static constexpr int lds_bytes = operand_bytes > product_bytes ? operand_bytes : product_bytes;
    static_assert(buffers >= 2 && lds_bytes <= kittens::target.lds_bytes, "the K tiles under way fit in LDS");

    static constexpr bool is_power_of_two(int value) { return (value & (value - 1)) == 0; }
    static_assert(is_power_of_two(config.wave_m()) &&
                      (is_power_of_two(config.wave_n()) || B::Tile::access == kittens::Access::rows),
                  "a wave's base tiles begin where the keys of their rows do");
    static constexpr int step_k = A::base::cols, steps = config.tile_k / step_k;
    using Accumulator = kittens::rt<float, config.wave_m(), config.wave_n(), kittens::row_l,
                                    kittens::base_shape<config.matrix, config.matrix, 4>>;
    using RegistersA = typename A::template Registers<config.wave_m(), step_k>;
    using RegistersB = typename B::template Registers<config.wave_n(), step_k>;
    static constexpr int height = Accumulator::height, width = Accumulator::width;
    static constexpr int multiplies = height * width;
    // Where in the last step the workgroup meets: what is read for this step has arrived by then, and the matrix cores
    // have work meanwhile.
    static constexpr int before_meeting = multiplies / 2;
    static constexpr int loads_per_tile = A::loads_per_wave + B::loads_per_wave;
    // A K tile is all that a compute unit can have under way: two of one operand, then two of the other.
    static constexpr bool pairs =
        direct && buffers == 4 && TileA::bytes == TileB::bytes && TileA::bytes + TileB::bytes == 256 * 128;
    // K tile t > 0 comes through set (t - 1) % sets of the registers that loads fill, tile 0 through the last one.
    static constexpr int sets = pairs ? 2 : direct ? 1 : config.in_registers;
    static_assert(sets >= 1);

    using Stream = typename stream_of<A, B, 1, pairs>::type;

    kittens::shared_byte* lds;
    RunningViews<A, B> views;
    A a;
    B b;
    Stream first, second;  // the operand whose two K tiles are loaded first, and the other
    int row, col;          // of the wave's part of the tile
    Accumulator sums[1][1];
    RegistersA a_registers[2];
    RegistersB b_registers;

    KITTENS_DEVICE TileA a_tile(int buffer) const { return {lds + buffer * TileA::bytes}; }
    KITTENS_DEVICE TileB b_tile(int buffer) const {
        return {lds + buffers * TileA::bytes + buffer * TileB::bytes};
    }
    KITTENS_DEVICE static int after(int buffer) { return buffer + 1 == buffers ? 0 : buffer + 1; }

    template <int set>
    KITTENS_DEVICE void issue(int buffer) {
        a.loads.template issue_prepared<set>(views.a, a_tile(buffer));
        b.loads.template issue_prepared<set>(views.b, b_tile(buffer));
        views.template advance<false>();
    }
    template <int set>
    KITTENS_DEVICE void commit(int buffer) const {
        a.loads.template commit<set>(a_tile(buffer));
        b.loads.template commit<set>(b_tile(buffer));
    }
    template <int index>
    KITTENS_DEVICE void read_a(int set, int buffer, int k) {
        A::template read_base<index>(a_registers[set], a_tile(buffer), row, k);
    }
    template <int index>
    KITTENS_DEVICE void read_b(int buffer, int k) {
        B::template read_base<index>(b_registers, b_tile(buffer), col, k);
    }
    // Down a column of base tiles, then the next: as soon as a column is done, its base tile of B can be replaced.
    template <int index>
    KITTENS_DEVICE void multiply(int set) {
        constexpr int i = index % height, j = index / height;
        auto& sum = sums[0][0].tiles[i][j];
        sum = kittens::multiply_base<kittens::row_l, typename Accumulator::shape>(
            A::template base_of<i>(a_registers[set]), B::template base_of<j>(b_registers), sum);
    }

    // Through registers: every write to LDS and every load by itself, each operand's loads behind its writes.
    static constexpr int a_places = A::Loads::commit_items, a_moves = a_places + A::Loads::issue_items,
                         b_places = B::Loads::commit_items,
                         moves = a_moves + b_places + B::Loads::issue_items;
    template <int set, bool refilled, int index>
    KITTENS_DEVICE void move(int buffer) {
        if constexpr (index < a_places)
            a.loads.template commit_item<index, set>(a_tile(buffer));
        else if constexpr (index < a_moves && refilled)
            a.loads.template issue_item<index - a_places, set>(views.a);
        else if constexpr (index >= a_moves && index < a_moves + b_places)
            b.loads.template commit_item<index - a_moves, set>(b_tile(buffer));
        else if constexpr (index >= a_moves && refilled)
            b.loads.template issue_item<index - a_moves - b_places, set>(views.b);
        if constexpr (index == moves - 1 && refilled) views.template advance<false>();
    }

    static constexpr int within(int product) { return product < multiplies ? product : multiplies - 1; }

    // One K tile in buffer `buffer`. `first_set`: the registers that hold its first step of A. `loaded`: the set that
    // the next tile has been loaded to (pairs: whether this one is odd). `refilled`: later tiles are loaded. `last`: no
    // other tile comes after it.
    template <int first_set, int loaded, bool refilled, bool last>
    KITTENS_DEVICE void tile(int buffer) {
        kittens::for_each_index<steps>([&](auto step) {
            constexpr int set = (first_set + step.value) % 2;
            constexpr bool ends = step.value == steps - 1;
            constexpr bool meets = ends && !last, reads = !ends || !last;
            // From which product on the next step can be read.
            constexpr int from = meets ? before_meeting : 0;
            const int next_buffer = ends ? after(buffer) : buffer,
                      next_k = ends ? 0 : (step.value + 1) * step_k;
            kittens::for_each_index<multiplies>([&](auto product) {
                constexpr int now = product.value;
                if constexpr (meets && now == from) {
                    // Pairs: behind an odd tile, of the second operand's two the younger may be under way; behind an even
                    // one both of the next first operand.
                    if constexpr (pairs)
                        kittens::wait<loaded ? loads_per_tile / 2 : loads_per_tile, 0>();
                    else if constexpr (direct)
                        kittens::wait<(buffers - 2) * loads_per_tile, 0>();
                    else
                        kittens::wait_lds<0>();
                    kittens::s_barrier();
                }
                multiply<now>(set);
                kittens::schedule_fence();
                if constexpr (reads) {
                    kittens::for_each_index<height>([&](auto base) {
                        if constexpr (now == within(from + 2 * base.value)) {
                            read_a<base.value>(1 - set, next_buffer, next_k);
                            kittens::schedule_fence();
                        }
                    });
                    kittens::for_each_index<width>([&](auto column) {
                        constexpr int done = column.value * height + height - 1,
                                      turn = from + 2 * column.value + 1;
                        if constexpr (now == within(done < turn ? turn : done)) {
                            read_b<column.value>(next_buffer, next_k);
                            kittens::schedule_fence();
                        }
                    });
                }
                // What comes through registers is written before the workgroup meets.
                if constexpr (!direct && !last) {
                    constexpr int products = (steps - 1) * multiplies + before_meeting,
                                  at = step.value * multiplies + now;
                    kittens::for_each_index<moves>([&](auto index) {
                        if constexpr (index.value * products / moves == at) {
                            move<loaded, refilled, index.value>(after(buffer));
                            kittens::schedule_fence();
                        }
                    });
                }
                if constexpr (meets && direct && now == within(from + height)) {
                    if constexpr (!pairs)
                        issue<0>(buffer);
                    else if constexpr (refilled)
                        issue_pair<loaded>(buffer);
                    kittens::schedule_fence();
                }
            });
        });
    }
    // Behind an odd K tile t the first operand of t + 3 and t + 4, behind an even one the second of t + 2 and t + 3.
    template <int is_odd>
    KITTENS_DEVICE void issue_pair(int buffer) {
        Stream& stream = is_odd ? first : second;
        const int before = buffer == 0 ? buffers - 1 : buffer - 1;
        stream.template issue<0, false>(is_odd ? before : (buffer + 2) % buffers);
        stream.template issue<0, false>(is_odd ? buffer : before);
    }
    template <int loaded, bool refilled>
    KITTENS_DEVICE void next_tile(int& left, int& buffer) {
        tile<0, loaded, refilled, false>(buffer);
        buffer = after(buffer);
        --left;
    }
    // Those that are left behind whole turns of the sets, but for the last; nothing remains to be loaded.
    template <int loaded = 0>
    KITTENS_DEVICE void tiles_behind(int& left, int& buffer) {
        if constexpr (loaded + 1 < sets)
            if (left > 1) {
                next_tile<loaded, false>(left, buffer);
                tiles_behind<loaded + 1>(left, buffer);
            }
    }

    KITTENS_DEVICE InterleavedLoop(kittens::shared_byte* lds, const SourceA& source_a,
                                   const SourceB& source_b, KRange range)
        : lds(lds), views(source_a, source_b, range) {}

    KITTENS_DEVICE static void run(const GemmArguments& arguments, WorkgroupPlace place,
                                   kittens::shared_byte* lds) {
        const SourceA source_a(arguments.a, place.batch, arguments.m, arguments.k, place.m);
        const SourceB source_b(arguments.b, place.batch, arguments.n, arguments.k, place.n);
        const KRange range(arguments, place.split, config.tile_k);
        InterleavedLoop(lds, source_a, source_b, range).run(place, source_a, source_b, range);
    }
    KITTENS_DEVICE void run(WorkgroupPlace where, const SourceA& source_a, const SourceB& source_b,
                            KRange range) {
        const int wave = kittens::wave_id();
        row = wave / config.waves_n * config.wave_m();
        col = wave % config.waves_n * config.wave_n();
        a.init_offsets(source_a, 0);
        b.init_offsets(source_b, 0);
        if constexpr (pairs) {
            const bool is_a = loads_a_first(where, config);
            const A of_a[1] = {a};
            const B of_b[1] = {b};
            const kittens::buffer a_first = source_a.window(range.last).view(),
                                  b_first = source_b.window(range.last).view();
            first.init_offsets(is_a, of_a, of_b, views, a_first, b_first, a_tile(0).data, b_tile(0).data,
                               range);
            second.init_offsets(!is_a, of_a, of_b, views, a_first, b_first, a_tile(0).data, b_tile(0).data,
                                range);
            first.issue_first(0);
            second.issue_first(0);
        } else {
            a.template issue_valid<sets - 1>(source_a.window(range.last).view(), a_tile(0), range.valid_k);
            b.template issue_valid<sets - 1>(source_b.window(range.last).view(), b_tile(0), range.valid_k);
        }
        if constexpr (!direct) {
            // In this order: what the loop waits for is counted from here on.
            kittens::for_each_index<sets - 1>([&](auto set) {
                kittens::schedule_fence();
                issue<set.value>(0);
            });
            kittens::schedule_fence();
            commit<sets - 1>(0);
            issue<sets - 1>(0);
            kittens::schedule_fence();
        }
        if (range.cuts_a_chunk()) {
            if constexpr (direct) kittens::wait_vector_memory<0>();
            kittens::barrier();
            A::clear_past(a_tile(0), range.valid_k);
            B::clear_past(b_tile(0), range.valid_k);
        }
        if constexpr (pairs) {
            kittens::
                s_barrier();  // the loads of all waves stand in one line: the first tile's before any others
            first.template issue<0, false>(1);
            second.template issue<0, false>(1);
            issue_pair<1>(3);
            kittens::wait_vector_memory<2 * loads_per_tile>();
        } else if constexpr (direct) {
            for (int buffer = 1; buffer < buffers; ++buffer) issue<0>(buffer);
            kittens::wait_vector_memory<(buffers - 1) * loads_per_tile>();
        }
        zero(sums[0][0]);
        kittens::barrier();
        kittens::for_each_index<height>([&](auto index) { read_a<index.value>(0, 0, 0); });
        kittens::for_each_index<width>([&](auto index) { read_b<index.value>(0, 0); });

        int left = range.count();
        if constexpr (steps % 2 == 0) {
            int buffer = 0;
            while (left > sets)
                kittens::for_each_index<sets>([&](auto set) { next_tile<set.value, true>(left, buffer); });
            tiles_behind(left, buffer);
            tile<0, 0, false, true>(buffer);
        } else {
            // Registers change places with every tile: two at a time, and one of zeros behind an odd number.
            static_assert(!direct && buffers == 2, "a tile past the last is zero because registers are");
            static_assert(2 % sets == 0);
            for (; left > 2; left -= 2) {
                tile<0, 0, true, false>(0);
                tile<1, 1 % sets, true, false>(1);
            }
            tile<0, 0, false, false>(0);
            tile<1, 1 % sets, false, true>(1);
        }
        // The product goes out through LDS: nothing of any wave may still be on its way there.
        if constexpr (direct) kittens::wait_vector_memory<0>();
        kittens::barrier();
        store_product<lds_bytes / waves>(sums, kittens::reload_arguments<GemmArguments>(), where, row, col, 0,
                                         0, lds + wave * (lds_bytes / waves));
    }
};

}  // namespace hipkittens::gemm
