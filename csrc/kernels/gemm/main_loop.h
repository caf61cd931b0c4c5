// kernels/gemm/main_loop.h: the part that all main loop schedules share: both operands, the accumulators, beginning and end.
// SPDX-License-Identifier: MIT
#pragma once
#include "accumulation.h"
#include "epilogue.h"
#include "gathered_rows.h"
#include "operand_stream.h"
#include "product_tiles.h"
#include "register_stream.h"
#include "step_scale_loads.h"

namespace hipkittens::gemm {

// Of the workgroups that share rows of A or columns of B, half load A first and half B: a line is then read from memory for
// one half of them and is in L2 when the other half loads it. The loads of a compute unit return in order, so one from
// memory delays those after it; this keeps loads from memory and loads from L2 apart (LoadOrder::alternate).
template <int columns_of_each>
KITTENS_DEVICE bool loads_a_first(TileCoordinate tile, const GemmConfig& config) {
    return (tile.m / config.tile_m + tile.n / (config.tile_n / columns_of_each)) % 2 == 0;
}

// The columns of C are those of the product.
struct OwnColumns {
    static constexpr int of_each = 1;
    template <class Operand, int pieces, class Arguments>
    KITTENS_DEVICE static auto source_of_b(const Arguments& arguments, TileCoordinate tile) {
        return source_of_b_rows<Operand>(arguments, tile);
    }
};

// What defines a product besides its row of variants.def: the elements of both operands, the epilogue, what is applied
// to the sums of a K tile before they are accumulated (accumulation.h), and which tile a workgroup takes.
template <class TypeA_, class TypeB_ = TypeA_, class Epilogue_ = Epilogue<SplitDestination, AddBias>,
          class Accumulation_ = AccumulateInPlace, class Arguments_ = GemmArguments,
          class Tiles_ = TilesOfProduct, class Columns_ = OwnColumns>
struct GemmPolicy {
    using TypeA = TypeA_;
    using TypeB = TypeB_;
    using Sum = choose<same_type<TypeA, int8>, int, float>;
    using Epilogue = Epilogue_;
    using Accumulation = Accumulation_;
    using Arguments = Arguments_;
    using Tiles = Tiles_;
    using Columns = Columns_;
};

// A K tile of each operand consists of `pieces` tiles in LDS, and a wave multiplies that many bands of rows by as many bands of columns.
template <GemmConfig config, class Policy, int pieces>
struct MainLoop {
    static constexpr bool streamed = config.schedule == Schedule::streamed;
    // Extents of a tile in LDS: the workgroup's share of a piece, or the wave's.
    static constexpr int rows_of_tile = streamed ? config.wave_m() : config.tile_m / pieces,
                         columns_of_tile = streamed ? config.wave_n() : config.tile_n / pieces;
    using A = Operand<typename Policy::TypeA, rows_of_tile, !config.a_is_transposed(), config>;
    using B = Operand<typename Policy::TypeB, columns_of_tile, config.b_is_transposed(), config>;
    static_assert(A::step_k == B::step_k && A::fill == B::fill, "both operands order K alike");
    static constexpr bool direct = A::fill == Fill::direct,
                          alternate = direct && config.load_order == LoadOrder::alternate;
    // e8m0 factors that the matrix instruction takes, or none.
    static constexpr bool has_steps = config.scales == Scales::in_matrix || config.scales == Scales::of_b;
    using StepFactors =
        choose<!has_steps, NoStepScales,
               choose<streamed, StreamedStepScales<config>,
                      choose<direct, StepScales<config, pieces>, StepScalesInRegisters<config>>>>;
    static constexpr int step_k = A::step_k, steps = config.tile_k / step_k,
                         waves = config.waves_m * config.waves_n,
                         loads_per_tile = pieces * (A::Loads::loads_per_wave + B::Loads::loads_per_wave) +
                                          StepFactors::loads_per_wave;

