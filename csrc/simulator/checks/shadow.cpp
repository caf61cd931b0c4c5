// simulator/checks/shadow.cpp: the lifetime of the checkers' memory, and the checks at issue and completion.
// SPDX-License-Identifier: MIT
#include "simulator/checks/shadow.h"

#include <cstring>

#include "simulator/checks/hazards.h"
#include "simulator/machine/program.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

void create_shadows(Workgroup& workgroup) {
    const Program& program = *workgroup.dispatch->program;
    if (!program.plan) return;
    workgroup.shadow = new WorkgroupShadow;
    workgroup.shadow->plan = program.plan.get();
    workgroup.shadow->lds.resize(workgroup.dispatch->lds_bytes);
    if (program.plan->checkers & notes) workgroup.shadow->notes.resize(program.instructions.size());
    for (Wave* wave : workgroup.waves) {
        wave->shadow = new WaveShadow;
        if (program.plan->follows_caches) wave->shadow->visibility = std::make_unique<WaveVisibility>();
    }
}

void destroy_shadows(Workgroup& workgroup) {
    if (!workgroup.shadow) return;
    LaunchShadow& launch = *workgroup.dispatch->shadow;
    {
        std::lock_guard lock(launch.mutex);
        launch.findings.merge(workgroup.shadow->findings);
        launch.notes.resize(workgroup.shadow->notes.size());
        for (size_t i = 0; i < launch.notes.size(); ++i) launch.notes[i].add(workgroup.shadow->notes[i]);
    }
    for (Wave* wave : workgroup.waves) delete wave->shadow;
    delete workgroup.shadow;
    workgroup.shadow = nullptr;
}

void begin_workgroup(Workgroup& workgroup) {
    if (!workgroup.shadow) return;
    workgroup.shadow->lds.clear();
    workgroup.shadow->visibility = {};
}

// Lanes past the workgroup's end never run: they count as written.
void begin_wave(Wave* wave, uint32_t defined_sgprs) {
    if (!wave->shadow) return;
    WaveShadow& shadow = *wave->shadow;
    std::memset(shadow.in_flight, 0, sizeof shadow.in_flight);
    std::memset(shadow.undefined, 0, sizeof shadow.undefined);
    shadow.sequence = wave->pending->sequence;
    shadow.epoch = shadow.clock = 0;
    if (shadow.visibility) *shadow.visibility = {};
    shadow.unwritten_scratch.clear();
    const uint32_t checkers = wave->workgroup->shadow->plan->checkers;
    if (checkers & initcheck) {
        const uint32_t vectors = wave->workgroup->dispatch->program->vgprs;
        for (uint32_t number = defined_sgprs; number < isa::code::flat_scratch_lo; ++number)
            shadow.undefined[number / 64] |= uint64_t{1} << number % 64;
        shadow.undefined[isa::code::m0 / 64] |= uint64_t{1} << isa::code::m0 % 64;
        for (uint32_t number = first_vector + 1; number < first_vector + vectors; ++number)
            shadow.undefined[number / 64] |= uint64_t{1} << number % 64;
        for (uint64_t& lanes : shadow.defined_lanes) lanes = ~wave->exec;
        for (uint32_t number = 0; number < first_vector; ++number) shadow.defined_lanes[number] = 0;
    }
    std::memcpy(shadow.watched, shadow.undefined, sizeof shadow.watched);
}

namespace {

PendingOperation* newest(PendingOperations* pending, Queue queue) {
    switch (queue) {
        case Queue::lds:
            return pending->lds[(pending->lds_tail - 1) % 16];
        case Queue::scalar:
            return pending->scalar[pending->scalar_count - 1];
        default:
            return pending->vm[(pending->vm_tail - 1) % 64];
    }
}

// The lanes of a flat access that go to LDS.
void access_lds_through_flat(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    uint32_t address[64];
    uint64_t lanes = 0;
    const uint64_t begin = reinterpret_cast<uint64_t>(wave->lds);
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint64_t offset = operation->address[lane] - begin;
        if (offset >= wave->lds_bytes) continue;
        address[lane] = static_cast<uint32_t>(offset);
        lanes |= uint64_t{1} << lane;
    }
    MemoryEffects in_lds = effects;
    in_lds.reads_lds = effects.reads_memory;
    in_lds.writes_lds = effects.writes_memory;
    wave->workgroup->shadow->lds.access(wave, in_lds, operation, address, lanes, effects.bytes);
}

