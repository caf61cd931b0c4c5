// simulator/machine/fault_report.cpp: describes a wave's fault for the person who has to fix it.
// SPDX-License-Identifier: MIT
#include "simulator/machine/fault_report.h"

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <optional>

#include "code_object/line_table.h"
#include "isa/disassemble.h"
#include "isa/table.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator {

namespace {

template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
    char text[512];
    std::snprintf(text, sizeof text, pattern, arguments...);
    return text;
}

// The distance of `address` from the nearest region.
std::string nearest_region(const Dispatch& dispatch, uint64_t address) {
    const Region* nearest = nullptr;
    uint64_t best = UINT64_MAX;
    bool before = false;
    for (const Region& region : dispatch.regions) {
        const bool is_before = address < region.begin;
        const uint64_t distance = is_before              ? region.begin - address
                                  : address < region.end ? 0
                                                         : address - region.end;
        if (distance < best) {
            best = distance;
            nearest = &region;
            before = is_before;
        }
    }
    if (!nearest) return "the launch was given no memory at all";
    const std::string name =
        format("'%s' (%" PRIu64 " bytes at 0x%" PRIx64 "%s)", nearest->name, nearest->end - nearest->begin,
               nearest->begin, nearest->writable ? "" : ", read-only");
    if (best == 0 && !before && address < nearest->end)
        return format("inside %s, %" PRIu64 " bytes before its end", name.c_str(), nearest->end - address);
    return format("nearest allocation %s: %" PRIu64 " bytes %s", name.c_str(), best,
                  before ? "before its begin" : "past its end");
}

}  // namespace

SourcePlace source_of(const Program& program, uint32_t instruction) {
    const uint64_t address =
        program.text_address + program.instructions[instruction].address - program.load_offset;
    // A launch usually queries several instructions, and reading a table takes longer than a small launch.
    thread_local struct {
        std::weak_ptr<const std::vector<uint8_t>> file;
        std::optional<code_object::LineTable> lines;
    } latest;
    try {
        if (!latest.lines || latest.file.lock() != program.file) {
            latest.lines.reset();
            latest.lines.emplace(*program.file);
            latest.file = program.file;
        }
        return {latest.lines->source_line(address), latest.lines->called_from(address)};
    } catch (const code_object::Error&) {
        return {};  // a damaged line table must not hide the fault it should explain
    }
}

const char* instruction_name(const isa::Instruction& instruction) {
    return instruction.row ? instruction.row->mnemonic : "";
}

std::string instruction_text(const Program& program, const isa::Instruction& instruction) {
    if (instruction.row) return isa::disassemble(instruction);
    std::string text = "bytes";
    for (uint32_t at = instruction.address; at < instruction.address + 8 && at < program.text.size(); ++at) {
        text += format(" %02x", program.text[at]);
    }
    return text;
}

std::string describe_place(const Wave& wave, const Step* step) {
    const Workgroup& workgroup = *wave.workgroup;
    const Program& program = *workgroup.dispatch->program;
    std::string text = format("kernel %s, workgroup (%u, %u, %u), wave %u", workgroup.dispatch->kernel_name,
                              workgroup.id[0], workgroup.id[1], workgroup.id[2], wave.index_in_workgroup);
    if (step) {
        const isa::Instruction& instruction = program.instructions[step->instruction];
        const uint64_t from_entry = program.address_of(step) - program.address_of(workgroup.dispatch->entry);
        text += format(", at entry+0x%" PRIx64 ": `%s`", from_entry,
                       instruction_text(program, instruction).c_str());
        const std::string source = source_of(program, step->instruction).text();
        if (!source.empty()) text += " (" + source + ")";
    }
    return text;
}

std::string describe_address(const Wave& wave) {
    return wave.fault_address ? describe_address(wave, wave.fault_address, wave.fault_lane) : "";
}

std::string describe_address(const Wave& wave, uint64_t address, uint32_t lane) {
    const std::string text = format("lane %u, address 0x%" PRIx64 "; ", lane, address);
    // LDS addresses are offsets; no global memory is in the first page.
    if (address < (1u << 20)) return text + format("LDS of the workgroup is %u bytes", wave.lds_bytes);
    const Dispatch& dispatch = *wave.workgroup->dispatch;
    const std::string freed = dispatch.freed_at ? dispatch.freed_at(address) : "";
    if (!freed.empty()) return text + "inside " + freed + ", which was freed";
    return text + nearest_region(dispatch, address);
}

std::string describe_fault(const Wave& wave) {
    std::string text = describe_place(wave, wave.fault_step);
    text += std::string(": ") + wave.fault_reason;
    if (const std::string address = describe_address(wave); !address.empty()) text += "; " + address;
    text += format("; exec 0x%016" PRIx64, wave.exec);
    return text;
}

}  // namespace hipkittens::simulator
