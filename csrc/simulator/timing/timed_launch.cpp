// simulator/timing/timed_launch.cpp: one launch in the cycle model: traces come in from the workers, cycles go out.
// SPDX-License-Identifier: MIT
#include "simulator/timing/timed_launch.h"

#include "simulator/machine/workgroup.h"
#include "simulator/timing/chip.h"

namespace hipkittens::simulator::timing {
namespace {

// Workgroups that may be traced before the model has a place for the first of them.
constexpr uint32_t ahead = 256;

}  // namespace

void TraceStore::wait_for_room(uint32_t workgroup) {
    std::unique_lock lock(mutex_);
    wanted_.wait(lock, [&] { return abandoned_ || workgroup < wanted_until_ + ahead; });
}

void TraceStore::put(std::unique_ptr<WorkgroupTrace> trace) {
    std::lock_guard lock(mutex_);
    if (abandoned_) return;
    const uint32_t id = trace->linear_id;
    traces_[id] = std::move(trace);
    put_.notify_all();
}

std::unique_ptr<WorkgroupTrace> TraceStore::take(uint32_t workgroup) {
    std::unique_lock lock(mutex_);
    put_.wait(lock, [&] { return finished_ || traces_.count(workgroup); });
    const auto found = traces_.find(workgroup);
    if (found == traces_.end()) return nullptr;
    std::unique_ptr<WorkgroupTrace> trace = std::move(found->second);
    traces_.erase(found);
    return trace;
}

void TraceStore::finish() {
    std::lock_guard lock(mutex_);
    finished_ = true;
    put_.notify_all();
}

void TraceStore::want_until(uint32_t workgroup) {
    std::lock_guard lock(mutex_);
    if (workgroup <= wanted_until_) return;
    wanted_until_ = workgroup;
    wanted_.notify_all();
}

void TraceStore::abandon() {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    traces_.clear();
    wanted_.notify_all();
}

const TraceSteps& TimedLaunch::steps() const {
    return options_.values ? steps_with_values : steps_without_values;
}

void TimedLaunch::begin(Workgroup& workgroup) {
    auto trace = std::make_unique<WorkgroupTrace>();
    trace->linear_id = workgroup.linear_id;
    trace->waves.resize(workgroup.waves.size());
    const bool detailed =
        options_.full || workgroup.linear_id % static_cast<uint32_t>(options_.parameters.xcds) == 0;
    for (size_t i = 0; i < workgroup.waves.size(); ++i) {
        trace->waves[i].is_detailed = detailed;
        workgroup.waves[i]->trace = &trace->waves[i];
    }
    workgroup.trace = trace.release();
}

void TimedLaunch::end(Workgroup& workgroup) {
    std::unique_ptr<WorkgroupTrace> trace(workgroup.trace);
    workgroup.trace = nullptr;
    bool complete = true;
    for (Wave* wave : workgroup.waves) {
        complete &= wave->status == WaveStatus::ended;
        wave->trace = nullptr;
    }
    for (WaveTrace& wave : trace->waves) wave.patterns = {};
    if (complete) store_.put(std::move(trace));
}

void TimedLaunch::consume(const Dispatch& dispatch, const code_object::Kernel& kernel) {
    try {
        Chip chip(options_, dispatch, kernel);
        if (chip.run(store_)) report_ = chip.report();
    } catch (const std::exception& error) {
        error_ = error.what();
    }
    store_.abandon();
}

}  // namespace hipkittens::simulator::timing
