// kernels/attention/forward_interleaved.h: QK^T, softmax, PV and LDS reads of neighbouring chunks of keys, interleaved.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"

namespace hipkittens::attention {

// A wave goes over chunks of 32 keys. Chunk c multiplies Q by the keys of chunk c + 1 and P by the values of chunk c - 1
// while it takes the exponentials of chunk c and reads the keys of chunk c + 2 and the values of chunk c from LDS: nothing in a
// chunk depends on anything else in it, so that matrix cores, vector units and LDS work at once, whatever the other wave of
// the SIMD does. There is one barrier for each tile of keys. Two waves share a SIMD: of one workgroup of eight, or of two
// workgroups of four that never wait for each other.
template <ForwardConfig config>
struct InterleavedForward : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::T, typename Wave::Values,
        typename Wave::ValueTile;
    using Wave::all, Wave::arguments, Wave::direct, Wave::keys, Wave::output, Wave::own, Wave::query,
        Wave::softmax;
    static_assert(!config.dropout, "only the simple schedule drops weights");
    // Tiles in LDS: those that are read, and those in flight. At the barrier of tile t, loads are issued for the keys of tile
    // t + 2 and the values of tile t + 2. Through registers, values are committed to LDS a barrier later: t + 1.
    static constexpr int key_tiles = 2, value_tiles = direct ? 3 : 2;
    static constexpr int key_bytes = key_tiles * KeyTile::bytes, value_bytes = value_tiles * ValueTile::bytes;
    // Queries come through LDS as well, where later values will be.
    using QueryTile = kittens::st<T, config.queries(), config.head_dim, kittens::Access::rows>;
    using QueryLoads = kittens::global_to_shared<QueryTile, config.threads(), forward_fill>;
    using QueryReader =
        kittens::base_tile_reader<T, kittens::row_l, kittens::rt_32x16,
                                  kittens::st<T, Wave::queries, config.head_dim, kittens::Access::rows>>;
    static constexpr int query_offset = key_bytes + ValueTile::bytes,
                         query_end = Wave::queries_through_lds ? query_offset + QueryTile::bytes : 0;
    static constexpr int lds_bytes =
        query_end > key_bytes + value_bytes ? query_end : key_bytes + value_bytes;
    static_assert(lds_bytes * (8 / config.waves) <= kittens::target.lds_bytes, "two waves on each SIMD");

    static constexpr int chunk = 32;
    static_assert(keys == 2 * chunk, "a tile is two chunks");
    // Matrix steps of a chunk: over head_dim for S; over keys, and over head_dim inside, for O.
    static constexpr int steps = config.head_dim / 16, columns = config.head_dim / 32;
    static constexpr int pairs = 8;  // of a lane's scores in a chunk

    // Slots of the loop, which is a tile: of each half, the PV steps and then the QK^T steps. The barrier stands where LDS
    // reads of the tile before have had time to complete.
    static constexpr int slots = 4 * steps, barrier_step = steps / 4, barrier_slot = steps + barrier_step;
    static constexpr int key_loads_per_tile = Keys::Loads::loads_per_wave,
                         value_loads_per_tile = Values::Loads::loads_per_wave,
                         refill_items = direct ? key_loads_per_tile + value_loads_per_tile : 4;
    static constexpr kittens::spread refill_slots{refill_items, barrier_slot + 1, 3 * steps};
    // Keys are needed from the second half of the tile before on, values from the barrier of their own tile on.
    static constexpr kittens::load_pipeline<2> loads{
        slots,
        {{barrier_slot + 1, -2 * steps, 2, key_loads_per_tile},
         {barrier_slot + 1, barrier_slot + 1, 2, value_loads_per_tile}}};
    static constexpr int loads_in_flight =
        direct ? loads.in_flight(barrier_slot, slots) : kittens::any_vector_memory;

    using Scores = typename Wave::template Product<chunk>;
    using Probabilities = typename Wave::template Probabilities<chunk>;
    using Fragment = typename Keys::Reader::Fragment;
    using Pair = kittens::vec<float, 2>;

