// kernels/router/top1_operands.h: tokens and the experts' columns as operands of matrix instructions, straight from memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::router {

template <class V>
using global = __attribute__((address_space(1))) V*;

// Lane l has token (or row of a tile of experts) l % 16, and of each step's 32 of K eight neighbours, those from l / 16 * 8 on.
// Experts that are neighbours in memory are loaded as such, `expert_tiles` of them at each of the eight: row r of tile t is then
// expert r * expert_tiles + t, and the operand of a tile is gathered from the eight loads.
template <Top1Config config>
class Top1Operands {
  public:
    using T = typename element_of<config.element>::value;
    using Operand = kittens::vec<T, 8>;
    // A step of the matrix instruction, and as many as fill a line of 128 bytes of each token's row. With many experts, one: registers.
    static constexpr uint32_t step_features = 32;
    static constexpr int steps = config.expert_tiles > 4 ? 1 : 2;
    static constexpr uint32_t unit = steps * step_features;

  private:
    static constexpr int tiles = config.expert_tiles;
    using Neighbours = kittens::choose<tiles == 1, T, kittens::vec<T, tiles>>;

    const Top1Arguments& arguments_;
    uint32_t lane_features_;  // the lane's first of a step
    global<const T> x_[config.token_tiles];
    uint32_t w_;  // in bytes: the lane's first expert, and its first of K

    // From `feature` on. A scalar offset beyond the end would wrap around in the range check.
    KITTENS_DEVICE kittens::buffer w(uint32_t feature) const {
        const uint32_t before = feature * arguments_.w_features_step * sizeof(T);
        return {static_cast<const char*>(arguments_.w) + before, arguments_.w_bytes - before};
    }

  public:
    struct Unit {
        Operand x[config.token_tiles][steps];
        // experts_together: of each of the eight of K; else of each tile
        kittens::choose<config.experts_together, Neighbours[steps][8], Operand[steps][tiles]> w;
    };

    KITTENS_DEVICE static uint32_t expert_of(int tile, int row) {
        return config.experts_together ? row * tiles + tile : tile * 16 + row;
    }

    // Behind the last token, lanes read the last one.
    KITTENS_DEVICE explicit Top1Operands(const Top1Arguments& arguments)
        : arguments_(arguments), lane_features_(kittens::lane_id() / 16 * 8) {
#pragma unroll
        for (int tile = 0; tile < config.token_tiles; ++tile) {
            const uint32_t token =
                kittens::workgroup_id_x() * config.tokens() + tile * 16 + kittens::lane_id() % 16;
            const uint32_t last = arguments.rows.all - 1;
            x_[tile] = (global<const T>)arguments.x.data +
                       arguments.x.offset(token < last ? token : last, arguments.rows) + lane_features_;
        }
        w_ = (expert_of(0, kittens::lane_id() % 16) * arguments.w_expert_step +
              lane_features_ * arguments.w_features_step) *
             sizeof(T);
    }

    // Experts behind the last are zeros, or others' elements: nobody asks for what their sums become.
    KITTENS_DEVICE void load(Unit& into, uint32_t number) const {
        typedef Operand operand __attribute__((aligned(4)));
        const uint32_t first = number * unit;
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const uint32_t feature = first + step * step_features;
#pragma unroll
            for (int tile = 0; tile < config.token_tiles; ++tile)
                into.x[tile][step] = *(global<const operand>)(x_[tile] + feature);
            kittens::buffer from = w(feature);
            if constexpr (config.experts_together) {
#pragma unroll
                for (uint32_t k = 0; k < 8; ++k) {
                    from.scalar_offset = k * arguments_.w_features_step * sizeof(T);
                    into.w[step][k] = kittens::buffer_load<Neighbours>(from, w_);
                }
            } else {
#pragma unroll
                for (uint32_t tile = 0; tile < tiles; ++tile) {
                    const uint32_t expert = tile * 16 < arguments_.experts ? tile * 16 : 0;
                    from.scalar_offset = expert * arguments_.w_expert_step * sizeof(T);
                    into.w[step][tile] = kittens::buffer_load<Operand>(from, w_);
                }
            }
        }
    }

    // Any strides and alignment, and zeros behind the last of K in both operands.
    KITTENS_DEVICE void load_one_by_one(Unit& into, uint32_t number) const {
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const uint32_t feature = number * unit + step * step_features;
#pragma unroll
            for (uint32_t k = 0; k < 8; ++k) {
                const bool is_there = feature + lane_features_ + k < arguments_.features;
#pragma unroll
                for (int tile = 0; tile < config.token_tiles; ++tile)
                    into.x[tile][step][k] = is_there ? x_[tile][feature + k] : T(0);
#pragma unroll
                for (int tile = 0; tile < tiles; ++tile) {
                    const uint32_t expert = expert_of(tile, kittens::lane_id() % 16);
                    T element = T(0);
                    if (is_there && expert < arguments_.experts)
                        element =
                            ((global<const T>)
                                 arguments_.w)[static_cast<uint64_t>(expert) * arguments_.w_expert_step +
                                               static_cast<uint64_t>(feature + lane_features_ + k) *
                                                   arguments_.w_features_step];
                    if constexpr (!config.experts_together)
                        into.w[step][tile][k] = element;
                    else if constexpr (tiles == 1)
                        into.w[step][k] = element;
                    else
                        into.w[step][k][tile] = element;
                }
            }
        }
    }

    KITTENS_DEVICE static Operand experts(const Unit& loaded, int step, int tile) {
        if constexpr (!config.experts_together) {
            return loaded.w[step][tile];
        } else {
            Operand result;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                if constexpr (tiles == 1)
                    result[k] = loaded.w[step][k];
                else
                    result[k] = loaded.w[step][k][tile];
            }
            return result;
        }
    }
};

}  // namespace hipkittens::router
