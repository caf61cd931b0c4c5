// kernels/gemm/block_scales.h: multiplies the sums of K tiles by the scales of their blocks.
// SPDX-License-Identifier: MIT
#pragma once
#include "accumulation.h"

namespace hipkittens::gemm {

// Scales of one operand for the rows (columns) of a tile, for one block of K at a time: first the last block of the range, in
// the order of the K tiles (KRange). Zeros where there are none.
template <int tile_k>
struct ScaleSource {
    static_assert(tile_k == 128, "a K tile is a block of K");
    buffer scales;  // from the tile's first block on
    uint32_t next, last, k_step;
    uint32_t step;  // between blocks of rows
    int first, left, shift;

    KITTENS_DEVICE ScaleSource(ScaleArgument argument, KRange range, int64_t batch, int first, int extent,
                               int k_tiles, int shift)
        : first(first), left(extent - first), shift(shift) {
        const int64_t begin = batch * argument.batch_stride + (first >> shift) * argument.stride;
        const int64_t end = batch * argument.batch_stride + ((extent - 1) >> shift) * argument.stride +
                            (k_tiles - 1) * argument.k_stride + 1;
        scales = global_window{static_cast<const char*>(argument.data) + begin * 4,
                               argument.data ? (end - begin) * 4 : 0}
                     .view();
        step = static_cast<uint32_t>(argument.stride) * 4;
        k_step = static_cast<uint32_t>(argument.k_stride) * 4;
        next = range.begin * k_step;
        last = range.last * k_step;
        scales.scalar_offset = last;
    }
    // Rows past the matrix have no scale, and their sums are not stored.
    KITTENS_DEVICE uint32_t offset(int row) const {
        return row < left ? (((first + row) >> shift) - (first >> shift)) * step : out_of_range;
    }
    // Advances to the next K tile; past the last one of the range, what is loaded is unused.
    KITTENS_DEVICE void advance() {
        scales.scalar_offset = next;
        next = next + k_step < last ? next + k_step : next;
    }
};

// A lane's accumulators are adjacent columns of one row of each base tile. It needs a scale of A for each of these rows and scales of B:
// one shared by all columns of a band (Scales::blocks) or one per column (row_blocks). Where operands are loaded directly to LDS, so are
// the scales, one dword per thread, counted with the operands' loads. Otherwise each lane loads the scale of one of the wave's rows
// (columns), and the lanes of the wave exchange them: rows of scales are separate cache lines, and a lane that loaded all the scales it
// multiplies with would have each line looked up four times. Tiles with few rows do load that way, since there the exchange takes longer.
template <GemmConfig config>
struct BlockScales {
    static constexpr bool promotes = true, streamed = config.schedule == Schedule::streamed;
    static constexpr bool of_columns = config.scales == Scales::row_blocks,
                          direct = config.row_start == RowStart::vector && vector_fill == Fill::direct &&
                                   !streamed,
                          shared = !direct && !streamed && config.wave_m() > 32;
    static constexpr int pieces = config.schedule == Schedule::ping_pong ? 2 : 1,
                         piece_rows = config.tile_m / pieces, piece_columns = config.tile_n / pieces,
                         height = config.wave_m() / pieces / config.matrix,
                         width = config.wave_n() / pieces / config.matrix;
    static_assert(config.matrix == 16 && (of_columns || 128 % piece_columns == 0));
    static_assert(direct || pieces == 1, "ping-pong has no registers left for scales on their way");

    // In LDS: those of A, followed by those of B. Each wave loads only one kind.
    static constexpr int a_slots = (config.tile_m + wave_lanes - 1) / wave_lanes * wave_lanes,
                         buffer_bytes = direct ? config.threads() * 4 : 0,
                         lds_bytes = config.buffers * buffer_bytes, loads_per_tile = direct;
    static_assert(a_slots + config.tile_n <= config.threads() || !direct, "a dword for each thread");

    using Source = ScaleSource<config.tile_k>;
    struct Sources {
        Source a, b;
    };
    struct Factors {
        float rows[height];
        float columns[of_columns ? width : 1][of_columns ? 4 : 1];
    };
    Factors now, pending;               // of the K tile (or band of it) being multiplied, and of the next one
    float row_of_lane, column_of_lane;  // in flight, where lanes share them
    static_assert(!shared || (config.wave_m() <= wave_lanes && config.wave_n() <= wave_lanes),
                  "a row and a column for each lane");
    choose<direct, Source, Sources> sources;
    uint32_t offsets[direct ? 1 : shared ? 2 : height + sizeof(Factors::columns) / 4];
    shared_byte *fill, *rows_at, *columns_at;

