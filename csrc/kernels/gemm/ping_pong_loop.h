// kernels/gemm/ping_pong_loop.h: eight waves in two groups; a K tile is four phases, each moving a half tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"
#include "operand_stream.h"

namespace hipkittens::gemm {

template <GemmConfig config>
struct PingPongLoop : LoopOperands<config, config.tile_m / 2, config.tile_n / 2> {
    // A wave multiplies two bands of rows by two bands of columns, one of each half of the tile: as soon as
    // every wave has read its first band, the first half of the buffer is free.
    static constexpr int half_m = config.tile_m / 2, half_n = config.tile_n / 2;
    static constexpr int band_m = config.wave_m() / 2, band_n = config.wave_n() / 2;
    using Operands = LoopOperands<config, half_m, half_n>;
    using typename Operands::A, typename Operands::B, typename Operands::SourceA, typename Operands::SourceB,
        typename Operands::TileA, typename Operands::TileB;
    static_assert(config.waves_m * config.waves_n == 8, "ping-pong is a schedule of eight waves");
    static constexpr bool direct = A::fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * 2 * (TileA::bytes + TileB::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the K tiles under way fit in LDS");

    using Band = kittens::rt<float, band_m, band_n, kittens::row_l,
                             kittens::base_shape<config.matrix, config.matrix, 4>>;
    using RegistersA = typename A::template Registers<band_m, config.tile_k>;
    using RegistersB = typename B::template Registers<band_n, config.tile_k>;

    // Phase 0 reads the first half of A, 1 the second half of B, 2 the second half of A, 3 the first half of B of the
    // next tile, which leaves no phase more reads than products hide. A half is refilled after the phase that read it.
    // Direct loads: phases 0 and 1 load the halves of one operand for the next tile, 2 and 3 those of the other for the
    // one after it. Through registers a half's load begins one phase after its registers were written to LDS (for the
    // second half of A two), so that only three halves occupy registers; the compiler counts these loads.
    static constexpr int phases = 4;
    struct DirectLoads {
        static constexpr int loads = A::loads_per_wave;
        static constexpr int needed_after(int phase) {
            // A one tile ahead and B two; and the other way round.
            constexpr kittens::Pipeline<4> a_first{
                phases, {{0, 0, 1, loads}, {1, 2, 1, loads}, {2, -1, 2, loads}, {3, 1, 2, loads}}};
            constexpr kittens::Pipeline<4> b_first{
                phases, {{0, -1, 1, loads}, {1, 1, 1, loads}, {2, 0, 2, loads}, {3, 2, 2, loads}}};
            const int one = a_first.outstanding_after(phase), other = b_first.outstanding_after(phase);
            return one < other ? one : other;
        }
        // What has arrived after phase 0 (2) is enough for the phase behind the next one as well.
        static constexpr int outstanding_after(int phase) {
            return phase % 2 == 0 ? needed_after(phase) : -1;
        }
        static_assert(needed_after(1) >= needed_after(0) + loads &&
                      needed_after(3) >= needed_after(2) + loads);
    };
    using Stream = typename stream_of<A, B, 2, direct>::type;

    kittens::shared_byte* lds;
    SourceA source_a;
    SourceB source_b;
    KRange range;
    A a[2];
    B b[2];
    RunningViews<A, B> views;
    Stream near, far;  // the operand that is loaded one tile ahead, and the one two tiles ahead
    uint32_t b_begin;
    int row, col;  // of the wave's bands in their halves
    Band sum[2][2];
    RegistersA a_registers;
    RegistersB b_registers[2];

    KITTENS_DEVICE PingPongLoop(const GemmArguments& arguments, WorkgroupPlace place,
                                kittens::shared_byte* lds)
        : lds(lds),
          source_a(arguments.a, place.batch, arguments.m, arguments.k, place.m),
          source_b(arguments.b, place.batch, arguments.n, arguments.k, place.n),
          range(arguments, place.split, config.tile_k),
          views(source_a, source_b, range) {}

    KITTENS_DEVICE TileA a_tile(int buffer, int half) const {
        return {lds + (buffer * 2 + half) * TileA::bytes};
    }
    KITTENS_DEVICE TileB b_tile(int buffer, int half) const {
        return {lds + buffers * 2 * TileA::bytes + (buffer * 2 + half) * TileB::bytes};
    }
    // The same for reading: B lies beyond the 64 KiB that an offset field spans, so its beginning is part of
    // the register.
    KITTENS_DEVICE TileB b_tile_read(int buffer, int half) const {
        if constexpr (lds_bytes <= 65536) return b_tile(buffer, half);
        return {lds + b_begin + (buffer * 2 + half) * TileB::bytes};
    }

    template <int half, bool steady = false>
    KITTENS_DEVICE void issue_a(int buffer) {
        a[half].loads.issue_prepared(views.a, a_tile(buffer, half));
        if constexpr (half == 1) views.template advance<steady>();  // the last of a tile's four
    }
    template <int half>
    KITTENS_DEVICE void issue_b(int buffer) {
        b[half].loads.issue_prepared(views.b, b_tile(buffer, half));
    }
    // What phase `phase` does for later tiles.
    template <int buffer, int phase, bool steady>
    KITTENS_DEVICE void refill() {
        if constexpr (direct) {
            if constexpr (phase < 2) near.template issue<phase, steady>(1 - buffer);
            if constexpr (phase >= 2) far.template issue<phase - 2, steady>(buffer);
        } else {
            if constexpr (phase == 1) b[0].loads.commit(b_tile(0, 0));
            if constexpr (phase == 2) a[0].loads.commit(a_tile(0, 0));
            if constexpr (phase == 3) b[1].loads.commit(b_tile(0, 1));
            if constexpr (phase == 3) a[1].loads.commit(a_tile(0, 1));
            if constexpr (phase == 0) issue_b<1>(0);
            if constexpr (phase == 1) issue_a<1, steady>(0);
            if constexpr (phase == 2) issue_b<0>(0);
            if constexpr (phase == 3) issue_a<0>(0);
        }
    }

    KITTENS_DEVICE void read_first_b(int buffer) {
        B::template read<band_n, config.tile_k>(b_registers[0], b_tile_read(buffer, 0), col, 0);
    }

    // A band's products. The groups meet before the last of them.
    static constexpr int products = Band::height * Band::width * (config.tile_k / A::base::cols),
                         before_meeting = products - 1;
    template <int phase, class Products>
    KITTENS_DEVICE void multiply_band() {
        constexpr int band_row = phase / 2, band_col = phase % 2;
        multiply<A, B, Products>(sum[band_row][band_col], a_registers, b_registers[band_col]);
    }

    // One K tile in LDS buffer `buffer`.
    template <int buffer, bool steady>
    KITTENS_DEVICE void tile() {
        using Loads = kittens::choose<direct, DirectLoads, kittens::compiler_waits>;
        kittens::ping_pong_phases<phases, Loads>(
            [&](auto phase) {
                if constexpr (phase.value == 0) {
                    A::template read<band_m, config.tile_k>(a_registers, a_tile(buffer, 0), row, 0);
                } else if constexpr (phase.value == 1) {
                    B::template read<band_n, config.tile_k>(b_registers[1], b_tile_read(buffer, 1), col, 0);
                } else if constexpr (phase.value == 2) {
                    A::template read<band_m, config.tile_k>(a_registers, a_tile(buffer, 1), row, 0);
                } else {
                    read_first_b(buffers == 2 ? 1 - buffer : 0);
                }
                refill<buffer, phase.value, steady>();
            },
            [&](auto phase) { multiply_band<phase.value, kittens::base_products<0, before_meeting>>(); },
            [&](auto phase) {
                multiply_band<phase.value, kittens::base_products<before_meeting, products>>();
            });
    }

    KITTENS_DEVICE static void run(const GemmArguments& arguments, WorkgroupPlace place,
                                   kittens::shared_byte* lds) {
        PingPongLoop(arguments, place, lds).run(place);
    }
    // As if two tiles before the first had run.
    KITTENS_DEVICE void begin_loads(WorkgroupPlace place) {
        const kittens::buffer a_last = source_a.window(range.last).view(),
                              b_last = source_b.window(range.last).view();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            a[half].init_offsets(source_a, half * half_m);
            b[half].init_offsets(source_b, half * half_n);
        }
        if constexpr (direct) {
            const bool a_is_near = loads_a_first(place, config);
            near.init_offsets(a_is_near, a, b, views, a_last, b_last, a_tile(0, 0).data, b_tile(0, 0).data,
                              range);
            far.init_offsets(!a_is_near, a, b, views, a_last, b_last, a_tile(0, 0).data, b_tile(0, 0).data,
                             range);
            near.issue_first(0);
            far.issue_first(0);
            // Loads of all waves stand in one line: what everyone needs first comes before what any wave needs later.
            kittens::s_barrier();
            far.issue_first(1);
            near.issue_first(1);
            far.template issue<0, false>(1);
            far.template issue<1, false>(1);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                b[half].issue_valid(b_last, b_tile(0, half), range.valid_k);
                a[half].issue_valid(a_last, a_tile(0, half), range.valid_k);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                b[half].loads.commit(b_tile(0, half));
                a[half].loads.commit(a_tile(0, half));
            }
            issue_b<0>(0);
            issue_a<0>(0);
        }
    }
    KITTENS_DEVICE int left() const {
        if constexpr (direct)
            return near.left;
        else
            return views.left;
    }

