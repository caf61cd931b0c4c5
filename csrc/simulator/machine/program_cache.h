// simulator/machine/program_cache.h: keeps the most recently launched programs, so that they are not translated again.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "simulator/machine/program.h"

namespace hipkittens::simulator {

// One per process. A program is some 2 MB, and a process that launches all kernels for two targets, checked
// and unchecked, would hold several GB of them.
class ProgramCache {
  public:
    static constexpr uint64_t usual_limit = 512ull << 20;  // bytes

    // Marks it as the most recently used one, and drops the least recently used ones while the total exceeds
    // the limit. A launch keeps its own program alive.
    void use(const std::shared_ptr<const Program>& program);
    void forget(const Program* program);
    uint64_t set_limit(uint64_t bytes);  // returns the previous limit
    uint64_t bytes();

    void lock() { mutex_.lock(); }  // for fork_handlers.cpp
    void unlock() { mutex_.unlock(); }

  private:
    struct Kept {
        std::shared_ptr<const Program> program;
        uint64_t bytes;
    };
    // Removes entries and returns them, so that they are destroyed when the lock is no longer held.
    std::list<Kept> take_what_is_above_the_limit();

    std::mutex mutex_;
    std::list<Kept> kept_;  // most recently used first
    std::unordered_map<const Program*, std::list<Kept>::iterator> places_;
    uint64_t bytes_ = 0, limit_ = usual_limit;
};

ProgramCache& program_cache();

}  // namespace hipkittens::simulator
