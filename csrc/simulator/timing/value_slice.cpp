// simulator/timing/value_slice.cpp: determines which instructions control flow and addresses depend on.
// SPDX-License-Identifier: MIT
#include "simulator/timing/value_slice.h"

#include <bitset>
#include <map>
#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"
#include "simulator/machine/mode_regions.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator::timing {

using isa::Instruction;
using isa::Opcode;
using isa::Unit;

namespace {

// Scalars by their operand code, vector registers from 128 on, then accumulation registers: code - 128.
constexpr uint32_t register_count = 128 + 512;
using Registers = std::bitset<register_count>;
const Registers scalars = (Registers(~uint64_t{0}) << 64) | Registers(~uint64_t{0});

int register_number(const isa::Operand& operand) {
    if (operand.type == isa::OperandType::immediate) return -1;
    if (operand.code < 128) return operand.code;
    if (operand.is_vgpr() || operand.is_agpr()) return operand.code - 128;
    return -1;
}

void add(Registers& registers, const isa::Operand& operand) {
    const int first = register_number(operand);
    for (int i = 0; first >= 0 && i < std::max<int>(operand.dwords, 1); ++i) {
        if (first + i < static_cast<int>(register_count)) registers.set(static_cast<size_t>(first + i));
    }
}

std::string_view name_of(const Instruction& instruction) { return instruction.row->mnemonic; }
bool has(const Instruction& instruction, std::string_view part) {
    return name_of(instruction).find(part) != std::string_view::npos;
}

bool writes_exec(const Instruction& instruction) {
    if (has(instruction, "saveexec") || has(instruction, "wrexec") || has(instruction, "v_cmpx")) return true;
    for (const isa::Operand& operand : instruction) {
        if (operand.is_written && (operand.code == isa::code::exec_lo || operand.code == isa::code::exec_hi))
            return true;
    }
    return false;
}

// Parts of a destination that are not written are preserved: part of a register, or some of its lanes
// regardless of EXEC.
bool writes_partly(const Instruction& instruction) {
    return instruction.has_dpp || instruction.has_sdwa || instruction.op_sel || has(instruction, "d16") ||
           has(instruction, "writelane") || has(instruction, "swap");
}

bool moves_lanes_through_lds(const Instruction& instruction) {
    return has(instruction, "permute") || has(instruction, "swizzle");
}

bool reads_other_lanes(const Instruction& instruction) {
    return instruction.has_dpp || moves_lanes_through_lds(instruction) || has(instruction, "permlane");
}

// Live registers: `here` before EXEC is next written, in the same lanes that a write now would reach; `later` after it.
struct Live {
    Registers here, later;
    bool operator==(const Live&) const = default;
};

struct Block {
    size_t first, end;
    std::vector<size_t> successors;
    Live live_in;
};

class Slice {
  public:
    explicit Slice(const Program& program)
        : instructions_(program.instructions), modes_(find_mode_regions(program.instructions)) {}

    std::vector<bool> run() {
        if (!find_blocks()) return {};
        needed_.assign(instructions_.size(), false);
        // Values stored to and loaded from LDS are followed only if some loaded value is needed.
        for (;;) {
            for (Block& block : blocks_) block.live_in = {};
            for (bool changed = true; changed;) {
                changed = false;
                for (size_t i = blocks_.size(); i-- > 0;) changed |= visit(blocks_[i]);
            }
            if (lds_is_wanted_ || !reads_wanted_lds()) return needed_;
            lds_is_wanted_ = true;
        }
    }

  private:
    bool find_blocks() {
        std::map<uint32_t, size_t> at;
        for (size_t i = 0; i < instructions_.size(); ++i) at[instructions_[i].address] = i;
        std::vector<bool> leads(instructions_.size() + 1);
        leads[0] = true;
        std::vector<std::vector<size_t>> targets(instructions_.size());
        for (size_t i = 0; i < instructions_.size(); ++i) {
            const Instruction& instruction = instructions_[i];
            if (!instruction.row) {
                leads[i] = leads[i + 1] = true;
                continue;
            }
            if (has(instruction, "set_gpr_idx") || has(instruction, "movrel")) return false;
            if (isa::effects(instruction).unit != Unit::branch && instruction.opcode != Opcode::s_endpgm)
                continue;
            leads[i + 1] = true;
            if (instruction.opcode == Opcode::s_endpgm) continue;
            const bool is_plain = name_of(instruction).starts_with("s_branch") ||
                                  name_of(instruction).starts_with("s_cbranch_");
            if (!is_plain) return false;  // the target is in a register
            for (const isa::Operand& operand : instruction) {
                if (operand.type != isa::OperandType::immediate) continue;
                const auto target = at.find(
                    static_cast<uint32_t>(int64_t{instruction.address} + 4 + 4 * int64_t{operand.immediate}));
                if (target == at.end()) continue;
                leads[target->second] = true;
                targets[i].push_back(target->second);
            }
        }
        std::vector<size_t> block_of(instructions_.size() + 1);
        for (size_t i = 0; i < instructions_.size(); ++i) {
            if (leads[i]) blocks_.push_back({i, i, {}, {}});
            block_of[i] = blocks_.size() - 1;
            blocks_.back().end = i + 1;
        }
        for (size_t b = 0; b < blocks_.size(); ++b) {
            const size_t last = blocks_[b].end - 1;
            const Instruction& instruction = instructions_[last];
            for (size_t target : targets[last]) blocks_[b].successors.push_back(block_of[target]);
            const bool falls = instruction.row && instruction.opcode != Opcode::s_endpgm &&
                               instruction.opcode != Opcode::s_branch;
            if (falls && b + 1 < blocks_.size()) blocks_[b].successors.push_back(b + 1);
        }
        return true;
    }