    using Arguments = typename Policy::Arguments;
    using Accumulator = rt<typename Policy::Sum, config.wave_m() / pieces, config.wave_n() / pieces, row_l,
                           base_shape<config.matrix, config.matrix, 4>>;
    static constexpr int height = Accumulator::height, width = Accumulator::width,
                         products = height * width;  // per step
    template <int k>
    using RegistersA = typename A::template Registers<Accumulator::rows, k>;
    template <int k>
    using RegistersB = typename B::template Registers<Accumulator::cols, k>;

    static constexpr int buffers = direct ? config.buffers : config.schedule == Schedule::interleaved ? 2 : 1;
    // The streamed schedule has A in registers, and a tile of B for each wave.
    static constexpr int b_begin = streamed ? 0 : buffers * pieces * A::Tile::bytes,
                         operand_bytes = b_begin + (streamed ? waves : buffers * pieces) * B::Tile::bytes,
                         loaded_bytes = operand_bytes + buffers * StepFactors::buffer_bytes,
                         product_bytes =
                             waves * config.matrix * ProductRows<float, Accumulator::cols>::row_bytes,
                         tile_bytes = loaded_bytes > product_bytes ? loaded_bytes : product_bytes;

    using Accumulation = typename Policy::Accumulation;
    static constexpr bool promotes = Accumulation::promotes;
    static constexpr int lds_bytes = tile_bytes + Accumulation::lds_bytes;
    static_assert(lds_bytes <= target.lds_bytes, "the K tiles in flight fit in LDS");

    using StreamA = choose<streamed, RegisterStream<A, config.tile_k>, OperandStream<A, pieces>>;
    using StreamB = OperandStream<B, pieces>;
    // A and B; with alternate loads, first the operand whose tiles this workgroup issues first, then the other one.
    struct Streams {
        StreamA first;
        choose<alternate, StreamA, StreamB> second;
    };
    KITTENS_DEVICE static TileCoordinate tile_of_wave(TileCoordinate tile) {
        tile.m += wave_id() / config.waves_n * config.wave_m();
        tile.n += wave_id() % config.waves_n * config.wave_n() / Policy::Columns::of_each;
        return tile;
    }
    KITTENS_DEVICE static Streams streams(const Arguments& arguments, TileCoordinate tile, KRange range,
                                          shared_byte* lds) {
        const TileCoordinate of_source = streamed ? tile_of_wave(tile) : tile;
        const auto source_a = source_of_a_rows<A>(arguments, of_source);
        const auto source_b = Policy::Columns::template source_of_b<B, pieces>(arguments, of_source);
        if constexpr (streamed) {
            return {{source_a, range}, {source_b, range, lds + wave_id() * B::Tile::bytes}};
        } else {
            const StreamA a(source_a, range, lds);
            const StreamB b(source_b, range, lds + b_begin);
            if constexpr (alternate) {
                const bool a_first = loads_a_first<Policy::Columns::of_each>(tile, config);
                Streams result{a, a};
                result.first.replace_where(!a_first, b);
                result.second.replace_where(a_first, b);
                return result;
            } else {
                return {a, b};
            }
        }
    }

    shared_byte* lds;
    KRange range;
    Streams in_flight;
    int row, col;  // of the wave's first band in its piece
    Accumulator sums[pieces][pieces];
    Accumulator partial;  // of one K tile or one band of it, if it promotes
    Accumulation accumulation;
    StepFactors scales;
    struct Nothing {};
    // A base tile of B, converted to elements of A.
    choose<config.converts_b(), vec<bf16, 32>, Nothing> converted;

    KITTENS_DEVICE MainLoop(const Arguments& arguments, TileCoordinate tile, shared_byte* lds)
        : lds(lds),
          range(arguments, tile.split, config.tile_k),
          in_flight(streams(arguments, tile, range, lds)),
          row(wave_id() / config.waves_n * Accumulator::rows),
          col(wave_id() % config.waves_n * Accumulator::cols),
          accumulation(arguments, range, {tile, row, col, lds + tile_bytes}),
          scales(arguments, tile, range, lds + operand_bytes, row, col) {}

