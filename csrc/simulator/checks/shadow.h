// simulator/checks/shadow.h: what the checkers record about a wave and a workgroup while it runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "simulator/checks/check_plan.h"
#include "simulator/checks/finding.h"
#include "simulator/checks/global_shadow.h"
#include "simulator/checks/lds_shadow.h"
#include "simulator/checks/visibility.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

struct PendingOperation;

namespace checks {

struct WaveShadow {
    // A register is watched while an operation in flight writes it, or while one of its lanes has never been
    // written: the common case costs one test of a few words.
    uint64_t watched[register_words];
    uint64_t in_flight[register_words];
    uint64_t undefined[register_words];      // some lane was never written
    uint64_t defined_lanes[register_count];  // valid where undefined
    std::unordered_set<uint64_t>
        unwritten_scratch;  // addresses of dwords in which unwritten registers were saved
    PendingOperation* in_flight_by[register_count];  // valid where in flight
    uint32_t sequence = 0;                           // of wave->pending when it was last examined
    uint32_t epoch = 0;                              // barriers the wave has arrived at
    uint32_t clock = 0;                              // counts issues and completions
    std::unique_ptr<WaveVisibility> visibility;      // if the plan follows caches
};

struct InstructionNotes {
    uint64_t executions = 0;
    uint64_t conflict_cycles = 0;
    uint64_t useful_waits = 0;
    uint32_t samples = 0;
    uint64_t lines_touched = 0, lines_needed = 0, lines_partial = 0;

    void add(const InstructionNotes& other);
};

struct WorkgroupShadow {
    const Plan* plan = nullptr;
    FindingList findings;
    LdsShadow lds;
    std::vector<InstructionNotes> notes;
    WorkgroupVisibility visibility;
};

// State shared by the workgroups of a launch.
struct LaunchShadow {
    std::mutex mutex;
    FindingList findings;
    std::vector<InstructionNotes> notes;
    GlobalShadow global;
    Visibility visibility;
};

// For worker.cpp and workgroup_slot.cpp; none of these does anything for a launch without checks.
void create_shadows(Workgroup& workgroup);
void destroy_shadows(Workgroup& workgroup);  // passes the findings to the launch
void begin_workgroup(Workgroup& workgroup);
void begin_wave(Wave* wave, uint32_t defined_sgprs);
void report_missing_at_barrier(Workgroup& workgroup);
void report_fault(Wave* wave);

void sample_conflicts(InstructionNotes& sums, const MemoryEffects& effects, const PendingOperation* operation,
                      isa::Target target);
void sample_lines(InstructionNotes& sums, const MemoryEffects& effects, const PendingOperation* operation);
void add_notes(FindingList& findings, const Plan& plan, const std::vector<InstructionNotes>& sums);

// For launch.cpp: adds the hazards of the executed code, and writes all findings to the log.
void finish_launch(LaunchShadow& shadow, const Dispatch& dispatch, const std::vector<uint64_t>& block_counts);

// Handlers of the steps that check_plan.cpp emits.
const Step* check_run(Wave* wave, const Step* step);
const Step* check_issue(Wave* wave, const Step* step);
const Step* check_barrier(Wave* wave, const Step* step);
// Checks an operation's effect on memory, if that happens before its completion.
void memory_accessed(Wave* wave, PendingOperation* operation);
// Called once it has read memory: a flag whose bits are seen implies at least what was written before them.
void memory_returned(Wave* wave, PendingOperation* operation);
const Step* check_wait(Wave* wave, const Step* step);
const Step* check_write_back(Wave* wave, const Step* step);    // BUFFER_WBL2 sc1
const Step* check_written_back(Wave* wave, const Step* step);  // the wait for it
const Step* check_invalidate(Wave* wave, const Step* step);    // BUFFER_INV; extra[0]: sc1
const Step* check_first_lane(Wave* wave, const Step* step);

// A flat operation has changed its registers (memory/pending.cpp).
void registers_changed(Wave* wave, PendingOperation* operation);

// initcheck: scratch records whether the registers saved there had been written.
void follow_spill(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation);

uint64_t defined_lanes(const WaveShadow& shadow,
                       uint32_t number);  // lanes that have been written, of a vector register
void undefine(WaveShadow& shadow, uint32_t number, uint64_t lanes);

// Adds a finding of this workgroup unless it is already known; `describe` fills in the rest of a new one.
template <class Describe>
void report(Wave* wave, Checker checker, const char* kind, uint32_t first, uint32_t second,
            Describe describe) {
    FindingList& findings = wave->workgroup->shadow->findings;
    if (findings.count_known(kind, first, second)) return;
    Finding finding;
    finding.checker = checker;
    finding.kind = kind;
    finding.first = first;
    finding.second = second;
    finding.workgroup = wave->workgroup->linear_id;
    describe(finding);
    findings.add(std::move(finding));
}

}  // namespace checks
}  // namespace hipkittens::simulator
