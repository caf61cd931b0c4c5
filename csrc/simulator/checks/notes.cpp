// simulator/checks/notes.cpp: remarks about speed: bank conflicts, scattered accesses, partial cache lines, idle waits.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

namespace {

constexpr uint32_t line_bytes = 64;  // the unit of the memory pipeline's cache requests
constexpr uint32_t samples_per_instruction = 16;

Finding note(const char* kind, uint32_t instruction, uint64_t count, std::string message, std::string fix) {
    Finding finding;
    finding.checker = notes;
    finding.kind = kind;
    finding.second = instruction;
    finding.count = count;
    finding.message = std::move(message);
    finding.fix = std::move(fix);
    return finding;
}

}  // namespace

// Samples the first executions of an instruction. For a pair, the first access is sampled.
void sample_conflicts(InstructionNotes& sums, const MemoryEffects& effects, const PendingOperation* operation,
                      isa::Target target) {
    if (sums.samples >= samples_per_instruction || !(effects.reads_lds || effects.writes_lds)) return;
    ++sums.samples;
    sums.conflict_cycles += memory::lds_conflict_cycles(
        memory::lds_phases(target, effects.banks), operation->lds_address, operation->lanes, effects.bytes);
}

void sample_lines(InstructionNotes& sums, const MemoryEffects& effects, const PendingOperation* operation) {
    if (sums.samples >= samples_per_instruction || !operation->valid || operation->partial) return;
    ++sums.samples;
    struct Span {
        uint64_t begin, end;
    };
    std::array<Span, 64> spans;
    size_t count = 0;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint64_t address = operation->address[__builtin_ctzll(left)];
        spans[count++] = {address, address + effects.memory_bytes};
    }
    std::sort(spans.begin(), spans.begin() + count,
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    uint64_t covered = 0, line = UINT64_MAX, in_line = 0, reached = 0;
    const auto end_line = [&] {
        if (line == UINT64_MAX) return;
        ++sums.lines_touched;
        if (in_line < line_bytes) ++sums.lines_partial;
        in_line = 0;
    };
    for (size_t i = 0; i < count; ++i) {
        for (uint64_t at = std::max(spans[i].begin, reached); at < spans[i].end;) {
            if (at / line_bytes != line) {
                end_line();
                line = at / line_bytes;
            }
            const uint64_t stop = std::min(spans[i].end, (line + 1) * line_bytes);
            in_line += stop - at;
            covered += stop - at;
            at = reached = stop;
        }
    }
    end_line();
    sums.lines_needed += (covered + line_bytes - 1) / line_bytes;
}

void add_notes(FindingList& findings, const Plan& plan, const std::vector<InstructionNotes>& sums) {
    for (uint32_t index = 0; index < sums.size(); ++index) {
        const InstructionNotes& of = sums[index];
        if (!of.executions) continue;
        const std::string times = std::to_string(of.executions) + " executions";
        if (plan.effects[index].is_control) {
            if (of.useful_waits) continue;
            findings.add(note("redundant_wait", index, of.executions,
                              "{2} found nothing to wait for in " + times, "none, or a weaker wait"));
            continue;
        }
        if (of.conflict_cycles) {
            findings.add(note("lds_bank_conflicts", index, of.executions,
                              "{2} loses " + std::to_string(of.conflict_cycles) +
                                  " cycles to bank conflicts in " + std::to_string(of.samples) +
                                  " executions",
                              "another swizzle or padding"));
        }
        const std::string touched = std::to_string(of.lines_touched) + " lines of 64 bytes in " +
                                    std::to_string(of.samples) + " executions";
        if (of.lines_touched > 2 * of.lines_needed) {
            findings.add(note("uncoalesced", index, of.executions,
                              "{2} touches " + touched + ", where " + std::to_string(of.lines_needed) +
                                  " hold as many bytes",
                              "neighbouring lanes at neighbouring addresses"));
        } else if (4 * of.lines_partial > of.lines_touched && plan.effects[index].writes.count == 0) {
            findings.add(
                note("partial_lines", index, of.executions,
                     "{2} covers " + std::to_string(of.lines_partial) + " of " + touched + " only in part",
                     "whole lines of 64 bytes a store"));
        }
    }
}

}  // namespace hipkittens::simulator::checks