    KITTENS_DEVICE BlockScales(const ScaledGemmArguments& arguments, KRange range, AccumulationPlace place)
        : now{},
          pending{},
          row_of_lane(0),
          column_of_lane(0),
          sources(sources_of(arguments, range, place.tile)) {
        const int lane = lane_id(), row = place.row + lane % 16, column = place.col + lane / 16 * 4;
        if constexpr (direct) {
            // The rows of a lane's base tiles are adjacent.
            const int slot = thread_id(), in_band = slot % (height * 16),
                      of_a = slot - in_band + in_band % height * 16 + in_band / height;
            const bool is_a = wave_id() * wave_lanes < a_slots;
            const int index = is_a ? of_a : slot - a_slots;
            offsets[0] =
                index < (is_a ? config.tile_m : config.tile_n) ? sources.offset(index) : out_of_range;
            fill = place.lds + wave_id() * wave_lanes * 4;
            rows_at = place.lds + (place.row + lane % 16 * height) * 4;
            columns_at = place.lds + (a_slots + (of_columns ? column : 0)) * 4;
        } else if constexpr (shared) {
            offsets[0] = lane < config.wave_m() ? sources.a.offset(place.row + lane) : out_of_range;
            offsets[1] = !of_columns              ? sources.b.offset(0)
                         : lane < config.wave_n() ? sources.b.offset(place.col + lane)
                                                  : out_of_range;
        } else {
#pragma unroll
            for (int i = 0; i < height; ++i) offsets[i] = sources.a.offset(row + i * 16);
            for_each_column([&](int j, int e, int n) {
                offsets[height + n] = sources.b.offset(of_columns ? column + j * 16 + e : 0);
            });
        }
    }
    KITTENS_DEVICE static choose<direct, Source, Sources> sources_of(const ScaledGemmArguments& arguments,
                                                                     KRange range, TileCoordinate tile) {
        const auto shift = [](const ScaleArgument& scale, int rows) KITTENS_INLINE {
            return of_columns ? (scale.block_rows == 128 ? 7 : 0) : rows == 128 ? 7 : 0;
        };
        const Source a(arguments.a_scale, range, tile.batch, tile.m, arguments.m, arguments.k_tiles,
                       shift(arguments.a_scale, 1));
        const Source b(arguments.b_scale, range, tile.batch, tile.n, arguments.n, arguments.k_tiles,
                       shift(arguments.b_scale, 128));
        if constexpr (direct)
            return wave_id() * wave_lanes < a_slots ? a : b;
        else
            return Sources{a, b};
    }
    template <class Use>
    KITTENS_DEVICE static void for_each_column(const Use& use) {
#pragma unroll
        for (int n = 0; n < static_cast<int>(sizeof(Factors::columns) / 4); ++n) use(n / 4, n % 4, n);
    }

    KITTENS_DEVICE void issue_first(int buffer) { load(buffer); }
    KITTENS_DEVICE void issue(int buffer) {
        advance();
        load(buffer);
    }
    KITTENS_DEVICE void load_first(Factors& factors) const {
#pragma unroll
        for (int i = 0; i < height; ++i) factors.rows[i] = buffer_load<float>(sources.a.scales, offsets[i]);
        for_each_column([&](int j, int e, int n) {
            factors.columns[j][e] = buffer_load<float>(sources.b.scales, offsets[height + n]);
        });
    }
    KITTENS_DEVICE void load_next(Factors& factors) {
        advance();
        load_first(factors);
    }
    KITTENS_DEVICE void advance() {
        if constexpr (direct) {
            sources.advance();
        } else {
            sources.a.advance();
            sources.b.advance();
        }
    }
    KITTENS_DEVICE void load(int buffer) {
        if constexpr (direct) {
            buffer_load_dword_to_lds(sources.scales, offsets[0], fill + buffer * buffer_bytes);
        } else if constexpr (shared) {
            row_of_lane = buffer_load<float>(sources.a.scales, offsets[0]);
            column_of_lane = buffer_load<float>(sources.b.scales, offsets[1]);
        } else {
            load_first(pending);
        }
    }
    template <int band_row, int band_col>
    KITTENS_DEVICE void read(int buffer) {
        if constexpr (direct) {
            const int begin = buffer * buffer_bytes;
            if constexpr (band_col == 0) {
                const auto rows = lds_read<vec<float, height>>(rows_at + begin + band_row * piece_rows * 4);
#pragma unroll
                for (int i = 0; i < height; ++i) pending.rows[i] = rows[i];
            }
            shared_byte* const columns = columns_at + begin + band_col * piece_columns * 4;
            if constexpr (of_columns) {
#pragma unroll
                for (int j = 0; j < width; ++j) {
                    const auto four = lds_read<vec<float, 4>>(columns + j * 16 * 4);
#pragma unroll
                    for (int e = 0; e < 4; ++e) pending.columns[j][e] = four[e];
                }
            } else {
                pending.columns[0][0] = lds_read<float>(columns);
            }
        } else if constexpr (shared) {
            const int lane = lane_id();
#pragma unroll
            for (int i = 0; i < height; ++i) pending.rows[i] = read_lane(row_of_lane, i * 16 + lane % 16);
            for_each_column([&](int j, int e, int) {
                pending.columns[j][e] =
                    of_columns ? read_lane(column_of_lane, j * 16 + lane / 16 * 4 + e) : column_of_lane;
            });
        }
    }
    KITTENS_DEVICE void begin_k_tile() const {}
    KITTENS_DEVICE void begin_band() { now = pending; }

    template <class Sum>
    KITTENS_DEVICE Sum promoted(Sum sum, Sum partial, int i, int j) const {
        const float row = now.rows[i % height];
        Sum factor;
#pragma unroll
        for (int e = 0; e < 4; ++e)
            factor[e] = row * (of_columns ? now.columns[j % width][e] : now.columns[0][0]);
        return __builtin_elementwise_fma(partial, factor, sum);
    }
};

}  // namespace hipkittens::gemm
