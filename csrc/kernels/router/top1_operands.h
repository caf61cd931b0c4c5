// kernels/router/top1_operands.h: tokens and the columns of experts as operands of matrix instructions, loaded directly from memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::router {

template <class V>
using global = __attribute__((address_space(1))) V*;

// Lane l has token, or expert, l % 16 and, of each step's 32 features, eight adjacent ones, from l / 16 * 8 on. Experts that are
// contiguous in memory are loaded by 16 lanes together, one element per lane, for each of the eight features.
template <Top1Config config>
class Top1Operands {
  public:
    using T = typename element_of<config.element>::value;
    using Operand = kittens::vec<T, 8>;
    // Steps of the matrix instruction that cover a 128-byte line of each token's row.
    static constexpr uint32_t step_features = 32, steps = 2, unit = steps * step_features;

  private:
    const Top1Arguments& arguments_;
    const uint32_t expert_, lane_features_;  // the lane's expert, and its first feature of a step
    global<const T> x_[config.token_tiles];
    uint32_t w_;  // in bytes: of the expert at the lane's first feature

    // From `feature` on.
    KITTENS_DEVICE kittens::buffer w(uint32_t feature) const {
        const uint32_t before = feature * arguments_.w_features_step * sizeof(T);
        return {static_cast<const char*>(arguments_.w) + before, arguments_.w_bytes - before};
    }

  public:
    struct Unit {
        Operand x[config.token_tiles][steps];
        kittens::choose<config.experts_together, T[steps][8], Operand[steps]> w;
    };

    // Lanes without a token read the workgroup's last one.
    KITTENS_DEVICE explicit Top1Operands(const Top1Arguments& arguments)
        : arguments_(arguments),
          expert_(kittens::lane_id() % 16),
          lane_features_(kittens::lane_id() / 16 * 8) {
#pragma unroll
        for (int tile = 0; tile < config.token_tiles; ++tile) {
            const uint32_t place = tile * 16 + kittens::lane_id() % 16, last_place = arguments.tokens - 1;
            const uint32_t token =
                kittens::workgroup_id_x() * arguments.tokens + (place < last_place ? place : last_place);
            const uint32_t last = arguments.rows.all - 1;
            x_[tile] = (global<const T>)arguments.x.data +
                       arguments.x.offset(token < last ? token : last, arguments.rows) + lane_features_;
        }
        w_ = (expert_ * arguments.w_expert_step + lane_features_ * arguments.w_features_step) * sizeof(T);
    }

    // Experts past the last one are zeros, or elements of others: their sums are not used.
    KITTENS_DEVICE void load(Unit& into, uint32_t number) const {
        typedef Operand operand __attribute__((aligned(4)));
#pragma unroll
        for (uint32_t step = 0; step < steps; ++step) {
            const uint32_t feature = number * unit + step * step_features;
#pragma unroll
            for (int tile = 0; tile < config.token_tiles; ++tile)
                into.x[tile][step] = *(global<const operand>)(x_[tile] + feature);
            kittens::buffer from = w(feature);
            if constexpr (config.experts_together) {
#pragma unroll
                for (uint32_t k = 0; k < 8; ++k) {
                    from.scalar_offset = k * arguments_.w_features_step * sizeof(T);
                    into.w[step][k] = kittens::buffer_load<T>(from, w_);
                }
            } else {
                into.w[step] = kittens::buffer_load<Operand>(from, w_);
            }
        }
    }

    // Any strides and alignment, with zeros past the last feature in both operands.
    KITTENS_DEVICE void load_one_by_one(Unit& into, uint32_t number) const {
#pragma unroll
        for (uint32_t step = 0; step < steps; ++step)
#pragma unroll
            for (uint32_t k = 0; k < 8; ++k) {
                const uint32_t before = number * unit + step * step_features + k;
                const bool is_there = before + lane_features_ < arguments_.features;
#pragma unroll
                for (int tile = 0; tile < config.token_tiles; ++tile)
                    into.x[tile][step][k] = is_there ? x_[tile][before] : T(0);
                T element = T(0);
                if (is_there && expert_ < arguments_.experts) {
                    const uint64_t of_expert = static_cast<uint64_t>(expert_) * arguments_.w_expert_step,
                                   of_feature = static_cast<uint64_t>(before + lane_features_) *
                                                arguments_.w_features_step;
                    element = ((global<const T>)arguments_.w)[of_expert + of_feature];
                }
                into.w[step][k] = element;
            }
    }

    KITTENS_DEVICE static Operand experts(const Unit& loaded, uint32_t step) {
        Operand result;
#pragma unroll
        for (int k = 0; k < 8; ++k) result[k] = loaded.w[step][k];
        return result;
    }
};

}  // namespace hipkittens::router
