// kernels/attention/forward_interleaved.h: matrix steps, softmax and LDS reads of neighbouring chunks of keys, interleaved.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"

namespace hipkittens::attention {

// A wave goes over chunks of 32 keys. Step c multiplies queries by the keys of chunk c + 1 and weighs the values of chunk
// c - 1 while it exponentiates the scores of chunk c and reads the keys of chunk c + 2 and the values of chunk c from LDS:
// nothing in a step waits for anything else in it, so that matrix cores, vector units and LDS work at once, whatever the
// other wave of the SIMD does. Waves meet once for each tile of keys. Two of them share a SIMD: of one workgroup of eight,
// or of two workgroups of four that never wait for each other.
template <ForwardConfig config>
struct InterleavedForward : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::T, typename Wave::Values,
        typename Wave::ValueTile;
    using Wave::all, Wave::arguments, Wave::direct, Wave::keys, Wave::output, Wave::own, Wave::query,
        Wave::softmax;
    static_assert(!config.dropout, "only the simple schedule drops weights");
    // Tiles in LDS: those that are read, and those under way. Values of tile t + value_tiles - 1 and keys of tile
    // t + key_tiles are loaded where the waves meet for tile t, and have until they are read to arrive.
    // Through registers they arrive a meeting later.
    static constexpr int key_tiles = 2, value_tiles = direct ? 3 : 2;
    static constexpr int key_bytes = key_tiles * KeyTile::bytes, value_bytes = value_tiles * ValueTile::bytes;
    // Queries come through LDS as well, and lie where later values will.
    using QueryTile = kittens::st<T, config.queries(), config.head_dim, kittens::Access::rows>;
    using QueryLoads = kittens::global_to_shared<QueryTile, config.threads(), forward_fill>;
    using QueryReader =
        kittens::base_tile_reader<T, kittens::row_l, kittens::rt_32x16,
                                  kittens::st<T, Wave::queries, config.head_dim, kittens::Access::rows>>;
    static constexpr int query_place = key_bytes + ValueTile::bytes,
                         query_end = Wave::queries_through_lds ? query_place + QueryTile::bytes : 0;
    static constexpr int lds_bytes =
        query_end > key_bytes + value_bytes ? query_end : key_bytes + value_bytes;
    static_assert(lds_bytes * (8 / config.waves) <= kittens::target.lds_bytes, "two waves on each SIMD");

    static constexpr int chunk = 32;
    static_assert(keys == 2 * chunk, "a tile is two chunks");
    // Matrix steps of a chunk: over head_dim for the scores; over keys, and over head_dim inside, for the output.
    static constexpr int steps = config.head_dim / 16, columns = config.head_dim / 32;
    static constexpr int pairs = 8;  // of a lane's scores in a chunk
    // Steps into a tile after which its waves meet: long enough for the LDS reads of the tile before to be complete.
    static constexpr int meeting = steps / 4;
    using Scores = typename Wave::template Product<chunk>;
    using Powers = typename Wave::template Powers<chunk>;
    using Fragment = typename Keys::Reader::Fragment;
    using Pair = kittens::vec<float, 2>;

    kittens::shared_byte* lds;
    // Places in the rings of tiles: what is read, what is filled.
    uint32_t key_place = 0, value_place = 0, key_fill = 0, value_fill = value_bytes - ValueTile::bytes;
    Keys key_loads;
    Values value_loads;
    ClearKeys clear;
    TileWindows k_windows, v_windows;
    kittens::buffer view;  // of the loads that are being begun
    typename Keys::Reader key_reader;
    typename Values::Reader value_reader;
    Fragment fragments[steps];  // of keys, then of values, one after the other in the same registers
    Scores scores[2];
    Powers powers[2];
    Pair power, done;  // of the pair of scores under way, and of the one before
    float second;      // exponent

    KITTENS_DEVICE InterleavedForward(const ForwardArguments& arguments, kittens::shared_byte* lds)
        : Wave(arguments),
          lds(lds),
          clear(Wave::sequence.mask, Wave::first_query, Wave::first_query + Wave::queries, chunk),
          key_reader(lds),
          value_reader(lds + key_bytes) {}

