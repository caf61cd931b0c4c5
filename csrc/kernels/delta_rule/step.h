// kernels/delta_rule/step.h: a gated delta rule token after token, with the state in registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "token_decays.h"

namespace hipkittens::delta_rule {

template <StepConfig config, class Decays>
struct TokenAfterToken {
    using T = typename element_of<config.element>::value;
    using Slice = StateSlice<config>;
    static constexpr int threads = 64 * step_waves, waves_per_simd = config.key == 64    ? 4
                                                                     : config.key == 128 ? 3
                                                                                         : 1;
    // Keys, queries, and what decays share.
    static constexpr int floats_of_wave = 2 * config.key + Decays::shared_floats,
                         lds_bytes = step_waves * floats_of_wave * 4;
    static constexpr int loads = config.key / 64;  // elements of k, and of q, of a lane

    // One head's tokens, one after the other.
    struct Tokens {
        const char* data;
        int64_t step;  // bytes

        KITTENS_DEVICE Tokens(const TokenHeads& heads, const Span& span, uint32_t head, int size)
            : data((const char*)heads.data +
                   (span.sequence * heads.sequence + span.first * heads.token + head * heads.head) * size),
              step(heads.token * size) {}
        template <class V>
        KITTENS_DEVICE global<V> as() const {
            return (global<V>)data;
        }
        KITTENS_DEVICE float element(uint32_t column, bool wide) const {
            return wide ? as<const float>()[column] : static_cast<float>(as<const T>()[column]);
        }
        KITTENS_DEVICE void advance() { data += step; }
    };

