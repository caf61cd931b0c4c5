// kernels/attention/backward_one_pass.h: all gradients from one walk over the queries of a tile of keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward_config.h"
#include "dropout.h"
#include "forward_tiles.h"
#include "key_shares.h"
#include "mask.h"
#include "placed_queries.h"
#include "query_sums.h"

namespace hipkittens::attention {

// The five products of backward.h once each. A workgroup owns a tile of keys, 32 of them to a wave, and goes over the
// queries, a step of 64 or 32 at a time: S and dP, from which dV, dK and, after an exchange of dS among the waves through LDS,
// its share of dQ. Shares are added in memory as whole numbers (query_sums.h), so their order does not matter.
//
// A wave has its SIMD to itself: nothing hides its waits but its own next products. A step is therefore written as slots:
// one matrix instruction, the LDS reads of a later product, and a share of the arithmetic between products. gfx950 loads a
// step's rows straight to LDS, a step ahead, and reads them both ways (step); gfx942 places them there twice through registers
// (placed_queries.h, placed_step).
template <BackwardConfig config>
struct OnePass {
    using T = typename element_of<config.input>::value;
    static constexpr int threads = config.threads(), head_dim = config.head_dim, rows = config.rows_per_wave,
                         keys = config.rows(), queries = config.stream_rows;
    static_assert(config.waves == 4 && statistics_block % queries == 0);
    static_assert(head_dim <= largest_one_pass_head_dim);

    static constexpr bool direct = kittens::target.transposed_lds_read;
    static_assert(!direct || queries == statistics_block);
    static constexpr kittens::Access access =
        direct ? kittens::Access::rows_and_columns_32 : kittens::Access::rows;
    using KeyTile = kittens::st<T, keys, head_dim, access>;
    using KeyLoads = kittens::global_to_shared<KeyTile, threads, forward_fill>;
    using Placed =
        kittens::choose<direct, NothingPlaced, PlacedQueries<T, queries, head_dim, keys, config.waves>>;

    // Of gfx950: two buffers, each with a tile of Q, one of dO and their statistics; two of dS.
    using Tile = kittens::st<T, queries, head_dim, kittens::Access::rows_and_columns_32>;
    using SlopeTile = kittens::st<T, keys, queries, kittens::Access::columns_32_written_in_runs>;
    using Loads = kittens::global_to_shared<Tile, threads, kittens::Fill::direct>;
    static constexpr int statistics_bytes = static_cast<int>(Statistic::count) * statistics_block * 4;
    static constexpr int buffer_bytes = 2 * Tile::bytes + statistics_bytes;
    static constexpr int slopes_at = 2 * buffer_bytes;
    static constexpr int step_bytes = direct ? slopes_at + 2 * SlopeTile::bytes : Placed::bytes;
    // Keys and values pass through LDS before the first step, their gradients after the last.
    static constexpr int keys_at = direct ? buffer_bytes : 0, values_at = direct ? slopes_at : KeyTile::bytes,
                         past_values = values_at + KeyTile::bytes;
    static constexpr int lds_bytes = step_bytes < past_values ? past_values : step_bytes;
    static_assert(KeyTile::bytes <= values_at - keys_at && lds_bytes <= kittens::target.lds_bytes);

    using Fragment = kittens::vec<T, 8>;
    using Accumulator = kittens::vec<float, 16>;
    using Product = kittens::rt_32x32;
    static constexpr int per_lane = 16;
    static constexpr int pieces =
        head_dim / 16;  // operands of a row; products of 32 queries in each of S, dP, dV, dK
    static constexpr int columns = head_dim / 32, halves = queries / 32;
    // Tiles of 32 x 32 of dQ: the waves side by side along the heads' columns, then along the queries.
    static constexpr int sums = halves * columns / config.waves, key_steps = keys / 16;
    static_assert(sums * key_steps == halves * pieces);

    // The products of a step, in order.
    static constexpr int scores_a = 0, dp_a = pieces, scores_b = 2 * pieces, dp_b = 3 * pieces,
                         values_a = 2 * halves * pieces, values_b = values_a + pieces,
                         keys_a = 3 * halves * pieces, sums_at = 4 * halves * pieces,
                         products = 5 * halves * pieces;
    // Operands are read from LDS so many products before theirs, and waited for by fours.
    static constexpr int ahead = direct ? 8 : 4, ring = direct ? 10 : 5, group = 4;
    static_assert(products % ring == 0 && products % group == 0, "a step ends as it began");
    // Here the step's tile has been read and dS written; every wave may read both others then.
    static constexpr int meeting = sums_at - ahead;
    // A half's 16 registers are exponentiated in as many slots as S has, from the second after its last product on; then the
    // weights are converted and dS is made of them.
    static constexpr int exponents_a = dp_a + 2, exponents_b = dp_b + 2;
    static constexpr int slopes_a = exponents_a + pieces + (pieces > 4),
                         slopes_b = exponents_b + pieces + (pieces > 4);
    static_assert(!direct ||
                  (slopes_a > scores_b && slopes_b > values_a && slopes_b + pieces / 2 <= values_b));
    // Registers of the last step's shares of dQ, where the arithmetic above leaves room: most before the waves meet, the rest
    // before the products that need the registers.
    static constexpr int shares = sums * per_lane, early_shares = shares * 5 / 8;
    static constexpr int slot_of_share(int share) {
        return share < early_shares
                   ? values_b + share * (meeting - values_b) / early_shares
                   : meeting + 1 + (share - early_shares) * (sums_at - meeting - 1) / (shares - early_shares);
    }
    // Each load of the next tiles has a slot, before all shares.
    static constexpr int loads = 2 * Loads::passes;
    static_assert(!direct ||
                  (slot_of_share(shares - 1) < sums_at && loads < values_b && slopes_b + pieces <= meeting));

