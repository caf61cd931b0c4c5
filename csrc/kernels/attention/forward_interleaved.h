// kernels/attention/forward_interleaved.h: QK^T, softmax, PV and LDS reads of neighboring chunks of keys, interleaved.
// SPDX-License-Identifier: MIT
#pragma once
#include "interleaved_tiles.h"

namespace hipkittens::attention {

// A wave iterates over chunks of 32 keys. Chunk c multiplies Q by the keys of chunk c + 1 and P by the values of chunk c - 1
// while it computes the exponentials of chunk c and reads the keys of chunk c + 2 and the values of chunk c from LDS. Nothing
// in a chunk depends on anything else in it, so matrix cores, vector units and LDS work at the same time, whatever the other
// wave of the SIMD does. There is one barrier per tile of keys. Two waves share a SIMD: either of one workgroup of eight, or of
// two workgroups of four that never wait for each other, if LDS has room for both.
template <ForwardConfig config>
struct InterleavedForward : InterleavedTiles<config> {
    using Wave = ForwardWave<config>;
    using Tiles = InterleavedTiles<config>;
    using Tiles::k_source, Tiles::lds, Tiles::lds_bytes;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::T, typename Wave::Values,
        typename Wave::ValueTile, typename Tiles::Schedule;
    using Wave::all, Wave::keys, Wave::output, Wave::own, Wave::query, Wave::weights;
    static_assert(!config.dropout, "the simple schedule has it");
    static constexpr int chunk = Schedule::chunk;
    static constexpr int qk_steps = Schedule::qk_steps, pv_steps = Schedule::pv_steps, ring = Schedule::ring,
                         pairs = Schedule::pairs, columns = config.value_dim / 32;
    using Scores = typename Wave::template Product<chunk>;
    using Probabilities = typename Wave::template Probabilities<chunk>;
    using Fragment = typename Keys::Reader::Fragment;
    using Pair = vec<float, 2>;

    RingOffset<KeyTile, Tiles::key_tiles> key_read;
    RingOffset<ValueTile, Tiles::value_tiles> value_read;
    FullyVisibleKeys unmasked;
    typename Keys::Reader key_reader;
    typename Values::Reader value_reader;
    Fragment fragments[ring];  // of keys and of values
    Scores s[2];
    Probabilities p[2];
    Pair exponentials, previous_exponentials;  // of a pair of scores
    float second_exponent;

    KITTENS_DEVICE InterleavedForward(const ForwardArguments& arguments, shared_byte* lds)
        : Tiles(arguments, lds),
          unmasked(Wave::sequence.mask, Wave::first_query, Wave::past_query, chunk),
          key_reader(lds),
          value_reader(lds + Tiles::key_bytes) {}

