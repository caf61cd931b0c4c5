// simulator/debug/source_registers.cpp: the contents of the registers that an instruction is about to read.
// SPDX-License-Identifier: MIT
#include "simulator/debug/source_registers.h"

#include <bit>

namespace hipkittens::simulator::debug {

SourceRegisters::SourceRegisters(const Program& program)
    : program_(program),
      builder_(program.settings, program.vgprs, program.accum_offset),
      effects_(program.instructions.size()) {}

const checks::Effects& SourceRegisters::effects(uint32_t instruction) {
    std::optional<checks::Effects>& known = effects_[instruction];
    if (!known) {
        const isa::Instruction& decoded = program_.instructions[instruction];
        known = decoded.row ? checks::effects_of(decoded, builder_) : checks::Effects{};
    }
    return *known;
}

template <typename Visit>
void SourceRegisters::visit(const Wave& wave, Visit visit) {
    const checks::Effects& effects = this->effects(wave.next->instruction);
    const uint64_t lanes = effects.ignores_exec ? ~uint64_t{0} : wave.exec;
    for (uint32_t i = 0; i < effects.reads.count; ++i) {
        const checks::RegisterWord& word = effects.reads.words[i];
        for (uint64_t bits = word.bits; bits; bits &= bits - 1) {
            const uint32_t number = word.word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
            const bool is_vector = number >= checks::first_vector;
            const uint32_t offset =
                is_vector ? layout::vectors + (number - checks::first_vector) * layout::vector_row_bytes
                          : layout::scalar(number);
            visit(number, is_vector ? lanes : 1, reinterpret_cast<const uint32_t*>(at(&wave, offset)));
        }
    }
}

uint32_t SourceRegisters::digest(const Wave& wave) {
    uint64_t digest = wave.exec;
    const auto add = [&digest](uint32_t dword) {
        digest = (digest ^ dword) * 0x9e3779b97f4a7c15u;
        digest ^= digest >> 32;
    };
    add(0);
    visit(wave, [&](uint32_t, uint64_t lanes, const uint32_t* dwords) {
        for (; lanes; lanes &= lanes - 1) add(dwords[std::countr_zero(lanes)]);
    });
    return static_cast<uint32_t>(digest);
}

std::vector<SourceRegisters::Value> SourceRegisters::values(const Wave& wave) {
    std::vector<Value> result{{isa::code::exec_lo, 1, {static_cast<uint32_t>(wave.exec)}},
                              {isa::code::exec_hi, 1, {static_cast<uint32_t>(wave.exec >> 32)}}};
    visit(wave, [&](uint32_t number, uint64_t lanes, const uint32_t* dwords) {
        if (number == isa::code::exec_lo || number == isa::code::exec_hi) return;
        const size_t count = number >= checks::first_vector ? 64 : 1;
        result.push_back({number, lanes, {dwords, dwords + count}});
    });
    return result;
}

}  // namespace hipkittens::simulator::debug