    // A ring of tiles in LDS.
    template <class Tile, int tiles>
    struct RingOffset {
        uint32_t value = 0;
        // Returns the number of bytes it moves by, modulo 2^32.
        KITTENS_DEVICE uint32_t advance() {
            const uint32_t before = value;
            value = value == (tiles - 1) * Tile::bytes ? 0 : value + Tile::bytes;
            return value - before;
        }
    };

    kittens::shared_byte* lds;
    RingOffset<KeyTile, key_tiles> key_read, key_fill;
    RingOffset<ValueTile, value_tiles> value_read, value_fill{(value_tiles - 1) * ValueTile::bytes};
    Keys key_loads;
    Values value_loads;
    FullyVisibleKeys unmasked;
    TileWindows k_source, v_source;
    kittens::buffer view;  // of the loads that are being issued
    typename Keys::Reader key_reader;
    typename Values::Reader value_reader;
    Fragment fragments[steps];  // of keys, then of values, one after the other in the same registers
    Scores s[2];
    Probabilities p[2];
    Pair power, previous_power;  // of a pair of scores
    float second_exponent;

    KITTENS_DEVICE InterleavedForward(const ForwardArguments& arguments, kittens::shared_byte* lds)
        : Wave(arguments),
          lds(lds),
          unmasked(Wave::sequence.mask, Wave::first_query, Wave::first_query + Wave::queries, chunk),
          key_reader(lds),
          value_reader(lds + key_bytes) {}

    KITTENS_DEVICE KeyTile key_tile(uint32_t offset) const { return {lds + offset}; }
    KITTENS_DEVICE ValueTile value_tile(uint32_t offset) const { return {lds + key_bytes + offset}; }

    // Chunk `half` of the tile that the reader is at.
    template <int half, int step>
    KITTENS_DEVICE void read_keys() {
        fragments[step] = key_reader.template read<half * chunk, step * 16>();
    }
    template <int half, int step>
    KITTENS_DEVICE void read_values() {
        fragments[step] =
            Values::template fragment<half * chunk + step / columns * 16, step % columns * 32>(value_reader);
    }
    template <int step>
    KITTENS_DEVICE void mma_qk(Scores& scores) {
        using Accumulator = typename Scores::fragment;
        scores.tiles[0][0] = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(
            query[step / 2].tiles[0][step % 2], fragments[step],
            step == 0 ? Accumulator{} : scores.tiles[0][0]);
    }
    template <int step>
    KITTENS_DEVICE void mma_pv(const Probabilities& weights) {
        auto& o = output.tiles[0][step % columns];
        o = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(weights.tiles[0][step / columns],
                                                                      fragments[step], o);
    }
    template <int pair>
    KITTENS_DEVICE static void convert_pair(Probabilities& destination, Pair values) {
        const auto rounded = kittens::narrowed<T>(values);
        destination.tiles[0][pair / 4][pair % 4 * 2] = rounded[0];
        destination.tiles[0][pair / 4][pair % 4 * 2 + 1] = rounded[1];
    }