    KITTENS_DEVICE typename A::Tile a_tile(int buffer, int piece = 0) const {
        return {lds + (buffer * pieces + piece) * A::Tile::bytes};
    }
    KITTENS_DEVICE typename B::Tile b_tile(int buffer, int piece = 0) const {
        return {lds + b_begin + (buffer * pieces + piece) * B::Tile::bytes};
    }
    // Advances both operands to the next K tile. They have the same number of tiles left; the first one's counter is used.
    template <bool steady = false>
    KITTENS_DEVICE void advance_both() {
        auto &first = in_flight.first.k_tiles, &second = in_flight.second.k_tiles;
        first.source.advance(), second.source.advance();
        if constexpr (!steady && A::fill != Fill::elements)
            if (first.left == 1) first.source.close(), second.source.close();
        --first.left;
    }
    // After the loads of the first K tile.
    KITTENS_DEVICE void clear_past_k() const {
        scales.clear_past(range.valid_k);
        if (!A::is_cut(range.valid_k)) return;
        if constexpr (direct) wait_vector_memory<0>();
        barrier();
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            A::clear_past(a_tile(0, piece), range.valid_k);
            B::clear_past(b_tile(0, piece), range.valid_k);
        }
    }
    KITTENS_DEVICE void clear_sums() {
        for_each_index<pieces * pieces>([&](auto n) { zero(sums[n.value / pieces][n.value % pieces]); });
        if constexpr (promotes) zero(partial);
    }
    // A matrix step: base tiles i of A and j of B, at base tile k of the registers along K. `first`: the first step of a K
    // tile. `step`: index of the step of K in the tile.
    template <int i, int j, int k, bool first, int step = k, class A_, class B_>
    KITTENS_DEVICE void multiply(Accumulator& band, const A_& a, const B_& b,
                                 const typename StepFactors::template Registers<height>& a_scales,
                                 const typename StepFactors::template Registers<width>& b_scales) {
        auto& sum = (promotes ? partial : band).tiles[i][j];
        if constexpr (promotes && first) sum = {};
        // Two waves on a SIMD have half of its registers each.
        constexpr bool in_place = config.schedule == Schedule::ping_pong;
        if constexpr (config.converts_b()) {
            static_assert(StepFactors::present && same_type<typename Policy::TypeA, bf16>);
            if constexpr (i == 0)
                converted =
                    fp4_in_bf16(B::template fragment<j, k>(b),
                                scales.word_of_b(b_scales, j) >> 8 * StepFactors::byte(j, step) & 255);
            sum = multiply_base<row_l, typename Accumulator::shape>(A::template fragment<i, k>(a), converted,
                                                                    sum);
        } else if constexpr (StepFactors::present)
            sum =
                multiply_base_scaled<row_l, StepFactors::byte(i, step), StepFactors::byte(j, step), in_place>(
                    A::template fragment<i, k>(a), B::template fragment<j, k>(b), sum,
                    scales.word_of_a(a_scales, i), scales.word_of_b(b_scales, j));
        else
            sum = multiply_base<row_l, typename Accumulator::shape>(A::template fragment<i, k>(a),
                                                                    B::template fragment<j, k>(b), sum);
    }
    // Applies the contribution of a K tile to base tile (i, j) of a band.
    template <int i, int j, int band_row = 0, int band_col = 0>
    KITTENS_DEVICE void promote() {
        auto& sum = sums[band_row][band_col].tiles[i][j];
        sum = accumulation.promoted(sum, partial.tiles[i][j], band_row * height + i, band_col * width + j);
    }
    KITTENS_DEVICE void store(TileCoordinate tile) {
        // The product is staged through LDS: no load of any wave to it may be in flight.
        if constexpr (direct) wait_vector_memory<0>();
        barrier();
        constexpr int wave_bytes = tile_bytes / waves;
        Policy::Epilogue::template store<wave_bytes>(sums, Policy::Tiles::template reload<Arguments>(tile),
                                                     {tile, row, col, A::rows, B::rows},
                                                     lds + wave_id() * wave_bytes);
    }
};

}  // namespace hipkittens::gemm
