// simulator/timing/wave_trace.cpp: the steps that record what a wave does.
// SPDX-License-Identifier: MIT
#include "simulator/timing/wave_trace.h"

#include <algorithm>
#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"
#include "simulator/machine/control.h"
#include "simulator/machine/mode_regions.h"
#include "simulator/machine/program.h"
#include "simulator/machine/register_index.h"
#include "simulator/machine/step_builder.h"
#include "simulator/machine/workgroup.h"
#include "simulator/memory/buffer_descriptor.h"
#include "simulator/memory/lds_banks.h"
#include "simulator/memory/pending_queue.h"
#include "simulator/timing/address_map.h"
#include "simulator/timing/value_slice.h"

namespace hipkittens::simulator {

void WaveTrace::clear() {
    blocks.clear();
    lines.clear();
    memory_starts.clear();
    lds_conflicts.clear();
    scalar_lines.clear();
    skipped.clear();
}

namespace timing {
namespace {

const Step* enter_block(Wave* wave, const Step* step) {
    if (wave->trace->is_detailed) wave->trace->blocks.push_back(static_cast<uint32_t>(step->immediate));
    return count_block(wave, step);
}

const Step* decide_skip(Wave* wave, const Step* step) {
    if (wave->trace->is_detailed) wave->trace->skipped.push_back(wave->mode & mode_vskip);
    return skip_vector(wave, step);
}

// extra[0] of a tracing step: the way the issue step uses its fields (execute/memory_step.h) is the same for
// all steps of a queue.
enum TraceFlag : uint32_t {
    stores = 1,
    drops_values = 2,
    counts_banks = 4,
    is_pair = 8,
    is_buffer = 16,
    updates = 32
};

void complete_nothing(Wave*, PendingOperation*) {}
void drop_values(PendingOperation* operation) {
    operation->complete = complete_nothing;
    operation->dwords = 0;
    operation->lanes = 0;
}

// The addresses of an access in the model. Its lanes are usually in the region that was hit last.
class AccessedLines {
  public:
    AccessedLines(Wave* wave, uint32_t bytes) : wave_(wave), bytes_(bytes) { enter(wave->last_region); }

    // Calls add(line) for every line that a lane accesses.
    template <class Add>
    void of(uint64_t address, uint32_t lane, const Add& add) {
        if (region_ == nullptr || address < region_->begin || address >= region_->end) {
            if (in_private_segment(address)) return private_lines(address, lane, add);
            if (in_lds(address)) return;  // of a flat access: not in any line
            enter(find_region(wave_, address, 1));
        }
        const uint64_t first = (address + displacement_) / line_bytes,
                       last = (address + displacement_ + bytes_ - 1) / line_bytes;
        for (uint64_t line = first; line <= last; ++line) add(line);
    }

  private:
    void enter(const Region* region) {
        region_ = region;
        displacement_ = wave_->trace->addresses->displacement(region);
    }
    bool in_private_segment(uint64_t address) const {
        return address - reinterpret_cast<uint64_t>(wave_->scratch_memory) <
               uint64_t{64} * wave_->private_bytes;
    }
    bool in_lds(uint64_t address) const {
        return address - reinterpret_cast<uint64_t>(wave_->lds) < wave_->lds_bytes;
    }
    template <class Add>
    void private_lines(uint64_t address, uint32_t lane, const Add& add) const {
        const uint32_t place =
            static_cast<uint32_t>(address - reinterpret_cast<uint64_t>(wave_->scratch_memory) -
                                  uint64_t{lane} * wave_->private_bytes);
        const uint32_t number =
            wave_->workgroup->linear_id * static_cast<uint32_t>(wave_->workgroup->waves.size()) +
            wave_->index_in_workgroup;
        for (uint32_t dword = place / 4; dword <= (place + bytes_ - 1) / 4; ++dword)
            add(wave_->trace->addresses->private_dword(number, wave_->private_bytes, dword, lane) /
                line_bytes);
    }

