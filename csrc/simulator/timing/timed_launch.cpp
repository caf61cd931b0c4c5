// simulator/timing/timed_launch.cpp: one launch in the cycle model: traces come in from the workers, cycles go out.
// SPDX-License-Identifier: MIT
#include "simulator/timing/timed_launch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "simulator/machine/workgroup.h"
#include "simulator/timing/chip.h"
#include "simulator/timing/clock.h"
#include "simulator/timing/report.h"

namespace hipkittens::simulator::timing {
namespace {

// Number of workgroups that may be traced before the model has a place for the first of them.
constexpr uint32_t ahead = 256;
constexpr std::chrono::milliseconds a_moment{50};

// condition_variable::wait is a symbol of GCC 12's libstdc++; wait_for is inline, and runs with older ones too.
template <class Ready>
void wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, const Ready& ready) {
    while (!ready()) condition.wait_for(lock, std::chrono::hours(1));
}

}  // namespace

void TraceStore::set_readers(int count) {
    std::lock_guard lock(mutex_);
    readers_ = count;
    for (auto& [id, kept] : traces_) kept.takers = count;
}

bool TraceStore::wait_for_room(uint32_t workgroup) {
    std::unique_lock lock(mutex_);
    // The slowest reader decides: a trace is kept until all readers have it.
    return wanted_.wait_for(lock, a_moment, [&] {
        return abandoned_ || workgroup < *std::min_element(wanted_until_, wanted_until_ + readers_) + ahead;
    });
}

void TraceStore::put(Trace trace) {
    std::lock_guard lock(mutex_);
    if (abandoned_) return;
    const uint32_t id = trace->linear_id;
    traces_[id] = {std::move(trace), readers_};
    put_.notify_all();
}

uint32_t TraceStore::heaviest_xcd(uint32_t xcds, uint32_t workgroup_count) {
    std::unique_lock lock(mutex_);
    const uint32_t first = std::min(workgroup_count, ahead);
    wait(put_, lock, [&] {
        return finished_ || abandoned_ ||
               std::distance(traces_.begin(), traces_.lower_bound(first)) ==
                   static_cast<std::ptrdiff_t>(first);
    });
    std::vector<double> work(xcds);
    for (const auto& [id, kept] : traces_) {
        if (id < first) work[id % xcds] += kept.trace->work;
    }
    const auto most = std::max_element(work.begin(), work.end());
    // If all are nearly equal: the first, which no grid gives fewer workgroups than another.
    return *most <= 1.001 * work[0] ? 0 : static_cast<uint32_t>(most - work.begin());
}

TraceStore::Trace TraceStore::take(uint32_t workgroup) {
    std::unique_lock lock(mutex_);
    wait(put_, lock, [&] { return finished_ || abandoned_ || traces_.count(workgroup); });
    const auto found = traces_.find(workgroup);
    if (found == traces_.end()) return nullptr;
    Trace trace = found->second.trace;
    if (--found->second.takers == 0) traces_.erase(found);
    return trace;
}

void TraceStore::finish() {
    std::lock_guard lock(mutex_);
    finished_ = true;
    put_.notify_all();
}

void TraceStore::want_until(int reader, uint32_t workgroup) {
    std::lock_guard lock(mutex_);
    if (workgroup <= wanted_until_[reader]) return;
    wanted_until_[reader] = workgroup;
    wanted_.notify_all();
}

void TraceStore::abandon() {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    traces_.clear();
    wanted_.notify_all();
    put_.notify_all();
}

const TraceSteps& TimedLaunch::steps() const {
    return options_.values ? steps_with_values : steps_without_values;
}

