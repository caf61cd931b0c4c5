// simulator/timing/memory_system.cpp: L2, fabric, MALL and HBM, shared by compute units.
// SPDX-License-Identifier: MIT
#include "simulator/timing/memory_system.h"

#include <algorithm>
#include <cmath>

#include "simulator/timing/wave_trace.h"

namespace hipkittens::simulator::timing {
namespace {

constexpr uint64_t page_lines = (2 << 20) / line_bytes;
// Stacks of HBM alternate every 4 KiB (assumed): lines within are at the same distance, and mostly in one
// DRAM page.
constexpr uint64_t memory_unit_lines = 4096 / line_bytes;

// Spreads power-of-two strides.
uint64_t fold(uint64_t bits) { return bits ^ bits >> 4 ^ bits >> 8 ^ bits >> 12 ^ bits >> 16 ^ bits >> 20; }

// Quantiles of the latency, evenly spaced: see memory_system.h.
std::vector<double> spread(double median, double percentile_95, size_t count) {
    const double scale = (percentile_95 - median) / (std::log(20) - std::log(2));
    const double least = median - scale * std::log(2);
    std::vector<double> result;
    for (size_t i = 0; i < count; ++i) {
        const double beyond = 1 - (static_cast<double>(i) + 0.5) / static_cast<double>(count);
        result.push_back(least + scale * std::min(-std::log(beyond), std::log(20)));
    }
    return result;
}

// SplitMix64: neighboring units and the first ones of pages are as random as others.
uint64_t hash(uint64_t unit) {
    unit += 0x9e3779b97f4a7c15;
    unit = (unit ^ unit >> 30) * 0xbf58476d1ce4e5b9;
    unit = (unit ^ unit >> 27) * 0x94d049bb133111eb;
    return unit ^ unit >> 31;
}

}  // namespace

MemorySystem::Xcd::Xcd(const Parameters& parameters, double clocks_per_ns)
    : l2(static_cast<uint64_t>(parameters.l2_bytes) / line_bytes, static_cast<uint32_t>(parameters.l2_ways)),
      reads(static_cast<size_t>(parameters.l2_channels), BandwidthQueue(parameters.l2_read, 1024)),
      writes(static_cast<size_t>(parameters.l2_channels), BandwidthQueue(parameters.l2_write, 1024)),
      fabric_reads(parameters.fabric_read / clocks_per_ns),
      fabric_writes(parameters.fabric_write / clocks_per_ns) {}

MemorySystem::MemorySystem(const Parameters& parameters, double clock_mhz)
    : parameters_(parameters),
      clock_mhz_(clock_mhz),
      unit_lines_(static_cast<uint64_t>(parameters.l2_interleave) / line_bytes),
      channels_(static_cast<uint64_t>(parameters.l2_channels)),
      mall_(static_cast<uint64_t>(parameters.mall_bytes) / line_bytes,
            static_cast<uint32_t>(parameters.mall_ways)),
      mall_queue_(parameters.mall_bandwidth * 1000 / clock_mhz),
      hbm_queue_(parameters.hbm_bandwidth * 1000 / clock_mhz) {
    const double clocks_per_ns = clock_mhz / 1000;
    // Latency up to L2's answer is in core clocks; beyond L2 it is in nanoseconds.
    const double l2_ns = parameters.l2_hit * 1000 / parameters.latency_clock;
    to_l2_ = parameters.l2_hit / 2;
    from_l2_ = parameters.l2_hit - to_l2_;
    mall_extra_ = std::max(0.0, parameters.mall_latency - l2_ns) * clocks_per_ns;
    for (const double ns :
         spread(parameters.hbm_latency, std::max(parameters.hbm_latency, parameters.hbm_latency_95),
                quantile_count))
        hbm_extras_.push_back(std::max(0.0, ns - parameters.mall_latency) * clocks_per_ns);
    translation_ = parameters.translation_miss * clocks_per_ns;
    for (int i = 0; i < static_cast<int>(parameters.xcds); ++i) xcds_.emplace_back(parameters, clocks_per_ns);
}

uint32_t MemorySystem::channel_of(uint64_t line) const {
    const uint64_t unit = unit_lines_.quotient(line);
    const uint64_t folded = parameters_.l2_hashes_channels != 0 ? fold(unit) : unit;
    return static_cast<uint32_t>(channels_.remainder(folded));
}

// The set within its channel's share: the bits above the channel's.
uint64_t MemorySystem::set_of(uint64_t line, uint32_t channel) const {
    const uint64_t within =
        channels_.quotient(unit_lines_.quotient(line)) * unit_lines_.number() + unit_lines_.remainder(line);
    return within * channels_.number() + channel;
}

// Addresses are translated before L2. A page that the XCD has not touched before takes additional time.
double MemorySystem::translate(Xcd& xcd, uint64_t line, double time) const {
    if (translation_ == 0) return time;
    const uint64_t number = line / page_lines;
    Xcd::Page& page = xcd.pages[number % page_count];
    if (page.number != number) page = {number, time + translation_};
    return std::max(time, page.known);
}

double MemorySystem::hbm_extra(uint64_t line) const {
    return hbm_extras_[hash(line / memory_unit_lines) % quantile_count];
}

// An evicted line is sent on; the caller fills the slot.
size_t MemorySystem::allocate(Xcd& xcd, uint64_t set, double time) {
    const size_t place = xcd.l2.oldest(set);
    if (xcd.l2.is_dirty(place)) send(xcd, xcd.l2.line(place), time);
    return place;
}

double MemorySystem::read(uint32_t index, uint64_t line, double time, bool in_mall) {
    Xcd& xcd = xcds_[index];
    const uint32_t channel = channel_of(line);
    const uint64_t set = set_of(line, channel);
    const double served = xcd.reads[channel].serve(translate(xcd, line, time) + to_l2_, line_bytes);
    ++xcd.counts.l2_reads;
    if (const size_t hit = xcd.l2.find(set, line); hit != TagArray::none) {
        ++xcd.counts.l2_read_hits;
        return std::max(served, xcd.l2.ready(hit)) + from_l2_;
    }
    const double ready = fetch(xcd, line, served, in_mall);
    xcd.l2.fill(allocate(xcd, set, served), line, ready, false);
    return ready + from_l2_;
}

double MemorySystem::fetch(Xcd& xcd, uint64_t line, double time, bool in_mall) {
    time = xcd.fabric_reads.serve(time, line_bytes);
    time = mall_queue_.serve(time, line_bytes) + mall_extra_;
    ++xcd.counts.mall_reads;
    if (const size_t hit = mall_.find(line, line); hit != TagArray::none) {
        ++xcd.counts.mall_read_hits;
        return std::max(time, mall_.ready(hit));
    }
    if (in_mall || parameters_.mall_starts_warm != 0) {
        ++xcd.counts.mall_read_hits;
    } else {
        time = hbm_queue_.serve(time, line_bytes) + hbm_extra(line);
        ++xcd.counts.hbm_read_lines;
    }
    mall_.fill(mall_.oldest(line), line, time, false);
    return time;
}

// A line of the MALL becomes dirty, and another dirty one is evicted to HBM. Returns when HBM has received
// that.
double MemorySystem::displace(Xcd& xcd, double time) {
    ++xcd.counts.hbm_write_lines;
    return hbm_queue_.serve(time, line_bytes * parameters_.hbm_write_cost);
}

MemorySystem::Arrival MemorySystem::reach_l2_with(Xcd& xcd, uint64_t line, double time, double bytes) {
    const uint32_t channel = channel_of(line);
    const uint64_t set = set_of(line, channel);
    const double served = xcd.writes[channel].serve(translate(xcd, line, time) + to_l2_, bytes);
    ++xcd.counts.l2_writes;
    const size_t hit = xcd.l2.find(set, line);
    if (hit != TagArray::none) xcd.l2.set_dirty(hit, true);
    return {served, set, hit};
}

double MemorySystem::write(uint32_t index, uint64_t line, double time, double bytes) {
    Xcd& xcd = xcds_[index];
    const auto [served, set, hit] = reach_l2_with(xcd, line, time, bytes);
    if (hit == TagArray::none) xcd.l2.fill(allocate(xcd, set, served), line, served, true);
    return served;
}

double MemorySystem::update(uint32_t index, uint64_t line, double time, double bytes) {
    Xcd& xcd = xcds_[index];
    const auto [served, set, hit] = reach_l2_with(xcd, line, time, bytes);
    if (hit != TagArray::none) return std::max(served, xcd.l2.ready(hit));
    const double ready = fetch(xcd, line, served, false);
    xcd.l2.fill(allocate(xcd, set, ready), line, ready, true);
    return ready;
}

double MemorySystem::send(Xcd& xcd, uint64_t line, double time) {
    time = xcd.fabric_writes.serve(time, line_bytes);
    time = mall_queue_.serve(time, line_bytes);
    size_t place = mall_.find(line, line);
    bool was_dirty = parameters_.mall_starts_warm != 0;
    if (place != TagArray::none) {
        was_dirty |= mall_.is_dirty(place);
        mall_.set_dirty(place, true);
    } else {
        place = mall_.oldest(line);
        mall_.fill(place, line, time, true);
    }
    return was_dirty ? time : displace(xcd, time);
}

double MemorySystem::write_back(double time) {
    double end = time;
    for (Xcd& xcd : xcds_) {
        for (size_t place = 0; place < xcd.l2.size(); ++place) {
            if (!xcd.l2.is_dirty(place)) continue;
            xcd.l2.set_dirty(place, false);
            end = std::max(end, send(xcd, xcd.l2.line(place), time));
        }
    }
    return end;
}

MemoryCounts MemorySystem::total() const {
    MemoryCounts sum;
    for (const Xcd& xcd : xcds_) {
        sum.l2_reads += xcd.counts.l2_reads;
        sum.l2_read_hits += xcd.counts.l2_read_hits;
        sum.l2_writes += xcd.counts.l2_writes;
        sum.mall_reads += xcd.counts.mall_reads;
        sum.mall_read_hits += xcd.counts.mall_read_hits;
        sum.hbm_read_lines += xcd.counts.hbm_read_lines;
        sum.hbm_write_lines += xcd.counts.hbm_write_lines;
    }
    return sum;
}

}  // namespace hipkittens::simulator::timing
