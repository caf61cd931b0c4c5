// simulator/checks/faults.cpp: memcheck: reports whatever ends a launch as a finding.
// SPDX-License-Identifier: MIT
#include <bit>
#include <string_view>

#include "simulator/checks/shadow.h"
#include "simulator/machine/fault_report.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator::checks {

static bool is_buffer(const isa::Instruction& instruction) {
    return instruction.encoding == isa::Encoding::mubuf || instruction.encoding == isa::Encoding::mtbuf ||
           std::string_view(instruction_name(instruction)).starts_with("s_buffer");
}

namespace {

// Null: not a memory fault.
const char* kind_of(const Wave& wave, const isa::Instruction& instruction) {
    const std::string_view reason = wave.fault_reason;
    const auto says = [&](std::string_view part) { return reason.find(part) != std::string_view::npos; };
    const Dispatch& dispatch = *wave.workgroup->dispatch;
    if (says("outside the memory of this launch")) {
        if (dispatch.freed_at && !dispatch.freed_at(wave.fault_address).empty()) return "use_after_free";
        // The descriptor's own check has passed: the descriptor covers more than was allocated.
        if (is_buffer(instruction)) return says("store") ? "descriptor_overwrite" : "descriptor_overread";
        return "out_of_bounds";
    }
    if (says("read-only")) return "write_to_read_only";
    if (says("private segment")) return "out_of_bounds_scratch";
    if (says("aligned")) return "misaligned";
    if (says("outside the workgroup's")) return "out_of_bounds_lds";
    return nullptr;
}

}  // namespace

void report_overread(Wave* wave, uint32_t instruction, uint64_t address, uint64_t lanes) {
    WorkgroupShadow* shadow = wave->workgroup->shadow;
    if (!shadow || !(shadow->plan->checkers & memcheck)) return;
    report(wave, memcheck, "descriptor_overread", no_instruction, instruction, [&](Finding& finding) {
        finding.second_wave = wave->index_in_workgroup;
        finding.lanes = lanes;
        finding.place = describe_address(*wave, address, static_cast<uint32_t>(std::countr_zero(lanes)));
        finding.message =
            "{2}, wave " + std::to_string(wave->index_in_workgroup) +
            ": load inside its descriptor, beyond the memory of this launch, tolerated: it reads 0; " +
            finding.place;
    });
}

void report_fault(Wave* wave) {
    WorkgroupShadow* shadow = wave->workgroup->shadow;
    if (!shadow || !(shadow->plan->checkers & memcheck)) return;
    const uint32_t index = wave->fault_step->instruction;
    const Program& program = *wave->workgroup->dispatch->program;
    const char* kind = kind_of(*wave, program.instructions[index]);
    if (!kind) return;
    report(wave, memcheck, kind, no_instruction, index, [&](Finding& finding) {
        finding.second_wave = wave->index_in_workgroup;
        finding.lanes = uint64_t{1} << wave->fault_lane;
        finding.place = describe_address(*wave);
        finding.message = "{2}, wave " + std::to_string(wave->index_in_workgroup) + ": " +
                          wave->fault_reason + (finding.place.empty() ? "" : "; " + finding.place);
    });
}

}  // namespace hipkittens::simulator::checks

namespace hipkittens::simulator {

bool tolerates_overread(Wave* wave, const Step* step, uint64_t address, uint64_t lanes) {
    const Dispatch& dispatch = *wave->workgroup->dispatch;
    if (!dispatch.settings.tolerate_overreads) return false;
    if (!checks::is_buffer(dispatch.program->instructions[step->instruction])) return false;
    if (dispatch.freed_at && !dispatch.freed_at(address).empty()) return false;
    checks::report_overread(wave, step->instruction, address, lanes);
    return true;
}

}  // namespace hipkittens::simulator
