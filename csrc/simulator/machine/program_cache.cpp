// simulator/machine/program_cache.cpp: keeps the most recently launched programs, so that they are not translated again.
// SPDX-License-Identifier: MIT
#include "simulator/machine/program_cache.h"

#include <utility>

#include "simulator/checks/check_plan.h"

namespace hipkittens::simulator {
namespace {

template <class Container>
uint64_t bytes_of(const Container& container) {
    return container.size() * sizeof(typename Container::value_type);
}

uint64_t bytes_of_program(const Program& program) {
    uint64_t bytes = sizeof program + bytes_of(program.instructions) + bytes_of(program.steps) +
                     bytes_of(program.blocks) + bytes_of(program.skip_runs) + bytes_of(program.step_at) +
                     bytes_of(program.constant_values) + bytes_of(program.text);
    if (program.plan) {
        bytes += bytes_of(program.plan->effects) + bytes_of(program.plan->memory) +
                 bytes_of(program.plan->runs) + bytes_of(program.plan->synchronising);
    }
    return bytes;
}

}  // namespace

ProgramCache& program_cache() {
    static ProgramCache& cache = *new ProgramCache;  // launches may end after static objects are destroyed
    return cache;
}

void ProgramCache::use(const std::shared_ptr<const Program>& program) {
    std::list<Kept> left;
    std::lock_guard lock(mutex_);
    if (const auto known = places_.find(program.get()); known != places_.end()) {
        kept_.splice(kept_.begin(), kept_, known->second);
        return;
    }
    kept_.push_front({program, bytes_of_program(*program)});
    places_[program.get()] = kept_.begin();
    bytes_ += kept_.front().bytes;
    left = take_what_is_above_the_limit();
}

void ProgramCache::forget(const Program* program) {
    std::list<Kept> left;
    std::lock_guard lock(mutex_);
    const auto known = places_.find(program);
    if (known == places_.end()) return;
    bytes_ -= known->second->bytes;
    left.splice(left.begin(), kept_, known->second);
    places_.erase(known);
}

uint64_t ProgramCache::set_limit(uint64_t bytes) {
    std::list<Kept> left;
    std::lock_guard lock(mutex_);
    const uint64_t before = std::exchange(limit_, bytes);
    left = take_what_is_above_the_limit();
    return before;
}

uint64_t ProgramCache::bytes() {
    std::lock_guard lock(mutex_);
    return bytes_;
}

std::list<ProgramCache::Kept> ProgramCache::take_what_is_above_the_limit() {
    std::list<Kept> left;
    while (bytes_ > limit_ && !kept_.empty()) {
        bytes_ -= kept_.back().bytes;
        places_.erase(kept_.back().program.get());
        left.splice(left.begin(), kept_, std::prev(kept_.end()));
    }
    return left;
}

}  // namespace hipkittens::simulator
