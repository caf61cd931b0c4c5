// kernels/attention/backward_one_pass_step.h: the products of 32 keys with some queries, and the arithmetic between them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "backward_scores.h"
#include "dq_accumulator.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "mask.h"

namespace hipkittens::attention {

// Items for each half of a step's queries: those of half h are shifted by `apart` x h slots.
template <class Placement>
struct each_half {
    Placement of_half;
    int halves, apart;
    bool fenced = false;
    constexpr int size() const { return halves * of_half.size(); }
    constexpr int slot(int item) const {
        return of_half.slot(item % of_half.size()) + item / of_half.size() * apart;
    }
};

// For 64 or 32 queries and the 32 keys of a wave:
//     S = Q K^T, P = exp(S - LSE), dP = dO V^T, dS = P (dP + delta), dV += P^T dO, dK += dS^T Q, dQ = dS K.
// Occupancy is one: only independent matrix instructions of the same wave hide its latencies. A step is therefore divided
// into slots of one matrix instruction each, in which the LDS reads for later ones and the arithmetic between products are
// placed. This file defines the items; how queries get to LDS differs between the targets, and with it the placement.
template <BackwardConfig config>
struct OnePassStep {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), waves = config.waves, head_dim = config.head_dim,
                         value_dim = config.value_dim, wave_keys = config.rows_per_wave, keys = config.rows(),
                         queries = config.stream_rows;
    static_assert(waves == 4 && statistics_block % queries == 0);
    static_assert(config.terms == ScoreTerms::none || !config.dropout, "dropped scores have no terms");

    static constexpr bool direct = target.transposed_lds_read;
    using Fragment = vec<T, 8>;
    using Accumulator = vec<float, 16>;
    using Shape = rt_32x32;
    static constexpr int per_lane = 16;
    static constexpr int columns = head_dim / 32, value_columns = value_dim / 32, halves = queries / 32;
    // dQ is made of 32 x 32 tiles, first side by side along the head's columns, then along the queries. Consecutive tiles belong to
    // consecutive waves. If the last ones are fewer than the waves, several waves share each of them: they multiply
    // different keys, and memory adds what they have.
    static constexpr int whole_dq_tiles = halves * columns / waves,
                         shared_dq_tiles = halves * columns % waves,
                         sharing = shared_dq_tiles ? waves / shared_dq_tiles : 1,
                         dq_tiles = whole_dq_tiles + (shared_dq_tiles > 0),
                         dq_registers = dq_tiles * per_lane, key_steps = keys / 16,
                         shared_key_steps = shared_dq_tiles ? key_steps / sharing : 0;
    static_assert(!shared_dq_tiles || (halves == 1 && whole_dq_tiles == 1 && waves % shared_dq_tiles == 0));

    // S and dK of 32 queries take `pieces` matrix steps with K = 16, dP and dV take `value_pieces`. gfx942's instructions have half
    // of that K.
    enum class Product { s, dp, dv, dk, dq };
    struct MatrixStep {
        Product product;
        int half, n;  // half of the queries, or tile of dQ; step of its product
    };
    static constexpr int pieces = head_dim / 16, value_pieces = value_dim / 16,
                         dq_steps = whole_dq_tiles * key_steps + shared_key_steps,
                         products = halves * (2 * pieces + 2 * value_pieces) + dq_steps,
                         instructions = direct ? 1 : 2, slots = instructions * products;
    static_assert(dq_steps == halves * pieces);
    // Whether a step's dQ is that of the previous step, and covers the time that P and dS of this step take.
    static constexpr bool dq_of_previous = !direct || halves == 1;
    // S and dP of one half of the queries after the other, then the other products.
    static constexpr MatrixStep matrix_step(int i) {
        constexpr int scores = pieces + value_pieces;
        if (i < halves * scores) {
            const int half = i / scores, n = i % scores;
            return n < pieces ? MatrixStep{Product::s, half, n} : MatrixStep{Product::dp, half, n - pieces};
        }
        constexpr Product in_order[2][3] = {{Product::dv, Product::dk, Product::dq},
                                            {Product::dq, Product::dv, Product::dk}};
        int n = i - halves * scores;
        for (const Product product : in_order[dq_of_previous]) {
            const int all = product == Product::dv ? halves * value_pieces : halves * pieces,
                      of_part = product == Product::dq ? key_steps : all / halves;
            if (n < all) return {product, n / of_part, n % of_part};
            n -= all;
        }
        return {};
    }
    static constexpr int first_of(Product product) {
        int i = 0;
        while (matrix_step(i).product != product) ++i;
        return i;
    }