    KITTENS_DEVICE KeyTile key_tile(uint32_t place) const { return {lds + place}; }
    KITTENS_DEVICE ValueTile value_tile(uint32_t place) const { return {lds + key_bytes + place}; }
    template <int bytes, int ring>
    KITTENS_DEVICE static uint32_t next(uint32_t place) {
        return place == ring - bytes ? 0 : place + bytes;
    }
    KITTENS_DEVICE void turn_keys() {
        const uint32_t before = key_place;
        key_place = next<KeyTile::bytes, key_bytes>(key_place);
        key_reader.move(key_place - before);
    }
    KITTENS_DEVICE void turn_values() {
        const uint32_t before = value_place;
        value_place = next<ValueTile::bytes, value_bytes>(value_place);
        value_reader.move(value_place - before);
    }

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
    KITTENS_DEVICE void multiply_keys(Scores& destination) {
        using Accumulator = typename Scores::fragment;
        destination.tiles[0][0] = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(
            query[step / 2].tiles[0][step % 2], fragments[step],
            step == 0 ? Accumulator{} : destination.tiles[0][0]);
    }
    template <int step>
    KITTENS_DEVICE void weigh_values(const Powers& weights) {
        auto& destination = output.tiles[0][step % columns];
        destination = kittens::multiply_base<kittens::row_l, kittens::rt_32x32>(
            weights.tiles[0][step / columns], fragments[step], destination);
    }
    template <int pair>
    KITTENS_DEVICE static void place_powers(Powers& destination, Pair values) {
        const auto rounded = kittens::narrowed<T>(values);
        destination.tiles[0][pair / 4][pair % 4 * 2] = rounded[0];
        destination.tiles[0][pair / 4][pair % 4 * 2 + 1] = rounded[1];
    }

    // What is done between two meetings, in pieces: loads of keys, then of values; through registers, those that were
    // begun after the meeting before go to LDS first.
    static constexpr int key_passes = Keys::Loads::loads_per_wave,
                         value_passes = Values::Loads::loads_per_wave,
                         refill_pieces = direct ? key_passes + value_passes : 4;
    template <int piece>
    KITTENS_DEVICE void refill() {
        if constexpr (direct) {
            if constexpr (piece == 0) view = k_windows.next();
            if constexpr (piece == key_passes) view = v_windows.next();
            if constexpr (piece < key_passes)
                key_loads.loads.template issue_prepared_pass<piece>(view, key_tile(key_fill));
            else
                value_loads.loads.template issue_prepared_pass<piece - key_passes>(view,
                                                                                   value_tile(value_fill));
        } else {
            if constexpr (piece == 0) value_loads.loads.commit(value_tile(value_fill));
            if constexpr (piece == 1)
                value_loads.loads.issue_prepared(v_windows.next(), value_tile(value_fill));
            if constexpr (piece == 2) key_loads.loads.commit(key_tile(key_fill));
            if constexpr (piece == 3) key_loads.loads.issue_prepared(k_windows.next(), key_tile(key_fill));
        }
        if constexpr (piece == refill_pieces - 1) {
            key_fill = next<KeyTile::bytes, key_bytes>(key_fill);
            value_fill = next<ValueTile::bytes, value_bytes>(value_fill);
        }
    }
    // What will be read until the next meeting is there for all waves, and what they have read may be overwritten. Loads
    // return in order: only the values of the tile after the next may still be under way.
    KITTENS_DEVICE void meet() {
        kittens::wait<direct ? value_passes : kittens::any_vector_memory, 0>();
        kittens::s_barrier();
    }

    // Softmax in pieces, so that some lie between any two matrix steps: the exponents of a pair and its first power, its
    // second power, and another pair later its sum and its rounding.
    template <int piece>
    KITTENS_DEVICE void soften(const Scores& source, Powers& weights, Pair& sum) {
        constexpr int pair = piece / 2;
        if constexpr (piece % 2 == 0) {
            const Pair before = power;
            if constexpr (pair < pairs) {
                power[0] = kittens::exponential_base_2(softmax.template exponent<2 * pair>(source));
                second = softmax.template exponent<2 * pair + 1>(source);
            }
            if constexpr (pair > 0) place_powers<pair - 1>(weights, before);
            done = before;
        } else {
            power[1] = kittens::exponential_base_2(second);
            if constexpr (pair > 0) sum += done;
        }
    }