// An access stays within one region, except for flat lanes in LDS and scratch.
const Region* region_of(Wave* wave, const PendingOperation* operation) {
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint64_t address = operation->address[__builtin_ctzll(left)];
        const Region* region = wave->last_region;
        if (region && region->begin <= address && address < region->end) return region;
        if ((region = find_region(wave, address, 1))) return region;
    }
    return nullptr;
}

void access_memory(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    const Plan& plan = *wave->workgroup->shadow->plan;
    if (!(plan.checkers & (racecheck | initcheck | notes))) return;
    const Region* region = region_of(wave, operation);
    if (!region) return;
    if ((plan.checkers & initcheck) && effects.reads_memory && region->unwritten)
        check_unwritten_memory(wave, effects, operation, *region);
    if (wave->shadow->visibility && region->writable && !region->is_own)
        wave->workgroup->dispatch->shadow->visibility.takes_effect(wave, effects, operation);
    if ((plan.checkers & racecheck) && region->writable && !region->is_own && !effects.is_ordered_by_cache)
        wave->workgroup->dispatch->shadow->global.access(wave, effects, operation, *region);
    if (plan.checkers & notes)
        sample_lines(wave->workgroup->shadow->notes[effects.instruction], effects, operation);
}

// Replaces the operation's own completion function.
void completed(Wave* wave, PendingOperation* operation) {
    const MemoryEffects& effects = *static_cast<const MemoryEffects*>(operation->checked);
    WorkgroupShadow& workgroup = *wave->workgroup->shadow;
    ++wave->shadow->clock;
    if (workgroup.plan->checkers & (racecheck | initcheck)) {
        if (effects.reads_lds || effects.writes_lds) workgroup.lds.access(wave, effects, operation);
        if (effects.queue == Queue::flat) access_lds_through_flat(wave, effects, operation);
    }
    if (!operation->is_early) memory_accessed(wave, operation);
    const bool is_early = operation->is_early;
    operation->checked_complete(wave, operation);
    if (!is_early) memory_returned(wave, operation);
    workgroup.lds.judge_equal_writes(wave);
    if (!operation->is_flat) registers_changed(wave, operation);
}

}  // namespace

void memory_accessed(Wave* wave, PendingOperation* operation) {
    const MemoryEffects& effects = *static_cast<const MemoryEffects*>(operation->checked);
    if ((effects.reads_memory || effects.writes_memory) && !effects.is_private)
        access_memory(wave, effects, operation);
}

void memory_returned(Wave* wave, PendingOperation* operation) {
    const MemoryEffects& effects = *static_cast<const MemoryEffects*>(operation->checked);
    if (wave->shadow->visibility && effects.reads_memory && !effects.is_private)
        wave->workgroup->dispatch->shadow->visibility.returned(wave, effects, operation);
}

void registers_changed(Wave* wave, PendingOperation* operation) {
    const MemoryEffects& effects = *static_cast<const MemoryEffects*>(operation->checked);
    WaveShadow& shadow = *wave->shadow;
    const uint32_t end = effects.result_first + effects.result_count;
    for (uint32_t number = effects.result_first; number < end; ++number) {
        if (shadow.in_flight_by[number] != operation) continue;
        const uint64_t bit = uint64_t{1} << number % 64;
        shadow.in_flight_by[number] = nullptr;
        shadow.in_flight[number / 64] &= ~bit;
        if (!(shadow.undefined[number / 64] & bit)) shadow.watched[number / 64] &= ~bit;
    }
}

