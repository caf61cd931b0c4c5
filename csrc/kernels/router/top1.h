// kernels/router/top1.h: the logits of tokens, and the expert with the greatest logit of each.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/order_key.h"
#include "kinds.h"
#include "score.h"
#include "top1_operands.h"

namespace hipkittens::router {

// A matrix instruction has 16 experts as its rows and 16 tokens as its columns, and leaves four experts of token l % 16 in lane l.
// Waves take units of features in turns. Their sums are combined in LDS, adding half of the waves to the other half, always in the
// same order: a token's logits do not depend on what else the launch computes.
template <Top1Config config>
struct Top1 {
    using Operands = Top1Operands<config>;
    using T = typename Operands::T;
    using Sum = kittens::vec<float, 4>;
    using Sums = Sum[config.token_tiles];
    static constexpr int threads = top1_threads;
    static constexpr int sum_bytes = kittens::wave_lanes * static_cast<int>(sizeof(Sum));
    static constexpr int lds_bytes = top1_waves / 2 * config.token_tiles * sum_bytes;
    static constexpr int waves_per_simd = top1_waves / 4;

    KITTENS_DEVICE static void run(const Top1Arguments& arguments, kittens::shared_byte* lds) {
        const Operands operands(arguments);
        Sums sums = {};
        multiply(arguments, operands, sums);
        add_waves(sums, lds);
        // One wave per tile of tokens.
#pragma unroll
        for (int tile = 0; tile < config.token_tiles; ++tile)
            if (kittens::wave_id() == tile) choose(arguments, sums[tile], tile);
    }

  private:
    KITTENS_DEVICE static void multiply(const Top1Arguments& arguments, const Operands& operands,
                                        Sums& sums) {
        constexpr uint32_t unit = Operands::unit;
        const uint32_t whole = arguments.wide ? arguments.features / unit : 0;
        const uint32_t units = (arguments.features + unit - 1) / unit;
        // As many at a time as a wave has registers for, then the rest one by one.
        uint32_t first = kittens::wave_id();
        for (; first + (config.depth - 1) * top1_waves < whole; first += config.depth * top1_waves)
            load_and_add<config.depth>(operands, first, sums);
#pragma clang loop unroll(disable)
        for (; first < whole; first += top1_waves) load_and_add<1>(operands, first, sums);
        // The first unit of this wave that is not whole.
        first = whole + (kittens::wave_id() - whole % top1_waves) % top1_waves;
#pragma clang loop unroll(disable)
        for (; first < units; first += top1_waves) {
            typename Operands::Unit loaded;
            operands.load_one_by_one(loaded, first);
            add(loaded, sums);
        }
    }
    template <int count>
    KITTENS_DEVICE static void load_and_add(const Operands& operands, uint32_t first, Sums& sums) {
        typename Operands::Unit loaded[count];
#pragma unroll
        for (int n = 0; n < count; ++n) operands.load(loaded[n], first + n * top1_waves);
        // All loads are in flight before the first is waited for.
        kittens::schedule_fence();
#pragma unroll
        for (int n = 0; n < count; ++n) add(loaded[n], sums);
    }
    KITTENS_DEVICE static void add(const typename Operands::Unit& loaded, Sums& sums) {
#pragma unroll
        for (uint32_t step = 0; step < Operands::steps; ++step)
#pragma unroll
            for (int tile = 0; tile < config.token_tiles; ++tile)
                sums[tile] = kittens::matrix_16x16<T>(Operands::experts(loaded, step), loaded.x[tile][step],
                                                      sums[tile]);
    }

    // Afterwards the first wave has the sums of the first tile, the second wave those of the second.
    KITTENS_DEVICE static void add_waves(Sums& sums, kittens::shared_byte* lds) {
        const int wave = kittens::wave_id();
        const auto at = [&](int of_wave, int tile) {
            return lds + (of_wave * config.token_tiles + tile) * sum_bytes +
                   kittens::lane_id() * static_cast<int>(sizeof(Sum));
        };
#pragma clang loop unroll(disable)
        for (int half = top1_waves / 2; half >= config.token_tiles; half /= 2) {
            if (wave >= half && wave < 2 * half)
#pragma unroll
                for (int tile = 0; tile < config.token_tiles; ++tile)
                    kittens::lds_write(sums[tile], at(wave - half, tile));
            kittens::barrier();
            if (wave < half)
#pragma unroll
                for (int tile = 0; tile < config.token_tiles; ++tile)
                    sums[tile] += kittens::lds_read<Sum>(at(wave, tile));
            kittens::barrier();
        }
        static_assert(config.token_tiles <= 2);
        if constexpr (config.token_tiles == 2) {
            // Two waves are left: each passes on the other's tile. The order of the two summands does not change a bit.
            if (wave < 2) kittens::lds_write(wave == 0 ? sums[1] : sums[0], at(wave, 0));
            kittens::barrier();
            if (wave == 0) sums[0] += kittens::lds_read<Sum>(at(1, 0));
            if (wave == 1) sums[1] += kittens::lds_read<Sum>(at(0, 0));
        }
    }

    // Four lanes have some of a token's experts each.
    KITTENS_DEVICE static void choose(const Top1Arguments& arguments, Sum sum, uint32_t tile) {
        const uint32_t part = kittens::lane_id() / 16;
        uint32_t key = 0, chosen = 0;
        // In ascending order, so that the first of equals is kept.
#pragma unroll
        for (uint32_t n = 0; n < 4; ++n) {
            const uint32_t expert = part * 4 + n;
            const uint32_t its = expert < arguments.experts ? kittens::order_key(sum[n]) : 0;
            chosen = its > key ? expert : chosen;
            key = its > key ? its : key;
        }
        const auto against = [&](uint32_t other_key, uint32_t other) {
            const bool is_better = other_key > key || (other_key == key && other < chosen);
            key = is_better ? other_key : key;
            chosen = is_better ? other : chosen;
        };
        against(kittens::exchange_16(key), kittens::exchange_16(chosen));
        against(kittens::exchange_32(key), kittens::exchange_32(chosen));
        const uint32_t place = tile * 16 + kittens::lane_id() % 16;
        const uint32_t token = kittens::workgroup_id_x() * arguments.tokens + place;
        if (place >= arguments.tokens || token >= arguments.rows.all) return;
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
