// simulator/timing/vector_cache.h: address coalescer and vector L1 of one compute unit.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/timing/memory_system.h"
#include "simulator/timing/static_cost.h"
#include "simulator/timing/tag_array.h"

namespace hipkittens::simulator::timing {

class VectorCacheTags {
  public:
    explicit VectorCacheTags(const Parameters& parameters);
    // When the line's bytes are available; negative if the cache does not have the line.
    double find(uint64_t line) {
        const size_t place = tags_.find(set_of(line), line);
        return place == TagArray::none ? -1 : tags_.ready(place);
    }
    void fill(uint64_t line, double ready) { tags_.fill(tags_.oldest(set_of(line)), line, ready, false); }

  private:
    uint64_t set_of(uint64_t line) const { return line % tags_.sets(); }
    TagArray tags_;
};

class VectorCache {
  public:
    VectorCache(const Parameters& parameters, MemorySystem& memory, uint32_t xcd);

    double room() const { return leaves_[next_]; }  // when the queue has room for one more

    // `access` is a header and its runs (wave_trace.h). Returns when its wait counter is decremented, if all
    // earlier operations have been counted.
    double issue(double time, const Cost& cost, const uint64_t* access);

    uint64_t lookups() const { return lookups_; }
    uint64_t lines() const { return lines_; }
    uint64_t hits() const { return hits_; }
    double busy() const { return busy_; }

  private:
    double load(double time, const Cost& cost, const uint64_t* access);
    double store(double time, const Cost& cost, const uint64_t* access);

    const Parameters parameters_;
    MemorySystem& memory_;
    uint32_t xcd_;
    VectorCacheTags tags_;
    std::vector<double> leaves_;  // when the operations in the queue leave it, a ring
    size_t next_ = 0;
    double pipe_ = 0, returns_ = 0, stores_ = 0, busy_ = 0;
    BandwidthQueue fills_;
    std::vector<double> outstanding_;  // when the requested lines complete, a ring
    size_t next_outstanding_ = 0;
    uint64_t lookups_ = 0, lines_ = 0, hits_ = 0;
};

}  // namespace hipkittens::simulator::timing