    KITTENS_DEVICE static void run(const StepArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t unit = kittens::workgroup_id_x() * step_waves + kittens::wave_id();
        if (unit >= arguments.units) return;
        const uint32_t of_slices = arguments.slices.quotient(unit),
                       sequence = arguments.heads.quotient(of_slices),
                       head = of_slices - sequence * arguments.heads.value,
                       key_head = arguments.group.quotient(head);
        const int lane = kittens::lane_id();
        const Span span = span_of(arguments.sequences, sequence);
        Slice slice(unit - of_slices * arguments.slices.value);

        auto* slots = (global<const int32_t>)arguments.slots + sequence * arguments.slots_per_sequence;
        uint32_t slot = sequence;
        if (arguments.slots) {
            const int32_t accepted =
                arguments.accepted ? ((global<const int32_t>)arguments.accepted)[sequence] : 1;
            const bool known =
                accepted >= 1 && static_cast<uint32_t>(accepted) <= arguments.slots_per_sequence;
            slot = known ? static_cast<uint32_t>(slots[accepted - 1]) : ~0u;
        }
        const bool skipped = arguments.slots && slot >= arguments.slot_count;
        Tokens out(arguments.out, span, head, sizeof(T));
        if (skipped) {
            for (int64_t token = 0; token < span.tokens; ++token, out.advance())
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (slice.is_first_of_values() && slice.value(j) < arguments.value)
                        out.template as<T>()[slice.value(j)] = static_cast<T>(0.0f);
            return;
        }
        if (arguments.initial.data)
            slice.load(arguments, slot, head);
        else
            slice.clear();

        Tokens q(arguments.q, span, key_head, sizeof(T)), k(arguments.k, span, key_head, sizeof(T)),
            v(arguments.v, span, head, sizeof(T)),
            g(arguments.g, span, head, arguments.wide_g ? 4 : sizeof(T)),
            beta(arguments.beta, span, head, arguments.wide_beta ? 4 : sizeof(T));
        Decays decays(arguments, head);
        auto* mine = lds + kittens::wave_id() * floats_of_wave * 4;
        auto* factors = mine + 2 * config.key * 4;
        for (int64_t token = 0; token < span.tokens; ++token) {
            float values[4], queries[loads], keys[loads], square_q = 0, square_k = 0, product = 0;
#pragma unroll
            for (int n = 0; n < loads; ++n) {
                const uint32_t column = lane + 64 * n;
                const bool is_there = column < arguments.key;
                queries[n] = is_there ? static_cast<float>(q.template as<const T>()[column]) : 0.0f;
                keys[n] = is_there ? static_cast<float>(k.template as<const T>()[column]) : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j)
                values[j] = slice.value(j) < arguments.value
                                ? static_cast<float>(v.template as<const T>()[slice.value(j)])
                                : 0.0f;
            decays.load(arguments, g);
            float rate = beta.element(0, arguments.wide_beta);
            if (arguments.a_log) decays.pass_gate(arguments);
            if (arguments.beta_is_logit) rate = kittens::sigmoid<true>(rate).value;
            rate *= arguments.beta_factor;
            if (arguments.normalize) {
#pragma unroll
                for (int n = 0; n < loads; ++n) {
                    square_q = __builtin_fmaf(queries[n], queries[n], square_q);
                    square_k = __builtin_fmaf(keys[n], keys[n], square_k);
                }
                const float of_q =
                    kittens::hardware_reciprocal_square_root(kittens::sum_of_lanes(square_q) + 1e-6f);
                const float of_k =
                    kittens::hardware_reciprocal_square_root(kittens::sum_of_lanes(square_k) + 1e-6f);
#pragma unroll
                for (int n = 0; n < loads; ++n) queries[n] *= of_q, keys[n] *= of_k;
            }
#pragma unroll
            for (int n = 0; n < loads; ++n) {
                product = __builtin_fmaf(queries[n], keys[n], product);
                kittens::lds_write(keys[n], mine + (lane + 64 * n) * 4);
                kittens::lds_write(queries[n], mine + (config.key + lane + 64 * n) * 4);
            }
            decays.share(arguments, factors);
            product = kittens::sum_of_lanes(product);
            const float kept = decays.of_state();
            float from_k[4] = {}, from_q[4] = {}, change[4];
#pragma unroll
            for (int i = 0; i < Slice::keys; i += 4) {
                const four of_k = kittens::lds_read<four>(mine + slice.key(i) * 4),
                           of_q = kittens::lds_read<four>(mine + (config.key + slice.key(i)) * 4);
                decays.apply(slice, i, factors);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        from_k[j] = __builtin_fmaf(slice.at[i + e][j], of_k[e], from_k[j]);
                        from_q[j] = __builtin_fmaf(slice.at[i + e][j], of_q[e], from_q[j]);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float seen = kept * slice.sum_of_keys(from_k[j]);
                change[j] = rate * (values[j] - seen);
                const float result =
                    arguments.scale * __builtin_fmaf(kept, slice.sum_of_keys(from_q[j]), product * change[j]);
                if (slice.is_first_of_values() && slice.value(j) < arguments.value)
                    out.template as<T>()[slice.value(j)] = static_cast<T>(result);
            }
#pragma unroll
            for (int i = 0; i < Slice::keys; i += 4) {
                const four of_k = kittens::lds_read<four>(mine + slice.key(i) * 4);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        slice.at[i + e][j] = __builtin_fmaf(of_k[e], change[j], kept * slice.at[i + e][j]);
            }
            if (arguments.slots_per_sequence > 1 && token < arguments.slots_per_sequence) {
                const uint32_t after = static_cast<uint32_t>(slots[token]);
                if (after < arguments.slot_count) slice.store(arguments, after, head);
            }
            q.advance(), k.advance(), v.advance(), g.advance(), beta.advance(), out.advance();
        }
        // Without tokens a pool keeps its state; a state of its own takes the initial one.
        if (arguments.final.data && arguments.slots_per_sequence <= 1 &&
            (span.tokens > 0 || !arguments.slots))
            slice.store(arguments, slot, head);
    }
};

template <StepConfig config>
struct Step : TokenAfterToken<config, HeadDecay<config>> {};
template <StepConfig config>
struct ChannelStep : TokenAfterToken<config, ChannelDecays<config>> {};

}  // namespace hipkittens::delta_rule
