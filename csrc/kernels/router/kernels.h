// kernels/router/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "choice.h"
#include "groups.h"
#include "score.h"

namespace hipkittens::router {

// Experts are chosen by logits, of which every score is a rising function: what two scores round to does not matter. With a bias
// they are chosen by score + bias. Weights are the scores themselves in both cases.
template <RouteConfig config>
struct Route {
    static constexpr int threads = router::threads;
    static constexpr int wave_bytes = config.experts() * 4 + groups_lds_bytes;
    static constexpr int lds_bytes = tokens_per_workgroup * wave_bytes;
    // Each of the four SIMDs has a wave of every workgroup that LDS has room for.
    static constexpr int workgroups = kittens::gfx942.lds_bytes / lds_bytes;
    static constexpr int waves_per_simd = workgroups < 8 ? workgroups : 8;

    KITTENS_DEVICE static void run(const RouteArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t token = kittens::workgroup_id_x() * tokens_per_workgroup + kittens::wave_id();
        if (token >= arguments.rows.all) return;
        lds += kittens::wave_id() * wave_bytes;
        const Logits logits(arguments, token);
        const uint32_t lane = kittens::lane_id();
        float values[config.per_lane];
#pragma unroll
        for (int j = 0; j < config.per_lane; ++j) values[j] = logits.load(j * 64 + lane);
        // The sum of softmax, and what is taken from its exponents.
        float most = 0, sum = 1;
        if (arguments.score == Score::softmax && (arguments.bias || !arguments.renormalize))
            sum = softmax_sum(values, arguments.experts, most);

        Choice<config.per_lane> choice;
#pragma unroll
        for (int j = 0; j < config.per_lane; ++j) {
            float value = values[j];
            const uint32_t expert = j * 64 + lane;
            if (arguments.bias) {
                value = arguments.score == Score::softmax ? exponential(value - most) / sum
                                                          : score_of(arguments.score, value);
                value += logits.bias(expert);
            }
            choice.keys[j] = expert < arguments.experts ? kittens::order_key(value) : 0;
            values[j] = value;
        }
        if (arguments.groups > 1) {
            const uint64_t chosen = chosen_groups(arguments, values, lds);
#pragma unroll
            for (int j = 0; j < config.per_lane; ++j) {
                const uint32_t group = (j * 64 + lane) * arguments.group_factor >> group_shift;
                if (!(chosen >> (group % most_groups) & 1)) choice.keys[j] = 0;
            }
        }
        for (uint32_t slot = 0; slot < arguments.k; ++slot) {
            const uint32_t expert = choice.take();
            if (lane == 0) kittens::lds_write(expert, lds + slot * 4);
        }
        kittens::compiler_fence();
        store(arguments, token, logits, most, sum, lds);
    }

  private:
    class Logits {
        const RouteArguments& arguments_;
        const char* row_;

      public:
        KITTENS_DEVICE Logits(const RouteArguments& arguments, uint32_t token) : arguments_(arguments) {
            row_ = static_cast<const char*>(arguments.logits.data) +
                   arguments.logits.offset(token, arguments.rows) * size_of(arguments.element);
        }
        // Zero for an expert that there is not.
        KITTENS_DEVICE float load(uint32_t expert) const {
            const kittens::buffer row = {row_, arguments_.experts * size_of(arguments_.element)};
            if (arguments_.element == ElementType::f32) return kittens::buffer_load<float>(row, expert * 4);
            if (arguments_.element == ElementType::bf16)
                return static_cast<float>(kittens::buffer_load<kittens::bf16>(row, expert * 2));
            return static_cast<float>(kittens::buffer_load<kittens::half>(row, expert * 2));
        }
        KITTENS_DEVICE float bias(uint32_t expert) const {
            return kittens::buffer_load<float>(
                {reinterpret_cast<const char*>(arguments_.bias), arguments_.experts * 4}, expert * 4);
        }
    };

    KITTENS_DEVICE static float softmax_sum(const float (&values)[config.per_lane], uint32_t experts,
                                            float& most) {
        const uint32_t lane = kittens::lane_id();
        uint32_t greatest = 0;
#pragma unroll
        for (int j = 0; j < config.per_lane; ++j)
            if (j * 64 + lane < experts) greatest = larger_of(greatest, kittens::order_key(values[j]));
        most = kittens::value_of_order_key(greatest_of_lanes(greatest));
        float sum = 0;
#pragma unroll
        for (int j = 0; j < config.per_lane; ++j)
            sum += j * 64 + lane < experts ? exponential(values[j] - most) : 0.0f;
        return kittens::sum_of_lanes(sum);
    }

    // A lane has every 64th of the token's results.
    KITTENS_DEVICE static void store(const RouteArguments& arguments, uint32_t token, const Logits& logits,
                                     float most, float sum, kittens::shared_byte* chosen) {
        const bool softmax = arguments.score == Score::softmax;
        const uint32_t lane = kittens::lane_id();
        const auto expert_of = [&](uint32_t slot) { return kittens::lds_read<uint32_t>(chosen + slot * 4); };
        float denominator = sum;
        if (arguments.renormalize) {
            if (softmax) {  // over the chosen
                uint32_t greatest = 0;
                for (uint32_t slot = lane; slot < arguments.k; slot += 64)
                    greatest = larger_of(greatest, kittens::order_key(logits.load(expert_of(slot))));
                most = kittens::value_of_order_key(greatest_of_lanes(greatest));
            }
            denominator = 0;
            for (uint32_t slot = lane; slot < arguments.k; slot += 64)
                denominator += unscaled(arguments.score, logits.load(expert_of(slot)), most);
            denominator = kittens::sum_of_lanes(denominator);
            if (!softmax) denominator += 1e-20f;
        }
        for (uint32_t slot = lane; slot < arguments.k + arguments.shared; slot += 64) {
            uint32_t expert = arguments.experts + slot - arguments.k;
            float weight = 1.0f;
            if (slot < arguments.k) {
                expert = expert_of(slot);
                weight = unscaled(arguments.score, logits.load(expert), most);
                if (softmax || arguments.renormalize) weight = weight / denominator;
                weight *= arguments.scale;
            }
            const int64_t at = static_cast<int64_t>(token) * (arguments.k + arguments.shared) + slot;
            ((__attribute__((address_space(1))) float*)arguments.weights)[at] = weight;
            ((__attribute__((address_space(1))) int32_t*)arguments.ids)[at] = static_cast<int32_t>(expert);
        }
    }
    KITTENS_DEVICE static float unscaled(Score score, float value, float most) {
        return score == Score::softmax ? exponential(value - most) : score_of(score, value);
    }
};

}  // namespace hipkittens::router
