// kernels/router/top1.h: logits of 16 or more tokens, and the expert with the greatest one.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/order_key.h"
#include "../../tiles/row_chunk.h"
#include "../element_of.h"
#include "kinds.h"
#include "score.h"
#include "top1_operands.h"

namespace hipkittens::router {

// A matrix instruction has 16 experts as its rows and 16 tokens as its columns, and leaves in lane l four experts of token l % 16.
// Waves take units of K in turn. Their sums come together in LDS, halves of the waves added to the others, always in one order:
// a token's logits do not depend on what else the launch computes.
template <Top1Config config>
struct Top1 {
    using Operands = Top1Operands<config>;
    using T = typename Operands::T;
    using Sums = kittens::vec<float, 4>[config.token_tiles][config.expert_tiles];
    static constexpr int threads = config.threads();
    static constexpr int sum_bytes = kittens::b128_bytes * kittens::wave_lanes;  // of a tile
    static constexpr int wave_bytes = config.token_tiles * config.expert_tiles * sum_bytes;
    static constexpr int lds_bytes = config.waves / 2 * wave_bytes;
    static constexpr int waves_per_simd = config.waves / 4;

    KITTENS_DEVICE static void run(const Top1Arguments& arguments, kittens::shared_byte* lds) {
        const Operands operands(arguments);
        Sums sums = {};
        multiply(arguments, operands, sums);
        add_waves(sums, lds);
        if (kittens::wave_id() > 0) return;
#pragma unroll
        for (int tile = 0; tile < config.token_tiles; ++tile) choose(arguments, sums[tile], tile);
    }

  private:
    KITTENS_DEVICE static void multiply(const Top1Arguments& arguments, const Operands& operands,
                                        Sums& sums) {
        constexpr uint32_t unit = Operands::unit;
        const uint32_t whole = arguments.wide ? arguments.features / unit : 0;
        const uint32_t units = (arguments.features + unit - 1) / unit;
        // As many as a wave has room for, then the rest one by one.
        uint32_t first = kittens::wave_id();
        for (; first + (config.depth - 1) * config.waves < whole; first += config.depth * config.waves)
            load_and_add<config.depth>(operands, first, sums);
        for (; first < whole; first += config.waves) load_and_add<1>(operands, first, sums);
        // The wave's first that is not whole.
        first = whole + (kittens::wave_id() - whole % config.waves) % config.waves;
#pragma clang loop unroll(disable)
        for (; first < units; first += config.waves) {
            typename Operands::Unit loaded;
            operands.load_one_by_one(loaded, first);
            add(loaded, sums);
        }
    }
    template <int count>
    KITTENS_DEVICE static void load_and_add(const Operands& operands, uint32_t first, Sums& sums) {
        typename Operands::Unit loaded[count];
#pragma unroll
        for (int n = 0; n < count; ++n) operands.load(loaded[n], first + n * config.waves);
        // All loads are in flight before the first is waited for.
        kittens::schedule_fence();
#pragma unroll
        for (int n = 0; n < count; ++n) add(loaded[n], sums);
    }
    KITTENS_DEVICE static void add(const typename Operands::Unit& loaded, Sums& sums) {
#pragma unroll
        for (int step = 0; step < Operands::steps; ++step)
#pragma unroll
            for (int expert = 0; expert < config.expert_tiles; ++expert) {
                const auto w = Operands::experts(loaded, step, expert);
#pragma unroll
                for (int token = 0; token < config.token_tiles; ++token)
                    sums[token][expert] =
                        kittens::matrix_16x16<T>(w, loaded.x[token][step], sums[token][expert]);
            }
    }

    KITTENS_DEVICE static void add_waves(Sums& sums, kittens::shared_byte* lds) {
        const int wave = kittens::wave_id();
        const auto each = [&](int of_wave, const auto& function) {
            auto* at = lds + of_wave * wave_bytes + kittens::lane_id() * kittens::b128_bytes;
#pragma unroll
            for (int token = 0; token < config.token_tiles; ++token)
#pragma unroll
                for (int expert = 0; expert < config.expert_tiles; ++expert, at += sum_bytes)
                    function(sums[token][expert], at);
        };
#pragma clang loop unroll(disable)
        for (int half = config.waves / 2; half > 0; half /= 2) {
            if (wave >= half && wave < 2 * half)
                each(wave - half, [](auto& sum, auto* at) KITTENS_INLINE { kittens::lds_write(sum, at); });
            kittens::barrier();
            if (wave < half)
                each(wave, [](auto& sum, auto* at)
                               KITTENS_INLINE { sum += kittens::lds_read<kittens::vec<float, 4>>(at); });
            kittens::barrier();
        }
    }

    // Of four lanes, each with some of a token's experts.
    KITTENS_DEVICE static void choose(const Top1Arguments& arguments,
                                      const kittens::vec<float, 4> (&sums)[config.expert_tiles], int tile) {
        uint32_t key = 0, chosen = 0;
        // A lane's experts in ascending order, so that the first of equals stays.
        constexpr int count = 4 * config.expert_tiles;
#pragma unroll
        for (int n = 0; n < count; ++n) {
            const int expert_tile = config.experts_together ? n % config.expert_tiles : n / 4;
            const int row = config.experts_together ? n / config.expert_tiles : n % 4;
            const uint32_t expert = Operands::expert_of(expert_tile, kittens::lane_id() / 16 * 4 + row);
            const uint32_t its = expert < arguments.experts ? kittens::order_key(sums[expert_tile][row]) : 0;
            chosen = its > key ? expert : chosen;
            key = its > key ? its : key;
        }
        const auto against = [&](uint32_t other_key, uint32_t other) {
            const bool better = other_key > key || (other_key == key && other < chosen);
            key = better ? other_key : key;
            chosen = better ? other : chosen;
        };
        against(kittens::exchange_16(key), kittens::exchange_16(chosen));
        against(kittens::exchange_32(key), kittens::exchange_32(chosen));
        const uint32_t token =
            kittens::workgroup_id_x() * config.tokens() + tile * 16 + kittens::lane_id() % 16;
        if (token >= arguments.rows.all) return;
        const uint32_t part = kittens::lane_id() / 16;
        const int64_t at = static_cast<int64_t>(token) * (1 + arguments.shared);
        auto* weights = (global<float>)arguments.weights + at;
        auto* ids = (global<int32_t>)arguments.ids + at;
        if (part == 0) {
            const float logit = kittens::value_of_order_key(key);
            *weights = score_of(Score::sigmoid, logit, 0);
            *ids = static_cast<int32_t>(chosen);
            ((global<float>)arguments.logits)[token] = logit;
        }
#pragma clang loop unroll(disable)
        for (uint32_t slot = part; slot < arguments.shared; slot += 4) {
            weights[1 + slot] = 1.0f;
            ids[1 + slot] = static_cast<int32_t>(arguments.experts + slot);
        }
    }
};

}  // namespace hipkittens::router
