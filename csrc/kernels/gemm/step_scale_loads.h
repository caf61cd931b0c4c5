// kernels/gemm/step_scale_loads.h: loads scale factors of 1 row by 32 of K from memory to the lanes that use them, without LDS.
// SPDX-License-Identifier: MIT
#pragma once
#include "step_scales.h"

namespace hipkittens::gemm {

// Where operands go through registers: every lane loads its own words of the rows of one operand that belong to the wave, which
// are whole blocks or half of one.
template <GemmConfig config, int rows>
struct StepScaleLoads {
    using Words = StepScaleWords<config>;
    static constexpr int steps = Words::steps, blocks = (rows + scale_block_rows - 1) / scale_block_rows;
    static constexpr bool has_half = rows == scale_block_rows / 2;
    static_assert(has_half || rows % scale_block_rows == 0);
    using InMemory = choose<steps == 1, uint16_t, uint32_t>;

    buffer first_view;
    tile_iterator<tiles_of_scale_blocks> k_tiles;
    uint32_t offsets[blocks];
    int shift;  // to the bytes of the rows' half

    // For `extent` rows, the first of which begins block `begin`: those from `first` on.
    KITTENS_DEVICE StepScaleLoads(const ScaleArgument& scale, int64_t batch, int begin, int extent, int first,
                                  KRange range)
        : shift(has_half ? first / 16 % 2 * 8 : 0) {
        const int past = (extent + scale_block_rows - 1) / scale_block_rows, block = first / scale_block_rows;
        const char* data = static_cast<const char*>(scale.data) + batch * scale.batch_stride +
                           (begin + block) * scale.stride;
        const buffer view = global_window{data, block < past ? (past - block) * scale.stride : 0}.view();
        const auto at = [&](int k_tile) KITTENS_INLINE {
            const int step = k_tile * steps;
            return buffer{view.base, view.bytes,
                          static_cast<uint32_t>(step / 2 * scale_block_bytes + step % 2 * 2)};
        };
        first_view = at(range.last);
        // From one half of a block to the other, and then to the next block; or from block to block.
        const uint32_t both = steps * scale_block_bytes;
        const uint32_t step = steps == 2 ? both / 2 : range.begin % 2 ? both - 2 : 2;
        k_tiles = {{at(range.begin), step, both}, range.count() - 1};
        if (k_tiles.left == 0) k_tiles.source.close();
#pragma unroll
        for (int i = 0; i < blocks; ++i) offsets[i] = static_cast<uint32_t>(i * scale.stride) + lane_id() * 4;
    }
    KITTENS_DEVICE void load(uint32_t (&words)[blocks], buffer source) const {
#pragma unroll
        for (int i = 0; i < blocks; ++i) words[i] = buffer_load<InMemory>(source, offsets[i]) >> shift;
    }
    // For the range's first K tile, and for the next one.
    KITTENS_DEVICE void load_first(uint32_t (&words)[blocks]) const { load(words, first_view); }
    KITTENS_DEVICE void load_next(uint32_t (&words)[blocks]) { load(words, k_tiles.next()); }
    KITTENS_DEVICE static void clear_past(uint32_t (&words)[blocks], int valid_k) {
        if (valid_k == config.tile_k) return;
#pragma unroll
        for (int i = 0; i < blocks; ++i) words[i] = Words::without_past(words[i], valid_k);
    }
};

// For the interleaved loop: B's factors, two K tiles ahead.
template <GemmConfig config>
struct StepScalesInRegisters : StepScaleWords<config> {
    static_assert(config.tile_k == 128 && config.scales == Scales::of_b);
    static constexpr int loads_per_wave = 0, buffer_bytes = 0;
    using Loads = StepScaleLoads<config, config.wave_n()>;

    Loads loads;
    uint32_t ready[Loads::blocks], pending[Loads::blocks];
    int valid_k;  // of the first K tile

    KITTENS_DEVICE StepScalesInRegisters(const ScaledGemmArguments& arguments, TileCoordinate tile,
                                         KRange range, shared_byte*, int, int col)
        : loads(arguments.b_scale, tile.batch, 0, arguments.n, tile.n + col, range), valid_k(range.valid_k) {}
    KITTENS_DEVICE void issue_first() {
        loads.load_first(ready);
        loads.clear_past(ready, valid_k);
        loads.load_next(pending);
    }
    template <bool steady = false>
    KITTENS_DEVICE void issue(int) const {}
    KITTENS_DEVICE void clear_past(int) const {}
    KITTENS_DEVICE void next_tile() {
#pragma unroll
        for (int i = 0; i < Loads::blocks; ++i) ready[i] = pending[i];
        loads.load_next(pending);
    }
    template <int first, int past, class Registers>
    KITTENS_DEVICE void read_a(Registers&, int, int = 0) const {}
    template <int first, int past, class Registers>
    KITTENS_DEVICE void read_b(Registers& registers, int, int = 0) const {
#pragma unroll
        for (int i = first; i < past; ++i)
            if (i % 2 == 0) registers.words[i / 2] = ready[i / 2];
    }
};

// For the streamed loop, which has the registers: the factors of both operands, as many K tiles ahead as its loads.
template <GemmConfig config>
struct StreamedStepScales : StepScaleWords<config> {
    using Words = StepScaleWords<config>;
    static constexpr int loads_per_wave = 0, buffer_bytes = 0;

    StepScaleLoads<config, config.wave_m()> a;  // unused if A has none
    StepScaleLoads<config, config.wave_n()> b;
    int valid_k;  // of the first K tile

    KITTENS_DEVICE StreamedStepScales(const ScaledGemmArguments& arguments, TileCoordinate tile, KRange range,
                                      shared_byte*, int row, int col)
        // The rows of a group begin on the block after those that the preceding groups may have.
        : a(arguments.a_scale, tile.batch, tile.first_row / scale_block_rows, arguments.m - tile.first_row,
            tile.m - tile.first_row + row, range),
          b(arguments.b_scale, tile.batch, 0, arguments.n, tile.n + col, range),
          valid_k(range.valid_k) {}
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void load_first(RegistersA& of_a, RegistersB& of_b) const {
        if constexpr (Words::of_a_too) a.load_first(of_a.words);
        b.load_first(of_b.words);
    }
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void load_next(RegistersA& of_a, RegistersB& of_b) {
        if constexpr (Words::of_a_too) a.load_next(of_a.words);
        b.load_next(of_b.words);
    }
    // After the loads of the first K tile.
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void clear_past(RegistersA& of_a, RegistersB& of_b) const {
        if constexpr (Words::of_a_too) a.clear_past(of_a.words, valid_k);
        b.clear_past(of_b.words, valid_k);
    }
};

}  // namespace hipkittens::gemm
