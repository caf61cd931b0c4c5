// simulator/timing/lds_port.h: the local data share of one compute unit, its queue and its two ports.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulator/timing/bandwidth_queue.h"
#include "simulator/timing/parameters.h"
#include "simulator/timing/static_cost.h"

namespace hipkittens::simulator::timing {

class LdsPort {
  public:
    explicit LdsPort(const Parameters& parameters) : latency_(parameters.lds_latency) {
        const size_t entries = std::max<size_t>(1, static_cast<size_t>(parameters.lds_queue) / 2);
        for (Side& side : sides_) side.leaves.resize(entries);
    }

    // The time at which the queue of that SIMD's port has room for one more.
    double room(uint32_t simd) const {
        const Side& side = sides_[simd / 2];
        return side.leaves[side.next];
    }

    // Returns when the operation is done and its wait counter is decremented.
    double issue(double time, uint32_t simd, const Cost& cost, uint32_t conflicts) {
        Side& side = sides_[simd / 2];  // two SIMDs share a port
        const double begin = std::max(time, side.in);
        side.in = begin + cost.lds_in;
        // Banks are occupied once the addresses are there; for a write, once its last data is.
        const double clocks = cost.lds_banks + conflicts;
        const double banks_done = banks_.serve(side.in, clocks);
        const double banks = banks_done - clocks;
        conflict_clocks_ += conflicts;
        double done = banks_done;
        if (cost.lds_out) {
            side.out = std::max(std::max(banks, side.out) + cost.lds_out, banks_done);
            done = side.out;
        }
        side.leaves[side.next] = banks;
        side.next = (side.next + 1) % side.leaves.size();
        return done + latency_;
    }

    // Bytes that a load from memory writes to LDS, 128 per clock.
    void fill(double time, uint32_t bytes) { banks_.serve(time, bytes / 128.0); }

    double busy() const { return banks_.bytes(); }
    double conflict_clocks() const { return conflict_clocks_; }

  private:
    struct Side {
        double in = 0, out = 0;
        std::vector<double> leaves;  // when the operations in its queue leave it, a ring
        size_t next = 0;
    };
    double latency_;
    Side sides_[2];
    BandwidthQueue banks_{1, 512};  // of clocks, one per clock
    double conflict_clocks_ = 0;
};

}  // namespace hipkittens::simulator::timing
