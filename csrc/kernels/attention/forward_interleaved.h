// kernels/attention/forward_interleaved.h: QK^T, softmax, PV and LDS reads of neighboring chunks of keys, interleaved.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"
#include "ring_offset.h"
#include "staged_queries.h"

namespace hipkittens::attention {

// A wave iterates over chunks of 32 keys. Chunk c multiplies Q by the keys of chunk c + 1 and P by the values of chunk c - 1
// while it computes the exponentials of chunk c and reads the keys of chunk c + 2 and the values of chunk c from LDS. Nothing
// in a chunk depends on anything else in it, so matrix cores, vector units and LDS work at the same time, whatever the other
// wave of the SIMD does. There is one barrier per tile of keys. Two waves share a SIMD: either of one workgroup of eight, or of
// two workgroups of four that never wait for each other, if LDS has room for both.
template <ForwardConfig config>
struct InterleavedForward : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::T, typename Wave::Values,
        typename Wave::ValueTile;
    using Wave::all, Wave::arguments, Wave::direct, Wave::keys, Wave::output, Wave::own, Wave::query,
        Wave::weights;
    static_assert(!config.dropout, "the simple schedule has it");
    // Tiles in LDS: those being read, and those in flight. At the barrier of tile t, loads are issued for the keys of tile t + 2
    // and the values of tile t + 2. Through registers, values are committed to LDS one barrier later: t + 1.
    static constexpr int key_tiles = 2, value_tiles = direct ? 3 : 2;
    static constexpr int key_bytes = key_tiles * KeyTile::bytes, value_bytes = value_tiles * ValueTile::bytes;
    // Queries also pass through LDS, in the space later used by values.
    using Staged = StagedQueries<T, config.waves, tile_width(config.head_dim)>;
    static constexpr int query_offset = key_bytes + ValueTile::bytes,
                         query_end = Wave::queries_through_lds ? query_offset + Staged::bytes : 0;
    static constexpr int lds_bytes =
        query_end > key_bytes + value_bytes ? query_end : key_bytes + value_bytes;
    static_assert(lds_bytes <= target.lds_bytes);

    static constexpr int chunk = 32;
    static_assert(keys == 2 * chunk, "a tile is two chunks");
    // Matrix steps of a chunk: over head_dim for S; for O, over keys with value_dim as the inner loop.
    static constexpr int qk_steps = config.head_dim / 16, pv_steps = config.value_dim / 16,
                         columns = config.value_dim / 32;
    static constexpr int pairs = 8;  // of a lane's scores in a chunk
    // There is a fragment register for each of the next pv_steps steps: where a step has used its fragment, that of the step
    // so many steps later is read. From chunk to chunk they shift by `extra` registers.
    static constexpr int extra = qk_steps - pv_steps;
    static_assert(extra >= 0 && 2 * extra % pv_steps == 0, "a tile ends as it began");
    static constexpr int fragment_of(int half, int step) { return (half * extra + step) % pv_steps; }

    // Slots of the loop, whose body is one tile: for each half, the PV steps followed by the QK^T steps. The barrier is
    // placed where LDS reads of the previous tile have had time to complete.
    static constexpr int half_slots = pv_steps + qk_steps, slots = 2 * half_slots,
                         barrier_step = extra + pv_steps / 4, barrier_slot = pv_steps + barrier_step;
    static constexpr int key_loads_per_tile = Keys::Loads::loads_per_wave,
                         value_loads_per_tile = Values::Loads::loads_per_wave,
                         refill_items = direct ? key_loads_per_tile + value_loads_per_tile : 4;
    static constexpr spread refill_slots{refill_items, barrier_slot + 1, half_slots + pv_steps};
    // Keys are needed from the second half of the previous tile on, values from the barrier of their own tile on.
    static constexpr load_pipeline<2> loads{slots,
                                            {{barrier_slot + 1, -half_slots, 2, key_loads_per_tile},
                                             {barrier_slot + 1, barrier_slot + 1, 2, value_loads_per_tile}}};
    static constexpr int loads_in_flight = direct ? loads.in_flight(barrier_slot, slots) : any_vector_memory;