    const BackwardArguments& arguments;
    kittens::shared_byte* lds;
    TilePlace place;
    Sequence sequence;
    int first_row;  // of the wave
    Fragment own_k[pieces], own_v[pieces], turned_k[key_steps];
    Accumulator gradient_k[columns], gradient_v[columns], gradient_q[sums];
    Accumulator scores[halves], slopes[halves];  // of a half of the queries; S, then the weights; dP, then dS
    Fragment weights_low[halves][2], slopes_low[halves][2];
    Fragment fragments[ring];
    // Of the query of register lane % 16 of a product; of the lane's own query of dQ.
    float start[halves], start_now[halves], delta[halves], delta_now[halves], inverse[sums], sum_delta[sums],
        sum_norm[sums];
    KeyBounds bounds;
    uint32_t straight_at, turned_at, slope_read_at, slope_write_at, statistic_at, own_statistic_at, sum_at;
    char* sums_before;
    DropoutDraws draws;
    Placed placed;
    // Of the queries of a step of gfx942, and of the next.
    const float *statistics_now, *following_statistics;

    KITTENS_DEVICE OnePass(const BackwardArguments& arguments, kittens::shared_byte* lds)
        : arguments(arguments),
          lds(lds),
          place(place_of_workgroup(kittens::workgroup_id_x(), arguments.order)),
          sequence(sequence_of(place.batch, arguments.mask, arguments.packed)),
          placed(lds) {}

    KITTENS_DEVICE static constexpr int at_buffer(int buffer, int which) {
        return buffer * buffer_bytes + which * Tile::bytes;
    }
    KITTENS_DEVICE Tile tile(int buffer, int which) const { return {lds + at_buffer(buffer, which)}; }
    KITTENS_DEVICE SlopeTile slope_tile(int buffer) const {
        return {lds + slopes_at + buffer * SlopeTile::bytes};
    }

    // The column of register e of a product, of a lane in the lower half of the wave, and its query, which is `upper` further in
    // the other half: gfx942 has the rows in LDS in an order that makes queries neighbours (tile_key).
    static constexpr int column_of(int e) { return e % 4 + e / 4 * 8; }
    static constexpr int query_of(int e) { return direct ? column_of(e) : e % 8 + e / 8 * 16; }
    static constexpr int upper = direct ? 4 : 8;

    template <class Of>
    KITTENS_DEVICE Fragment read_turned(kittens::shared_byte* data, uint32_t lane_at, int row, int step,
                                        int col) const {
        const kittens::vec<T, 4> low = kittens::lds_read_transposed<T>(
                                     data + kittens::stepped_offset<Of>(lane_at, row, col)),
                                 high = kittens::lds_read_transposed<T>(
                                     data + kittens::stepped_offset<Of>(lane_at, row + step, col));
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }

    // The operand from LDS of product i of a step; `straight` and so on are lanes' places in the step's buffer.
    struct Places {
        uint32_t straight, turned, slopes;
    };
    KITTENS_DEVICE Places places(int buffer) const {
        return {straight_at + buffer * buffer_bytes, turned_at + buffer * buffer_bytes,
                slope_read_at + buffer * SlopeTile::bytes};
    }
    template <int i>
    KITTENS_DEVICE void read(Fragment& to, const Places& at) const {
        if constexpr (i < values_a) {
            constexpr int half = i / (2 * pieces), which = i / pieces % 2, piece = i % pieces;
            to = kittens::lds_read<Fragment>(
                lds + kittens::stepped_offset<Tile>(at.straight, half * 32, piece * 16) +
                which * Tile::bytes);
        } else if constexpr (i < sums_at) {
            constexpr int which = i < keys_a, half = (i - values_a) / pieces % halves, n = i % pieces;
            to = read_turned<Tile>(lds + which * Tile::bytes, at.turned, half * 32 + n / columns * 16, 8,
                                   n % columns * 32);
        } else {
            constexpr int n = i - sums_at;
            to =
                read_turned<SlopeTile>(lds + slopes_at, at.slopes, n % key_steps * 16, 4, n / key_steps * 32);
        }
    }
    // LDS reads of the operands of products first .. past-1.
    static constexpr int reads_between(int first, int past) {
        int reads = 0;
        for (int i = first; i < past; ++i) reads += i % products < values_a ? 1 : 2;
        return reads;
    }
    template <int i>
    KITTENS_DEVICE void multiply(const Fragment& read) {
        constexpr int half = i / (2 * pieces), piece = i % pieces;
        if constexpr (i < values_a) {
            const auto& own = i / pieces % 2 ? own_v : own_k;
            constexpr bool of_scores = i / pieces % 2 == 0;
            auto& product = of_scores ? scores[half] : slopes[half];
            if constexpr (of_scores && piece == 0) product = Accumulator{};
            product = kittens::multiply_base<kittens::row_l, Product>(own[piece], read, product);
        } else if constexpr (i < sums_at) {
            constexpr int side = (i - values_a) / pieces % halves, n = i % pieces;
            const auto& low = i < keys_a ? weights_low : slopes_low;
            auto& gradient = (i < keys_a ? gradient_v : gradient_k)[n % columns];
            gradient =
                kittens::multiply_base<kittens::row_l, Product>(low[side][n / columns], read, gradient);
        } else {
            constexpr int n = i - sums_at;
            auto& sum = gradient_q[n / key_steps];
            if constexpr (n % key_steps == 0) sum = Accumulator{};
            sum = kittens::multiply_base<kittens::row_l, Product>(read, turned_k[n % key_steps], sum);
        }
    }

    // Registers first .. first+count-1 of the accumulators that the next step's dP starts from.
    template <int first, int count>
    KITTENS_DEVICE void spread_delta() {
        kittens::for_each_index<first + count, first>([&](auto index) {
            constexpr int half = index.value / per_lane, e = index.value % per_lane;
            // Not where weights are dropped: slope_of has it.
            slopes[half][e] = config.dropout ? 0.0f : kittens::broadcast_in_16<e>(delta[half]);
        });
    }

