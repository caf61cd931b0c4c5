// kernels/delta_rule/step.h: a gated delta rule token by token, with the state in registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "token_decays.h"

namespace hipkittens::delta_rule {

template <StepConfig config, class Decays>
struct TokenAfterToken {
    using T = typename element_of<config.element>::value;
    using Slice = StateSlice<config>;
    static constexpr int threads = step_threads(config), waves = threads / 64,
                         waves_per_simd = config.key == 256 ? 6 : 7;
    // Per wave: its keys and queries, its decays, and the changes of its columns.
    static constexpr int floats_of_wave = 2 * step_keys + Decays::shared_floats + step_values;
    // Shared by all, double-buffered from token to token: the waves' sums over keys for each lane, and over squares and products.
    static constexpr int floats_of_token = waves * 64 + 2 * waves * 2,
                         lds_bytes = (waves * floats_of_wave + 2 * floats_of_token) * 4;

    // The address of a token's elements of a head.
    KITTENS_DEVICE static const char* first_of(const TokenHeads& heads, const Span& span, int64_t token,
                                               uint32_t head, int size) {
        return (const char*)heads.data +
               (span.sequence * heads.sequence + (span.first + token) * heads.token + head * heads.head) *
                   size;
    }
    // An element in registers as in memory, in halves, so that neither its width nor arithmetic on it is waited for before other
    // elements are requested.
    struct Raw {
        uint32_t low, high;

        KITTENS_DEVICE static Raw load(const char* data, uint32_t index, bool wide) {
            if constexpr (sizeof(T) == 4) {
                return {0, ((global<const uint32_t>)data)[index]};
            } else {
                const uint32_t halves = wide ? 2 : 1;
                auto* from = (global<const uint16_t>)data + index * halves;
                return {from[0], from[halves - 1]};
            }
        }
        KITTENS_DEVICE float value(bool wide) const {
            if constexpr (sizeof(T) == 4) {
                return __builtin_bit_cast(float, high);
            } else {
                const auto narrow = static_cast<float>(__builtin_bit_cast(T, static_cast<uint16_t>(high)));
                return wide ? __builtin_bit_cast(float, high << 16 | low) : narrow;
            }
        }
    };
    KITTENS_DEVICE static global<const int32_t> slots_of(const StepArguments& arguments, uint32_t sequence) {
        return (global<const int32_t>)arguments.slots + sequence * arguments.slots_per_sequence;
    }
    // The slot of the state that a sequence continues; an out-of-range value means none.
    KITTENS_DEVICE static uint32_t first_slot(const StepArguments& arguments, uint32_t sequence) {
        const int32_t accepted =
            arguments.accepted ? ((global<const int32_t>)arguments.accepted)[sequence] : 1;
        if (accepted < 1 || static_cast<uint32_t>(accepted) > arguments.slots_per_sequence) return ~0u;
        return static_cast<uint32_t>(slots_of(arguments, sequence)[accepted - 1]);
    }
    // Read where they are used: together they are more than there are scalar registers.
    KITTENS_DEVICE static StepArguments later() { return kittens::reload_arguments<StepArguments>(); }

