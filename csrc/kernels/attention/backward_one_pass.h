// kernels/attention/backward_one_pass.h: all gradients from one loop over the queries of a tile of keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "backward_scores.h"
#include "dq_accumulator.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "mask.h"
#include "split_partials.h"

namespace hipkittens::attention {

// Items of each half of a step's queries: those of half h in slots `apart` x h further on.
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

// A workgroup owns a tile of keys, 32 of them to a wave, and goes over the queries, 64 or 32 in each step:
//     S = Q K^T, P = exp(S - LSE), dP = dO V^T, dS = P (dP + delta), dV += P^T dO, dK += dS^T Q, dQ = dS K.
// dS is exchanged among the waves through LDS for dQ, which is added in memory as integers (dq_accumulator.h), so that the order
// of workgroups does not matter.
//
// Occupancy is one: only independent matrix instructions of the same wave hide its latencies. A step is therefore slots of
// one matrix instruction each, and the LDS reads of later ones and the arithmetic between products are placed in them. How
// queries come to LDS, and from there to registers, differs between the targets, and with it the placement:
// backward_one_pass_direct.h (gfx950), backward_one_pass_placed.h (gfx942). Here is what they share.
template <BackwardConfig config>
struct OnePass {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), head_dim = config.head_dim,
                         wave_keys = config.rows_per_wave, keys = config.rows(), queries = config.stream_rows;
    static_assert(config.waves == 4 && statistics_block % queries == 0);
    static_assert(head_dim <= largest_one_pass_head_dim);
    static constexpr int statistics_bytes = static_cast<int>(Statistic::count) * statistics_block * 4;

    static constexpr bool direct = kittens::target.transposed_lds_read;
    // Keys and values pass through LDS before the first step, their gradients after the last.
    using KeyTile =
        kittens::st<T, keys, head_dim, direct ? kittens::Access::rows_and_columns_32 : kittens::Access::rows>;
    using KeyLoads = kittens::global_to_shared<KeyTile, threads, forward_fill>;

    using Fragment = kittens::vec<T, 8>;
    using Accumulator = kittens::vec<float, 16>;
    using Shape = kittens::rt_32x32;
    static constexpr int per_lane = 16;
    static constexpr int columns = head_dim / 32, halves = queries / 32;
    // dQ is tiles of 32 x 32: those of the waves side by side along the head's columns, then along the queries.
    static constexpr int dq_tiles = halves * columns / config.waves, dq_registers = dq_tiles * per_lane,
                         key_steps = keys / 16;

    // A product of 32 queries is `pieces` matrix steps with K = 16. gfx942's instructions take half of that.
    enum class Product { s, dp, dv, dk, dq };
    struct MatrixStep {
        Product product;
        int half, n;
    };
    static constexpr int pieces = head_dim / 16, products = 5 * halves * pieces, parts = direct ? 1 : 2,
                         slots = parts * products;
    static_assert(dq_tiles * key_steps == halves * pieces);
    // S and dP of a half of the queries in turn, then the others. On gfx942 dQ is that of the step before, and its time is what
    // P and dS of this one take.
    static constexpr Product after_dp(int which) {
        constexpr Product in_order[] = {Product::dv, Product::dk, Product::dq};
        return in_order[direct ? which : (which + 2) % 3];
    }
    static constexpr MatrixStep matrix_step(int i) {
        const int product = i / pieces, n = i % pieces;
        if (product < 2 * halves) return {product % 2 ? Product::dp : Product::s, product / 2, n};
        return {after_dp(product / halves - 2), product % halves, n};
    }
    static constexpr int first_of(Product product) {
        int i = 0;
        while (matrix_step(i).product != product) ++i;
        return i;
    }

    const BackwardArguments& arguments;
    kittens::shared_byte* lds;
    TileCoordinate coordinate;
    Sequence sequence;
    int first_key;  // of the wave
    Fragment k[pieces], v[pieces], k_transposed[key_steps];
    Accumulator dk[columns], dv[columns], dq[dq_tiles];
    Accumulator p[halves], ds[halves];  // P is made of S, dS of dP, each in its registers
    Fragment p_operand[halves][2], ds_operand[halves][2];
    // Of the query of register lane % 16 of S, in the next step and in this one; of the lane's own query of dQ.
    float start[halves], start_now[halves], delta[halves], delta_now[halves];
    float dq_delta[dq_tiles], dq_norm[dq_tiles], dq_factor[dq_tiles];
    KeyBounds bounds;
    uint32_t dq_statistic_at, dq_at;
    char* dq_destination;
    DropoutDraws draws;