    // S does not start from -LSE: sums of products would be rounded in its units. One fused step cancels them.
    template <int half, int first, int count>
    KITTENS_DEVICE void exponentiate() {
        kittens::for_each_index<first + count, first>([&](auto index) {
            constexpr int e = index.value;
            scores[half][e] = kittens::exponential_base_2(__builtin_fmaf(
                scores[half][e], arguments.scale_log2, kittens::broadcast_in_16<e>(start_now[half])));
        });
    }
    template <int half>
    KITTENS_DEVICE void clear_invisible(int left, uint32_t span) {
#pragma unroll
        for (int e = 0; e < per_lane; ++e) {
            if (static_cast<uint32_t>(query_of(e) + half * 32 - left) > span) scores[half][e] = 0;
            if (e % 4 == 3) kittens::schedule_fence();
        }
    }
    // A weight is never negative, so a sign can say that it was dropped: dV takes no share of it, and its dP is zero.
    template <int half>
    KITTENS_DEVICE void mark_dropped(int n, int head, int column) {
        const int lane = kittens::lane_id();
        const DropoutDraws::Words words =
            draws.of_key(place.batch * arguments.heads + head,
                         column + half * 32 + n * 16 + lane / 32 * upper, first_row + lane % 32, 12 - upper);
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (words[e] < draws.limit) scores[half][n * 8 + e] = -scores[half][n * 8 + e];
    }
    template <int half>
    KITTENS_DEVICE void convert_weights(int first, int count) {
#pragma unroll
        for (int e = first; e < first + count; e += 2) {
            kittens::vec<float, 2> pair = {scores[half][e], scores[half][e + 1]};
            kittens::stay_apart(pair);
            if constexpr (config.dropout) {
                if (pair[0] < 0) pair[0] = 0;
                if (pair[1] < 0) pair[1] = 0;
            }
            auto low = kittens::narrowed<T>(pair);
            if constexpr (!direct) kittens::compute_here(low);
            weights_low[half][e / 8][e % 8] = low[0];
            weights_low[half][e / 8][e % 8 + 1] = low[1];
        }
    }
    // dS of a weight and its dP, from which delta is already taken; a dropped one has no dP.
    KITTENS_DEVICE float slope_of(float weight, float gradient, float delta) const {
        if constexpr (!config.dropout) return weight * gradient;
        const bool dropped = __builtin_bit_cast(int32_t, weight) < 0;
        const float kept = __builtin_fmaf(gradient, arguments.dropout.scale, delta);
        return kittens::absolute_value(weight) * (dropped ? delta : kept);
    }
    template <int half, int e>
    KITTENS_DEVICE void slope() {
        kittens::vec<float, 2> pair;
        kittens::for_each_index<2>([&](auto n) {
            constexpr int at = e + n.value;
            const float own_delta = config.dropout ? kittens::broadcast_in_16<at>(delta_now[half]) : 0.0f;
            pair[n.value] = slope_of(scores[half][at], slopes[half][at], own_delta);
        });
        kittens::stay_apart(pair);
        const auto low = kittens::narrowed<T>(pair);
        slopes_low[half][e / 8][e % 8] = low[0];
        slopes_low[half][e / 8][e % 8 + 1] = low[1];
    }
    template <int half, int e>
    KITTENS_DEVICE void write_slopes(uint32_t to) const {
        kittens::vec<T, 4> run;
        kittens::for_each_index<4>([&](auto n) { run[n.value] = slopes_low[half][e / 8][e % 8 + n.value]; });
        kittens::lds_write(
            run, lds + slopes_at + kittens::stepped_offset<SlopeTile>(to, 0, half * 32 + query_of(e)));
    }
    // A register of the shares of the step before goes to memory, in the order in which they lie (query_sums.h).
    template <int share>
    KITTENS_DEVICE void add_share() const {
        constexpr int sum = share / per_lane, e = share % per_lane;
        kittens::atomic_add(sums_before + sum * columns * sum_tile_bytes + e * kittens::wave_lanes * 4,
                            sum_at, static_cast<int32_t>(gradient_q[sum][e] * inverse[sum]));
    }

    // From the slot before `first` on.
    template <int half, int first, int i>
    KITTENS_DEVICE void arithmetic_of_slopes(int head, int column, bool masked, int left, uint32_t span,
                                             uint32_t to) {
        if constexpr (i == first - 1) {
            if (__builtin_expect(masked, false)) clear_invisible<half>(left, span);
            if constexpr (config.dropout) {
                mark_dropped<half>(0, head, column);
                mark_dropped<half>(1, head, column);
            }
        }
        if constexpr (i >= first && i < first + pieces / 2)
            convert_weights<half>((i - first) * 2 * per_lane / pieces, 2 * per_lane / pieces);
        if constexpr (i >= first && i < first + pieces) {
            constexpr int share = per_lane / pieces, at = (i - first) * share;
            kittens::for_each_index<share / 2>([&](auto n) { slope<half, at + n.value * 2>(); });
            if constexpr ((at + share) % 4 == 0) write_slopes<half, at + share - 4>(to);
        }
    }

