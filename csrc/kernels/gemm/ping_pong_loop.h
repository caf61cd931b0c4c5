// kernels/gemm/ping_pong_loop.h: eight waves in two groups; a K tile has four phases, each of which moves half a tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "main_loop.h"

namespace hipkittens::gemm {

// A wave multiplies two bands of rows by two bands of columns, one from each half of the tile: as soon as every wave
// has read its first band, the first half of the buffer is free.
template <GemmConfig config, class Policy>
struct PingPongLoop : MainLoop<config, Policy, 2> {
    using Base = MainLoop<config, Policy, 2>;
    using Base::direct, Base::alternate, Base::buffers, Base::steps, Base::height, Base::width,
        Base::operand_bytes;
    using Base::lds, Base::in_flight, Base::sums, Base::row, Base::col, Base::a_tile, Base::b_tile;
    using typename Base::A, typename Base::B;
    static_assert(config.threads() == 512, "ping-pong is a schedule of eight waves");

    // Phase 0 reads the first half of A, 1 the second half of B, 2 the second half of A, 3 the first half of B of the next
    // tile, so that no phase has more reads than its products cover. A half is refilled after the phase that read it.
    // Direct loads: phases 0 and 1 load the halves of one operand for the next tile, 2 and 3 those of the other operand
    // for the tile after it. Through registers, the load of a half begins one phase after its registers were written to
    // LDS (two for the second half of A), so that only three halves occupy registers; the compiler counts these loads.
    static constexpr int phases = 4;
    struct DirectLoads {
        static constexpr int near = A::Loads::loads_per_wave, far = B::Loads::loads_per_wave;
        static_assert(!alternate || near == far,
                      "either operand may be the one that is loaded one tile ahead");
        static constexpr load_stage of_accumulation{0, 0, 1, Base::Accumulation::loads_per_tile};
        // Factors of the matrix steps come last, and are first read with the first half of B.
        static constexpr load_stage factors{3, -1, 2, Base::StepFactors::loads_per_wave};
        static constexpr load_pipeline<6> a_is_near{
            phases,
            {of_accumulation, {0, 0, 1, near}, {1, 2, 1, near}, {2, -1, 2, far}, {3, 1, 2, far}, factors}};
        static constexpr load_pipeline<6> b_is_near{
            phases,
            {of_accumulation, {0, -1, 1, near}, {1, 1, 1, near}, {2, 0, 2, far}, {3, 2, 2, far}, factors}};
        // Every other phase waits for what the next two phases read.
        static constexpr int in_flight_after(int phase) {
            if (phase % 2 != 0) return any_vector_memory;
            const int one = a_is_near.in_flight(phase, 2), other = b_is_near.in_flight(phase, 2);
            return alternate && other < one ? other : one;
        }
    };

    uint32_t b_begin;
    typename Base::template RegistersA<config.tile_k> a_registers;
    typename Base::template RegistersB<config.tile_k> b_registers[2];
    typename Base::StepFactors::template Registers<height> a_scales;
    typename Base::StepFactors::template Registers<width> b_scales[2];

    using Base::Base;

    KITTENS_DEVICE void read_a(int buffer, int half) {
        A::template read<base_tiles<0, height, 0, steps>>(a_registers, a_tile(buffer, half), row, 0);
        this->scales.template read_a<0, height>(a_scales, buffer, half);
    }
    KITTENS_DEVICE void read_b(int buffer, int half) {
        typename B::Tile tile = b_tile(buffer, half);
        // Past the 64 KiB that an offset field covers, the beginning of B is part of the address register.
        if constexpr (operand_bytes > 65536) tile.data = lds + b_begin + (buffer * 2 + half) * B::Tile::bytes;
        B::template read<base_tiles<0, width, 0, steps>>(b_registers[half], tile, col, 0);
        this->scales.template read_b<0, width>(b_scales[half], buffer, half);
    }
    // For values that change with the last tiles: where the loop carries dwords of B, the compiler keeps them in vector registers, which no
    // load accepts. A load in assembly needs five wait states after the move (CDNA3 ISA manual 4.5), which the compiler does not insert.
    KITTENS_DEVICE static void in_scalars(buffer& source) {
        source.bytes = uniform(source.bytes);
        source.scalar_offset = uniform(source.scalar_offset);
        asm("s_nop 4" : "+s"(source.bytes), "+s"(source.scalar_offset));
    }
    // The loads for later tiles in phase `phase`.
    template <int buffer, int phase, bool steady>
    KITTENS_DEVICE void refill() {
        auto& [near, far] = in_flight;  // loaded one tile ahead, and two
        if constexpr (direct) {
            if constexpr (B::read_as_dwords && !steady) {
                if constexpr (phase < 2) in_scalars(near.k_tiles.source.current);
                if constexpr (phase >= 2) in_scalars(far.k_tiles.source.current);
                if constexpr (phase == 3) in_scalars(this->scales.k_tiles.source.current);
            }
            if constexpr (phase == 0) this->accumulation.issue(1 - buffer);
            if constexpr (phase < 2) near.template issue<phase>(1 - buffer);
            if constexpr (phase == 1) near.k_tiles.template advance<steady>();
            if constexpr (phase >= 2) far.template issue<phase - 2>(buffer);
            if constexpr (phase == 3) {
                far.k_tiles.template advance<steady>();
                this->scales.template issue<steady>(buffer);
            }
        } else {
            auto& [a, b] = in_flight;
            if constexpr (phase == 1) b.loads[0].commit(b_tile(0, 0));
            if constexpr (phase == 2) a.loads[0].commit(a_tile(0, 0));
            if constexpr (phase == 3) b.loads[1].commit(b_tile(0, 1));
            if constexpr (phase == 3) a.loads[1].commit(a_tile(0, 1));
            if constexpr (phase == 0) b.template issue<1>(0);
            if constexpr (phase == 1) a.template issue<1>(0), this->template advance_both<steady>();
            if constexpr (phase == 2) b.template issue<0>(0);
            if constexpr (phase == 3) a.template issue<0>(0);
        }
    }

