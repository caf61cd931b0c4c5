// simulator/machine/program.h: an executable section translated into steps, for kernels with the same registers.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isa/instruction.h"
#include "simulator/machine/settings.h"
#include "simulator/machine/step.h"

namespace hipkittens::simulator {

class IndexedSteps;
class StepBuilder;
namespace checks {
struct Plan;
}

// Instructions that are always executed together: a wave that enters at `first` executes `count` of them.
struct Block {
    uint32_t first = 0, count = 0;
};

struct Program {
    isa::Target target = isa::Target::gfx942;
    Settings settings;
    uint64_t text_address = 0;                   // guest address of the first translated byte
    std::vector<isa::Instruction> instructions;  // Instruction::address is relative to text_address
    std::vector<Step> steps;
    std::vector<Block> blocks;
    std::vector<Block> skip_runs;  // vector instructions that VSKIP, if enabled, skips together
    std::vector<int32_t> step_at;  // step of the instruction at each dword of the text, -1 inside one
    std::vector<uint32_t> constant_values;
    uint32_t wave_bytes = 0;
    uint32_t vgprs = 0, accum_offset = 0;   // as in TranslateRequest
    std::shared_ptr<IndexedSteps> indexed;  // steps made at run time, for register indexes (register_index.h)
    // The original code object, for source lines; its addresses are load_offset below the guest's.
    std::shared_ptr<const std::vector<uint8_t>> file;
    uint64_t load_offset = 0;
    std::shared_ptr<const checks::Plan> plan;  // under checks only
    std::vector<uint8_t> text;                 // for messages about bytes that are not an instruction

    // The step of the instruction at a guest address, nullptr if there is none.
    const Step* step_for_address(uint64_t address) const;
    uint64_t address_of(const Step* step) const;
};

struct TranslateRequest {
    isa::Target target;
    std::span<const uint8_t> text;  // the whole executable section: calls may leave the kernel
    uint64_t text_address;
    std::vector<uint64_t> entry_addresses;  // of all kernels in the section
    uint32_t vgprs;                         // registers allocated per lane, AGPRs included
    std::shared_ptr<const std::vector<uint8_t>> file;
    uint64_t load_offset;   // guest addresses minus the file's addresses
    uint32_t accum_offset;  // first AGPR in that allocation
    Settings settings;
};

// Bytes without a row or a meaning become a step that faults when it is reached, naming the bytes and their
// text.
std::unique_ptr<const Program> translate(const TranslateRequest& request);

// Emits the steps of one instruction. False: it has no meaning, and nothing was emitted.
bool bind_instruction(const isa::Instruction& instruction, StepBuilder& builder, const Settings& settings);

}  // namespace hipkittens::simulator
