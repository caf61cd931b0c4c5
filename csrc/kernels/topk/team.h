// kernels/topk/team.h: the waves that share a row, and the values they exchange.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/scan_intrinsics.h"

namespace hipkittens::topk {

// If the team has several waves, every function except the trivial ones is called by all waves of the workgroup together; the
// values they pass are the same in all lanes of a wave.
template <int waves>
class Team {
    static_assert(waves >= 1 && waves <= 16, "their sums are those of 16 lanes");
    kittens::shared_byte* lds_;
    int buffer_ = 0;

    // Lane n of every 16 gets the value of wave n. Double-buffered: the barrier of the intervening call orders the reuse of a
    // buffer after its reads.
    KITTENS_DEVICE uint32_t exchanged(uint32_t value) {
        kittens::shared_byte* slots = lds_ + buffer_ * 64;
        buffer_ ^= 1;
        if (kittens::lane_id() == 0) kittens::lds_write(value, slots + kittens::wave_id() * 4);
        kittens::barrier();
        const uint32_t lane = static_cast<uint32_t>(kittens::lane_id()) % 16;
        return lane < waves ? kittens::lds_read<uint32_t>(slots + lane * 4) : 0;
    }
    KITTENS_DEVICE static uint32_t sum_of_row(uint32_t value) {
        return kittens::value_of_lane<15>(kittens::inclusive_sum_of_16(value));
    }

  public:
    static constexpr int lds_bytes = waves > 1 ? 128 : 0;
    static constexpr int lanes = waves * 64;

    KITTENS_DEVICE explicit Team(kittens::shared_byte* lds) : lds_(lds) {}

    KITTENS_DEVICE static uint32_t wave() { return waves > 1 ? kittens::wave_id() : 0; }
    KITTENS_DEVICE static uint32_t lane() { return wave() * 64 + kittens::lane_id(); }
    // LDS accesses of the team before the call are visible after it. Those of a single wave are in order.
    KITTENS_DEVICE void synchronize() {
        if constexpr (waves > 1)
            kittens::barrier();
        else
            kittens::compiler_fence();
    }
    KITTENS_DEVICE uint32_t sum(uint32_t value) {
        if constexpr (waves > 1) return sum_of_row(exchanged(value));
        return value;
    }
    struct Sums {
        uint32_t before, all;  // over the waves before this one; over all
    };
    KITTENS_DEVICE Sums sums(uint32_t value) {
        if constexpr (waves == 1) return {0, value};
        const uint32_t each = exchanged(value);
        const uint32_t lane = static_cast<uint32_t>(kittens::lane_id()) % 16;
        return {sum_of_row(lane < wave() ? each : 0), sum_of_row(each)};
    }
};

}  // namespace hipkittens::topk
