// kernels/gemm/step_scales.h: e8m0 factors of 1 row by 32 of K, which the matrix instruction takes along with its operands.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

// In memory, factors are laid out as the lanes of the instruction need them: blocks of 32 rows by 8 columns (256 of K), one
// dword per lane. Lane 16 j + r has those of rows r and r + 16 in columns j and j + 4: bytes 0 and 1, then 2 and 3 (AITER's
// e8m0_shuffle, SWIZZLE_32_8 of PyTorch). Blocks of a band of 32 rows are consecutive; past the end of K there may be anything.
inline constexpr int scale_block_rows = 32, scale_block_bytes = 256, scale_block_k = 256, scale_k = 32;

// The interface for a loop whose products have no such factors.
struct NoStepScales {
    static constexpr bool present = false;
    static constexpr int loads_per_wave = 0, buffer_bytes = 0;
    template <int base_tiles>
    struct Registers {};

    template <class Arguments>
    KITTENS_DEVICE NoStepScales(const Arguments&, TileCoordinate, KRange, shared_byte*, int, int) {}
    KITTENS_DEVICE void issue_first() const {}
    template <bool steady = false>
    KITTENS_DEVICE void issue(int) const {}
    KITTENS_DEVICE void clear_past(int) const {}
    KITTENS_DEVICE void next_tile() const {}
    template <int first, int past, class Registers>
    KITTENS_DEVICE void read_a(Registers&, int, int = 0) const {}
    template <int first, int past, class Registers>
    KITTENS_DEVICE void read_b(Registers&, int, int = 0) const {}
    // For the streamed loop.
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void load_first(RegistersA&, RegistersB&) const {}
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void load_next(RegistersA&, RegistersB&) const {}
    template <class RegistersA, class RegistersB>
    KITTENS_DEVICE void clear_past(RegistersA&, RegistersB&) const {}
};

// The blocks of successive K tiles in one buffer. A K tile has a block, or one half of it: then the next tile has the other half.
struct tiles_of_scale_blocks {
    buffer current;
    uint32_t step, step_of_both;

    KITTENS_DEVICE buffer view(int) const { return current; }
    KITTENS_DEVICE void advance() {
        current.scalar_offset += step;
        step = step_of_both - step;
    }
    KITTENS_DEVICE void close() { current.bytes = current.scalar_offset = step = step_of_both = 0; }
};

// The registers of factors: for every 32 rows (two base tiles) one word per lane, as in memory, or its half for a single step.
template <GemmConfig config>
struct StepScaleWords {
    static constexpr bool present = true, of_a_too = config.scales == Scales::in_matrix;
    static constexpr int steps = config.tile_k / 128;
    static_assert(steps == 1 || steps == 2, "a K tile has half a block or a whole one");
    template <int base_tiles>
    struct Registers {
        uint32_t words[(base_tiles + 1) / 2];
    };
    static constexpr uint32_t ones = 0x7f7f7f7f;  // 1 in e8m0
    uint32_t neutral;                             // for an A that has no factors

    KITTENS_DEVICE StepScaleWords() {
        if constexpr (!of_a_too) neutral = opaque(ones);
    }
    template <int base_tiles>
    KITTENS_DEVICE uint32_t word_of_a(const Registers<base_tiles>& registers, int base_tile) const {
        return of_a_too ? registers.words[base_tile / 2] : neutral;
    }
    template <int base_tiles>
    KITTENS_DEVICE uint32_t word_of_b(const Registers<base_tiles>& registers, int base_tile) const {
        return registers.words[base_tile / 2];
    }
    static constexpr int byte(int base_tile, int step) { return step * 2 + base_tile % 2; }

    // Factors past the end of K must not be ones that turn zeros into NaN.
    KITTENS_DEVICE static uint32_t without_past(uint32_t word, int valid_k) {
        uint32_t past = 0;  // bytes of the lane's word
#pragma unroll
        for (int step = 0; step < steps; ++step)
            if ((step * 4 + lane_id() / 16) * scale_k >= valid_k)
                past |= steps == 1 ? ~0u : 0xffffu << 16 * step;
        return (word & ~past) | (ones & past);
    }
};

// Blocks are loaded directly to LDS with the operands: each wave loads some of those of the workgroup. A wave's bands
// of A and of B begin on multiples of 32 rows.
template <GemmConfig config, int pieces>
struct StepScales : StepScaleWords<config> {
    using Words = StepScaleWords<config>;
    using Words::of_a_too, Words::steps;
    template <int base_tiles>
    using Registers = typename Words::template Registers<base_tiles>;
    static constexpr int blocks_a = of_a_too ? config.tile_m / scale_block_rows : 0,
                         blocks_b = config.tile_n / scale_block_rows, waves = config.waves_m * config.waves_n;
    // The same number for every wave, or their waits would differ; each wave loads from one operand.
    static constexpr int waves_for(int blocks, int each) { return (blocks + each - 1) / each; }
    static constexpr int loads_per_wave = [] {
        int each = 1;
        while (waves_for(blocks_a, each) + waves_for(blocks_b, each) > waves) ++each;
        return each;
    }();
    static constexpr int waves_a = waves_for(blocks_a, loads_per_wave),
                         b_begin = waves_a * loads_per_wave * scale_block_bytes,
                         buffer_bytes = waves * loads_per_wave * scale_block_bytes;
    static_assert((!of_a_too || config.wave_m() / pieces % scale_block_rows == 0) &&
                      config.wave_n() / pieces % scale_block_rows == 0,
                  "bands are whole blocks");

