// simulator/timing/vector_cache.cpp: address coalescer and vector L1 of one compute unit.
// SPDX-License-Identifier: MIT
#include "simulator/timing/vector_cache.h"

#include <algorithm>

#include "simulator/timing/wave_trace.h"

namespace hipkittens::simulator::timing {

VectorCacheTags::VectorCacheTags(const Parameters& parameters)
    : tags_(static_cast<uint64_t>(parameters.vector_cache_bytes) / line_bytes,
            static_cast<uint32_t>(parameters.vector_cache_ways)) {}

VectorCache::VectorCache(const Parameters& parameters, MemorySystem& memory, uint32_t xcd)
    : parameters_(parameters),
      memory_(memory),
      xcd_(xcd),
      tags_(parameters),
      leaves_(static_cast<size_t>(parameters.address_queue)),
      fills_(parameters.fill_bandwidth, 512),
      outstanding_(static_cast<size_t>(parameters.outstanding_lines)) {}

double VectorCache::issue(double time, const Cost& cost, const uint64_t* access) {
    const double begin = std::max(time, pipe_);
    const bool stores = cost.kind == Kind::vector_store || cost.kind == Kind::vector_atomic;
    leaves_[next_] = begin;
    next_ = (next_ + 1) % leaves_.size();
    const double done = stores ? store(begin, cost, access) : load(begin, cost, access);
    busy_ += pipe_ - begin;
    return done;
}

double VectorCache::load(double time, const Cost& cost, const uint64_t* access) {
    const uint64_t header = access[0];
    const uint32_t lookups = lookup_count(header);
    const double data = byte_count(header) / parameters_.vector_cache_bandwidth;
    lookups_ += lookups;
    double ready = time, lookup = time;
    for (uint32_t i = 1; i <= run_count(header); ++i) {
        const LineRun run = unpack_run(access[i]);
        for (uint64_t line = run.first; line < run.first + run.count; ++line, lookup += 1) {
            ++lines_;
            const double known = cost.bypasses_cache ? -1 : tags_.find(line);
            if (known >= 0) {
                ++hits_;
                ready = std::max({ready, lookup + parameters_.vector_cache_hit, known});
                continue;
            }
            // The number of lines in flight is limited: the pipe waits.
            double& slot = outstanding_[next_outstanding_];
            next_outstanding_ = (next_outstanding_ + 1) % outstanding_.size();
            lookup = std::max(lookup, slot);
            slot = fills_.serve(memory_.read(xcd_, line, lookup), line_bytes);
            ready = std::max(ready, slot);
            if (!cost.bypasses_cache) tags_.fill(line, slot);
        }
    }
    pipe_ = std::max({lookup, time + lookups, time + data, time + parameters_.issue});
    // Data returns in order, at the cache's width.
    returns_ = std::max(returns_ + data, ready);
    return returns_;
}

double VectorCache::store(double time, const Cost& cost, const uint64_t* access) {
    const uint64_t header = access[0];
    const uint32_t bytes = byte_count(header);
    const double data = bytes / parameters_.store_bandwidth;
    lookups_ += lookup_count(header);
    uint64_t lines = 0;
    for (uint32_t i = 1; i <= run_count(header); ++i) lines += unpack_run(access[i]).count;
    double at = std::max(time, stores_), taken = at;
    for (uint32_t i = 1; i <= run_count(header); ++i) {
        const LineRun run = unpack_run(access[i]);
        for (uint64_t line = run.first; line < run.first + run.count; ++line) {
            const double share = static_cast<double>(bytes) / static_cast<double>(lines);
            at += share / parameters_.store_bandwidth;
            taken = std::max(taken, is_atomic(header) ? memory_.update(xcd_, line, at, share)
                                                      : memory_.write(xcd_, line, at, share));
        }
    }
    pipe_ = std::max({time + lookup_count(header), time + data, time + parameters_.issue});
    stores_ = std::max(pipe_, at);
    const double answer = std::max(at + parameters_.store_acknowledge, taken + parameters_.l2_hit / 2);
    return cost.kind == Kind::vector_atomic ? std::max(answer, at + parameters_.l2_hit) : answer;
}

}  // namespace hipkittens::simulator::timing