    // What follows a barrier: loads of keys, then of values; through registers, those issued after the barrier before are
    // committed to LDS first.
    template <int item>
    KITTENS_DEVICE void refill() {
        if constexpr (direct) {
            if constexpr (item == 0) view = k_source.next();
            if constexpr (item == key_loads_per_tile) view = v_source.next();
            if constexpr (item < key_loads_per_tile)
                key_loads.loads.template issue_prepared_pass<item>(view, key_tile(key_fill.value));
            else
                value_loads.loads.template issue_prepared_pass<item - key_loads_per_tile>(
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
    // What is read until the next barrier is in LDS for all waves, and what they have read may be overwritten.
    KITTENS_DEVICE void wait_and_barrier() {
        kittens::wait<loads_in_flight, 0>();
        kittens::s_barrier();
    }

    // A softmax step is half a pair: both exponents and the first exponential; the second exponential, and, a pair later,
    // the sum and the conversion.
    template <int item>
    KITTENS_DEVICE void softmax_step(const Scores& scores, Probabilities& weights, Pair& sum) {
        constexpr int pair = item / 2;
        if constexpr (item % 2 == 0) {
            const Pair before = power;
            if constexpr (pair < pairs) {
                power[0] = kittens::exponential_base_2(softmax.template exponent<2 * pair>(scores));
                second_exponent = softmax.template exponent<2 * pair + 1>(scores);
            }
            if constexpr (pair > 0) convert_pair<pair - 1>(weights, before);
            previous_power = before;
        } else {
            power[1] = kittens::exponential_base_2(second_exponent);
            if constexpr (pair > 0) sum += previous_power;
        }
    }

    // Chunk `half` of the tile at `key`. `first`: there is no chunk before it; `last`: none behind it.
    template <int half, bool first, bool last>
    KITTENS_DEVICE void attend(int key) {
        constexpr int pv_begin = half * 2 * steps, qk_begin = pv_begin + steps, qk_end = qk_begin + steps;
        constexpr int begin = first ? qk_begin : pv_begin, end = last ? qk_begin : qk_end;
        constexpr kittens::every_slot pv{pv_begin, qk_begin}, qk{qk_begin, qk_end},
            fences{begin, end, 1, true};
        constexpr kittens::in_slot barrier{barrier_slot};
        // S comes out of the matrix core a while after its last step.
        constexpr kittens::spread softmax_steps{2 * pairs, begin + 1, end};
        constexpr kittens::every_slot key_reads{pv_begin, last ? pv_begin : qk_begin};
        // Values replace keys in registers, each fragment behind the QK^T step that used it; in a tile's first half not
        // before the barrier, which the first ones are `delayed` by.
        constexpr int values_begin = last ? pv_begin : qk_begin, delayed = half == 0 ? barrier_step + 1 : 0;
        constexpr kittens::every_slot value_reads{values_begin + delayed, values_begin + steps},
            delayed_value_reads{values_begin + delayed, values_begin + 2 * delayed};
        Pair sum = {};
        if constexpr (half == 1 && !last) key_reader.move(key_read.advance());
        kittens::interleave<begin, end>(
            kittens::work<pv>([&](auto n) KITTENS_INLINE { mma_pv<n.value>(p[1 - half]); }),
            kittens::work<qk>([&](auto n) KITTENS_INLINE { mma_qk<n.value>(s[1 - half]); }),
            kittens::work<barrier>([&](auto) KITTENS_INLINE { wait_and_barrier(); }),
            kittens::work<softmax_steps>(
                [&](auto n) KITTENS_INLINE { softmax_step<n.value>(s[half], p[half], sum); }),
            kittens::work<key_reads>([&](auto n) KITTENS_INLINE { read_keys<1 - half, n.value>(); }),
            kittens::work<value_reads>([&](auto n)
                                           KITTENS_INLINE { read_values<half, delayed + n.value>(); }),
            kittens::work<delayed_value_reads>([&](auto n) KITTENS_INLINE { read_values<half, n.value>(); }),
            kittens::work<refill_slots>([&](auto n) KITTENS_INLINE { refill<n.value>(); }),
            kittens::work<fences>([](auto) KITTENS_INLINE {}));
        softmax_step<2 * pairs>(s[half], p[half], sum);
        sum += previous_power;
        softmax.template settle<T>(sum[0] + sum[1], s[half], output,
                                   [&](auto pair, Pair values)
                                       KITTENS_INLINE { convert_pair<pair.value>(p[half], values); });
        if constexpr (half == 1) value_reader.move(value_read.advance());
        if constexpr (!last) mask_scores(s[1 - half], key + chunk);
    }
    KITTENS_DEVICE void mask_scores(Scores& scores, int key) const {
        if (!unmasked.holds(key)) [[unlikely]]
            apply_mask<KeyColumns>(scores,
                                   visible_keys<KeyColumns>(Wave::sequence.mask, Wave::first_query, key),
                                   -__builtin_inff());
    }

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::keys_of(arguments.k), v = Wave::keys_of(arguments.v);
            k_source.begin<keys>(k, key, all.past, loads_lead<typename Keys::Loads>());
            v_source.begin<keys>(v, key, all.past, loads_lead<typename Values::Loads>());
            key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
            value_loads.loads.init_offsets(v.row_bytes());
            int left = k_source.left;  // tiles whose barriers are ahead
            // Tiles that this wave has work in; it sees nothing beyond.
            const int past = own.past < all.past ? own.past : all.past;
            int mine = kittens::uniform(past > key ? (past - key + keys - 1) / keys : 0);
            left -= mine;
            begin();
            if (mine > 0) {
                start(key);
                attend<0, true, false>(key);
                for (; mine > 1; --mine) {
                    attend<1, false, false>(key + chunk);
                    key += keys;
                    attend<0, false, false>(key);
                }
                attend<1, false, true>(key + chunk);
                kittens::for_each_index<steps>([&](auto at) KITTENS_INLINE { mma_pv<at.value>(p[1]); });
            }
            // The others go on with what this wave helps to load.
            for (; left > 0; --left) {
                wait_and_barrier();
                kittens::for_each_index<refill_items>([&](auto piece)
                                                          KITTENS_INLINE { refill<piece.value>(); });
            }
            // The output goes out through LDS: nothing of any wave may still be on its way there.
            if constexpr (direct) kittens::wait_vector_memory<0>();
        }
        kittens::barrier();
        Wave::template store<lds_bytes / config.waves / 16 * 16>(
            lds + kittens::wave_id() * (lds_bytes / config.waves / 16 * 16));
    }

  private:
    template <class Loads>
    static constexpr uint32_t loads_lead() {
        if constexpr (direct)
            return Loads::lead;
        else
            return 0;
    }
    // What the barriers of two tiles before the first would have issued.
    KITTENS_DEVICE void begin() {
        if constexpr (direct) {
            issue_queries();
            issue_keys(0);
            kittens::wait_vector_memory<key_loads_per_tile>();
            read_queries();
            issue_values(0);
            kittens::wait_vector_memory<value_loads_per_tile>();
            kittens::s_barrier();
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
            kittens::barrier();
        }
    }
    KITTENS_DEVICE void issue_keys(uint32_t offset) {
        key_loads.loads.issue_prepared(k_source.next(), key_tile(offset));
    }
    KITTENS_DEVICE void issue_values(uint32_t offset) {
        value_loads.loads.issue_prepared(v_source.next(), value_tile(offset));
    }
    // Each wave its own: 16 lanes side by side instead of 16 rows, and nobody to wait for.
    KITTENS_DEVICE void issue_queries() {
        const auto source = Wave::queries_of(arguments.q);
        const bool inside = Wave::first_query < source.rows;
        kittens::buffer from = source.window(inside ? Wave::first_query : 0, 0).view();
        if (!inside) from.bytes = 0;
        QueryLoads loads;
        loads.init_offsets(source.row_bytes());
        const int thread = kittens::thread_id();
#pragma unroll
        for (int pass = 0; pass < QueryLoads::passes; ++pass) {
            const kittens::Coordinate at = QueryLoads::position(pass, thread);
            const uint32_t moved =
                (at.row / Wave::queries * Wave::queries) * static_cast<uint32_t>(source.row_bytes());
            loads.offsets[pass] = at.col < source.cols ? loads.offsets[pass] - moved : kittens::out_of_range;
        }
        loads.issue(from, {lds + query_offset});
    }
    KITTENS_DEVICE void read_queries() {
        const QueryReader reader(lds + query_offset + kittens::wave_id() * (QueryTile::bytes / config.waves));
        const uint32_t sign = arguments.negated ? 0x80008000u : 0;
        kittens::for_each_index<steps>([&](auto at) KITTENS_INLINE {
            const auto values =
                __builtin_bit_cast(kittens::b128, reader.template read<0, at.value * 16>()) ^ sign;
            query[at.value / 2].tiles[0][at.value % 2] = __builtin_bit_cast(Fragment, values);
        });
        kittens::wait_lds<0>();
    }
    // The scores of chunk 0, and the keys of chunk 1.
    KITTENS_DEVICE void start(int key) {
        kittens::for_each_index<steps>([&](auto at) KITTENS_INLINE { read_keys<0, at.value>(); });
        kittens::for_each_index<steps>([&](auto at) KITTENS_INLINE {
            mma_qk<at.value>(s[0]);
            read_keys<1, at.value>();
        });
        mask_scores(s[0], key);
    }
};

}  // namespace hipkittens::attention