const Step* check_issue(Wave* wave, const Step* step) {
    const MemoryEffects& effects = *static_cast<const MemoryEffects*>(step->data);
    WaveShadow& shadow = *wave->shadow;
    WorkgroupShadow& workgroup = *wave->workgroup->shadow;
    PendingOperations* pending = wave->pending;
    if (pending->sequence == shadow.sequence) return step + 1;
    shadow.sequence = pending->sequence;
    PendingOperation* operation = newest(pending, effects.queue);
    operation->checked = &effects;
    operation->checked_complete = operation->complete;
    operation->complete = completed;
    operation->issue_epoch = shadow.epoch;
    operation->issue_clock = ++shadow.clock;
    const bool is_memory = (effects.reads_memory || effects.writes_memory) && !effects.is_private;
    if (shadow.visibility && is_memory)
        wave->workgroup->dispatch->shadow->visibility.issued(wave, effects, operation);
    if (effects.is_private && (workgroup.plan->checkers & initcheck)) follow_spill(wave, effects, operation);
    if (workgroup.plan->checkers & synccheck) {
        const uint32_t end = effects.result_first + effects.result_count;
        for (uint32_t number = effects.result_first; number < end; ++number) {
            shadow.in_flight_by[number] = operation;
            shadow.in_flight[number / 64] |= uint64_t{1} << number % 64;
            shadow.watched[number / 64] |= uint64_t{1} << number % 64;
        }
    }
    if (!workgroup.notes.empty()) {
        InstructionNotes& notes = workgroup.notes[effects.instruction];
        ++notes.executions;
        if (effects.queue == Queue::lds && !effects.is_counter)
            sample_conflicts(notes, effects, operation, wave->workgroup->dispatch->program->target);
    }
    return step + 1;
}

const Step* check_barrier(Wave* wave, const Step* step) {
    if (wave->shadow->visibility) arrive_at_barrier(wave);
    ++wave->shadow->epoch;
    return step + 1;
}

const Step* check_wait(Wave* wave, const Step* step) {
    InstructionNotes& notes = wave->workgroup->shadow->notes[step->instruction];
    ++notes.executions;
    const PendingOperations* pending = wave->pending;
    if (pending->vm_count() > step->extra[0] || pending->lgkm_count() > step->extra[1]) ++notes.useful_waits;
    return step + 1;
}

void InstructionNotes::add(const InstructionNotes& other) {
    executions += other.executions;
    conflict_cycles += other.conflict_cycles;
    useful_waits += other.useful_waits;
    samples += other.samples;
    lines_touched += other.lines_touched;
    lines_needed += other.lines_needed;
    lines_partial += other.lines_partial;
}

namespace {

std::vector<uint64_t> executions(const Program& program, const std::vector<uint64_t>& block_counts) {
    std::vector<uint64_t> result(program.instructions.size());
    for (size_t block = 0; block < program.blocks.size(); ++block) {
        for (uint32_t i = 0; i < program.blocks[block].count; ++i)
            result[program.blocks[block].first + i] = block_counts[block];
    }
    return result;
}

void add_hazards(FindingList& findings, const Program& program, const std::vector<uint64_t>& executed) {
    for (const Hazard& hazard : *program.plan->hazards) {
        if (!executed[hazard.producer] || !executed[hazard.consumer]) continue;
        Finding finding;
        finding.checker = synccheck;
        finding.kind = hazard.kind;
        finding.first = hazard.producer;
        finding.second = hazard.consumer;
        finding.count = executed[hazard.consumer];
        if (hazard.register_number < register_count)
            finding.place = register_name(hazard.register_number, program.plan->accum_offset);
        std::string what = hazard.what;
        if (const size_t at = what.find("{r}"); at != std::string::npos) what.replace(at, 3, finding.place);
        finding.message = "{2} comes " + std::to_string(hazard.have) + " wait states after {1} and needs " +
                          std::to_string(hazard.need) + ": " + what;
        finding.fix = "s_nop " + std::to_string(hazard.need - hazard.have - 1) + " between the two";
        findings.add(std::move(finding));
    }
}

}  // namespace

void finish_launch(LaunchShadow& shadow, const Dispatch& dispatch,
                   const std::vector<uint64_t>& block_counts) {
    const Program& program = *dispatch.program;
    const std::vector<uint64_t> executed = executions(program, block_counts);
    // Workgroups, or waves, that communicate through flags may be ordered by them: that is not judged.
    for (const uint32_t index : program.plan->synchronising) {
        if (executed[index]) shadow.findings.drop("workgroups_");
    }
    for (const uint32_t index : program.plan->reading_flags) {
        if (executed[index]) shadow.findings.drop("global_");
    }
    add_notes(shadow.findings, *program.plan, shadow.notes);
    if (program.plan->hazards) add_hazards(shadow.findings, program, executed);
    std::vector<std::string> entries;
    for (const Finding* finding : shadow.findings.ordered()) entries.push_back(to_json(*finding, dispatch));
    finding_log().append(std::move(entries));
}

}  // namespace hipkittens::simulator::checks