    Wave* wave_;
    uint32_t bytes_;
    const Region* region_ = nullptr;
    uint64_t displacement_ = 0;
};

// Lines accessed by the lanes of one quarter, in lane order; neighboring lanes mostly share them.
void append_lines(Wave* wave, const PendingOperation* operation, uint32_t bytes, uint32_t flags) {
    WaveTrace& trace = *wave->trace;
    AccessedLines lines(wave, bytes);
    // Distinct lines of a quarter, then of the whole access: with 16 bytes, at most five per lane.
    uint64_t found[64 * 5];
    uint32_t count = 0, lookups = 0, quarter_begin = 0;
    for (int quarter = 0; quarter < 4; ++quarter) {
        quarter_begin = count;
        uint64_t left = operation->valid >> (16 * quarter) & 0xffff;
        uint64_t latest = ~uint64_t{0};
        for (; left; left &= left - 1) {
            const uint32_t lane = static_cast<uint32_t>(16 * quarter + __builtin_ctzll(left));
            lines.of(operation->address[lane], lane, [&](uint64_t line) {
                if (line == latest) return;
                latest = line;
                uint32_t i = quarter_begin;
                while (i < count && found[i] != line) ++i;
                if (i < count) return;
                found[count++] = line;
                ++lookups;
            });
        }
    }
    // The quarters may share lines: what remains are the lines of the access.
    std::sort(found, found + count);
    count = static_cast<uint32_t>(std::unique(found, found + count) - found);
    const size_t header = trace.lines.size();
    trace.memory_starts.push_back(static_cast<uint32_t>(header));
    trace.lines.push_back(0);
    for (uint32_t i = 0; i < count;) {
        uint32_t run = 1;
        while (i + run < count && run < 256 && found[i + run] == found[i] + run) ++run;
        trace.lines.push_back(found[i] << 8 | (run - 1));
        i += run;
    }
    const uint64_t runs = trace.lines.size() - header - 1;
    trace.lines[header] = runs | uint64_t{lookups} << 12 | uint64_t{(flags & (stores | updates)) != 0} << 48 |
                          uint64_t{(flags & updates) != 0} << 49 |
                          static_cast<uint64_t>(__builtin_popcountll(operation->valid)) * uint64_t{bytes}
                              << 24;
}

const Step* trace_vector_memory(Wave* wave, const Step* step) {
    PendingOperation* operation = wave->pending->vm[(wave->pending->vm_tail - 1) % 64];
    append_lines(wave, operation, step->extra[1], step->extra[0]);
    if (step->extra[0] & drops_values) drop_values(operation);
    return step + 1;
}

uint32_t conflicts_of(Wave* wave, const Step* step, const Step* issue, const uint32_t* address) {
    const isa::Target target = wave->workgroup->dispatch->program->target;
    const auto access = static_cast<memory::LdsAccess>(issue->extra[2] >> 8 & 0xff);
    auto& patterns = wave->trace->patterns;
    const size_t slot = step->instruction % 256;
    if (patterns.empty()) patterns.resize(256);
    WaveTrace::Pattern& known = patterns[slot];
    const uint32_t first = address[0];
    uint32_t different = known.step != step || known.lanes != wave->exec || (known.first - first) % 256;
    for (int lane = 0; lane < 64; ++lane) different |= known.distance[lane] ^ (address[lane] - first);
    if (different) {
        known.step = step;
        known.lanes = wave->exec;
        known.first = first;
        for (int lane = 0; lane < 64; ++lane) known.distance[lane] = address[lane] - first;
        known.conflicts = static_cast<uint16_t>(memory::lds_conflict_cycles(
            memory::lds_phases(target, access), address, wave->exec, issue->extra[0]));
    }
    return known.conflicts;
}

// `data` is the distance back to the issue step.
const Step* trace_lds(Wave* wave, const Step* step) {
    const Step* issue = step - step->extra[1];
    PendingOperation* operation = wave->pending->lds[(wave->pending->lds_tail - 1) % 16];
    if (wave->trace->is_detailed) {
        uint32_t conflicts = 0;
        if (step->extra[0] & counts_banks && wave->exec) {
            conflicts = conflicts_of(wave, step, issue, operation->lds_address);
            if (step->extra[0] & is_pair) {
                alignas(64) uint32_t second[64];
                for (int lane = 0; lane < 64; ++lane)
                    second[lane] = operation->lds_address[lane] + issue->extra[1];
                conflicts += memory::lds_conflict_cycles(
                    memory::lds_phases(wave->workgroup->dispatch->program->target,
                                       static_cast<memory::LdsAccess>(issue->extra[2] >> 8 & 0xff)),
                    second, wave->exec, issue->extra[0]);
            }
        }
        wave->trace->lds_conflicts.push_back(static_cast<uint16_t>(conflicts));
    }
    if (step->extra[0] & drops_values) drop_values(operation);
    return step + 1;
}

// Placed before the issue step, whose result may overwrite its address.
const Step* trace_scalar_memory(Wave* wave, const Step* step) {
    if (!wave->trace->is_detailed) return step + 1;
    const Step* issue = step + 1;
    uint64_t address = read_scalar64(wave, issue->source[0]);
    if (step->extra[0] & is_buffer) address &= 0xffffffffffff;
    address += read_scalar(wave, issue->source[1]) + static_cast<uint64_t>(int64_t{issue->immediate});
    const uint32_t bytes = issue->dwords ? issue->dwords * 4u : 4u;
    address += wave->trace->addresses->displacement(find_region(wave, address, 1));
    const uint64_t first = address / scalar_line_bytes, last = (address + bytes - 1) / scalar_line_bytes;
    wave->trace->scalar_lines.push_back(first << 4 | (last - first + 1));
    return step + 1;
}

bool starts_with(const isa::Instruction& instruction, std::string_view prefix) {
    return std::string_view(instruction.row->mnemonic).starts_with(prefix);
}

bool has(const isa::Instruction& instruction, std::string_view part) {
    return std::string_view(instruction.row->mnemonic).find(part) != std::string_view::npos;
}

class Builder : public TraceBuilder {
  public:
    Builder(const Program& program, StepBuilder& builder, bool values)
        : program_(program), builder_(builder) {
        if (!values) needed_ = needed_values(program);
    }

