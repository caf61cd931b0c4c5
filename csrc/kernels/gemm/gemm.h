// kernels/gemm/gemm.h: C = A B for every element type, orientation, tile and target.
// SPDX-License-Identifier: MIT
#pragma once
#include "interleaved_loop.h"
#include "ping_pong_loop.h"
#include "simple_loop.h"

namespace hipkittens::gemm {

template <GemmConfig config, Schedule schedule = config.schedule>
struct loop_of {
    using type = SimpleLoop<config>;
};
template <GemmConfig config>
struct loop_of<config, Schedule::interleaved> {
    using type = InterleavedLoop<config>;
};
template <GemmConfig config>
struct loop_of<config, Schedule::ping_pong> {
    using type = PingPongLoop<config>;
};
// Has lds_bytes and run(arguments, place, lds).
template <GemmConfig config>
using Gemm = typename loop_of<config>::type;

template <GemmConfig config>
KITTENS_DEVICE WorkgroupPlace place_of_workgroup(const GemmArguments& arguments) {
    const TilePosition tile = tile_of_workgroup(kittens::workgroup_id_x(), arguments.order);
    return {static_cast<int>(tile.m) * config.tile_m, static_cast<int>(tile.n) * config.tile_n,
            static_cast<int>(kittens::workgroup_id_y()), static_cast<int64_t>(kittens::workgroup_id_z())};
}

}  // namespace hipkittens::gemm