    // One K tile in LDS buffer `buffer`.
    template <int buffer, bool steady>
    KITTENS_DEVICE void k_tile() {
        constexpr int products = height * width * steps;  // per phase, a band of rows by a band of columns
        ping_pong<0, phases, choose<direct, DirectLoads, loads_to_registers>>(
            work<every_slot{0, phases, products}>([&](auto product) KITTENS_INLINE {
                constexpr int phase = product.value / products,
                              k = product.value % products / (height * width),
                              i = product.value / width % height, j = product.value % width;
                this->template multiply<i, j, k, k == 0>(sums[phase / 2][phase % 2], a_registers,
                                                         b_registers[phase % 2], a_scales,
                                                         b_scales[phase % 2]);
            }),
            work<every_slot{0, phases}>([&](auto phase) KITTENS_INLINE {
                if constexpr (phase.value == 0) read_a(buffer, 0);
                if constexpr (phase.value == 1) read_b(buffer, 1);
                if constexpr (phase.value == 2) read_a(buffer, 1);
                if constexpr (phase.value == 3) {
                    this->scales.next_tile();
                    read_b(buffers == 2 ? 1 - buffer : 0, 0);
                }
            }),
            work<every_slot{0, phases}>([&](auto phase)
                                            KITTENS_INLINE { refill<buffer, phase.value, steady>(); }),
            // After the latency of the products; those of the other group run meanwhile.
            work<every_slot{0, Base::promotes ? phases : 0}>([&](auto phase) KITTENS_INLINE {
                promote_band<(phase.value + phases - 1) % phases>();
                if constexpr (phase.value == 0) this->accumulation.begin_k_tile();
                this->accumulation.template read<phase.value / 2, phase.value % 2>(buffer);
                this->accumulation.begin_band();
            }));
    }
    // For the products of a phase.
    template <int phase>
    KITTENS_DEVICE void promote_band() {
        for_each_index<height * width>([&](auto n) KITTENS_INLINE {
            this->template promote<n.value / width, n.value % width, phase / 2, phase % 2>();
        });
    }

    // Issues loads as if two tiles before the first had run.
    KITTENS_DEVICE void begin_loads() {
        auto& [near, far] = in_flight;
        this->accumulation.issue_first(0);
        if constexpr (direct) {
            near.issue_first(0);
            far.issue_first(0);
            this->scales.issue_first();
            // The compute unit's FIFO load queue is shared by its waves: what all waves need first goes before the rest.
            s_barrier();
            far.issue_first(1);
            near.issue_first(1);
            far.template issue<0>(1);
            far.template issue<1>(1);
            far.k_tiles.advance();
            this->scales.issue(1);
        } else {
            auto& [a, b] = in_flight;
#pragma unroll
            for (int half = 0; half < 2; ++half) b.issue_first(half), a.issue_first(half);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                b.loads[half].commit(b_tile(0, half));
                a.loads[half].commit(a_tile(0, half));
            }
            b.template issue<0>(0);
            a.template issue<0>(0);
        }
    }
    KITTENS_DEVICE void run(TileCoordinate tile) {
        b_begin = opaque(Base::b_begin);
        begin_loads();
        this->clear_past_k();
        if constexpr (direct)
            wait_vector_memory<A::Loads::loads_per_wave + 3 * B::Loads::loads_per_wave +
                               Base::StepFactors::loads_per_wave>();  // the first halves
        this->clear_sums();
        barrier();
        read_b(0, 0);

        stagger_wave_groups(wave_id(), [&] {
            // `left` decreases by one with every tile, starting from one less than their number.
            const int &left = in_flight.first.k_tiles.left, &left_of_far = in_flight.second.k_tiles.left;
            if constexpr (direct)
                while (left_of_far > 2) {
                    k_tile<0, true>();
                    k_tile<1, true>();
                }
            while (true) {
                k_tile<0, false>();
                if (left < 0) break;
                if constexpr (buffers == 2) {
                    k_tile<1, false>();
                    if (left < 0) break;
                }
            }
        });
        if constexpr (Base::promotes) promote_band<phases - 1>();
        this->store(tile);
    }
};

}  // namespace hipkittens::gemm