    // Chunk `half` of a body, from the tile that the reader is at, for a step in half `of_step` of the loop.
    template <int half, int of_step, int step>
    KITTENS_DEVICE void read_keys() {
        fragments[Schedule::fragment_of(of_step, pv_steps + step)] =
            key_reader.template read<Schedule::row_of(half), step * 16>();
    }
    template <int half, int of_step, int step>
    KITTENS_DEVICE void read_values() {
        fragments[Schedule::fragment_of(of_step, step)] =
            Values::template fragment<Schedule::row_of(half) + step / columns * 16, step % columns * 32>(
                value_reader);
    }
    template <int half, int step>
    KITTENS_DEVICE void mma_qk(Scores& scores) {
        using Accumulator = typename Scores::fragment;
        scores.tiles[0][0] = multiply_base<row_l, rt_32x32>(
            query[step / 2].tiles[0][step % 2], fragments[Schedule::fragment_of(half, pv_steps + step)],
            step == 0 ? Accumulator{} : scores.tiles[0][0]);
    }
    template <int half, int step>
    KITTENS_DEVICE void mma_pv(const Probabilities& probabilities) {
        auto& o = output.tiles[0][step % columns];
        o = multiply_base<row_l, rt_32x32>(probabilities.tiles[0][step / columns],
                                           fragments[Schedule::fragment_of(half, step)], o);
    }
    template <int pair>
    KITTENS_DEVICE static void convert_pair(Probabilities& destination, Pair values) {
        const auto rounded = narrowed<T>(values);
        destination.tiles[0][pair / 4][pair % 4 * 2] = rounded[0];
        destination.tiles[0][pair / 4][pair % 4 * 2 + 1] = rounded[1];
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

    // Chunk `half` of the body at `key`. `first`: there is no previous chunk; `last`: there is no next chunk.
    template <int half, bool first, bool last>
    KITTENS_DEVICE void attend(int key) {
        using At = typename Schedule::template Chunk<half, first, last, Tiles::refill_items>;
        Pair sum = {};
        if constexpr (Wave::halves ? !first && !last : half == 1 && !last)
            key_reader.move(key_read.advance());
        interleave<At::begin, At::end>(
            work<At::pv>([&](auto n) KITTENS_INLINE { mma_pv<half, n.value>(p[1 - half]); }),
            work<At::qk>([&](auto n) KITTENS_INLINE { mma_qk<half, n.value>(s[1 - half]); }),
            work<At::barrier>([&](auto) KITTENS_INLINE { Tiles::wait_and_barrier(); }),
            work<At::softmax_steps>([&](auto n)
                                        KITTENS_INLINE { softmax_step<n.value>(s[half], p[half], sum); }),
            work<At::late_value_reads>([&](auto n)
                                           KITTENS_INLINE { read_values<1 - half, half, ring + n.value>(); }),
            work<At::next_values>([&](auto) KITTENS_INLINE { value_reader.move(value_read.advance()); }),
            work<At::key_reads>([&](auto n) KITTENS_INLINE { read_keys<1 - half, half, n.value>(); }),
            work<At::value_reads>(
                [&](auto n) KITTENS_INLINE { read_values<half, At::values_used, At::delayed + n.value>(); }),
            work<At::delayed_value_reads>(
                [&](auto n) KITTENS_INLINE { read_values<half, At::values_used, n.value>(); }),
            work<At::refill>([&](auto n) KITTENS_INLINE { Tiles::template refill<n.value>(); }),
            work<At::fences>([](auto) KITTENS_INLINE {}));
        softmax_step<2 * pairs>(s[half], p[half], sum);
        sum += previous_exponentials;
        weights.template finish_chunk<T>(sum[0] + sum[1], s[half], output,
                                         [&](auto pair, Pair values)
                                             KITTENS_INLINE { convert_pair<pair.value>(p[half], values); });
        if constexpr (half == 1 && !Wave::halves) value_reader.move(value_read.advance());
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
            Tiles::init_sources();
            // Tiles in which this wave has work; it sees nothing past them.
            const int past = own.past < all.past ? own.past : all.past;
            int mine = uniform(past > key ? (past - key + keys - 1) / keys : 0);
            // Tiles in which only other waves have work.
            int left = Wave::halves ? 2 * ((k_source.left + 1) / 2 - mine) : k_source.left - mine;
            Tiles::prologue();
            if (mine > 0) start(key);
            if constexpr (Wave::halves) {
                barrier();
                Tiles::next_keys();
            }
            if (mine > 0) {
                attend<0, true, false>(key);
                for (; mine > 1; --mine) {
                    attend<1, false, false>(key + chunk);
                    key += keys;
                    attend<0, false, false>(key);
                }
                attend<1, false, true>(key + chunk);
                for_each_index<pv_steps>([&](auto at) KITTENS_INLINE {
                    mma_pv<1, at.value>(p[1]);
                    if constexpr (at.value + ring < pv_steps) read_values<1, 1, at.value + ring>();
                });
                if (Wave::halves && left > 0) Tiles::refill_all();
            }
            // This wave still helps to load them.
            for (; left > 0; --left) {
                Tiles::wait_and_barrier();
                Tiles::refill_all();
            }
            // The output is staged in LDS: no load of any wave to it may be in flight.
            if constexpr (Wave::direct) wait_vector_memory<0>();
        }
        barrier();
        Wave::template store<lds_bytes / config.waves / 16 * 16>(
            lds + wave_id() * (lds_bytes / config.waves / 16 * 16));
    }

    // The scores of chunk 0, and the keys of chunk 1.
    KITTENS_DEVICE void start(int key) {
        // As in the second half of a tile before.
        for_each_index<ring>([&](auto at) KITTENS_INLINE { read_keys<0, 1, at.value>(); });
        for_each_index<qk_steps>([&](auto at) KITTENS_INLINE {
            mma_qk<1, at.value>(s[0]);
            constexpr int next = at.value + ring;
            if constexpr (Wave::halves && next == qk_steps) key_reader.move(key_read.advance());
            if constexpr (next < qk_steps)
                read_keys<0, 1, next>();
            else
                read_keys<1, 0, next - qk_steps>();
        });
        mask_scores(s[0], key);
    }
};

}  // namespace hipkittens::attention