    using Scores = typename Wave::template Product<chunk>;
    using Probabilities = typename Wave::template Probabilities<chunk>;
    using Fragment = typename Keys::Reader::Fragment;
    using Pair = vec<float, 2>;

    shared_byte* lds;
    RingOffset<KeyTile, key_tiles> key_read, key_fill;
    RingOffset<ValueTile, value_tiles> value_read, value_fill{(value_tiles - 1) * ValueTile::bytes};
    Keys key_loads;
    Values value_loads;
    FullyVisibleKeys unmasked;
    tile_iterator<tiles_of_rows> k_source, v_source;
    buffer view;  // of the loads that are being issued
    typename Keys::Reader key_reader;
    typename Values::Reader value_reader;
    Fragment fragments[pv_steps];  // of keys and of values
    Scores s[2];
    Probabilities p[2];
    Pair exponentials, previous_exponentials;  // of a pair of scores
    float second_exponent;

    KITTENS_DEVICE InterleavedForward(const ForwardArguments& arguments, shared_byte* lds)
        : Wave(arguments),
          lds(lds),
          unmasked(Wave::sequence.mask, Wave::first_query, Wave::past_query, chunk),
          key_reader(lds),
          value_reader(lds + key_bytes) {}

    KITTENS_DEVICE KeyTile key_tile(uint32_t offset) const { return {lds + offset}; }
    KITTENS_DEVICE ValueTile value_tile(uint32_t offset) const { return {lds + key_bytes + offset}; }

    // Chunk `half` of the tile that the reader is at, for a step in half `of_step` of the loop.
    template <int half, int of_step, int step>
    KITTENS_DEVICE void read_keys() {
        fragments[fragment_of(of_step, step)] = key_reader.template read<half * chunk, step * 16>();
    }
    template <int half, int of_step, int step>
    KITTENS_DEVICE void read_values() {
        fragments[fragment_of(of_step, step)] =
            Values::template fragment<half * chunk + step / columns * 16, step % columns * 32>(value_reader);
    }
    template <int half, int step>
    KITTENS_DEVICE void mma_qk(Scores& scores) {
        using Accumulator = typename Scores::fragment;
        scores.tiles[0][0] = multiply_base<row_l, rt_32x32>(query[step / 2].tiles[0][step % 2],
                                                            fragments[fragment_of(half, step)],
                                                            step == 0 ? Accumulator{} : scores.tiles[0][0]);
    }
    template <int half, int step>
    KITTENS_DEVICE void mma_pv(const Probabilities& probabilities) {
        auto& o = output.tiles[0][step % columns];
        o = multiply_base<row_l, rt_32x32>(probabilities.tiles[0][step / columns],
                                           fragments[fragment_of(half, step)], o);
    }
    template <int pair>
    KITTENS_DEVICE static void convert_pair(Probabilities& destination, Pair values) {
        const auto rounded = narrowed<T>(values);
        destination.tiles[0][pair / 4][pair % 4 * 2] = rounded[0];
        destination.tiles[0][pair / 4][pair % 4 * 2 + 1] = rounded[1];
    }

    // The items after a barrier: loads of keys, then of values; through registers, the loads issued after the previous
    // barrier are first committed to LDS.
    template <int item>
    KITTENS_DEVICE void refill() {
        if constexpr (direct) {
            if constexpr (item == 0) view = k_source.next();
            if constexpr (item == key_loads_per_tile) view = v_source.next();
            if constexpr (item < key_loads_per_tile)
                key_loads.loads.template issue_item<item>(view, key_tile(key_fill.value));
            else
                value_loads.loads.template issue_item<item - key_loads_per_tile>(
                    view, value_tile(value_fill.value));
        } else {
            if constexpr (item == 0) value_loads.loads.commit(value_tile(value_fill.value));
            if constexpr (item == 1) issue_values(value_fill.value);
            if constexpr (item == 2) key_loads.loads.commit(key_tile(key_fill.value));
            if constexpr (item == 3) issue_keys(key_fill.value);
        }
        if constexpr (item == refill_items - 1) {
            key_fill.advance();
            value_fill.advance();
        }
    }
    // Everything read until the next barrier is then in LDS for all waves, and everything they have read may be overwritten.
    KITTENS_DEVICE void wait_and_barrier() {
        wait<loads_in_flight, 0>();
        s_barrier();
    }