    KITTENS_DEVICE static void run(const StepArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t unit = kittens::workgroup_id_x(), of_slices = arguments.slices.quotient(unit),
                       sequence = arguments.heads.quotient(of_slices),
                       head = of_slices - sequence * arguments.heads.value;
        const int lane = kittens::lane_id(), wave = kittens::wave_id();
        const Span span = span_of(arguments.sequences, sequence);
        Slice slice(wave, unit - of_slices * arguments.slices.value);
        const uint32_t column = slice.shared_value();
        // Half of the lanes start with one element of a key each, half with one of a query.
        const bool of_query = lane >= step_keys;
        const uint32_t key = slice.first_key + lane % step_keys;

        uint32_t slot = sequence;
        const auto store_result = [&](int64_t token, float result) {
            const StepArguments results = later();
            if (wave != 0 || !slice.has_query() || column >= results.value) return;
            const auto to = first_of(results.out, span, token, head, sizeof(T));
            ((global<T>)const_cast<char*>(to))[column] = static_cast<T>(result);
        };
        const auto load_state = [&] {
            const StepArguments initial = later();
            if (initial.initial.data)
                slice.load(initial, slot, head);
            else
                slice.clear();
        };
        // With slots for the states after each token, the last state is among them.
        const auto store_state = [&](const StepArguments& final) {
            if (final.final.data && final.slots_per_sequence <= 1) slice.store(final, slot, head);
        };
        if (span.tokens <= 0) {
            // A state in a pool is left unchanged; a separate final state gets the initial one.
            if (later().slots) return;
            load_state();
            return store_state(later());
        }
        Decays decays;
        StepArguments final{};
        auto* mine = lds + wave * floats_of_wave * 4;
        auto* factors = mine + 2 * step_keys * 4;
        auto* changes = factors + Decays::shared_floats * 4;
        auto* sums = lds + waves * floats_of_wave * 4;
        int64_t token = 0;
#pragma clang loop unroll(disable)
        do {
            const StepArguments inputs = later();
            const bool has_key = key < inputs.key;
            const uint32_t key_head = inputs.group.quotient(head);
            const auto first = [&](const TokenHeads& heads, uint32_t head, bool wide) {
                return first_of(heads, span, token, head, wide ? 4 : sizeof(T));
            };
            const char *k = first(inputs.k, key_head, false), *q = first(inputs.q, key_head, false);
            auto* keys_or_queries = (global<const T>)(of_query ? q : k);
            const T given = keys_or_queries[has_key ? key : 0],
                    value =
                        ((global<const T>)first(inputs.v, head, false))[column < inputs.value ? column : 0];
            const Raw g = Raw::load(first(inputs.g, head, inputs.wide_g), Decays::element(has_key ? key : 0),
                                    inputs.wide_g),
                      beta = Raw::load(first(inputs.beta, head, inputs.wide_beta), 0, inputs.wide_beta);
            // After the small loads: loads return in order.
            if (__builtin_expect(token == 0, 1)) {
                decays.load_gate(later(), head, has_key ? key : 0);
                if (later().slots) {
                    slot = first_slot(later(), sequence);
                    if (slot >= later().slot_count) {
                        for (int64_t each = 0; each < span.tokens; ++each) store_result(each, 0.0f);
                        return;
                    }
                }
                load_state();
                final = later();  // while the state is being loaded
            }
            const StepArguments how = later();
            const float element = has_key ? static_cast<float>(given) : 0.0f;
            kittens::lds_write(element, mine + lane * 4);
            float logarithm = g.value(how.wide_g), rate = beta.value(how.wide_beta);
            if (how.a_log) logarithm = decays.pass_gate(how, logarithm);
            if (how.beta_is_logit) rate = kittens::sigmoid<true>(rate).value;
            rate *= how.beta_factor;
            decays.share(logarithm, factors);
            const float kept = decays.of_state(logarithm);
            const four keys = kittens::lds_read<four>(mine + slice.keys() * 4),
                       queries = kittens::lds_read<four>(mine + (step_keys + slice.keys()) * 4);
            const auto sum_of_half = [](float x) {
                x = kittens::sum_of_16_lanes(x);
                return x + kittens::exchange_16(x);
            };
            kittens::vec<float, 2> of_wave = {sum_of_half(element * element),
                                              sum_of_half(element * kittens::exchange_32(element))};
            auto* norms = sums + waves * 64 * 4;
            if (lane % step_keys == 0)
                kittens::lds_write(of_wave, norms + (lane / step_keys * waves + wave) * 8);

            decays.apply(slice, factors);
            float from_k[4] = {}, from_q[4] = {};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    from_k[j] = __builtin_fmaf(slice.at[i][j], keys[i], from_k[j]);
                    from_q[j] = __builtin_fmaf(slice.at[i][j], queries[i], from_q[j]);
                }
            kittens::lds_write(slice.shared_sum(from_k, from_q), sums + (wave * 64 + lane) * 4);
            kittens::barrier();
            float sum = 0, square = 0, product = 0;
            const int side = slice.has_query() ? waves : 0;
#pragma unroll
            for (int n = 0; n < waves; ++n) {
                sum += kittens::lds_read<float>(sums + (n * 64 + lane) * 4);
                const auto of_other = kittens::lds_read<kittens::vec<float, 2>>(norms + (side + n) * 8);
                square += of_other[0];
                product += of_other[1];
            }
            // Keys and queries are not normalized; the factor that makes them unit vectors is applied to sums.
            const float norm =
                how.normalize ? kittens::hardware_reciprocal_square_root(square + 1e-6f) : 1.0f;
            sum *= kept * norm;
            if (!slice.has_query())
                kittens::lds_write(rate * (static_cast<float>(value) - sum) * norm,
                                   changes + slice.shared_place() * 4);
            const four change = kittens::lds_read<four>(changes + slice.values() * 4);
            const float own_change = kittens::lds_read<float>(changes + slice.shared_place() * 4);
            store_result(token, how.scale * __builtin_fmaf(product * norm, own_change, sum));
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    slice.at[i][j] = __builtin_fmaf(keys[i], change[j], kept * slice.at[i][j]);
            if (how.slots_per_sequence > 1 && token < how.slots_per_sequence) {
                const StepArguments final = later();
                const uint32_t after = static_cast<uint32_t>(slots_of(final, sequence)[token]);
                if (after < final.slot_count) slice.store(final, after, head);
            }
            // One wave may write the next token's sums while another reads this one's.
            sums = lds + waves * floats_of_wave * 4 + (token % 2 ? 0 : floats_of_token * 4);
        } while (++token < span.tokens);
        store_state(final);
    }
};

template <StepConfig config>
struct Step : TokenAfterToken<config, HeadDecay<config>> {};
template <StepConfig config>
struct ChannelStep : TokenAfterToken<config, ChannelDecays<config>> {};

}  // namespace hipkittens::delta_rule
