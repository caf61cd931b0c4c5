// simulator/checks/register_effects.h: which registers an instruction reads and writes, as bits, and which queue
// its memory operation joins. Derived from the isa rows once per program.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::checks {

// Every register has a number: scalars their operand code, vector registers (including AGPRs) from 128 on.
inline constexpr uint32_t first_vector = 128, register_words = 10, register_count = 64 * register_words;

uint32_t register_at(uint32_t wave_offset);                         // a row's byte offset in the wave block
std::string register_name(uint32_t number, uint32_t accum_offset);  // s12, vcc_lo, v7, a3

struct RegisterWord {
    uint32_t word;
    uint64_t bits;
};

// A set of registers that is mostly empty.
struct RegisterSet {
    static constexpr uint32_t max_words = register_words;
    uint32_t count = 0;
    RegisterWord words[max_words];

    void add(uint32_t first, uint32_t registers);
    void add(const RegisterSet& other);
    bool has(uint32_t number) const;
    bool overlaps(const RegisterSet& other) const;
    bool meets(const uint64_t* all) const {
        uint64_t common = 0;
        for (uint32_t i = 0; i < count; ++i) common |= all[words[i].word] & words[i].bits;
        return common != 0;
    }
};

// The queue that a memory operation joins (memory/pending_queue.h).
enum class Queue : uint8_t { none, vector_memory, lds, scalar, flat };

struct Effects {
    RegisterSet reads, writes;
    Queue queue = Queue::none;
    bool ignores_exec = false;   // all 64 lanes take part, or the instruction itself selects the lanes
    bool copies = false;         // moves bits that may be unwritten
    bool partly_writes = false;  // writes some lanes or bits of the destination and keeps the others
    bool writes_exec = false;
    bool is_control = false;  // branch, wait, barrier, end
    // Registers that a store saves in scratch: unwritten registers may be saved and restored (spills.cpp).
    uint32_t saved_first = 0, saved_count = 0;
};

Effects effects_of(const isa::Instruction& instruction, const StepBuilder& builder);

}  // namespace hipkittens::simulator::checks