    static constexpr int lead = (loads_per_wave - 1) * scale_block_bytes;  // buffer_load_dword_to_lds

    shared_byte *filled, *read_a_from, *read_b_from;
    uint32_t offsets[loads_per_wave];
    buffer first_view;
    tile_iterator<tiles_of_scale_blocks> k_tiles;
    uint32_t half, next_half;  // bytes into a lane's dword where a K tile's factors begin

    KITTENS_DEVICE StepScales(const ScaledGemmArguments& arguments, TileCoordinate tile, KRange range,
                              shared_byte* lds, int row, int col) {
        const int wave = wave_id(), lane = lane_id();
        const bool of_a = wave < waves_a;
        const int first = (of_a ? wave : wave - waves_a) * loads_per_wave,
                  count = of_a ? blocks_a : blocks_b;  // of the operand's blocks in the tile
        const ScaleArgument a = arguments.a_scale, b = arguments.b_scale;
        const char* data = static_cast<const char*>(of_a ? a.data : b.data) +
                           tile.batch * (of_a ? a.batch_stride : b.batch_stride);
        const int64_t stride = of_a ? a.stride : b.stride;
        const int begin = (of_a ? tile.m : tile.n) / scale_block_rows,
                  past = ((of_a ? arguments.m : arguments.n) + scale_block_rows - 1) / scale_block_rows;
        buffer view = global_window{data + begin * stride, (past - begin) * stride}.view();
        view.base -= lead;
        view.bytes += lead;
        const auto at = [&](int k_tile) KITTENS_INLINE {
            return buffer{view.base, view.bytes,
                          static_cast<uint32_t>(k_tile * steps / 2) * scale_block_bytes};
        };
        first_view = at(range.last);
        const uint32_t odd = steps == 1 ? range.begin % 2 : 1;
        k_tiles = {{at(range.begin), odd * scale_block_bytes, scale_block_bytes * steps}, range.count() - 1};
        if (k_tiles.left == 0) k_tiles.source.close();
        half = steps == 1 ? range.last % 2 * 2 : 0;
        next_half = steps == 1 ? odd * 2 : 0;
#pragma unroll
        for (int load = 0; load < loads_per_wave; ++load)
            offsets[load] = first + load < count
                                ? lead - load * scale_block_bytes +
                                      static_cast<uint32_t>((first + load) * stride) + lane * 4
                                : out_of_range;
        filled = lds + wave * loads_per_wave * scale_block_bytes;
        read_a_from = lds + row / scale_block_rows * scale_block_bytes + lane * 4;
        read_b_from = lds + b_begin + col / scale_block_rows * scale_block_bytes + lane * 4;
    }
    KITTENS_DEVICE void issue_at(buffer source, int buffer_index) const {
        for_each_index<loads_per_wave>([&](auto load) KITTENS_INLINE {
            buffer_load_dword_to_lds<load.value>(source, offsets[load.value],
                                                 filled + buffer_index * buffer_bytes);
        });
    }
    // For the range's first K tile.
    KITTENS_DEVICE void issue_first() const { issue_at(first_view, 0); }
    template <bool steady = false>
    KITTENS_DEVICE void issue(int buffer_index) {
        issue_at(k_tiles.view(), buffer_index);
        k_tiles.template advance<steady>();
    }
    // After the loads of the first K tile.
    KITTENS_DEVICE void clear_past(int valid_k) const {
        if (valid_k == config.tile_k) return;
        wait_vector_memory<0>();
#pragma unroll
        for (int load = 0; load < loads_per_wave; ++load) {
            shared_byte* own = filled + load * scale_block_bytes + lane_id() * 4;
            lds_write(Words::without_past(lds_read<uint32_t>(own), valid_k), own);
        }
    }
    // The following reads are of the next K tile.
    KITTENS_DEVICE void next_tile() {
        if constexpr (steps == 1) {
            half = next_half;
            next_half = 2 - half;
        }
    }
    // The factors of base tiles first .. past-1 of a piece; those of a pair are read with its first base tile.
    template <int first, int past, int base_tiles>
    KITTENS_DEVICE void read(Registers<base_tiles>& registers, shared_byte* from, int block) const {
#pragma unroll
        for (int i = first; i < past; ++i) {
            if (i % 2 != 0) continue;
            shared_byte* address = from + (block + i / 2) * scale_block_bytes;
            if constexpr (steps == 1)
                registers.words[i / 2] = lds_read<uint16_t>(address + half);
            else
                registers.words[i / 2] = lds_read<uint32_t>(address);
        }
    }
    template <int first, int past, int base_tiles>
    KITTENS_DEVICE void read_a(Registers<base_tiles>& registers, int buffer_index, int piece = 0) const {
        if constexpr (of_a_too)
            read<first, past>(registers, read_a_from + buffer_index * buffer_bytes,
                              piece * (blocks_a / pieces));
    }
    template <int first, int past, int base_tiles>
    KITTENS_DEVICE void read_b(Registers<base_tiles>& registers, int buffer_index, int piece = 0) const {
        read<first, past>(registers, read_b_from + buffer_index * buffer_bytes, piece * (blocks_b / pieces));
    }
};

}  // namespace hipkittens::gemm
