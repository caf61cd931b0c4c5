// simulator/timing/lds_port.h: the local data share of one compute unit, its queue and its two ports.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulator/timing/parameters.h"
#include "simulator/timing/static_cost.h"

namespace hipkittens::simulator::timing {

class LdsPort {
  public:
    explicit LdsPort(const Parameters& parameters)
        : latency_(parameters.lds_latency), leaves_(static_cast<size_t>(parameters.lds_queue)) {}

    // When the queue has room for one more.
    double room() const { return leaves_[next_]; }

    // Returns when the operation is done and its wait counter counts down.
    double issue(double time, uint32_t simd, const Cost& cost, uint32_t conflicts) {
        Side& side = sides_[simd / 2];  // two SIMDs share a port
        const double begin = std::max(time, side.in);
        side.in = begin + cost.lds_in;
        // Reads go on from their addresses, writes when their last data is there.
        const double banks = std::max(side.in, banks_);
        banks_ = banks + cost.lds_banks + conflicts;
        busy_ += cost.lds_banks + conflicts;
        conflict_clocks_ += conflicts;
        double done = banks_;
        if (cost.lds_out) {
            const double out = std::max(banks, side.out);
            side.out = std::max(out + cost.lds_out, banks_);
            done = side.out;
        }
        leaves_[next_] = banks;
        next_ = (next_ + 1) % leaves_.size();
        return done + latency_;
    }

    // Bytes that a load from memory puts down, 128 a clock.
    void fill(double time, uint32_t bytes) {
        const double clocks = bytes / 128.0;
        banks_ = std::max(banks_, time) + clocks;
        busy_ += clocks;
    }

    double busy() const { return busy_; }
    double conflict_clocks() const { return conflict_clocks_; }

  private:
    struct Side {
        double in = 0, out = 0;
    };
    double latency_;
    Side sides_[2];
    double banks_ = 0, busy_ = 0, conflict_clocks_ = 0;
    std::vector<double> leaves_;  // of the operations in the queue, a ring
    size_t next_ = 0;
};

}  // namespace hipkittens::simulator::timing