    template <class Placement>
    static constexpr each_half<Placement> each(Placement of_half, int apart) {
        return {of_half, halves, apart};
    }

    struct Step {
        int head, row;            // of the first query; heads are counted over all batches
        float slope_log2;         // of the head, with score terms
        const float* statistics;  // of the queries
        char* dq;                 // the accumulator of these queries
    };

    const BackwardArguments& arguments;
    shared_byte* lds;
    TileCoordinate coordinate;
    Sequence sequence;
    int first_key;  // of the wave
    Fragment k[pieces], v[value_pieces], k_transposed[key_steps + shared_key_steps];
    Accumulator dk[columns], dv[value_columns], dq[dq_tiles];
    Accumulator p[halves], ds[halves];  // P overwrites S and dS overwrites dP, each in the same registers
    Weights<config.terms, halves * per_lane> weights;
    Fragment p_operand[halves][2], ds_operand[halves][2];
    // For the query of register lane % 16 of S, in the next step and in this one; then for this lane's query of dQ.
    struct Statistics {
        float start[halves], delta[halves];
    } next_statistics, statistics;
    float dq_delta[dq_tiles], dq_norm[dq_tiles], dq_factor[dq_tiles];
    KeyBounds bounds;
    uint32_t dq_statistic_at, dq_at, shared_dq_at;  // of the lane
    char* dq_destination;                           // of the step whose dQ is being added
    Step now, next;
    bool masked;
    Visible visible;  // to the lane's key, if masked
    DropoutDraws draws;