    bool leaves_out(uint32_t index) override {
        if (needed_.empty() || needed_[index]) return false;
        const isa::Instruction& instruction = program_.instructions[index];
        if (!instruction.row) return false;
        const isa::Unit unit = isa::effects(instruction).unit;
        return unit == isa::Unit::valu || unit == isa::Unit::transcendental || unit == isa::Unit::matrix ||
               unit == isa::Unit::salu;
    }

    void before(uint32_t index) override {
        const isa::Instruction& instruction = program_.instructions[index];
        first_step_ = builder_.steps().size();
        if (!is_scalar_access(instruction)) return;
        Step& step = builder_.emit(trace_scalar_memory);
        step.extra[0] = starts_with(instruction, "s_buffer") ? is_buffer : 0u;
    }

    void after(uint32_t index) override {
        const isa::Instruction& instruction = program_.instructions[index];
        const isa::Effects effects = isa::effects(instruction);
        if (builder_.steps().size() == first_step_) return;
        const Step issue = builder_.steps().back();
        const bool drops = !needed_.empty() && !needed_[index];
        if (accesses_vector_memory(instruction)) {
            Step& step = builder_.emit(trace_vector_memory);
            step.extra[0] = (drops ? drops_values : 0u) | (has(instruction, "store") ? stores : 0u) |
                            (has(instruction, "atomic") ? updates : 0u);
            step.extra[1] = std::max<uint32_t>(
                1, instruction.lds || has(instruction, "load_lds") ? issue.dwords * 4u : issue.extra[0]);
        } else if (effects.unit == isa::Unit::lds && effects.raises_lgkmcnt && !instruction.gds) {
            const bool banks = starts_with(instruction, "ds_read") || starts_with(instruction, "ds_write");
            Step& step = builder_.emit(trace_lds);
            step.extra[0] = (drops ? drops_values : 0u) | (banks ? counts_banks : 0u) |
                            (has(instruction, "read2") || has(instruction, "write2") ? is_pair : 0u);
            step.extra[1] = 1;
        }
    }

  private:
    const Program& program_;
    StepBuilder& builder_;
    std::vector<bool> needed_;  // empty: all
    size_t first_step_ = 0;
};

template <bool values>
std::unique_ptr<TraceBuilder> prepare(const Program& program, StepBuilder& builder) {
    return std::make_unique<Builder>(program, builder, values);
}

}  // namespace

bool is_scalar_access(const isa::Instruction& instruction) {
    return instruction.encoding == isa::Encoding::smem &&
           (has(instruction, "_load") || has(instruction, "_store") || has(instruction, "atomic"));
}

bool accesses_vector_memory(const isa::Instruction& instruction) {
    const isa::Effects effects = isa::effects(instruction);
    return effects.raises_vmcnt &&
           (has(instruction, "load") || has(instruction, "store") || has(instruction, "atomic"));
}

const TraceSteps steps_with_values{enter_block, decide_skip, prepare<true>};
const TraceSteps steps_without_values{enter_block, decide_skip, prepare<false>};

}  // namespace timing
}  // namespace hipkittens::simulator
