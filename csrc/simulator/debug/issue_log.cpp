// simulator/debug/issue_log.cpp: which instructions issued the memory operations of a wave that are still in flight.
// SPDX-License-Identifier: MIT
#include "simulator/debug/issue_log.h"

#include "simulator/machine/step.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::debug {

void IssueLog::follow(const Wave& wave) {
    for (; next_ != wave.pending->sequence; ++next_) issued_by_[next_ % kept] = instruction_;
    instruction_ = wave.next->instruction;
}

std::vector<IssueLog::Operation> IssueLog::in_flight(const Wave& wave) const {
    std::vector<Operation> result;
    const PendingOperations& pending = *wave.pending;
    const auto add = [&](const char* queue, const PendingOperation* operation) {
        result.push_back({queue, issued_by_[operation->sequence % kept]});
    };
    for (uint32_t i = pending.vm_head; i != pending.vm_tail; ++i) add("vector memory", pending.vm[i % 64]);
    for (uint32_t i = pending.lds_head; i != pending.lds_tail; ++i) add("lds", pending.lds[i % 16]);
    for (uint32_t i = 0; i < pending.scalar_count; ++i) add("scalar memory", pending.scalar[i]);
    for (uint32_t i = 0; i < pending.half_done_count; ++i) add("flat", pending.half_done[i]);
    return result;
}

}  // namespace hipkittens::simulator::debug
