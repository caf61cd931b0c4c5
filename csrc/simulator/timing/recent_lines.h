// simulator/timing/recent_lines.h: the lines that a cache fetched most recently.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace hipkittens::simulator::timing {

// Models the tags of a vector L1 where only its misses matter: the most recent lines, regardless of sets.
class RecentLines {
  public:
    explicit RecentLines(uint32_t lines) : lines_(lines), entries_(entry_count) {}

    // Returns whether the line was present; it is present afterwards.
    bool touch(uint64_t line) {
        Entry& entry = entries_[(line ^ line >> 12) % entry_count];
        if (entry.line == line && filled_ - entry.filled < lines_) return true;
        entry = {line, ++filled_};
        return false;
    }

  private:
    struct Entry {
        uint64_t line = ~uint64_t{0};
        uint64_t filled = 0;
    };
    static constexpr size_t entry_count = 1024;
    uint64_t lines_, filled_ = 0;
    std::vector<Entry> entries_;
};

}  // namespace hipkittens::simulator::timing