void TimedLaunch::begin(Workgroup& workgroup) {
    std::call_once(prepared_, [&] {
        addresses_ = AddressMap(*workgroup.dispatch);
        const Program& program = *workgroup.dispatch->program;
        const std::vector<Cost> costs = static_costs(program, options_.parameters);
        for (const Block& block : program.blocks) {
            double clocks = 0;
            for (uint32_t i = block.first; i < block.first + block.count; ++i)
                clocks += costs[i].kind == Kind::matrix ? costs[i].busy : costs[i].issue;
            block_work_.push_back(clocks);
        }
    });
    auto trace = std::make_unique<WorkgroupTrace>();
    trace->linear_id = workgroup.linear_id;
    trace->waves.resize(workgroup.waves.size());
    const int xcd = detailed_xcd_;
    const bool detailed =
        options_.full || xcd < 0 ||
        workgroup.linear_id % static_cast<uint32_t>(options_.parameters.xcds) == static_cast<uint32_t>(xcd);
    for (size_t i = 0; i < workgroup.waves.size(); ++i) {
        trace->waves[i].is_detailed = detailed;
        trace->waves[i].addresses = &addresses_;
        workgroup.waves[i]->trace = &trace->waves[i];
    }
    if (detailed) {
        const std::lock_guard lock(patterns_mutex_);
        patterns_.resize(trace->waves.size());
        for (size_t i = 0; i < trace->waves.size(); ++i) {
            if (patterns_[i].empty()) continue;
            trace->waves[i].patterns = std::move(patterns_[i].back());
            patterns_[i].pop_back();
        }
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
    for (size_t block = 0; block < block_work_.size(); ++block)
        trace->work += block_work_[block] * static_cast<double>(workgroup.block_counts[block]);
    {
        const std::lock_guard lock(patterns_mutex_);
        for (size_t i = 0; i < trace->waves.size(); ++i) {
            std::vector<WaveTrace::Pattern> patterns = std::exchange(trace->waves[i].patterns, {});
            if (!patterns.empty()) patterns_[i].push_back(std::move(patterns));
        }
    }
    if (complete) store_.put(std::move(trace));
}

void TimedLaunch::consume(const Dispatch& dispatch, const code_object::Kernel& kernel) {
    try {
        const Parameters& parameters = options_.parameters;
        const MatrixType type = matrix_type_of(static_costs(*dispatch.program, parameters));
        const uint32_t* grid = dispatch.grid_workgroups;
        if (!options_.full) {
            detailed_xcd_ = static_cast<int>(
                store_.heaviest_xcd(static_cast<uint32_t>(parameters.xcds), grid[0] * grid[1] * grid[2]));
        }
        const uint32_t xcd = options_.full ? 0 : static_cast<uint32_t>(detailed_xcd_.load());
        const double peak = parameters.clock_peak, full = full_load_clock(parameters, type);
        if (options_.clock_mhz > 0 || full >= peak) {
            Chip chip(options_, options_.clock_mhz > 0 ? options_.clock_mhz : peak, xcd, dispatch, kernel);
            if (chip.run(store_, 0)) report_ = report_of(chip, nullptr).text;
            events_ = std::move(chip.events().events());
        } else {
            // The duration depends on the clock, and the clock on the utilization of the matrix cores: model
            // both ends.
            store_.set_readers(2);
            Chip fast(options_, peak, xcd, dispatch, kernel), slow(options_, full, xcd, dispatch, kernel);
            bool complete = false;
            std::string failure;
            std::thread other([&] {
                try {
                    complete = slow.run(store_, 1);
                } catch (const std::exception& error) {
                    failure = error.what();
                    store_.abandon();
                }
            });
            bool fast_complete = false;
            try {
                fast_complete = fast.run(store_, 0);
            } catch (const std::exception& error) {
                error_ = error.what();
                store_.abandon();
            }
            other.join();
            if (error_.empty()) error_ = failure;
            if (complete && fast_complete) {
                Report report = report_of(slow, &fast);
                report_ = std::move(report.text);
                events_ = std::move((report.fast_is_nearer ? fast : slow).events().events());
            }
        }
    } catch (const std::exception& error) {
        error_ = error.what();
    }
    store_.abandon();
}

}  // namespace hipkittens::simulator::timing
