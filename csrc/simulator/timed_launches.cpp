// simulator/timed_launches.cpp: the launches modelled for hipkittens_time_launches.
// SPDX-License-Identifier: MIT
#include "simulator/timed_launches.h"

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {
namespace {

// Per process, not per thread: autograd launches from its own threads.
std::mutex mutex;
std::optional<timing::Options> options;
bool skips_others = false;
size_t skipped = 0;
std::vector<std::string> reports;
std::deque<std::vector<timing::TimelineEvent>> timelines;  // a deque, so that elements do not move

}  // namespace

std::mutex& timed_launches_mutex() { return mutex; }

std::unique_ptr<timing::TimedLaunch> begin_timed_launch(int target, const Settings& settings) {
    std::lock_guard lock(mutex);
    if (!options) return nullptr;
    const int modelled = timing::target_of(options->device) == isa::Target::gfx942 ? 942 : 950;
    if (skips_others && (modelled != target || settings.checks)) {
        ++skipped;
        return nullptr;
    }
    if (modelled != target) {
        throw HipError(hip::hipErrorInvalidDevice, std::string("launches are modelled for ") +
                                                       timing::device_name(options->device) + " (gfx" +
                                                       std::to_string(modelled) +
                                                       "), this kernel is for gfx" + std::to_string(target));
    }
    if (settings.checks) {
        throw HipError(
            hip::hipErrorInvalidValue,
            "a launch is either modelled (hipkittens_time_launches) or checked; switch the checkers off");
    }
    return std::make_unique<timing::TimedLaunch>(*options);
}

Processors processors_of(const DeviceFacts& device) {
    std::lock_guard lock(mutex);
    const auto is_gfx942 = [](auto target) { return target == decltype(target)::gfx942; };
    if (!options || is_gfx942(timing::target_of(options->device)) != is_gfx942(device.target))
        return {device.compute_units, device.xccs};
    const int xccs = static_cast<int>(options->parameters.xcds);
    return {xccs * static_cast<int>(options->parameters.compute_units_per_xcd), xccs};
}

void keep_timed_launch(timing::TimedLaunch& launch) {
    if (!launch.error().empty()) throw HipError(hip::hipErrorUnknown, "cycle model: " + launch.error());
    std::lock_guard lock(mutex);
    reports.push_back(launch.report());
    timelines.push_back(launch.take_events());
}

}  // namespace hipkittens::simulator

using namespace hipkittens;
using namespace hipkittens::simulator;

HIPKITTENS_EXPORT int hipkittens_time_launches(const HipkittensTiming* timing) {
    return call("hipkittens_time_launches", [&] {
        std::optional<timing::Options> wanted;
        if (timing) {
            require_pointer(timing->device, "device");
            wanted.emplace();
            if (!timing::device_of(timing->device, &wanted->device)) {
                throw HipError(hip::hipErrorInvalidValue, std::string("device is '") + timing->device +
                                                              "'; allowed are " + timing::device_names());
            }
            if (!(timing->clock_mhz >= 0 && timing->clock_mhz <= 10000)) {
                throw HipError(
                    hip::hipErrorInvalidValue,
                    "clock_mhz is " + std::to_string(timing->clock_mhz) + "; allowed are 0 to 10000");
            }
            wanted->parameters = timing::parameters_of(wanted->device);
            wanted->clock_mhz = timing->clock_mhz;
            wanted->full = timing->full != 0;
            wanted->values = timing->values != 0;
            wanted->timeline_units = timing->timeline_compute_units;
            for (size_t i = 0; i < timing->override_count; ++i) {
                const std::string problem =
                    timing::set_parameter(wanted->parameters, timing->names[i], timing->overrides[i]);
                if (!problem.empty()) throw HipError(hip::hipErrorInvalidValue, problem);
            }
        }
        std::lock_guard lock(mutex);
        options = wanted;
        if (!timing) return;
        skips_others = timing->skip_others != 0;
        skipped = 0;
        reports.clear();
        timelines.clear();
    });
}

HIPKITTENS_EXPORT size_t hipkittens_timed_launches(char* text, size_t size) {
    std::lock_guard lock(mutex);
    std::string json = "[";
    for (const std::string& report : reports) {
        if (json.size() > 1) json += ',';
        json += report;
    }
    return hand_out(json + "]", text, size);
}

HIPKITTENS_EXPORT size_t hipkittens_skipped_launches(void) {
    std::lock_guard lock(mutex);
    return skipped;
}

static_assert(sizeof(HipkittensTimelineEvent) == sizeof(timing::TimelineEvent) &&
              offsetof(HipkittensTimelineEvent, stall) == offsetof(timing::TimelineEvent, stall) &&
              offsetof(HipkittensTimelineEvent, address) == offsetof(timing::TimelineEvent, address));

HIPKITTENS_EXPORT const HipkittensTimelineEvent* hipkittens_timeline(size_t launch, size_t* count) {
    std::lock_guard lock(mutex);
    const bool exists = launch < timelines.size();
    if (count) *count = exists ? timelines[launch].size() : 0;
    return exists ? reinterpret_cast<const HipkittensTimelineEvent*>(timelines[launch].data()) : nullptr;
}

HIPKITTENS_EXPORT size_t hipkittens_timing_parameters(const char* device, char* text, size_t size) {
    timing::Device known;
    if (!device || !timing::device_of(device, &known)) return 0;
    return hand_out(timing::describe_parameters(known, timing::parameters_of(known)), text, size);
}
