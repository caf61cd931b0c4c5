// simulator/timing/tag_array.h: the tags of a set-associative cache with least-recently-used replacement.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/timing/divisor.h"

namespace hipkittens::simulator::timing {

class TagArray {
  public:
    static constexpr size_t none = ~size_t{0};

    TagArray(uint64_t lines, uint32_t ways)
        : ways_(ways),
          sets_(lines / ways),
          tags_(sets_.number() * ways, empty),
          ages_(tags_.size()),
          ready_(tags_.size()),
          dirty_(tags_.size()) {}

    // The line's place, or `none`. A hit makes it the most recently used.
    size_t find(uint64_t set, uint64_t line) {
        const size_t first = sets_.remainder(set) * ways_;
        const uint32_t tag = tag_of(line);
        for (uint32_t group = 0; group < ways_; group += 8) {
            const uint32_t* const tags = &tags_[first + group];
            const uint32_t count = ways_ - group < 8 ? ways_ - group : 8;
            uint32_t hits = 0;
            for (uint32_t way = 0; way < count; ++way) hits |= static_cast<uint32_t>(tags[way] == tag) << way;
            if (!hits) continue;
            const size_t place = first + group + static_cast<uint32_t>(__builtin_ctz(hits));
            ages_[place] = ++clock_;
            return place;
        }
        return none;
    }
    // The place for a line that find did not find, which becomes the most recently used. Its previous
    // contents are evicted: the caller checks whether they are dirty, and then calls fill.
    size_t oldest(uint64_t set) {
        const size_t first = sets_.remainder(set) * ways_;
        size_t chosen = first;
        for (uint32_t way = 1; way < ways_; ++way) {
            if (ages_[first + way] < ages_[chosen]) chosen = first + way;
        }
        ages_[chosen] = ++clock_;
        return chosen;
    }
    void fill(size_t place, uint64_t line, double ready, bool dirty) {
        tags_[place] = tag_of(line);
        ready_[place] = ready;
        dirty_[place] = dirty;
    }

    uint64_t sets() const { return sets_.number(); }
    size_t size() const { return tags_.size(); }
    double ready(size_t place) const { return ready_[place]; }  // when its bytes are available
    bool is_dirty(size_t place) const { return dirty_[place]; }
    void set_dirty(size_t place, bool dirty) { dirty_[place] = dirty; }
    // The line at a place, as far as the tag determines it: enough to find its set again.
    uint64_t line(size_t place) const { return tags_[place]; }

  private:
    static constexpr uint32_t empty = ~uint32_t{0};
    // Modelled addresses (address_map.h) are below 2^39.
    static uint32_t tag_of(uint64_t line) { return static_cast<uint32_t>(line); }

    uint32_t ways_;
    Divisor sets_;
    uint32_t clock_ = 0;
    std::vector<uint32_t> tags_, ages_;
    std::vector<double> ready_;
    std::vector<uint8_t> dirty_;
};

}  // namespace hipkittens::simulator::timing
