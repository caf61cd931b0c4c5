// simulator/launch_records.cpp: the launches recorded for hipkittens_record_launches.
// SPDX-License-Identifier: MIT
#include "simulator/launch_records.h"

#include <atomic>
#include <deque>
#include <mutex>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {
namespace {

struct Kept {
    std::string kernel;
    LaunchRecord full;  // holds the names
    HipkittensLaunchRecord record;
    std::vector<HipkittensRegionRecord> regions;
    std::vector<HipkittensInstructionRecord> instructions;
};

// Per process, not per thread: autograd launches from its own threads.
std::atomic<bool> recording{false}, tracing{false}, digesting{false};
std::mutex mutex;
std::deque<Kept> launches;  // a deque, so that elements do not move

}  // namespace

std::mutex& launch_records_mutex() { return mutex; }
bool is_recording() { return recording; }
bool is_tracing() { return tracing; }
bool takes_digests() { return digesting; }

void keep_launch(const std::string& kernel, int target, const HipkittensReport& report,
                 LaunchRecord&& record) {
    std::lock_guard lock(mutex);
    Kept& kept = launches.emplace_back();
    kept.kernel = kernel;
    kept.full = std::move(record);
    for (const RecordedRegion& from : kept.full.regions) {
        kept.regions.push_back({from.name.c_str(), from.bytes_loaded, from.bytes_stored,
                                from.distinct_bytes_loaded, from.distinct_bytes_stored});
    }
    for (const RecordedInstruction& from : kept.full.instructions) {
        kept.instructions.push_back({from.executions, from.bytes, from.lds_conflict_cycles, from.address,
                                     static_cast<uint32_t>(from.unit), from.vm_in_flight,
                                     from.lgkm_in_flight});
    }
    kept.record = {kept.kernel.c_str(),
                   target,
                   report,
                   kept.regions.data(),
                   kept.regions.size(),
                   kept.instructions.data(),
                   kept.instructions.size(),
                   kept.full.trace.data(),
                   kept.full.trace.size(),
                   kept.full.digests.data(),
                   kept.full.digests.size()};
}

}  // namespace hipkittens::simulator

using namespace hipkittens;
using namespace hipkittens::simulator;

HIPKITTENS_EXPORT void hipkittens_record_launches(int on) {
    std::lock_guard lock(mutex);
    if (on) launches.clear();
    recording = on != 0;
    tracing = on == 2;
    digesting = on == 3;
}

HIPKITTENS_EXPORT size_t hipkittens_recorded_launches(void) {
    std::lock_guard lock(mutex);
    return launches.size();
}

HIPKITTENS_EXPORT int hipkittens_recorded_launch(size_t index, HipkittensLaunchRecord* record) {
    return call("hipkittens_recorded_launch", [&] {
        require_pointer(record, "record");
        std::lock_guard lock(mutex);
        require(index < launches.size(), hip::hipErrorInvalidValue, "so many launches were not recorded");
        *record = launches[index].record;
    });
}