    // A softmax step is half a pair: both exponents and the first exponential; then the second exponential and, one pair
    // later, the sum and the conversion.
    template <int item>
    KITTENS_DEVICE void softmax_step(const Scores& scores, Probabilities& probabilities, Pair& sum) {
        constexpr int pair = item / 2;
        if constexpr (item % 2 == 0) {
            const Pair before = exponentials;
            if constexpr (pair < pairs) {
                exponentials[0] = exponential_base_2(weights.template exponent<2 * pair>(scores));
                second_exponent = weights.template exponent<2 * pair + 1>(scores);
            }
            if constexpr (pair > 0) convert_pair<pair - 1>(probabilities, before);
            previous_exponentials = before;
        } else {
            exponentials[1] = exponential_base_2(second_exponent);
            if constexpr (pair > 0) sum += previous_exponentials;
        }
    }

    // Chunk `half` of the tile at `key`. `first`: there is no previous chunk; `last`: there is no next chunk.
    template <int half, bool first, bool last>
    KITTENS_DEVICE void attend(int key) {
        constexpr int pv_begin = half * half_slots, qk_begin = pv_begin + pv_steps,
                      qk_end = qk_begin + qk_steps;
        constexpr int begin = first ? qk_begin : pv_begin, end = last ? qk_begin : qk_end;
        constexpr every_slot pv{pv_begin, qk_begin}, qk{qk_begin, qk_end}, fences{begin, end, 1, true};
        constexpr in_slot barrier{barrier_slot};
        // The matrix core delivers S some time after its last step.
        constexpr spread softmax_steps{2 * pairs, begin + 1, end};
        constexpr every_slot key_reads{pv_begin, last ? pv_begin : qk_begin + extra};
        // Values replace keys in registers, each fragment after the QK^T step that used it; in the first half of a tile
        // not before the barrier, which delays the first `delayed` of them.
        constexpr int values_begin = last ? pv_begin : qk_begin + extra, values_used = last ? half : half + 1,
                      delayed = half == 0 ? pv_steps / 4 + 1 : 0;
        constexpr every_slot value_reads{values_begin + delayed, values_begin + pv_steps},
            delayed_value_reads{values_begin + delayed, values_begin + 2 * delayed};
        Pair sum = {};
        if constexpr (half == 1 && !last) key_reader.move(key_read.advance());
        interleave<begin, end>(
            work<pv>([&](auto n) KITTENS_INLINE { mma_pv<half, n.value>(p[1 - half]); }),
            work<qk>([&](auto n) KITTENS_INLINE { mma_qk<half, n.value>(s[1 - half]); }),
            work<barrier>([&](auto) KITTENS_INLINE { wait_and_barrier(); }),
            work<softmax_steps>([&](auto n) KITTENS_INLINE { softmax_step<n.value>(s[half], p[half], sum); }),
            work<key_reads>([&](auto n) KITTENS_INLINE { read_keys<1 - half, half, n.value>(); }),
            work<value_reads>([&](auto n)
                                  KITTENS_INLINE { read_values<half, values_used, delayed + n.value>(); }),
            work<delayed_value_reads>([&](auto n)
                                          KITTENS_INLINE { read_values<half, values_used, n.value>(); }),
            work<refill_slots>([&](auto n) KITTENS_INLINE { refill<n.value>(); }),
            work<fences>([](auto) KITTENS_INLINE {}));
        softmax_step<2 * pairs>(s[half], p[half], sum);
        sum += previous_exponentials;
        weights.template finish_chunk<T>(sum[0] + sum[1], s[half], output,
                                         [&](auto pair, Pair values)
                                             KITTENS_INLINE { convert_pair<pair.value>(p[half], values); });
        if constexpr (half == 1) value_reader.move(value_read.advance());
        if constexpr (!last) mask_scores(s[1 - half], key + chunk);
    }
    KITTENS_DEVICE void mask_scores(Scores& scores, int key) const {
        Wave::apply_terms(scores, key);
        if (!unmasked.holds(key)) [[unlikely]]
            apply_mask<KeyColumns>(scores, Wave::visible_keys(key), -__builtin_inff());
    }

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::keys_of(arguments.k, arguments.head_dim),
                       v = Wave::keys_of(arguments.v, arguments.value_dim);
            k_source = Wave::template tiles_of<typename Keys::Loads>(k);
            v_source = Wave::template tiles_of<typename Values::Loads>(v);
            key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
            value_loads.loads.init_offsets(v.row_bytes());
            // Tiles in which this wave has work; it sees nothing past them.
            const int past = own.past < all.past ? own.past : all.past;
            int mine = uniform(past > key ? (past - key + keys - 1) / keys : 0);
            int left = k_source.left - mine;  // tiles in which only other waves have work
            prologue();
            if (mine > 0) {
                start(key);
                attend<0, true, false>(key);
                for (; mine > 1; --mine) {
                    attend<1, false, false>(key + chunk);
                    key += keys;
                    attend<0, false, false>(key);
                }
                attend<1, false, true>(key + chunk);
                for_each_index<pv_steps>([&](auto at) KITTENS_INLINE { mma_pv<1, at.value>(p[1]); });
            }
            // This wave still helps to load them.
            for (; left > 0; --left) {
                wait_and_barrier();
                for_each_index<refill_items>([&](auto piece) KITTENS_INLINE { refill<piece.value>(); });
            }
            // The output is staged in LDS: no load of any wave to it may be in flight.
            if constexpr (direct) wait_vector_memory<0>();
        }
        barrier();
        Wave::template store<lds_bytes / config.waves / 16 * 16>(
            lds + wave_id() * (lds_bytes / config.waves / 16 * 16));
    }

    // Issues what the barriers of two tiles before the first one would have issued.
    KITTENS_DEVICE void prologue() {
        if constexpr (direct) {
            if constexpr (Wave::queries_through_lds)
                Staged::issue(Wave::queries_of(arguments.q), Wave::first_query, lds + query_offset);
            issue_keys(0);
            if constexpr (Wave::queries_through_lds)
                Staged::template read<key_loads_per_tile>(query, Wave::query_sign(), lds + query_offset);
            issue_values(0);
            wait_vector_memory<value_loads_per_tile>();
            s_barrier();
            issue_keys(KeyTile::bytes);
            issue_values(ValueTile::bytes);
        } else {
            issue_keys(0);
            issue_values(0);
            key_loads.loads.commit(key_tile(0));
            value_loads.loads.commit(value_tile(0));
            issue_keys(0);
            issue_values(0);
            key_loads.loads.commit(key_tile(KeyTile::bytes));
            issue_keys(0);
            barrier();
        }
    }
    KITTENS_DEVICE void issue_keys(uint32_t offset) {
        key_loads.loads.issue_prepared(k_source.next(), key_tile(offset));
    }
    KITTENS_DEVICE void issue_values(uint32_t offset) {
        value_loads.loads.issue_prepared(v_source.next(), value_tile(offset));
    }
    // The scores of chunk 0, and the keys of chunk 1.
    KITTENS_DEVICE void start(int key) {
        // As in the second half of a tile before.
        for_each_index<pv_steps>([&](auto at) KITTENS_INLINE { read_keys<0, 1, at.value>(); });
        for_each_index<qk_steps>([&](auto at) KITTENS_INLINE {
            mma_qk<1, at.value>(s[0]);
            constexpr int next = at.value + pv_steps;
            if constexpr (next < qk_steps)
                read_keys<0, 1, next>();
            else
                read_keys<1, 0, next - qk_steps>();
        });
        mask_scores(s[0], key);
    }
};

}  // namespace hipkittens::attention
