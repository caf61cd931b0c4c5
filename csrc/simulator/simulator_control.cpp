// simulator/simulator_control.cpp: the functions of simulator.h that are not a launch.
// SPDX-License-Identifier: MIT
#include <mutex>

#include "isa/decode.h"
#include "isa/disassemble.h"
#include "simulator/checks/finding.h"
#include "simulator/execute/families.h"
#include "simulator/hip_objects.h"
#include "simulator/machine/program_cache.h"
#include "simulator/visible_devices.h"

using namespace hipkittens;
using namespace hipkittens::simulator;

HIPKITTENS_EXPORT void hipkittens_get_settings(HipkittensSettings* settings) {
    if (settings) *settings = thread_state().settings;
}

HIPKITTENS_EXPORT int hipkittens_set_settings(const HipkittensSettings* settings) {
    return call("hipkittens_set_settings", [&] {
        require_pointer(settings, "settings");
        const auto check = [](const char* name, int64_t value, int64_t low, int64_t high) {
            if (value >= low && value <= high) return;
            throw HipError(hip::hipErrorInvalidValue, std::string(name) + " is " + std::to_string(value) +
                                                          "; allowed are " + std::to_string(low) + " to " +
                                                          std::to_string(high));
        };
        check("arithmetic", settings->arithmetic, 0, 2);
        check("host_level", settings->host_level, -1, static_cast<int>(best_host_level()));
        check("checks", settings->checks, 0, checks::all_checkers);
        check("threads", settings->threads, 0, 1024);
        thread_state().settings = *settings;
    });
}

namespace {

struct ProcessSettings {
    std::mutex mutex;
    HipkittensSettings values = first_settings();
};

ProcessSettings& process_settings() {
    static ProcessSettings& result = *new ProcessSettings;  // worker threads may still read it at exit
    return result;
}

}  // namespace

std::mutex& hipkittens::simulator::process_settings_mutex() { return process_settings().mutex; }

HIPKITTENS_EXPORT void hipkittens_get_process_settings(HipkittensSettings* settings) {
    const std::lock_guard lock(process_settings().mutex);
    if (settings) *settings = process_settings().values;
}

HIPKITTENS_EXPORT int hipkittens_set_process_settings(const HipkittensSettings* settings) {
    const std::lock_guard lock(process_settings().mutex);
    const int error = hipkittens_set_settings(settings);
    if (error == hip::hipSuccess) process_settings().values = *settings;
    return error;
}

HIPKITTENS_EXPORT void hipkittens_apply_process_settings(void) {
    const std::lock_guard lock(process_settings().mutex);
    thread_state().settings = process_settings().values;  // checked when they were set
}

HIPKITTENS_EXPORT int hipkittens_set_partitions(int count) {
    return call("hipkittens_set_partitions", [&] { show_partitions(count); });
}

HIPKITTENS_EXPORT int hipkittens_partitions(void) { return visible_partitions(); }

HIPKITTENS_EXPORT uint64_t hipkittens_limit_kept_programs(uint64_t bytes) {
    return program_cache().set_limit(bytes);
}

HIPKITTENS_EXPORT uint64_t hipkittens_kept_program_bytes(void) { return program_cache().bytes(); }

HIPKITTENS_EXPORT int hipkittens_best_host_level(void) { return static_cast<int>(best_host_level()); }

HIPKITTENS_EXPORT const char* hipkittens_last_error(void) { return thread_state().last_text.c_str(); }

HIPKITTENS_EXPORT uint64_t hipkittens_instructions_so_far(void) { return thread_state().instructions_so_far; }
HIPKITTENS_EXPORT void hipkittens_last_report(HipkittensReport* report) {
    if (report) *report = thread_state().report;
}

HIPKITTENS_EXPORT size_t hipkittens_findings(char* text, size_t size) {
    return hand_out(checks::finding_log().json(), text, size);
}
HIPKITTENS_EXPORT void hipkittens_clear_findings(void) { checks::finding_log().clear(); }
HIPKITTENS_EXPORT size_t hipkittens_kept_findings(char* text, size_t size) {
    return hand_out(checks::finding_log().kept_json(), text, size);
}

HIPKITTENS_EXPORT int hipkittens_disassemble(int target, const uint8_t* bytes, size_t size, char* text,
                                             size_t text_size) {
    if ((target != 942 && target != 950) || !bytes || !text || text_size == 0) return 0;
    isa::Instruction instruction;
    if (!isa::decode(target == 942 ? isa::Target::gfx942 : isa::Target::gfx950, bytes, size, 0, &instruction))
        return 0;
    hand_out(isa::disassemble(instruction), text, text_size);
    return instruction.bytes;
}
