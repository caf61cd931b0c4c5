// tests/tiles/policy_kernels.cpp: the GEMM main loops with other elements, epilogues and accumulations than the rows of variants.def have.
// SPDX-License-Identifier: MIT
#include "kernels/gemm/interleaved_loop.h"
#include "kernels/gemm/ping_pong_loop.h"
#include "kernels/gemm/simple_loop.h"

namespace hipkittens::gemm {

using kittens::fp8_e4m3;
// Square tiles of rows of 128 bytes.
constexpr GemmConfig config_of(int tile, int waves_n, RowStart row_start, Schedule schedule, int buffers,
                               int in_registers, LoadOrder load_order = LoadOrder::plain) {
    GemmConfig config{};
    config.orientation = Orientation::nt;
    config.a = config.b = ElementType::fp8;
    config.tile_m = config.tile_n = tile;
    config.tile_k = 128;
    config.waves_m = 2;
    config.waves_n = waves_n;
    config.matrix = 16;
    config.row_start = row_start;
    config.schedule = schedule;
    config.buffers = buffers;
    config.in_registers = in_registers;
    config.load_order = load_order;
    return config;
}
constexpr GemmConfig interleaved = config_of(64, 2, RowStart::vector, Schedule::interleaved, 4, 2);
constexpr GemmConfig ping_pong = config_of(256, 4, RowStart::vector, Schedule::ping_pong, 2, 1);
constexpr GemmConfig alternate =
    config_of(128, 2, RowStart::vector, Schedule::interleaved, 4, 2, LoadOrder::alternate);
constexpr GemmConfig simple = config_of(64, 2, RowStart::element, Schedule::simple, 1, 1);

// A stage behind the sums: each times 1/2.
struct Halve {
    template <class Accumulator, int down, int across, class Memory>
    KITTENS_DEVICE static void apply(Accumulator (&bands)[down][across], const GemmArguments&, EpiloguePlace,
                                     Memory) {
        for (auto& row : bands)
            for (auto& band : row) mul(band, band, 0.5f);
    }
};
// A scale for each K tile, where a bias would be, times 2^(i - j) of base tile (i, j).
struct ScaledKTiles : AccumulateInPlace {
    static constexpr bool promotes = true;
    const float* scales;
    KRange range;
    int tile;
    float scale = 0;
    KITTENS_DEVICE ScaledKTiles(const GemmArguments& arguments, KRange range, AccumulationPlace place)
        : AccumulateInPlace(arguments, range, place),
          scales(static_cast<const float*>(arguments.bias)),
          range(range),
          tile(range.begin - 1) {}
    KITTENS_DEVICE void begin_k_tile() {
        scale = scales[tile < range.begin ? range.last : tile];
        ++tile;
    }
    template <class Sum>
    KITTENS_DEVICE Sum promoted(Sum sum, Sum partial, int i, int j) const {
        return __builtin_elementwise_fma(partial, Sum(times_power_of_2(scale, i - j)), sum);
    }
};

using Plain = GemmPolicy<fp8_e4m3>;
using Halved = GemmPolicy<fp8_e4m3, fp8_e4m3, Epilogue<SplitDestination, AddBias, Halve>>;
using Scaled = GemmPolicy<fp8_e4m3, fp8_e4m3, Epilogue<SplitDestination>, ScaledKTiles>;

template <class Loop, GemmConfig config>
KITTENS_DEVICE void run(const GemmArguments& arguments) {
    __attribute__((shared, aligned(1024))) static char lds[Loop::lds_bytes];
    const TileCoordinate tile{static_cast<int>(kittens::workgroup_id_x()) * config.tile_m,
                              static_cast<int>(kittens::workgroup_id_y()) * config.tile_n, 0, 0};
    Loop(arguments, tile, (kittens::shared_byte*)lds).run(tile);
}
#define POLICY_KERNEL(name, Loop, config, Policy)                                                      \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(config.threads(), config.threads()), \
                              amdgpu_waves_per_eu(config.threads() / 256))) void                       \
    name(GemmArguments arguments) {                                                                    \
        run<Loop<config, Policy>, config>(arguments);                                                  \
    }
POLICY_KERNEL(interleaved_plain, InterleavedLoop, interleaved, Plain)
POLICY_KERNEL(interleaved_halved, InterleavedLoop, interleaved, Halved)
POLICY_KERNEL(interleaved_scaled, InterleavedLoop, interleaved, Scaled)
POLICY_KERNEL(ping_pong_scaled, PingPongLoop, ping_pong, Scaled)
POLICY_KERNEL(simple_scaled, SimpleLoop, simple, Scaled)
POLICY_KERNEL(interleaved_alternate, InterleavedLoop, alternate, Plain)
POLICY_KERNEL(ping_pong_plain, PingPongLoop, ping_pong, Plain)
POLICY_KERNEL(simple_plain, SimpleLoop, simple, Plain)

}  // namespace hipkittens::gemm
