// kernels/delta_rule/step.h: a gated delta rule token after token, with the state in registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "chunk.h"

namespace hipkittens::delta_rule {

// ln(1 + e^x), and x where that is it to a float's last bit (PyTorch's softplus).
KITTENS_DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    const float power = kittens::exponential<true>(x), sum = 1.0f + power;
    // The logarithm of the rounded sum, corrected by what the rounding changed.
    return sum == 1.0f ? power : kittens::natural_logarithm(sum) * (power / (sum - 1.0f));
}

// The 8 x 8 lanes of a wave hold `keys` x 4 elements each of a slice of a state.
template <StepConfig config>
struct StateSlice {
    using S = typename element_of<config.state>::value;
    static constexpr int keys = config.key / 8;

    int outer, inner;  // of the lane: along the dimension with gaps, and along that of neighbours
    uint32_t first_value;
    float at[keys][4];

    KITTENS_DEVICE explicit StateSlice(uint32_t slice)
        : outer(kittens::lane_id() / 8), inner(kittens::lane_id() % 8), first_value(slice * step_values) {}
    KITTENS_DEVICE uint32_t key(int i) const {
        return config.value_by_value ? 32 * (i / 4) + 4 * inner + i % 4 : outer * keys + i;
    }
    KITTENS_DEVICE uint32_t value(int j) const {
        return first_value + (config.value_by_value ? outer + 8 * j : 4 * inner + j);
    }
    // One of the lanes that hold the same values.
    KITTENS_DEVICE bool is_first_of_values() const { return (config.value_by_value ? inner : outer) == 0; }
    // Sums over all keys.
    KITTENS_DEVICE float sum_of_keys(float sum) const {
        if constexpr (config.value_by_value) {
            return kittens::combine_group(sum, 8, [](float a, float b) { return a + b; });
        } else {
            sum += kittens::rotate_in_16<8>(sum);
            sum += kittens::exchange_16(sum);
            return sum + kittens::exchange_32(sum);
        }
    }
    KITTENS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < keys; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) at[i][j] = 0;
    }
    // access(i, j, offset in bytes) of each four neighbours: a key's four values, or a value's run of four keys. What is behind the
    // last key or value is read as zero, and not stored.
    template <class Access>
    KITTENS_DEVICE void each_four(const StepArguments& arguments, const States& states,
                                  const Access& access) const {
        // Calculated anew for each state that is stored: otherwise all offsets stay in registers while tokens pass.
        StateSlice here = *this;
        kittens::materialize(here.outer);
        kittens::materialize(here.inner);
        const uint32_t of_key = static_cast<uint32_t>(states.key) * sizeof(S),
                       of_value = static_cast<uint32_t>(states.value) * sizeof(S);
#pragma unroll
        for (int n = 0; n < keys; ++n) {
            const int i = config.value_by_value ? n / 4 * 4 : n, j = config.value_by_value ? n % 4 : 0;
            const uint32_t k = here.key(i), v = here.value(j);
            access(i, j, k < arguments.key && v < arguments.value ? k * of_key + v * of_value : beyond);
        }
    }
    static constexpr uint32_t beyond = 0xf0000000;
    KITTENS_DEVICE static kittens::buffer memory(const States& states, uint32_t slot, uint32_t head) {
        return {(const char*)states.data +
                    (slot * states.slot + head * states.head) * static_cast<int64_t>(sizeof(S)),
                beyond};
    }
    KITTENS_DEVICE float& element(int i, int j, int e) {
        return config.value_by_value ? at[i + e][j] : at[i][e];
    }
    KITTENS_DEVICE void load(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer from = memory(arguments.initial, slot, head);
        each_four(arguments, arguments.initial, [&](int i, int j, uint32_t offset) {
            const auto values = kittens::buffer_load<kittens::vec<S, 4>>(from, offset);
#pragma unroll
            for (int e = 0; e < 4; ++e) element(i, j, e) = static_cast<float>(values[e]);
        });
    }
    KITTENS_DEVICE void store(const StepArguments& arguments, uint32_t slot, uint32_t head) {
        const kittens::buffer to = memory(arguments.final, slot, head);
        each_four(arguments, arguments.final, [&](int i, int j, uint32_t offset) {
            const four values = {element(i, j, 0), element(i, j, 1), element(i, j, 2), element(i, j, 3)};
            kittens::buffer_store(__builtin_convertvector(values, kittens::vec<S, 4>), to, offset);
        });
    }
};

template <StepConfig config>
struct Step {
    using T = typename element_of<config.element>::value;
    using Slice = StateSlice<config>;
    static constexpr int threads = 64 * step_waves, waves_per_simd = config.key == 64    ? 4
                                                                     : config.key == 128 ? 3
                                                                                         : 1;
    static constexpr int floats_of_wave = 2 * config.key, lds_bytes = step_waves * floats_of_wave * 4;
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
        KITTENS_DEVICE float scalar(bool wide) const {
            return wide ? *as<const float>() : static_cast<float>(*as<const T>());
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
        const float of_a = arguments.a_log
                               ? -kittens::exponential<true>(((global<const float>)arguments.a_log)[head])
                               : 0.0f,
                    of_dt = arguments.a_log ? ((global<const float>)arguments.dt_bias)[head] : 0.0f;
        auto* mine = lds + kittens::wave_id() * floats_of_wave * 4;
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
            float logarithm = g.scalar(arguments.wide_g), rate = beta.scalar(arguments.wide_beta);
            if (arguments.a_log) logarithm = of_a * softplus(logarithm + of_dt);
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
            product = kittens::sum_of_lanes(product);
            const float kept = decay(logarithm);
            float from_k[4] = {}, from_q[4] = {}, change[4];
#pragma unroll
            for (int i = 0; i < Slice::keys; i += 4) {
                const four of_k = kittens::lds_read<four>(mine + slice.key(i) * 4),
                           of_q = kittens::lds_read<four>(mine + (config.key + slice.key(i)) * 4);
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

}  // namespace hipkittens::delta_rule