    KITTENS_DEVICE void run(WorkgroupPlace place) {
        const int wave = kittens::wave_id();
        row = wave / config.waves_n * band_m;
        col = wave % config.waves_n * band_n;
        b_begin = kittens::opaque(buffers * 2 * TileA::bytes);
        begin_loads(place);
        if (range.cuts_a_chunk()) {
            if constexpr (direct) kittens::wait_vector_memory<0>();
            kittens::barrier();
            for (int half = 0; half < 2; ++half) {
                A::clear_past(a_tile(0, half), range.valid_k);
                B::clear_past(b_tile(0, half), range.valid_k);
            }
        }
        if constexpr (direct) kittens::wait_vector_memory<4 * A::loads_per_wave>();  // the first halves
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) zero(sum[i][j]);
        kittens::barrier();
        read_first_b(0);

        kittens::eight_wave_ping_pong(wave, [&] {
            // `left()` goes down by one with every tile, from one less than their number.
            if constexpr (direct)
                while (far.left > 2) {
                    tile<0, true>();
                    tile<1, true>();
                }
            while (true) {
                tile<0, false>();
                if (left() < 0) break;
                if constexpr (buffers == 2) {
                    tile<1, false>();
                    if (left() < 0) break;
                }
            }
        });
        // The product goes out through LDS: nothing of any wave may still be on its way there.
        if constexpr (direct) kittens::wait_vector_memory<0>();
        kittens::barrier();
        store_product<lds_bytes / 8>(sum, kittens::reload_arguments<GemmArguments>(), place, row, col, half_m,
                                     half_n, lds + wave * (lds_bytes / 8));
    }
};

}  // namespace hipkittens::gemm
