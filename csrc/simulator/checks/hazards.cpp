// simulator/checks/hazards.cpp: detects missing wait states between two instructions.
// SPDX-License-Identifier: MIT
#include "simulator/checks/hazards.h"

#include <algorithm>
#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"

namespace hipkittens::simulator::checks {

using isa::Encoding;
using isa::Instruction;
using isa::Opcode;
using isa::Unit;

namespace {

// clang-format off
enum class Producer : uint8_t {
    valu, valu_not_dot, dot, transcendental, part_write, salu, wide_store, setreg,
    matrix_xdl, matrix_xdl_two_pass, matrix_xdl_longer, matrix_f32, matrix_f64, matrix_f64_4x4, matrix_f64_16x16,
    matrix_two_pass,
};
enum class Consumer : uint8_t {
    valu, plain_valu, dpp, lane_access, read_lane, div_fmas, permlane_swap,
    memory, vector_memory, valu_or_memory, valu_or_matrix, direct_to_lds, reads_m0, getreg, setreg_again,
    matrix, matrix_xdl, matrix_not_xdl, matrix_f64_4x4, fma_f64,
};
enum class Through : uint8_t {
    reads_vector, uses_vector, reads_dot, overwrites_dot, reads_scalar, lane_select, vcc, exec, m0, hardware_register,
    overwrites, overwrites_data, overwrites_c, reads_ab, overlaps_c, same_c, always,
};
// clang-format on

struct Row {
    const char* kind;
    Producer producer;
    Consumer consumer;
    Through through;
    int states, passes, more_on_gfx950;
    const char* what;
};
constexpr Row table[] = {
#define HAZARD(kind, producer, consumer, through, states, passes, more, what) \
    {#kind, Producer::producer, Consumer::consumer, Through::through, states, passes, more, what},
#include "simulator/checks/hazards.def"
#undef HAZARD
};
constexpr uint32_t longest = 20;

struct Facts {
    isa::Effects effects;
    std::string_view name;
    bool is_valu, is_dot, is_matrix, is_memory, is_f64;

    explicit Facts(const Instruction& instruction)
        : effects(isa::effects(instruction)), name(instruction.row->mnemonic) {
        is_valu = effects.unit == Unit::valu || effects.unit == Unit::transcendental;
        is_dot = is_valu && name.starts_with("v_dot");
        is_matrix = effects.unit == Unit::matrix && name.find("ld_scale") == std::string_view::npos;
        is_memory =
            effects.unit == Unit::vector_memory || effects.unit == Unit::flat || effects.unit == Unit::lds;
        is_f64 = is_matrix && name.starts_with("v_mfma_f64");
    }
    bool is_f32_matrix() const { return is_matrix && !is_f64 && name.ends_with("_f32"); }
    bool is_f64_4x4() const { return is_f64 && name.find("_4x4x") != std::string_view::npos; }
    bool is_xdl() const { return is_matrix && !is_f64 && !is_f32_matrix(); }
};

// Writes 16 bits or one byte of its destination. Conversions to 8 bits with stochastic rounding and to fp4 choose
// a byte with OP_SEL[3:2]; LLVM treats those to fp4 with stochastic rounding as partial, whatever they choose.
bool writes_part(const Instruction& instruction, const Facts& facts) {
    if (instruction.has_sdwa) return instruction.sdwa.dst_sel != 6;
    if (instruction.encoding != Encoding::vop3) return false;
    const auto has = [&](std::string_view part) { return facts.name.find(part) != std::string_view::npos; };
    if (!facts.name.starts_with("v_cvt_")) return instruction.op_sel & 8;
    if (has("_sr_pk_fp4_")) return true;
    return instruction.op_sel & (has("_sr_fp8_") || has("_sr_bf8_") || has("_pk_fp4_") ? 12 : 8);
}

// More than 64 bits of data; an SGPR offset provides the cycle the store needs.
bool is_wide_store(const Instruction& instruction, const Facts& facts) {
    if (facts.effects.unit != Unit::vector_memory && facts.effects.unit != Unit::flat) return false;
    if (facts.name.find("store") == std::string_view::npos) return false;
    const bool is_buffer = instruction.encoding == Encoding::mubuf || instruction.encoding == Encoding::mtbuf;
    const isa::Operand& data = instruction.operands[is_buffer ? 0 : 1];
    if (data.dwords <= 2) return false;
    return !is_buffer || instruction.operands[3].code >= 128;
}

bool is_lane_access(Opcode opcode) {
    return opcode == Opcode::v_readlane_b32 || opcode == Opcode::v_readfirstlane_b32 ||
           opcode == Opcode::v_writelane_b32;
}

bool is(Producer producer, const Instruction& instruction, const Facts& facts) {
    switch (producer) {
        case Producer::valu:
            return facts.is_valu;
        case Producer::valu_not_dot:
            return facts.is_valu && !facts.is_dot;
        case Producer::dot:
            return facts.is_dot;
        case Producer::transcendental:
            return facts.effects.unit == Unit::transcendental;
        case Producer::part_write:
            return facts.is_valu && writes_part(instruction, facts);
        case Producer::salu:
            return facts.effects.unit == Unit::salu;
        case Producer::wide_store:
            return is_wide_store(instruction, facts);
        case Producer::setreg:
            return instruction.opcode == Opcode::s_setreg_b32 ||
                   instruction.opcode == Opcode::s_setreg_imm32_b32;
        case Producer::matrix_xdl:
            return facts.is_xdl();
        case Producer::matrix_xdl_two_pass:
            return facts.is_xdl() && facts.effects.matrix_passes == 2;
        case Producer::matrix_xdl_longer:
            return facts.is_xdl() && facts.effects.matrix_passes > 2;
        case Producer::matrix_f64:
            return facts.is_f64;
        case Producer::matrix_f32:
            return facts.is_f32_matrix();
        case Producer::matrix_f64_4x4:
            return facts.is_f64_4x4();
        case Producer::matrix_f64_16x16:
            return facts.is_f64 && facts.name.find("_16x16x") != std::string_view::npos;
        case Producer::matrix_two_pass:
            return facts.is_matrix && !facts.is_f64 && facts.effects.matrix_passes == 2;
    }
    return false;
}

bool is(Consumer consumer, const Instruction& instruction, const Facts& facts) {
    switch (consumer) {
        case Consumer::valu:
            return facts.is_valu;
        case Consumer::plain_valu:
            return facts.effects.unit == Unit::valu;
        case Consumer::dpp:
            return instruction.has_dpp;
        case Consumer::lane_access:
            return is_lane_access(instruction.opcode);
        case Consumer::read_lane:
            return is_lane_access(instruction.opcode) && instruction.opcode != Opcode::v_writelane_b32;
        case Consumer::div_fmas:
            return facts.name.starts_with("v_div_fmas");
        case Consumer::permlane_swap:
            return facts.name.starts_with("v_permlane");
        case Consumer::memory:
            return facts.is_memory;
        case Consumer::vector_memory:
            return facts.effects.unit == Unit::vector_memory || facts.effects.unit == Unit::flat;
        case Consumer::valu_or_memory:
            return facts.is_valu || facts.is_memory;
        case Consumer::valu_or_matrix:
            return facts.is_valu || facts.is_matrix;
        case Consumer::reads_m0:
            return instruction.opcode == Opcode::s_sendmsg || facts.name.starts_with("s_movrel") ||
                   facts.name.ends_with("_addtid_b32");
        case Consumer::direct_to_lds:
            return instruction.lds || facts.name.find("load_lds") != std::string_view::npos;
        case Consumer::getreg:
            return instruction.opcode == Opcode::s_getreg_b32;
        case Consumer::setreg_again:
            return is(Producer::setreg, instruction, facts);
        case Consumer::matrix:
            return facts.is_matrix;
        case Consumer::matrix_xdl:
            return facts.is_xdl();
        case Consumer::matrix_f64_4x4:
            return facts.is_f64_4x4();
        case Consumer::fma_f64:
            return facts.name.starts_with("v_fma_f64") || facts.name.starts_with("v_fmac_f64");
        case Consumer::matrix_not_xdl:
            return facts.is_matrix && !facts.is_xdl();
    }
    return false;
}

// The hardware register of s_getreg and s_setreg: its id is in the low six bits of the immediate.
int hardware_register(const Instruction& instruction) {
    for (const isa::Operand& operand : instruction) {
        if (operand.type == isa::OperandType::immediate) return operand.immediate & 63;
    }
    return -1;
}

class Search {
  public:
    Search(const Program& program, const Plan& plan) : program_(program), plan_(plan) {
        const size_t count = program.instructions.size();
        producers_.resize(count);
        consumers_.resize(count);
        jumps_.resize(count);
        sets_.resize(count);
        std::vector<int64_t> index_at(program.text.size() / 4 + 1, -1);
        for (size_t i = 0; i < count; ++i)
            index_at[program.instructions[i].address / 4] = static_cast<int64_t>(i);
        for (size_t i = 0; i < count; ++i) {
            const Instruction& instruction = program.instructions[i];
            if (!instruction.row) continue;
            classify(i, Facts(instruction));
            note_jump(i, index_at);
        }
    }

    std::vector<Hazard> run() {
        for (uint32_t index = 0; index < program_.instructions.size(); ++index) {
            if (consumers_[index]) look_back(index, index, 0, sets_[index].c);
        }
        return std::move(found_);
    }

  private:
    // Operands of matrix instructions and dot products: D, A, B, C, and then the scales or the index.
    struct Sets {
        RegisterSet vectors_read, ab, c, data;
        uint16_t c_code = isa::code::none;
        uint8_t passes = 0;
    };

    void classify(size_t index, const Facts& facts) {
        const Instruction& instruction = program_.instructions[index];
        for (size_t row = 0; row < std::size(table); ++row) {
            producers_[index] |= uint64_t{is(table[row].producer, instruction, facts)} << row;
            consumers_[index] |= uint64_t{is(table[row].consumer, instruction, facts)} << row;
        }
        Sets& sets = sets_[index];
        sets.passes = facts.effects.matrix_passes;
        const auto number = [&](const isa::Operand& operand) {
            const uint32_t vector = operand.is_agpr()
                                        ? operand.code - isa::code::first_agpr + plan_.accum_offset
                                        : operand.code - isa::code::first_vgpr;
            return first_vector + vector;
        };
        for (int i = 0; i < instruction.operand_count; ++i) {
            const isa::Operand& operand = instruction.operands[i];
            if (!operand.is_read || !(operand.is_vgpr() || operand.is_agpr())) continue;
            sets.vectors_read.add(number(operand), operand.dwords ? operand.dwords : 1);
            if (!facts.is_matrix && !facts.is_dot) continue;
            // An SMFMAC accumulates into its destination, and so do the dot products with two operands.
            const bool is_c = i == 3 && !facts.name.starts_with("v_smfmac");
            if (is_c || i == 0) {
                sets.c.add(number(operand), operand.dwords);
                sets.c_code = operand.code;
            } else {
                sets.ab.add(number(operand), operand.dwords ? operand.dwords : 1);
            }
        }
        if (is_wide_store(instruction, facts)) {
            const bool is_buffer =
                instruction.encoding == Encoding::mubuf || instruction.encoding == Encoding::mtbuf;
            const isa::Operand& data = instruction.operands[is_buffer ? 0 : 1];
            sets.data.add(number(data), data.dwords);
        }
    }

    void note_jump(size_t index, const std::vector<int64_t>& index_at) {
        const Instruction& instruction = program_.instructions[index];
        const std::string_view name = instruction.row->mnemonic;
        if (!name.starts_with("s_branch") && !name.starts_with("s_cbranch")) return;
        for (const isa::Operand& operand : instruction) {
            if (operand.type != isa::OperandType::immediate) continue;
            const int64_t target = (static_cast<int64_t>(instruction.address) + 4) / 4 + operand.immediate;
            if (target < 0 || target >= static_cast<int64_t>(index_at.size()) || index_at[target] < 0)
                continue;
            jumps_[static_cast<size_t>(index_at[target])].push_back(static_cast<uint32_t>(index));
        }
    }

    bool falls_through(uint32_t index) const {
        const Instruction& instruction = program_.instructions[index];
        if (!instruction.row) return false;
        switch (instruction.opcode) {
            case Opcode::s_branch:
            case Opcode::s_endpgm:
            case Opcode::s_setpc_b64:
            case Opcode::s_swappc_b64:
                return false;
            default:
                return true;
        }
    }

    // `c`: the registers of the consumer's C that no matrix instruction in between writes. The others come
    // from that instruction: matrix instructions write in order.
    void look_back(uint32_t consumer, uint32_t from, uint32_t states, const RegisterSet& c) {
        if (from > 0 && falls_through(from - 1)) visit(consumer, from - 1, states, c);
        for (const uint32_t jump : jumps_[from]) visit(consumer, jump, states, c);
    }

    void visit(uint32_t consumer, uint32_t at, uint32_t states, const RegisterSet& c) {
        for (uint64_t rows = producers_[at] & consumers_[consumer]; rows; rows &= rows - 1)
            judge(table[__builtin_ctzll(rows)], at, consumer, states, c);
        const Instruction& instruction = program_.instructions[at];
        states += instruction.opcode == Opcode::s_nop
                      ? static_cast<uint32_t>(instruction.operands[0].immediate & 15) + 1
                      : 1;
        if (states >= longest) return;
        if (sets_[at].passes)
            look_back(consumer, at, states, without(c, plan_.effects[at].writes));
        else
            look_back(consumer, at, states, c);
    }

    void judge(const Row& row, uint32_t producer, uint32_t consumer, uint32_t have, const RegisterSet& c) {
        int need = row.states + (row.passes ? sets_[producer].passes : 0);
        const bool is_gfx950 = program_.target == isa::Target::gfx950;
        if (is_gfx950 && !(row.passes && sets_[producer].passes == 2)) need += row.more_on_gfx950;
        if (static_cast<int>(have) >= need) return;
        const uint32_t number = shared_register(row.through, producer, consumer, c);
        if (number == nothing) return;
        for (Hazard& known : found_) {
            if (known.kind == row.kind && known.producer == producer && known.consumer == consumer) {
                known.have = std::min(known.have, have);
                return;
            }
        }
        found_.push_back({row.kind, row.what, producer, consumer, static_cast<uint32_t>(need), have, number});
    }

    static constexpr uint32_t nothing = UINT32_MAX;

    // The lowest register in both sets with `from` <= number < `end`.
    static uint32_t common(const RegisterSet& a, const RegisterSet& b, uint32_t from = 0,
                           uint32_t end = register_count) {
        uint32_t best = nothing;
        for (uint32_t i = 0; i < a.count; ++i) {
            for (uint32_t j = 0; j < b.count; ++j) {
                if (a.words[i].word != b.words[j].word) continue;
                for (uint64_t left = a.words[i].bits & b.words[j].bits; left; left &= left - 1) {
                    const uint32_t number =
                        a.words[i].word * 64 + static_cast<uint32_t>(__builtin_ctzll(left));
                    if (number >= from && number < end) best = std::min(best, number);
                }
            }
        }
        return best;
    }

    static RegisterSet without(RegisterSet all, const RegisterSet& taken) {
        for (uint32_t i = 0; i < all.count; ++i)
            for (uint32_t j = 0; j < taken.count; ++j)
                if (all.words[i].word == taken.words[j].word) all.words[i].bits &= ~taken.words[j].bits;
        return all;
    }

    // The register through which the consumer depends on the producer, or `nothing` if it does not.
    uint32_t shared_register(Through through, uint32_t producer, uint32_t consumer,
                             const RegisterSet& c) const {
        const Effects &made = plan_.effects[producer], &used = plan_.effects[consumer];
        const Sets &from = sets_[producer], &to = sets_[consumer];
        const Instruction& instruction = program_.instructions[consumer];
        switch (through) {
            case Through::reads_vector:
                return common(made.writes, to.vectors_read);
            case Through::uses_vector: {
                const uint32_t read = common(made.writes, to.vectors_read);
                return read != nothing ? read : common(made.writes, used.writes, first_vector);
            }
            case Through::reads_dot:
                return common(made.writes, is_same_opcode(producer, consumer) ? to.ab : to.vectors_read);
            case Through::overwrites_dot:
                return is_same_opcode(producer, consumer) ? nothing
                                                          : common(made.writes, used.writes, first_vector);
            case Through::reads_scalar:
                return common(made.writes, used.reads, 0, isa::code::m0);
            case Through::lane_select: {
                const isa::Operand& lane = instruction.operands[instruction.operand_count > 2 ? 2 : 1];
                if (instruction.opcode == Opcode::v_readfirstlane_b32 || lane.code >= 128) return nothing;
                return made.writes.has(lane.code) ? lane.code : nothing;
            }
            case Through::vcc:
                return made.writes.has(isa::code::vcc_lo) || made.writes.has(isa::code::vcc_hi)
                           ? isa::code::vcc_lo
                           : nothing;
            case Through::exec:
                return made.writes_exec ? isa::code::exec_lo : nothing;
            case Through::m0:
                return made.writes.has(isa::code::m0) ? isa::code::m0 : nothing;
            case Through::hardware_register:
                return hardware_register(program_.instructions[producer]) == hardware_register(instruction)
                           ? register_count
                           : nothing;
            case Through::overwrites:
                return common(made.writes, used.writes, first_vector);
            case Through::overwrites_data:
                return common(from.data, used.writes);
            case Through::overwrites_c:
                return common(from.c, used.writes);
            case Through::reads_ab:
                return common(made.writes, to.ab);
            case Through::overlaps_c:
                return is_same_c(producer, consumer) ? nothing : common(made.writes, c);
            case Through::same_c:
                return is_same_c(producer, consumer) ? common(made.writes, c) : nothing;
            case Through::always:
                return register_count;
        }
        return nothing;
    }

    bool is_same_opcode(uint32_t producer, uint32_t consumer) const {
        return program_.instructions[producer].opcode == program_.instructions[consumer].opcode;
    }

    bool is_same_c(uint32_t producer, uint32_t consumer) const {
        const isa::Operand& d = program_.instructions[producer].operands[0];
        const isa::Operand& own = program_.instructions[consumer].operands[0];
        return sets_[consumer].c_code == d.code && own.dwords == d.dwords;
    }

    const Program& program_;
    const Plan& plan_;
    std::vector<uint64_t> producers_, consumers_;  // bit i: row i of the table
    std::vector<std::vector<uint32_t>> jumps_;     // branches that target an instruction
    std::vector<Sets> sets_;
    std::vector<Hazard> found_;
};
static_assert(std::size(table) <= 64);

}  // namespace

std::vector<Hazard> find_hazards(const Program& program, const Plan& plan) {
    return Search(program, plan).run();
}

}  // namespace hipkittens::simulator::checks
