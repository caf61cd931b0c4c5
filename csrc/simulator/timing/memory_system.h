// simulator/timing/memory_system.h: L2, fabric, MALL and HBM, shared by compute units.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/timing/bandwidth_queue.h"
#include "simulator/timing/parameters.h"
#include "simulator/timing/tag_array.h"

namespace hipkittens::simulator::timing {

struct MemoryCounts {
    uint64_t l2_reads = 0, l2_read_hits = 0, l2_writes = 0;
    uint64_t mall_reads = 0, mall_read_hits = 0;
    uint64_t hbm_read_lines = 0, hbm_write_lines = 0;
};

// The latency of HBM varies by address: it follows a shifted exponential distribution with the median and the 95th
// percentile of the parameters, truncated there since nothing is published beyond, selected by a hash for every 4 KiB. A wave that
// waits for many lines waits for the slowest.
// Write policies (assumed): L2 allocates written lines without fetching them and writes them back when they are replaced
// and at the end of the kernel; the MALL allocates every line that passes through. It is in the steady state of a launch that is
// repeated on tensors that exceed it: full of what earlier launches left, so that as many dirty lines are evicted to HBM as
// become dirty. Each eviction is charged when another line becomes dirty, and the launch lasts until HBM has received the last.
// All times are in clocks of the core, whose frequency converts nanoseconds to clocks.
class MemorySystem {
  public:
    MemorySystem(const Parameters& parameters, double clock_mhz);

    // A compute unit of this XCD requests a 128-byte line at `time`; returns when it has it, minus the lookup
    // time of a hit in its own cache. in_mall: the line has been there since before the launch.
    double read(uint32_t xcd, uint64_t line, double time, bool in_mall = false);
    // Returns when L2 has accepted the bytes.
    double write(uint32_t xcd, uint64_t line, double time, double bytes);
    // Returns when L2 has performed an atomic operation, for which it needs the line.
    double update(uint32_t xcd, uint64_t line, double time, double bytes);
    // Lines that L2 still has to write back at the end of the kernel. Returns when that is done.
    double write_back(double time);

    const MemoryCounts& counts(uint32_t xcd) const { return xcds_[xcd].counts; }
    MemoryCounts total() const;
    double nanoseconds(double time) const { return time * 1000 / clock_mhz_; }

  private:
    static constexpr size_t page_count = 4096, quantile_count = 1024;

    struct Xcd {
        Xcd(const Parameters& parameters, double clocks_per_ns);
        TagArray l2;
        std::vector<BandwidthQueue> reads, writes;  // one per channel
        BandwidthQueue fabric_reads, fabric_writes;
        struct Page {
            uint64_t number = ~uint64_t{0};
            double known = 0;  // when its translation is available
        };
        std::vector<Page> pages{page_count};
        MemoryCounts counts;
    };

    uint32_t channel_of(uint64_t line) const;
    uint64_t set_of(uint64_t line, uint32_t channel) const;
    double translate(Xcd& xcd, uint64_t line, double time) const;
    // When L2 has received the data that changes a line, and the line's place; TagArray::none: it is still to
    // come.
    struct Arrival {
        double served;
        uint64_t set;
        size_t hit;
    };
    Arrival reach_l2_with(Xcd& xcd, uint64_t line, double time, double bytes);
    double hbm_extra(uint64_t line) const;                             // clk beyond those of the MALL
    double fetch(Xcd& xcd, uint64_t line, double time, bool in_mall);  // from the fabric onward
    // A line that L2 writes back. Returns when it has left and, if it displaces another, HBM has received that.
    double send(Xcd& xcd, uint64_t line, double time);
    double displace(Xcd& xcd, double time);
    size_t allocate(Xcd& xcd, uint64_t set, double time);

    Parameters parameters_;
    double clock_mhz_;
    Divisor unit_lines_, channels_;                      // adjacent lines of a channel
    double to_l2_, from_l2_, mall_extra_, translation_;  // clk
    std::vector<double> hbm_extras_;                     // clk, by hash
    std::vector<Xcd> xcds_;
    TagArray mall_;
    BandwidthQueue mall_queue_, hbm_queue_;
};

}  // namespace hipkittens::simulator::timing