    // Chunk `half` of the tile at `key`. `first`: there is no chunk before it; `last`: none behind it.
    template <int half, bool first, bool last>
    KITTENS_DEVICE void step(int key) {
        Scores &current = scores[half], &next = scores[1 - half];
        Powers &weights = powers[half], &weights_before = powers[1 - half];
        // Matrix steps: those on values, then those on keys.
        constexpr int begin = first ? steps : 0, end = last ? steps : 2 * steps, count = end - begin;
        constexpr int pieces = 2 * pairs, between_meetings = 2 * steps - meeting - 1;
        Pair sum = {};
        if constexpr (half == 1 && !last) turn_keys();
        kittens::for_each_index<end, begin>([&](auto place) KITTENS_INLINE {
            constexpr bool on_values = place.value < steps;
            constexpr int at = on_values ? place.value : place.value - steps;
            if constexpr (on_values)
                weigh_values<at>(weights_before);
            else
                multiply_keys<at>(next);
            if constexpr (!on_values && half == 0 && at == meeting) meet();
            // The scores come out of the matrix core a while after the step before.
            kittens::for_each_index<pieces>([&](auto piece) KITTENS_INLINE {
                if constexpr (1 + piece.value * (count - 1) / pieces == place.value - begin)
                    soften<piece.value>(current, weights, sum);
            });
            if constexpr (on_values && !last) read_keys<1 - half, at>();
            if constexpr (on_values && last) read_values<half, at>();
            if constexpr (!on_values && (half == 1 || at > meeting)) read_values<half, at>();
            if constexpr (!on_values && half == 0 && at > meeting && at <= 2 * meeting + 1)
                read_values<half, at - meeting - 1>();
            constexpr int since = half == 0   ? on_values ? -1 : at - meeting - 1
                                  : on_values ? steps - meeting - 1 + at
                                              : between_meetings;
            kittens::for_each_index<refill_pieces>([&](auto piece) KITTENS_INLINE {
                if constexpr (piece.value * between_meetings / refill_pieces == since) refill<piece.value>();
            });
            kittens::schedule_fence();
        });
        soften<pieces>(current, weights, sum);
        sum += done;
        softmax.template settle<T>(sum[0] + sum[1], current, output,
                                   [&](auto pair, Pair values)
                                       KITTENS_INLINE { place_powers<pair.value>(weights, values); });
        if constexpr (half == 1) turn_values();
        if constexpr (!last) hide(next, key + chunk);
    }
    KITTENS_DEVICE void hide(Scores& destination, int key) const {
        if (!clear.holds(key)) [[unlikely]]
            apply_mask<KeyColumns>(destination,
                                   visible_keys<KeyColumns>(Wave::sequence.mask, Wave::first_query, key),
                                   -__builtin_inff());
    }

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::key_matrix(arguments.k), v = Wave::key_matrix(arguments.v);
            k_windows.begin<keys>(k, key, all.past, loads_lead<typename Keys::Loads>());
            v_windows.begin<keys>(v, key, all.past, loads_lead<typename Values::Loads>());
            key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
            value_loads.loads.init_offsets(v.row_bytes());
            int left = k_windows.left;  // tiles that the workgroup has not met for
            // Tiles that this wave has work in; it sees nothing beyond.
            const int past = own.past < all.past ? own.past : all.past;
            int mine = kittens::uniform(past > key ? (past - key + keys - 1) / keys : 0);
            left -= mine;
            begin();
            if (mine > 0) {
                start(key);
                step<0, true, false>(key);
                for (; mine > 1; --mine) {
                    step<1, false, false>(key + chunk);
                    key += keys;
                    step<0, false, false>(key);
                }
                step<1, false, true>(key + chunk);
                kittens::for_each_index<steps>([&](auto at)
                                                   KITTENS_INLINE { weigh_values<at.value>(powers[1]); });
            }
            // The others go on with what this wave helps to load.
            for (; left > 0; --left) {
                meet();
                kittens::for_each_index<refill_pieces>([&](auto piece)
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
    // As if the workgroup had met for two tiles before the first.
    KITTENS_DEVICE void begin() {
        if constexpr (direct) {
            issue_queries();
            issue_keys(0);
            kittens::wait_vector_memory<key_passes>();
            read_queries();
            issue_values(0);
            kittens::wait_vector_memory<value_passes>();
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
    KITTENS_DEVICE void issue_keys(uint32_t place) {
        key_loads.loads.issue_prepared(k_windows.next(), key_tile(place));
    }
    KITTENS_DEVICE void issue_values(uint32_t place) {
        value_loads.loads.issue_prepared(v_windows.next(), value_tile(place));
    }
    // Each wave its own: 16 lanes side by side instead of 16 rows, and nobody to wait for.
    KITTENS_DEVICE void issue_queries() {
        const auto source = Wave::query_matrix();
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
        loads.issue(from, {lds + query_place});
    }
    KITTENS_DEVICE void read_queries() {
        const QueryReader reader(lds + query_place + kittens::wave_id() * (QueryTile::bytes / config.waves));
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
            multiply_keys<at.value>(scores[0]);
            read_keys<1, at.value>();
        });
        hide(scores[0], key);
    }
};

}  // namespace hipkittens::attention