    KITTENS_DEVICE OnePassStep(const BackwardArguments& arguments, shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          coordinate(coordinate_of_workgroup(workgroup_id_x(), arguments.order)),
          sequence(sequence_of(coordinate.batch, arguments.mask, arguments.packed)) {}

    // The LDS operand of matrix step i.
    template <int i, class Queries>
    KITTENS_DEVICE static Fragment read(const Queries& from) {
        constexpr MatrixStep at = matrix_step(i);
        constexpr int half = at.half, n = at.n;
        if constexpr (at.product == Product::s || at.product == Product::dp) {
            return from.template row_major<at.product == Product::dp, half * 32, n * 16>();
        } else if constexpr (at.product == Product::dq) {
            if constexpr (half < whole_dq_tiles)
                return from.template ds<half * 32, n * 16>();
            else
                return from.template shared_ds<n * 16>();
        } else {
            constexpr bool is_dv = at.product == Product::dv;
            constexpr int width = is_dv ? value_columns : columns;
            return from.template transposed<is_dv, half * 32 + n / width * 16, n % width * 32>();
        }
    }
    // The matrix instruction of a slot.
    template <int slot>
    KITTENS_DEVICE void multiply(const Fragment& from_lds) {
        constexpr MatrixStep at = matrix_step(slot / instructions);
        constexpr int half = at.half, n = at.n;
        const auto operand = [](const Fragment& whole) {
            if constexpr (direct)
                return whole;
            else
                return slot % instructions ? vec<T, 4>(whole.hi) : vec<T, 4>(whole.lo);
        };
        const auto mma = [&](Accumulator& d, const Fragment& a, const Fragment& b, bool is_first = false) {
            if (is_first && slot % instructions == 0) d = Accumulator{};
            d = multiply_base<row_l, Shape>(operand(a), operand(b), d);
        };
        if constexpr (at.product == Product::s)
            mma(p[half], k[n], from_lds, n == 0);
        else if constexpr (at.product == Product::dp)
            mma(ds[half], v[n], from_lds);
        else if constexpr (at.product == Product::dv)
            mma(dv[n % value_columns], p_operand[half][n / value_columns], from_lds);
        else if constexpr (at.product == Product::dk)
            mma(dk[n % columns], ds_operand[half][n / columns], from_lds);
        else
            mma(dq[half], from_lds, k_transposed[half < whole_dq_tiles ? n : key_steps + n], n == 0);
    }

    // On gfx942, the order of rows in LDS makes a lane's queries adjacent (tile_key). The upper half of the wave is `upper`
    // queries further.
    using QueryColumns = choose<direct, Shape, KeyColumns>;
    static constexpr int query_of(int e) { return row_layout(QueryColumns::value(), 0, e).col; }
    static constexpr int upper = direct ? 4 : 8;

    // Initial value of dP in the next step.
    KITTENS_DEVICE void start_dp(auto n) {
        constexpr int half = n.value / per_lane, e = n.value % per_lane;
        // Not with dropout, where make_ds adds it.
        ds[half][e] = config.dropout ? 0.0f : broadcast_in_16<e>(next_statistics.delta[half]);
    }
    KITTENS_DEVICE void make_p(auto n) {
        constexpr int half = n.value / per_lane, e = n.value % per_lane;
        p[half][e] = weights.template p<n.value>(
            arguments, p[half][e], broadcast_in_16<e>(statistics.start[half]), half * 32 + query_of(e));
    }
    KITTENS_DEVICE void mask_p(auto half_index) {
        constexpr int half = half_index.value;
        if (__builtin_expect(masked, false))
            apply_mask<QueryColumns, 4>(p[half], half * per_lane, visible, 0);
        if constexpr (config.dropout) {
            const int lane = lane_id();
            for (int n = 0; n < 2; ++n)
                mark_dropped(p[half], n * 8,
                             draws.of_key(now.head, now.row + half * 32 + n * 16 + lane / 32 * upper,
                                          first_key + lane % 32, 12 - upper),
                             draws.limit);
        }
    }
    // Converts two registers of an accumulator to an operand.
    template <int e>
    KITTENS_DEVICE static void convert(vec<float, 2> pair, Fragment (&operand)[2]) {
        auto low = narrowed<T>(pair);
        if constexpr (!direct) materialize(low);
        operand[e / 8][e % 8] = low[0];
        operand[e / 8][e % 8 + 1] = low[1];
    }
    KITTENS_DEVICE void convert_p(auto n) {
        constexpr int half = n.value / 8, e = n.value % 8 * 2;
        vec<float, 2> pair = {p[half][e], p[half][e + 1]};
        prevent_vectorization(pair);
        if constexpr (config.dropout) {
            if (pair[0] < 0) pair[0] = 0;
            if (pair[1] < 0) pair[1] = 0;
        }
        convert<e>(pair, p_operand[half]);
    }
    KITTENS_DEVICE void make_ds(auto n) {
        constexpr int half = n.value / per_lane, e = n.value % per_lane;
        const float query_delta = broadcast_in_16<e>(statistics.delta[half]);
        float value = config.dropout
                          ? ds_of_dropped(p[half][e], ds[half][e], query_delta, arguments.dropout.scale)
                          : p[half][e] * ds[half][e];
        if constexpr (!direct) materialize(value);
        ds[half][e] = weights.template unscaled<n.value>(value);
    }
    KITTENS_DEVICE void convert_ds(auto n) {
        constexpr int half = n.value / 8, e = n.value % 8 * 2;
        vec<float, 2> pair = {ds[half][e], ds[half][e + 1]};
        if constexpr (direct) prevent_vectorization(pair);
        convert<e>(pair, ds_operand[half]);
    }
    // Adds one register of dQ to memory, in the layout of the accumulator (dq_accumulator.h).
    KITTENS_DEVICE void add_dq(auto n, char* to) const {
        constexpr int tile = n.value / per_lane, e = n.value % per_lane;
        constexpr bool whole = tile < whole_dq_tiles;
        atomic_add(to + tile * waves * dq_tile_bytes + e * wave_lanes * 4, whole ? dq_at : shared_dq_at,
                   static_cast<int32_t>(dq[tile][e] * dq_factor[tile]));
    }
    KITTENS_DEVICE void add_dq(auto n) const { add_dq(n, dq_destination); }

    // read(statistic, query) for the queries of a lane's registers, and for this lane's query of dQ.
    template <class Read>
    KITTENS_DEVICE void load_statistics(const Read& read) {
        for (int half = 0; half < halves; ++half) {
            next_statistics.start[half] = read(Statistic::start, half * 32);
            next_statistics.delta[half] = read(Statistic::delta, half * 32);
        }
    }
    template <class Read>
    KITTENS_DEVICE void load_dq_statistics(const Read& read) {
        for (int tile = 0; tile < dq_tiles; ++tile) {
            dq_delta[tile] = read(Statistic::dq_delta, tile % halves * 32);
            dq_norm[tile] = read(Statistic::norm, tile % halves * 32);
        }
    }
    KITTENS_DEVICE void use_dq_statistics() {
        for (int tile = 0; tile < dq_tiles; ++tile)
            dq_factor[tile] =
                times_power_of_2(1.0f, dq_bits - bound_exponent(bounds.bound(dq_norm[tile], dq_delta[tile])));
    }
};

}  // namespace hipkittens::attention