    KITTENS_DEVICE OnePass(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          coordinate(coordinate_of_workgroup(kittens::workgroup_id_x(), arguments.order)),
          sequence(sequence_of(coordinate.batch, arguments.mask, arguments.packed)) {}

    // The operand from LDS of matrix step i.
    template <int i, class Queries>
    KITTENS_DEVICE static Fragment read(const Queries& from) {
        constexpr MatrixStep at = matrix_step(i);
        constexpr int half = at.half, n = at.n;
        if constexpr (at.product == Product::s || at.product == Product::dp)
            return from.template row_major<at.product == Product::dp, half * 32, n * 16>();
        else if constexpr (at.product != Product::dq)
            return from.template transposed<at.product == Product::dv, half * 32 + n / columns * 16,
                                            n % columns * 32>();
        else
            return from
                .template ds<(half * pieces + n) / key_steps * 32, (half * pieces + n) % key_steps * 16>();
    }
    // The matrix instruction of a slot.
    template <int slot>
    KITTENS_DEVICE void multiply(const Fragment& from_lds) {
        constexpr MatrixStep at = matrix_step(slot / parts);
        constexpr int half = at.half, n = at.n, dq_step = half * pieces + n;
        const auto operand = [](const Fragment& whole) {
            if constexpr (direct)
                return whole;
            else
                return slot % parts ? kittens::vec<T, 4>(whole.hi) : kittens::vec<T, 4>(whole.lo);
        };
        const auto mma = [&](Accumulator& d, const Fragment& a, const Fragment& b, bool is_first = false) {
            if (is_first && slot % parts == 0) d = Accumulator{};
            d = kittens::multiply_base<kittens::row_l, Shape>(operand(a), operand(b), d);
        };
        if constexpr (at.product == Product::s)
            mma(p[half], k[n], from_lds, n == 0);
        else if constexpr (at.product == Product::dp)
            mma(ds[half], v[n], from_lds);
        else if constexpr (at.product == Product::dv)
            mma(dv[n % columns], p_operand[half][n / columns], from_lds);
        else if constexpr (at.product == Product::dk)
            mma(dk[n % columns], ds_operand[half][n / columns], from_lds);
        else
            mma(dq[dq_step / key_steps], from_lds, k_transposed[dq_step % key_steps],
                dq_step % key_steps == 0);
    }

    // gfx942 has the rows in LDS in an order that makes queries neighbours (tile_key). The upper half of the wave is `upper`
    // queries further on.
    using QueryColumns = kittens::choose<direct, Shape, KeyColumns>;
    static constexpr int query_of(int e) { return kittens::row_layout(QueryColumns::value(), 0, e).col; }
    static constexpr int upper = direct ? 4 : 8;

    // What dP of the next step is added to.
    template <int n>
    KITTENS_DEVICE void start_dp() {
        constexpr int half = n / per_lane, e = n % per_lane;
        // Not where weights are dropped: make_ds has it.
        ds[half][e] = config.dropout ? 0.0f : kittens::broadcast_in_16<e>(delta[half]);
    }
    template <int n>
    KITTENS_DEVICE void make_p() {
        constexpr int half = n / per_lane, e = n % per_lane;
        p[half][e] =
            exponential(p[half][e], arguments.scale_log2, kittens::broadcast_in_16<e>(start_now[half]));
    }
    // What is known of a step's queries beside their rows.
    struct Step {
        int head, column;  // of the first query
        bool masked;
        Visible visible;  // to the lane's key
    };
    template <int half>
    KITTENS_DEVICE void mask_p(const Step& step) {
        if (__builtin_expect(step.masked, false))
            apply_mask<QueryColumns, 4>(p[half], half * per_lane, step.visible, 0);
        if constexpr (config.dropout) {
            const int lane = kittens::lane_id();
#pragma unroll
            for (int n = 0; n < 2; ++n)
                mark_dropped(p[half], n * 8,
                             draws.of_key(coordinate.batch * arguments.heads + step.head,
                                          step.column + half * 32 + n * 16 + lane / 32 * upper,
                                          first_key + lane % 32, 12 - upper),
                             draws.limit);
        }
    }
    // Two registers of an accumulator as an operand.
    template <int e>
    KITTENS_DEVICE static void convert(kittens::vec<float, 2> pair, Fragment (&operand)[2]) {
        auto low = kittens::narrowed<T>(pair);
        if constexpr (!direct) kittens::materialize(low);
        operand[e / 8][e % 8] = low[0];
        operand[e / 8][e % 8 + 1] = low[1];
    }
    template <int n>
    KITTENS_DEVICE void convert_p() {
        constexpr int half = n / 8, e = n % 8 * 2;
        kittens::vec<float, 2> pair = {p[half][e], p[half][e + 1]};
        kittens::prevent_vectorization(pair);
        if constexpr (config.dropout) {
            if (pair[0] < 0) pair[0] = 0;
            if (pair[1] < 0) pair[1] = 0;
        }
        convert<e>(pair, p_operand[half]);
    }
    template <int n>
    KITTENS_DEVICE void make_ds() {
        constexpr int half = n / per_lane, e = n % per_lane;
        if constexpr (config.dropout)
            ds[half][e] = ds_of_dropped(p[half][e], ds[half][e], kittens::broadcast_in_16<e>(delta_now[half]),
                                        arguments.dropout.scale);
        else
            ds[half][e] = p[half][e] * ds[half][e];
        if constexpr (!direct) {
            float value = ds[half][e];
            kittens::materialize(value);
            ds[half][e] = value;
        }
    }
    template <int n>
    KITTENS_DEVICE void convert_ds() {
        constexpr int half = n / 8, e = n % 8 * 2;
        kittens::vec<float, 2> pair = {ds[half][e], ds[half][e + 1]};
        if constexpr (direct) kittens::prevent_vectorization(pair);
        convert<e>(pair, ds_operand[half]);
    }
    // A register of dQ goes to memory, in the order in which the accumulator has it (dq_accumulator.h).
    template <int n>
    KITTENS_DEVICE void add_dq() const {
        constexpr int tile = n / per_lane, e = n % per_lane;
        kittens::atomic_add(dq_destination + tile * columns * dq_tile_bytes + e * kittens::wave_lanes * 4,
                            dq_at, static_cast<int32_t>(dq[tile][e] * dq_factor[tile]));
    }

    // read(statistic, query) of the queries of a lane's registers, and of its own query of dQ.
    template <class Read>
    KITTENS_DEVICE void load_statistics(const Read& read) {
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            start[half] = read(Statistic::start, half * 32);
            delta[half] = read(Statistic::delta, half * 32);
        }
    }
    template <class Read>
    KITTENS_DEVICE void load_dq_statistics(const Read& read) {
#pragma unroll
        for (int tile = 0; tile < dq_tiles; ++tile) {
            dq_delta[tile] = read(Statistic::delta, tile * 32);
            dq_norm[tile] = read(Statistic::norm, tile * 32);
        }
    }
    KITTENS_DEVICE void use_statistics() {
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            start_now[half] = start[half];
            delta_now[half] = delta[half];
        }
    }
    KITTENS_DEVICE void use_dq_statistics() {
#pragma unroll
        for (int tile = 0; tile < dq_tiles; ++tile)
            dq_factor[tile] = kittens::times_power_of_2(
                1.0f, dq_bits - bound_exponent(bounds.bound(dq_norm[tile], dq_delta[tile])));
    }

    template <class Loads>
    KITTENS_DEVICE void init_offsets(Loads& loads, int64_t row_bytes) const {
        loads.init_offsets(row_bytes);
#pragma unroll
        for (int pass = 0; pass < Loads::passes; ++pass)
            if (Loads::position(pass, kittens::thread_id()).col >= arguments.head_dim)
                loads.offsets[pass] = kittens::out_of_range;
    }
    KITTENS_DEVICE void issue_keys(KeyLoads& key_loads, const TensorArgument& tensor, int at) const {
        const auto source = key_matrix<T>(tensor, sequence, coordinate.head, arguments.head_dim);
        init_offsets(key_loads, source.row_bytes());
        key_loads.issue(source.window(coordinate.tile * keys, 0).view(), {lds + at});
    }
    template <int keys_at, int values_at>
    KITTENS_DEVICE void read_keys(int wave, int lane) {
        const uint32_t lane_at = KeyTile::offset(wave * wave_keys + lane % 32, lane / 32 * 8);
        kittens::for_each_index<pieces>([&](auto n) {
            const uint32_t at = kittens::stepped_offset<KeyTile>(lane_at, 0, n.value * 16);
            k[n.value] = kittens::lds_read<Fragment>(lds + keys_at + at);
            v[n.value] = kittens::lds_read<Fragment>(lds + values_at + at);
        });
    }
    // `at`: LDS for the workgroup's rows.
    KITTENS_DEVICE void store(const Accumulator (&gradient)[columns], int at,
                              const TensorArgument& destination, int head_dim_used, float factor) const {
        using Stager = kittens::output_stager<kittens::tile_rows<KeyTile>>;
        const int wave_row = first_key - coordinate.tile * keys, lane = kittens::recompute_lane_id();
#pragma unroll
        for (int j = 0; j < columns; ++j)
            Stager::template write<Shape>(
                lds + at, {wave_row + lane % 32, lane / 32 * 4}, 0, j * 32, gradient[j],
                [&](kittens::vec<float, 4> run) { return kittens::narrowed<T>(run * factor); });
        const int row = first_key + lane / Stager::vectors_per_row, col = lane % Stager::vectors_per_row * 8;
        T* to = static_cast<T*>(const_cast<void*>(destination.data)) +
                sequence.batch * destination.batch_stride + coordinate.head * destination.head_stride +
                sequence.first_k * destination.row_stride + col;
#pragma unroll
        for (int pass = 0; pass < wave_keys; pass += Stager::rows_per_pass) {
            const kittens::b128 run = Stager::read(lds + at, wave_row + row - first_key, pass, col * 2);
            if (row + pass < sequence.mask.n_k && col < head_dim_used)
                *reinterpret_cast<kittens::b128*>(to + (row + pass) * destination.row_stride) = run;
        }
    }

    // Which of the queries of a step that begins at `column` the lane's key sees: left(column) .. left(column) + span of the
    // lane's half.
    struct SeenQueries {
        int nearest;
        uint32_t span;
        KITTENS_DEVICE int left(int column) const {
            return nearest == unlimited ? unlimited : nearest - column;
        }
    };
    KITTENS_DEVICE SeenQueries seen_queries(int low, int high) const {
        const Mask& mask = sequence.mask;
        const int row = first_key + low;
        const int left_of = row < mask.n_k ? mask.first_query(row) - high * upper : unlimited;
        const int last = mask.last_query(row) - mask.first_query(row);
        return {last < 0 ? unlimited : left_of, last < 0 || row >= mask.n_k ? 0u : last};
    }

    // What is shared by loops over queries first .. past-1 of the heads of the group that are the workgroup's.
    struct Queries {
        int first, past, first_head, past_head;
    };
    KITTENS_DEVICE int64_t statistics_row_of(const BackwardArguments& arguments, int head, int column) const {
        return first_statistics_row(arguments, sequence, coordinate.batch, head) + column;
    }
    KITTENS_DEVICE void start_loop() {
        bounds = bounds_of(arguments, sequence, coordinate.batch, coordinate.head);
        if constexpr (config.dropout) bounds.v *= arguments.dropout.scale;
        if constexpr (config.dropout) draws.start(arguments.dropout);
    }

    // loop(queries, commit_keys): over the queries that somebody sees, with the keys and values on their way to LDS.
    template <int keys_at, int values_at, class Loop>
    KITTENS_DEVICE void run(const Loop& loop) {
        const Mask& mask = sequence.mask;
        const int begin = coordinate.tile * keys;
        first_key = begin + kittens::wave_id() * wave_keys;
        if (begin >= mask.n_k) return;
        kittens::for_each_index<columns>([&](auto j) {
            dk[j.value] = Accumulator{};
            dv[j.value] = Accumulator{};
        });

        const int last_key = (begin + keys < mask.n_k ? begin + keys : mask.n_k) - 1;
        const int first = mask.first_query(begin) / queries * queries, past = mask.last_query(last_key) + 1;
        if (first < past) {
            KeyLoads k_loads, v_loads;
            issue_keys(k_loads, arguments.k, keys_at);
            issue_keys(v_loads, arguments.v, values_at);
            const int first_head = coordinate.split * arguments.heads_per_split,
                      past_head = first_head + arguments.heads_per_split,
                      group_head = coordinate.head * arguments.group;
            loop(Queries{first, past, group_head + first_head,
                         group_head + (past_head < arguments.group ? past_head : arguments.group)},
                 [&] {
                     k_loads.commit({lds + keys_at});
                     v_loads.commit({lds + values_at});
                 });
        }
        const auto results = kittens::reload_arguments<BackwardArguments>();
        if (results.splits > 1) {
            if (first_key >= mask.n_k) return;
            store_partial(dk, results, sequence, coordinate, first_key, false);
            store_partial(dv, results, sequence, coordinate, first_key, true);
            return;
        }
        kittens::barrier();
        store(dk, 0, results.grad_k, results.head_dim, results.scale);
        store(dv, values_at - keys_at, results.grad_v, results.head_dim,
              config.dropout ? results.dropout.scale : 1.0f);
    }
};

}  // namespace hipkittens::attention