    template <class Begin, class Load>
    KITTENS_DEVICE void step(int buffer, int head, int column, bool masked, int left, uint32_t span,
                             const Begin& begin, const Load& load) {
        const Places now = places(buffer), then = places(buffer ^ 1);
        const uint32_t slopes_to = slope_write_at + buffer * SlopeTile::bytes;
        kittens::for_each_index<products>([&](auto index) {
            constexpr int i = index.value;
            if constexpr (i == 0) begin();
            if constexpr (i > 0 && i <= loads) load(kittens::index<i - 1>{});
            if constexpr (i == meeting) {
                kittens::wait_vector_memory<early_shares>();
                kittens::barrier();
            }
            if constexpr (i == meeting - 1) read_own_statistics(buffer);
            if constexpr (i == meeting + 1) read_statistics(buffer ^ 1);
            if constexpr (i == sums_at) use_statistics();
            if constexpr (i == 0) {
                kittens::for_each_index<2>([&](auto half) {
                    start_now[half.value] = start[half.value];
                    delta_now[half.value] = delta[half.value];
                });
            }
            if constexpr (i >= sums_at) spread_delta<(i - sums_at) * per_lane / pieces, per_lane / pieces>();
            // Those of the next fours may be under way.
            if constexpr (i % group == 0) kittens::wait_lds<reads_between(i + group, i + ahead)>();
            multiply<i>(fragments[i % ring]);
            kittens::schedule_fence();
            if constexpr (i + ahead < products)
                read<i + ahead>(fragments[(i + ahead) % ring], now);
            else
                read<i + ahead - products>(fragments[(i + ahead) % ring], then);
            // Shares of the arithmetic: 16 registers in as many slots as a product of S or dP has.
            constexpr int share = per_lane / pieces;
            const auto of = [](int first) { return i >= first && i < first + pieces; };
            if constexpr (of(exponents_a)) exponentiate<0, (i - exponents_a) * share, share>();
            if constexpr (of(exponents_b)) exponentiate<1, (i - exponents_b) * share, share>();
            arithmetic_of_slopes<0, slopes_a, i>(head, column, masked, left, span, slopes_to);
            arithmetic_of_slopes<1, slopes_b, i>(head, column, masked, left, span, slopes_to);
            kittens::for_each_index<shares>([&](auto share) {
                if constexpr (slot_of_share(share.value) == i) add_share<share.value>();
            });
            kittens::schedule_fence();
        });
    }

