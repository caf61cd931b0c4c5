// kernels/router/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/target.h"
#include "groups.h"
#include "score.h"
#include "token.h"
#include "top1.h"

namespace hipkittens::router {

// Experts are chosen by logits, of which every score is an increasing function, so the rounding of scores does not matter. With
// a bias they are chosen by score + bias. Weights are the scores themselves in both cases.
template <RouteConfig config>
struct Route {
    using Lanes = Team<config.lanes>;
    static constexpr int threads = router::threads;
    static constexpr uint32_t count = config.chunks * 8;
    static constexpr int token_bytes = config.experts() * 4 + groups_lds_bytes;
    static constexpr int wave_bytes = config.tokens_per_wave() * token_bytes;
    static constexpr int lds_bytes = waves * wave_bytes;
    // Each of the four SIMDs has one wave of every workgroup that fits in LDS.
    static constexpr int workgroups = kittens::gfx942.lds_bytes / lds_bytes;
    static constexpr int waves_per_simd = workgroups < 8 ? workgroups : 8;

    KITTENS_DEVICE static void run(const RouteArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t wave = kittens::workgroup_id_x() * waves + kittens::wave_id();
        if (wave * config.tokens_per_wave() >= arguments.rows.all) return;
        const Token token(arguments, wave * config.tokens_per_wave() + Lanes::of_wave());
        lds += kittens::wave_id() * wave_bytes + Lanes::of_wave() * token_bytes;
        const uint32_t first = Lanes::lane() * count;
        float logits[count];
        token.load(first, logits);
        // The sum of the softmax, and the maximum subtracted from its exponents.
        float most = 0, sum = 1;
        if (__builtin_expect(arguments.score == Score::softmax && (arguments.bias || !arguments.renormalize),
                             false))
            sum = softmax_sum(logits, arguments.experts, most);

        uint32_t keys[count];
        if (__builtin_expect(arguments.bias || arguments.groups > 1, false)) {
#pragma unroll
            for (uint32_t i = 0; i < count; ++i) kittens::lds_write(logits[i], lds + (first + i) * 4);
            if (arguments.bias) add_bias(arguments, most, sum, lds);
            // The value of each expert, then whether its group is chosen.
#pragma unroll
            for (uint32_t i = 0; i < count; ++i)
                keys[i] = first + i < arguments.experts
                              ? kittens::order_key(kittens::lds_read<float>(lds + (first + i) * 4))
                              : 0;
            kittens::compiler_fence();
            if (arguments.groups > 1) {
                choose_groups<config.lanes>(arguments, lds, lds + config.experts() * 4);
#pragma unroll
                for (uint32_t i = 0; i < count; ++i) {
                    const uint32_t group = (first + i) * arguments.group_factor >> group_shift;
                    if (first + i >= arguments.experts || !kittens::lds_read<uint32_t>(lds + group * 4))
                        keys[i] = 0;
                }
                kittens::compiler_fence();
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < count; ++i)
                keys[i] = first + i < arguments.experts ? kittens::order_key(logits[i]) : 0;
        }
        // Stores the logits of the chosen experts in LDS.
#pragma clang loop unroll(disable)
        for (uint32_t slot = 0; slot < arguments.k; ++slot) {
            uint32_t key = keys[0], place = 0;
#pragma unroll
            for (uint32_t i = 1; i < count; ++i) {
                place = keys[i] > key ? i : place;
                key = larger_of(key, keys[i]);
            }
            const uint32_t greatest = Lanes::greatest(key);
            const bool is_chosen = Lanes::is_first(key == greatest);
            const uint32_t gone = is_chosen ? place : count;
#pragma unroll
            for (uint32_t i = 0; i < count; ++i) keys[i] = gone == i ? 0 : keys[i];
            float logit = kittens::value_of_order_key(greatest);
            if (__builtin_expect(arguments.bias != nullptr, false)) {
#pragma unroll
                for (uint32_t i = 0; i < count; ++i) logit = place == i ? logits[i] : logit;
            }
            if (is_chosen) {
                kittens::lds_write(logit, lds + slot * 4);
                token.store_id(slot, first + place);
            }
        }
        kittens::compiler_fence();
        store_weights(arguments, token, most, sum, lds);
    }

  private:
    KITTENS_DEVICE static float softmax_sum(const float (&logits)[count], uint32_t experts, float& most) {
        const uint32_t first = Lanes::lane() * count;
        uint32_t greatest = 0;
#pragma unroll
        for (uint32_t i = 0; i < count; ++i)
            if (first + i < experts) greatest = larger_of(greatest, kittens::order_key(logits[i]));
        most = kittens::value_of_order_key(Lanes::greatest(greatest));
        float sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < count; ++i)
            sum += first + i < experts ? exponential(logits[i] - most) : 0.0f;
        return Lanes::sum(sum);
    }

    // A lane processes its own experts one by one: few calls have a bias, and separate instructions for each would slow down all calls.
    KITTENS_DEVICE static void add_bias(const RouteArguments& arguments, float most, float sum,
                                        kittens::shared_byte* values) {
        const kittens::buffer bias = {reinterpret_cast<const char*>(arguments.bias), arguments.experts * 4};
        const uint32_t first = Lanes::lane() * count;
#pragma clang loop unroll(disable)
        for (uint32_t expert = first; expert < first + count; ++expert) {
            const float logit = kittens::lds_read<float>(values + expert * 4);
            const float score = score_of(arguments.score, logit, most);
            kittens::lds_write((arguments.score == Score::softmax ? score / sum : score) +
                                   kittens::buffer_load<float>(bias, expert * 4),
                               values + expert * 4);
        }
    }

    // A lane has every lanes-th of the token's weights. `chosen` contains logits.
    KITTENS_DEVICE static void store_weights(const RouteArguments& arguments, const Token& token, float most,
                                             float sum, kittens::shared_byte* chosen) {
        const bool softmax = arguments.score == Score::softmax;
        if (softmax && arguments.renormalize) {  // over the chosen experts
            most = kittens::lds_read<float>(chosen);
            if (__builtin_expect(arguments.bias != nullptr, false)) {
                uint32_t greatest = 0;
                for (uint32_t slot = Lanes::lane(); slot < arguments.k; slot += config.lanes)
                    greatest =
                        larger_of(greatest, kittens::order_key(kittens::lds_read<float>(chosen + slot * 4)));
                most = kittens::value_of_order_key(Lanes::greatest(greatest));
            }
        }
        float denominator = 0;
#pragma clang loop unroll(disable)
        for (uint32_t slot = Lanes::lane(); slot < arguments.k; slot += config.lanes) {
            const float score = score_of(arguments.score, kittens::lds_read<float>(chosen + slot * 4), most);
            kittens::lds_write(score, chosen + slot * 4);
            denominator += score;
        }
        denominator = Lanes::sum(denominator) + (softmax ? 0.0f : 1e-20f);
        if (!arguments.renormalize) denominator = sum;
#pragma clang loop unroll(disable)
        for (uint32_t slot = Lanes::lane(); slot < arguments.k; slot += config.lanes)
            token.store_weight(slot,
                               kittens::lds_read<float>(chosen + slot * 4) / denominator * arguments.scale);
#pragma clang loop unroll(disable)
        for (uint32_t slot = Lanes::lane(); slot < arguments.shared; slot += config.lanes) {
            token.store_id(arguments.k + slot, arguments.experts + slot);
            token.store_weight(arguments.k + slot, 1.0f);
        }
    }
};

}  // namespace hipkittens::router
