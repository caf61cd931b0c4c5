// simulator/machine/program_cache.h: the programs that were launched last, kept so that they are not translated again.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "simulator/machine/program.h"

namespace hipkittens::simulator {

// Of the process. A program is some 2 MB, and a process that launches all kernels for two targets, checked and unchecked,
// would hold several GB of them.
class ProgramCache {
  public:
    static constexpr uint64_t usual_limit = 512ull << 20;  // bytes

    // Makes it the last one that was used, and lets go of those that were not used for longest where all are above the limit. A
    // launch holds its own.
    void use(const std::shared_ptr<const Program>& program);
    void forget(const Program* program);
    uint64_t set_limit(uint64_t bytes);  // returns the one before
    uint64_t bytes();

    void lock() { mutex_.lock(); }  // for fork_handlers.cpp
    void unlock() { mutex_.unlock(); }

  private:
    struct Kept {
        std::shared_ptr<const Program> program;
        uint64_t bytes;
    };
    // The entries that are taken out: they are destroyed when the lock is no longer held.
    std::list<Kept> take_what_is_above_the_limit();

    std::mutex mutex_;
    std::list<Kept> kept_;  // the last one that was used first
    std::unordered_map<const Program*, std::list<Kept>::iterator> places_;
    uint64_t bytes_ = 0, limit_ = usual_limit;
};

ProgramCache& program_cache();

}  // namespace hipkittens::simulator