    bool visit(Block& block) {
        Live live;
        for (size_t next : block.successors) {
            live.here |= blocks_[next].live_in.here;
            live.later |= blocks_[next].live_in.later;
        }
        for (size_t i = block.end; i-- > block.first;) visit(i, live);
        if (live == block.live_in) return false;
        block.live_in = live;
        return true;
    }

    void visit(size_t index, Live& live) {
        const Instruction& instruction = instructions_[index];
        if (!instruction.row) return;
        const isa::Effects effects = isa::effects(instruction);
        Registers reads, writes;
        for (const isa::Operand& operand : instruction) {
            if (operand.is_read) add(reads, operand);
            if (operand.is_written) add(writes, operand);
        }
        const bool is_wanted = (writes & (live.here | live.later)).any();
        Registers wants;
        bool needed = false;
        switch (effects.unit) {
            case Unit::valu:
            case Unit::transcendental:
            case Unit::matrix:
                needed = is_wanted || writes_exec(instruction) || has(instruction, "readfirstlane");
                if (needed) wants = reads;
                break;
            case Unit::lds:
                if (moves_lanes_through_lds(instruction)) {
                    needed = is_wanted;
                    if (needed) wants = reads;
                    break;
                }
                add(wants, instruction.operands[address_position(instruction)]);
                needed = has(instruction, "read") ? is_wanted : lds_is_wanted_ || is_wanted;
                if (needed) wants = reads;
                break;
            case Unit::vector_memory:
            case Unit::flat:
                wants = memory_wants(instruction, is_wanted, reads, &needed);
                break;
            default:  // scalar work is cheap, and mostly computes addresses
                needed = true;
                wants = reads;
        }
        if (needed) needed_[index] = true;
        if (writes_exec(instruction)) live = {{}, live.here | live.later};
        const bool may_be_skipped = modes_[index] & mode_vskip;
        if (!writes_partly(instruction) && !may_be_skipped) {
            live.here &= ~writes;
            // Masks in scalar registers are written whole, and matrix instructions ignore EXEC.
            live.later &= ~(effects.reads_exec ? writes & scalars : writes);
        }
        // An instruction that reads lanes disabled by EXEC needs their previous values.
        (effects.reads_exec && !reads_other_lanes(instruction) ? live.here : live.later) |= wants;
    }

    static int address_position(const Instruction& instruction) {
        // isa/table.h: after the destination, if there is one.
        return instruction.operand_count > 1 && instruction.operands[0].is_written ? 1 : 0;
    }

    Registers memory_wants(const Instruction& instruction, bool is_wanted, const Registers& reads,
                           bool* needed) {
        const bool is_store = has(instruction, "store"), is_atomic = has(instruction, "atomic");
        const bool is_float = has(instruction, "_f16") || has(instruction, "_bf16") ||
                              has(instruction, "_f32") || has(instruction, "_f64");
        const bool synchronises = instruction.sc0 || instruction.sc1;
        const bool to_lds = instruction.lds || has(instruction, "load_lds");
        if (is_atomic) {
            *needed = !is_float || is_wanted;
        } else if (is_store) {
            *needed = synchronises;
        } else {
            *needed = is_wanted || (to_lds && lds_is_wanted_);
        }
        if (*needed || (!is_store && !is_atomic)) return reads;
        // All but the data: operand 0 of a buffer instruction, the operand after the address otherwise.
        Registers result;
        const bool is_buffer =
            instruction.encoding == isa::Encoding::mubuf || instruction.encoding == isa::Encoding::mtbuf;
        int data = is_buffer ? 0 : address_position(instruction) + 1;
        for (int i = 0; i < instruction.operand_count; ++i) {
            if (i != data && instruction.operands[i].is_read) add(result, instruction.operands[i]);
        }
        return result;
    }

    bool reads_wanted_lds() const {
        for (size_t i = 0; i < instructions_.size(); ++i) {
            const Instruction& instruction = instructions_[i];
            if (!instruction.row || !needed_[i] || moves_lanes_through_lds(instruction)) continue;
            const isa::Unit unit = isa::effects(instruction).unit;
            if (unit == Unit::lds || (unit == Unit::flat && has(instruction, "load"))) return true;
        }
        return false;
    }

    const std::vector<Instruction>& instructions_;
    const std::vector<uint32_t> modes_;
    std::vector<Block> blocks_;
    std::vector<bool> needed_;
    bool lds_is_wanted_ = false;
};

}  // namespace

std::vector<bool> needed_values(const Program& program) { return Slice(program).run(); }

}  // namespace hipkittens::simulator::timing
