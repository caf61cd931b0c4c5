// simulator/timing/tag_array.h: the tags of a set-associative cache, least recently used out first.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace hipkittens::simulator::timing {

class TagArray {
  public:
    struct Line {
        uint64_t tag = ~uint64_t{0};  // the line's number
        double ready = 0;             // when its bytes are there
        uint32_t age = 0;
        bool dirty = false;
    };

    TagArray(uint64_t lines, uint32_t ways)
        : ways_(ways), sets_(lines / ways ? lines / ways : 1), lines_(sets_ * ways) {}

    // The line, or nullptr. A hit makes it the youngest.
    Line* find(uint64_t set, uint64_t line) {
        Line* const first = &lines_[set % sets_ * ways_];
        for (uint32_t way = 0; way < ways_; ++way) {
            if (first[way].tag != line) continue;
            first[way].age = ++clock_;
            return &first[way];
        }
        return nullptr;
    }
    // The place for a line that find did not find: what it held is what has to go.
    Line& oldest(uint64_t set) {
        Line* const first = &lines_[set % sets_ * ways_];
        Line* chosen = first;
        for (uint32_t way = 1; way < ways_; ++way) {
            if (first[way].age < chosen->age) chosen = &first[way];
        }
        chosen->age = ++clock_;
        return *chosen;
    }
    uint64_t sets() const { return sets_; }
    std::vector<Line>& lines() { return lines_; }

  private:
    uint32_t ways_;
    uint64_t sets_;
    uint32_t clock_ = 0;
    std::vector<Line> lines_;
};

}  // namespace hipkittens::simulator::timing