    KITTENS_DEVICE float statistic(int buffer, Statistic which, uint32_t at) const {
        return kittens::lds_read<float>(lds + (at_buffer(buffer, 2) + at) +
                                        static_cast<int>(which) * statistics_block * 4);
    }
    // What the exponents and dP of a step start from.
    KITTENS_DEVICE void read_statistics(int buffer) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            start[half] = statistic(buffer, Statistic::start, statistic_at + half * 128);
            delta[half] = statistic(buffer, Statistic::delta, statistic_at + half * 128);
        }
    }
    // What its shares of dQ need.
    KITTENS_DEVICE void read_own_statistics(int buffer) {
#pragma unroll
        for (int sum = 0; sum < sums; ++sum) {
            sum_delta[sum] = statistic(buffer, Statistic::delta, own_statistic_at + sum * 128);
            sum_norm[sum] = statistic(buffer, Statistic::norm, own_statistic_at + sum * 128);
        }
    }
    KITTENS_DEVICE void use_statistics() {
#pragma unroll
        for (int sum = 0; sum < sums; ++sum)
            inverse[sum] = kittens::times_power_of_2(
                1.0f, sum_bits - bound_exponent(bounds.bound(sum_norm[sum], sum_delta[sum])));
    }

    template <class Loads>
    KITTENS_DEVICE void aim(Loads& loads, int64_t row_bytes) const {
        loads.aim(row_bytes);
#pragma unroll
        for (int pass = 0; pass < Loads::passes; ++pass)
            if (Loads::position(pass, kittens::thread_id()).col >= arguments.head_dim)
                loads.offsets[pass] = kittens::out_of_range;
    }

    // Through LDS, where a row's lanes meet: `at` is room for the workgroup's rows.
    KITTENS_DEVICE void store(const Accumulator (&gradient)[columns], int at,
                              const TensorArgument& destination, int64_t first, int row_count,
                              int head_dim_used, float factor) const {
        const KeyTile rows_of_all{lds + at};
        const int wave_row = first_row - place.tile * keys, lane = kittens::lane_id_again();
        const uint32_t write_at = KeyTile::offset(wave_row + lane % 32, lane / 32 * 4);
#pragma unroll
        for (int j = 0; j < columns; ++j)
#pragma unroll
            for (int e = 0; e < per_lane; e += 4) {
                const auto& all = gradient[j];
                const kittens::vec<float, 4> values = {all[e] * factor, all[e + 1] * factor,
                                                       all[e + 2] * factor, all[e + 3] * factor};
                kittens::lds_write(
                    kittens::narrowed<T>(values),
                    rows_of_all.data + kittens::stepped_offset<KeyTile>(write_at, 0, j * 32 + column_of(e)));
            }
        constexpr int lanes_per_row = head_dim / 8, rows_at_once = kittens::wave_lanes / lanes_per_row;
        const int col = lane % lanes_per_row * 8;
        T* to = static_cast<T*>(const_cast<void*>(destination.data)) +
                sequence.batch * destination.batch_stride + place.head * destination.head_stride +
                first * destination.row_stride + col;
#pragma unroll
        for (int i = 0; i < rows; i += rows_at_once) {
            const int row = i + lane / lanes_per_row;
            const Fragment run =
                kittens::lds_read<Fragment>(rows_of_all.data + KeyTile::offset(wave_row + row, col));
            if (first_row + row < row_count && col < head_dim_used)
                *reinterpret_cast<Fragment*>(to + (first_row + row) * destination.row_stride) = run;
        }
    }

    // A step of gfx942: S and dP, the last step's dQ, then dV and dK, so that what is made of S and dP has the time of dQ. Its
    // products are two instructions of half the K each.
    static constexpr int slots = 2 * products, all_pieces = halves * pieces;
    static constexpr int placed_sums = 2 * all_pieces, placed_values = 3 * all_pieces,
                         placed_keys = 4 * all_pieces;
    // Slots in which the waves meet: when all have read the rows as they lie and the last dS, and when all have read those
    // transposed. In between the first are replaced, after that the second.
    static constexpr int first_meeting = 2 * (placed_values - ahead) + 1,
                         second_meeting = 2 * (products - ahead) + 1;
    static constexpr bool is_meeting(int slot) { return slot == first_meeting || slot == second_meeting; }

    template <int i>
    KITTENS_DEVICE void read_placed(Fragment& to) const {
        if constexpr (i < placed_sums) {
            constexpr int half = i / (2 * pieces), which = i / pieces % 2, piece = i % pieces;
            to = placed.template straight<which, half * 32, piece * 16>();
        } else if constexpr (i < placed_values) {
            constexpr int n = i - placed_sums;
            to = placed.template slopes<n / key_steps * 32, n % key_steps * 16>();
        } else {
            constexpr int which = i < placed_keys, half = (i - placed_values) / pieces % halves,
                          n = i % pieces;
            to = placed.template turned<which, half * 32 + n / columns * 16, n % columns * 32>();
        }
    }
    template <int i, int part>
    KITTENS_DEVICE void multiply_part(const Fragment& read) {
        const auto half_of = [](const Fragment& fragment) {
            return part ? kittens::vec<T, 4>(fragment.hi) : kittens::vec<T, 4>(fragment.lo);
        };
        const auto add_product = [&](Accumulator& to, const Fragment& a, const Fragment& b) {
            to = kittens::multiply_base<kittens::row_l, Product>(half_of(a), half_of(b), to);
        };
        if constexpr (i < placed_sums) {
            constexpr int half = i / (2 * pieces), piece = i % pieces;
            constexpr bool of_scores = i / pieces % 2 == 0;
            auto& product = of_scores ? scores[half] : slopes[half];
            if constexpr (of_scores && piece == 0 && part == 0) product = Accumulator{};
            add_product(product, (of_scores ? own_k : own_v)[piece], read);
        } else if constexpr (i < placed_values) {
            constexpr int n = i - placed_sums;
            auto& sum = gradient_q[n / key_steps];
            if constexpr (n % key_steps == 0 && part == 0) sum = Accumulator{};
            add_product(sum, read, turned_k[n % key_steps]);
        } else {
            constexpr int half = (i - placed_values) / pieces % halves, n = i % pieces;
            const auto& low = i < placed_keys ? weights_low : slopes_low;
            add_product((i < placed_keys ? gradient_v : gradient_k)[n % columns], low[half][n / columns],
                        read);
        }
    }

    // Those of `count` whose turn it is in slot `at`, spread evenly over slots first .. past-1.
    template <int at, int first, int past, int count, class Work>
    KITTENS_DEVICE static void spread(const Work& work) {
        if constexpr (at >= first && at < past)
            kittens::for_each_index<count>([&](auto n) {
                if constexpr (first + n.value * (past - first) / count == at) work(n);
            });
    }
    template <int half, int e>
    KITTENS_DEVICE void make_slope() {
        const float own_delta = config.dropout ? kittens::broadcast_in_16<e>(delta_now[half]) : 0.0f;
        float slope = slope_of(scores[half][e], slopes[half][e], own_delta);
        kittens::compute_here(slope);
        slopes[half][e] = slope;
    }
    template <int half, int e>
    KITTENS_DEVICE void convert_slopes() {
        auto low = kittens::narrowed<T>(kittens::vec<float, 2>{slopes[half][e], slopes[half][e + 1]});
        kittens::compute_here(low);
        slopes_low[half][e / 8][e % 8] = low[0];
        slopes_low[half][e / 8][e % 8 + 1] = low[1];
    }
    // The arithmetic of 32 queries that stands in slot `at`.
    template <int at, int half>
    KITTENS_DEVICE void placed_arithmetic(int head, int column, bool masked, int left, uint32_t span) {
        // Exponentials from S on, weights until dV needs them, dS from dP on until dK needs it.
        constexpr int exponents_first = 2 * (half * 2 + 1) * pieces,
                      exponents_past = exponents_first + (halves == 1 ? 16 : 14);
        constexpr int weights_first = exponents_past + 1,
                      weights_past = 2 * placed_values + half * 2 * pieces - 2;
        constexpr int slopes_first = halves == 1 ? weights_past - 4 : first_meeting - 3 + half * 8,
                      slopes_past = slopes_first + 20, apart = 2;
        static_assert(slopes_first + 2 * apart > first_meeting && slopes_past + 2 * apart <= second_meeting);
        spread<at, exponents_first, exponents_past, per_lane>(
            [&](auto n) { exponentiate<half, n.value, 1>(); });
        if constexpr (at == exponents_past) {
            if (__builtin_expect(masked, false)) clear_invisible<half>(left, span);
            if constexpr (config.dropout) {
                mark_dropped<half>(0, head, column);
                mark_dropped<half>(1, head, column);
            }
        }
        spread<at, weights_first, weights_past, per_lane / 2>(
            [&](auto n) { convert_weights<half>(n.value * 2, 2); });
        spread<at, slopes_first, slopes_past, per_lane>([&](auto n) { make_slope<half, n.value>(); });
        spread<at, slopes_first + apart, slopes_past + apart, per_lane / 2>(
            [&](auto n) { convert_slopes<half, n.value * 2>(); });
        spread<at, slopes_first + 2 * apart, slopes_past + 2 * apart, per_lane>([&](auto n) {
            placed.template write_slope<half * 32 + query_of(n.value)>(
                slopes_low[half][n.value / 8][n.value % 8]);
        });
    }

    // begin_fetch(): the rows of the step after the next; advance(): to the next step's statistics.
    template <class Begin, class Advance>
    KITTENS_DEVICE void placed_step(int head, int column, bool masked, int left, uint32_t span,
                                    const Begin& begin_fetch, const Advance& advance) {
        kittens::buffer rows_to_come;
        kittens::for_each_index<slots>([&](auto index) {
            constexpr int at = index.value, i = at / 2, part = at % 2;
            if constexpr (at == 0)
                for (int half = 0; half < halves; ++half) {
                    start_now[half] = start[half];
                    delta_now[half] = delta[half];
                }
            if constexpr (is_meeting(at)) kittens::barrier();
            kittens::schedule_fence();
            multiply_part<i, part>(fragments[i % ring]);
            kittens::schedule_fence();
            // Behind a meeting, not right before it, which waits for all reads.
            if constexpr (is_meeting(at) || (part == 0 && !is_meeting(at + 1)))
                read_placed<(i + ahead) % products>(fragments[(i + ahead) % ring]);
            kittens::for_each_index<halves>(
                [&](auto half) { placed_arithmetic<at, half.value>(head, column, masked, left, span); });

            // The next step's rows: transposed, what dP starts from, and as they lie; then the loads of those after.
            spread<at, 1, 16, Placed::columns>([&](auto n) { placed.template place_column<n.value>(); });
            spread<at, 0, 16, halves * per_lane>([&](auto n) { spread_delta<n.value, 1>(); });
            if constexpr (at == 4) advance();
            if constexpr (at == 9) rows_to_come = begin_fetch();
            if constexpr (at == 2 * placed_sums + 2) load_statistics(following_statistics);
            spread<at, first_meeting + 2, first_meeting + 14, Placed::rows>(
                [&](auto n) { placed.template place_row<n.value>(); });
            if constexpr (at == 2 * placed_keys - 4) use_statistics();
            if constexpr (at == 2 * placed_keys - 3) load_own_statistics(statistics_now);
            spread<at, 2 * placed_keys, slots, shares>([&](auto n) { add_share<n.value>(); });
            spread<at, second_meeting - 10, second_meeting - 2, Placed::columns>(
                [&](auto n) { placed.template turn<n.value>(); });
            spread<at, second_meeting - 1, second_meeting + 7, Placed::rows>(
                [&](auto n) { placed.template fetch<n.value>(rows_to_come); });
            kittens::schedule_fence();
        });
    }

    // Of a step whose statistics begin at `from`: of the queries of a lane's registers, and of its own query of dQ.
    KITTENS_DEVICE void load_statistics(const float* from) {
        const int lane = kittens::lane_id(), own = query_of(lane % 16) + lane / 32 * upper;
        for (int half = 0; half < halves; ++half) {
            start[half] = from[own + half * 32];
            delta[half] = from[own + half * 32 + statistics_block];
        }
    }
    KITTENS_DEVICE void load_own_statistics(const float* from) {
        const float* own = from + own_statistic_at / 4;
        for (int sum = 0; sum < sums; ++sum) {
            sum_delta[sum] = own[sum * 32 + static_cast<int>(Statistic::delta) * statistics_block];
            sum_norm[sum] = own[sum * 32 + static_cast<int>(Statistic::norm) * statistics_block];
        }
    }

    KITTENS_DEVICE void walk_placed(int first_column, int past) {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys, wave = kittens::wave_id(), lane = kittens::lane_id();
        const int low = lane % 32, high = lane / 32;
        const int head_in_group = place.part * arguments.heads_per_part,
                  past_head = head_in_group + arguments.heads_per_part,
                  heads = (past_head < arguments.group ? past_head : arguments.group) - head_in_group;
        const int first_head = place.head * arguments.group + head_in_group;
        const int steps_of_head = (past - first_column + queries - 1) / queries;

        // The rows that are loaded next, of Q or of dO.
        const bool of_grad = placed.which(wave) != 0;
        const int64_t row_bytes =
            (of_grad ? arguments.grad_out : arguments.q).row_stride * static_cast<int64_t>(sizeof(T));
        placed.aim(row_bytes, arguments.head_dim);
        int head = first_head - 1, next_column = past, left_to_load = steps_of_head * heads;
        kittens::global_window window;
        const auto begin_fetch = [&] {
            if (__builtin_expect(next_column >= past, false)) {
                // Read again: in the loop, scalar registers are short.
                const auto again = kittens::arguments_again<BackwardArguments>();
                if (left_to_load > 0) ++head;
                next_column = first_column;
                window = matrix_of<T>(of_grad ? again.grad_out : again.q, sequence.batch, sequence.first_q,
                                      head, mask.n_q, again.head_dim)
                             .window(first_column, 0);
            }
            kittens::buffer view = window.view();
            if (left_to_load-- <= 0) view.bytes = 0;
            next_column += queries;
            window.advance(queries * row_bytes);
            return view;
        };
        const auto fetch = [&] {
            const kittens::buffer view = begin_fetch();
            kittens::for_each_index<Placed::rows>([&](auto n) { placed.template fetch<n.value>(view); });
        };
        fetch();
        bounds = bounds_of(arguments, sequence, place.batch, place.head);
        if constexpr (config.dropout) bounds.v *= arguments.dropout.scale;
        if constexpr (config.dropout) draws.start(arguments.dropout);
        kittens::barrier();
        read_keys(wave, lane);
        const int sum_column = wave % columns * 32, sum_query = wave / columns * 32;
        kittens::for_each_index<key_steps>([&](auto n) {
            kittens::for_each_index<8>([&](auto e) {
                turned_k[n.value][e.value] = kittens::lds_read<T>(
                    lds + keys_at + KeyTile::offset(n.value * 16 + high * 8 + e.value, sum_column + low));
            });
            kittens::keep_in_accumulator(turned_k[n.value]);
        });
        own_statistic_at = (sum_query + low) * 4;
        sum_at = wave * sum_tile_bytes + lane * 4;
        kittens::barrier();

        // Of the step that is computed next.
        const auto row_of = [&](int head) {
            return (sequence.batch * arguments.heads + head) * arguments.statistics_rows + first_column +
                   (arguments.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
        };
        const auto statistics_of = [&](int64_t row) {
            return arguments.statistics + statistic_index(Statistic::start, row);
        };
        const auto sums_of = [&](int64_t row) {
            return reinterpret_cast<char*>(arguments.sums) + row * head_dim * 4;
        };
        int column_now = first_column, head_now = first_head, following_column = column_now,
            following_head = head_now;
        statistics_now = following_statistics = statistics_of(row_of(first_head));
        char *sums_now = sums_of(row_of(first_head)), *following_sums = sums_now;
        const auto advance = [&] {
            following_column += queries;
            following_sums += queries * head_dim * 4;
            // Further on in the block, or to the next one.
            following_statistics += following_column % statistics_block
                                        ? queries
                                        : statistics_bytes / 4 - (statistics_block - queries);
            if (__builtin_expect(following_column >= past, false)) {
                following_column = first_column;
                // Past the last step its statistics are loaded again.
                if (following_head + 1 < first_head + heads) ++following_head;
                following_statistics = statistics_of(row_of(following_head));
                following_sums = sums_of(row_of(following_head));
            }
        };

        // Before the first step there is no dS, and nothing to add.
        placed.clear_slopes();
        for (int sum = 0; sum < sums; ++sum) sum_delta[sum] = sum_norm[sum] = 0;
        sums_before = sums_now;
        kittens::for_each_index<Placed::rows>([&](auto n) { placed.template place_row<n.value>(); });
        kittens::for_each_index<Placed::columns>([&](auto n) { placed.template turn<n.value>(); });
        load_statistics(statistics_now);
        fetch();
        // Here, or the compiler has every step wait as if it were the first.
        kittens::wait_vector_memory<Placed::rows>();
        kittens::barrier();
        kittens::for_each_index<ahead>([&](auto n) { read_placed<n.value>(fragments[n.value]); });

        const SeenQueries seen = seen_queries(low, high);
        const int first_clear = mask.first_query(begin + keys - 1),
                  last_clear = mask.last_query(begin) + 1 - queries;
        const bool some_invisible_rows = begin + keys > mask.n_k;
        for (int steps = steps_of_head * heads; steps > 0; --steps) {
            // Without branches, which would part the loop.
            const bool visible =
                !some_invisible_rows & (first_clear <= column_now) & (column_now <= last_clear);
            placed_step(head_now, column_now, !visible, seen.left(column_now), seen.span, begin_fetch,
                        advance);
            sums_before = sums_now;
            sums_now = following_sums;
            statistics_now = following_statistics;
            column_now = following_column;
            head_now = following_head;
        }
        use_statistics();
        kittens::for_each_index<placed_values, placed_sums>([&](auto i) {
            Fragment slope;
            read_placed<i.value>(slope);
            multiply_part<i.value, 0>(slope);
            multiply_part<i.value, 1>(slope);
        });
        kittens::for_each_index<shares>([&](auto share) { add_share<share.value>(); });
    }

    KITTENS_DEVICE void fetch_keys(const TensorArgument& tensor, int at) const {
        const auto source = matrix_of<T>(tensor, sequence.batch, sequence.first_k, place.head,
                                         sequence.mask.n_k, arguments.head_dim);
        KeyLoads key_loads;
        aim(key_loads, source.row_bytes());
        key_loads.fetch(source.window(place.tile * keys, 0).view(), {lds + at});
        key_loads.place({lds + at});
    }
    KITTENS_DEVICE void read_keys(int wave, int lane) {
        const uint32_t own_at = KeyTile::offset(wave * rows + lane % 32, lane / 32 * 8);
        kittens::for_each_index<pieces>([&](auto n) {
            const uint32_t at = kittens::stepped_offset<KeyTile>(own_at, 0, n.value * 16);
            own_k[n.value] = kittens::lds_read<Fragment>(lds + keys_at + at);
            own_v[n.value] = kittens::lds_read<Fragment>(lds + values_at + at);
        });
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
        const int row = first_row + low;
        const int left_of = row < mask.n_k ? mask.first_query(row) - high * upper : unlimited;
        const int last = mask.last_query(row) - mask.first_query(row);
        return {last < 0 ? unlimited : left_of, last < 0 || row >= mask.n_k ? 0u : last};
    }

    KITTENS_DEVICE void walk(int first_column, int past) {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys, wave = kittens::wave_id(), lane = kittens::lane_id();
        Loads first_loads, second_loads;
        const int64_t q_bytes = arguments.q.row_stride * static_cast<int64_t>(sizeof(T)),
                      grad_bytes = arguments.grad_out.row_stride * static_cast<int64_t>(sizeof(T));
        aim(first_loads, q_bytes);
        aim(second_loads, grad_bytes);
        const int64_t q_step = queries * q_bytes, grad_step = queries * grad_bytes;

        // The step that is loaded next.
        const int head_in_group = place.part * arguments.heads_per_part,
                  past_head = head_in_group + arguments.heads_per_part;
        int head = place.head * arguments.group + head_in_group - 1;
        int heads_left = (past_head < arguments.group ? past_head : arguments.group) - head_in_group;
        int next_column = past;
        kittens::global_window q_window, grad_window;
        kittens::buffer q_view, grad_view;
        const char* next_statistics = nullptr;
        char* next_sums = nullptr;
        uint32_t statistics_offset[1] = {static_cast<uint32_t>(lane * kittens::chunk_bytes)};
        // Past the last one the buffers are empty: their loads count like any other, so waits stay the same.
        bool more = true;
        const auto begin_fetch = [&](int buffer) {
            if (__builtin_expect(next_column >= past, false)) {
                // Read again: in the loop, scalar registers are short.
                const auto again = kittens::arguments_again<BackwardArguments>();
                more = heads_left-- > 0;
                if (more) ++head;
                next_column = first_column;
                const auto window = [&](const TensorArgument& tensor) {
                    return matrix_of<T>(tensor, sequence.batch, sequence.first_q, head, mask.n_q,
                                        again.head_dim)
                        .window(first_column, 0);
                };
                q_window = window(again.q), grad_window = window(again.grad_out);
                const int64_t row =
                    (sequence.batch * again.heads + head) * again.statistics_rows + first_column +
                    (again.packed.first_q ? statistics_row(sequence.first_q, place.batch) : 0);
                next_statistics = reinterpret_cast<const char*>(again.statistics +
                                                                row * static_cast<int>(Statistic::count));
                next_sums = reinterpret_cast<char*>(again.sums + row * head_dim);
            }
            q_view = q_window.view(), grad_view = grad_window.view();
            if (!more) q_view.bytes = grad_view.bytes = 0;
            if (wave == 0)
                kittens::buffer_load_to_lds<1>({next_statistics, statistics_bytes}, statistics_offset,
                                               lds + at_buffer(buffer, 2));
        };
        const auto advance = [&] {
            next_column += queries;
            q_window.advance(q_step);
            grad_window.advance(grad_step);
            next_statistics += statistics_bytes;
            next_sums += queries * head_dim * 4;
        };

        const int low = lane % 32, high = lane / 32, inside = lane % 16;
        straight_at = Tile::offset(low, high * 8);
        turned_at = Tile::offset(high * 4 + inside / 4, low / 16 * 16 + inside % 4 * 4);
        const int sum_column = wave % columns * 32, sum_query = wave / columns * 32;
        slope_read_at = SlopeTile::offset(high * 8 + inside / 4, sum_query + low / 16 * 16 + inside % 4 * 4);
        slope_write_at = SlopeTile::offset(wave * rows + low, high * 4);
        statistic_at = (query_of(inside) + high * 4) * 4;
        own_statistic_at = (sum_query + low) * 4;
        sum_at = wave * sum_tile_bytes + lane * 4;
        const uint32_t key_at =
            KeyTile::offset(high * 8 + inside / 4, sum_column + low / 16 * 16 + inside % 4 * 4);

        begin_fetch(0);
        first_loads.fetch(q_view, tile(0, 0));
        second_loads.fetch(grad_view, tile(0, 1));
        char* sums_now = next_sums;
        int column_now = next_column, head_now = head;
        advance();
        bounds = bounds_of(arguments, sequence, place.batch, place.head);
        if constexpr (config.dropout) bounds.v *= arguments.dropout.scale;
        if constexpr (config.dropout) draws.start(arguments.dropout);
        kittens::wait_vector_memory<0>();
        kittens::barrier();
        read_keys(wave, lane);
        kittens::for_each_index<key_steps>([&](auto n) {
            turned_k[n.value] = read_turned<KeyTile>(lds + keys_at, key_at, n.value * 16, 4, 0);
        });
        kittens::for_each_index<ahead>([&](auto n) { read<n.value>(fragments[n.value], places(0)); });
        read_statistics(0);
        spread_delta<0, 2 * per_lane>();
        kittens::for_each_index<sums>([&](auto n) {
            gradient_q[n.value] = Accumulator{};
            inverse[n.value] = 0;
        });
        sums_before = sums_now;
        kittens::barrier();

        const SeenQueries seen = seen_queries(low, high);
        const bool some_invisible_rows = begin + keys > mask.n_k;
        int buffer = 0;
        do {
            const bool visible = !some_invisible_rows && mask.first_query(begin + keys - 1) <= column_now &&
                                 column_now + queries - 1 <= mask.last_query(begin);
            char* following = nullptr;
            int following_column = 0, following_head = 0;
            const auto begin_next = [&] {
                begin_fetch(buffer ^ 1);
                following = next_sums;
                following_column = next_column;
                following_head = head;
                advance();
            };
            const auto load_next = [&](auto n) {
                constexpr int pass = n.value % Loads::passes, which = n.value / Loads::passes;
                auto& loads = which ? second_loads : first_loads;
                loads.template fetch_pass<pass>(which ? grad_view : q_view, tile(buffer ^ 1, which));
            };
            step(buffer, head_now, column_now, !visible, seen.left(column_now), seen.span, begin_next,
                 load_next);
            sums_before = sums_now;
            sums_now = following;
            column_now = following_column;
            head_now = following_head;
            buffer ^= 1;
        } while (more);
        kittens::for_each_index<shares>([&](auto share) { add_share<share.value>(); });
    }

    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        OnePass(arguments, lds).run();
    }

    KITTENS_DEVICE void run() {
        const Mask& mask = sequence.mask;
        const int begin = place.tile * keys;
        first_row = begin + kittens::wave_id() * rows;
        if (begin >= mask.n_k) return;
        kittens::for_each_index<columns>([&](auto j) {
            gradient_k[j.value] = Accumulator{};
            gradient_v[j.value] = Accumulator{};
        });

        const int last_row = (begin + keys < mask.n_k ? begin + keys : mask.n_k) - 1;
        const int first_column = mask.first_query(begin) / queries * queries,
                  past = mask.last_query(last_row) + 1;
        if (first_column < past) {
            fetch_keys(arguments.k, keys_at);
            fetch_keys(arguments.v, values_at);
            if constexpr (direct)
                walk(first_column, past);
            else
                walk_placed(first_column, past);
        }
        const auto results = kittens::arguments_again<BackwardArguments>();
        if (results.parts > 1) {
            if (first_row >= mask.n_k) return;
            store_key_share(gradient_k, results, sequence, place, first_row, false);
            store_key_share(gradient_v, results, sequence, place, first_row, true);
            return;
        }
        kittens::barrier();
        store(gradient_k, 0, results.grad_k, sequence.first_k, mask.n_k, results.head_dim, results.scale);
        store(gradient_v, values_at - keys_at, results.grad_v, sequence.first_k, mask.n_k, results.head_dim,
              config.dropout ? results.dropout.scale : 1.0f);
    }
};

}  // namespace hipkittens::attention
