// simulator/timing/static_cost.cpp: the cost of an instruction, as far as it is known before the instruction runs.
// SPDX-License-Identifier: MIT
#include "simulator/timing/static_cost.h"

#include <cstdio>
#include <cstring>
#include <string_view>

#include "isa/effects.h"
#include "isa/table.h"
#include "simulator/memory/lds_banks.h"
#include "simulator/timing/value_slice.h"

namespace hipkittens::simulator::timing {

using isa::Instruction;
using isa::Opcode;
using isa::Unit;
using memory::LdsAccess;

namespace {

// The wait states of checks/hazards.def: a result is available one slot after them.
struct WaitStates {
    const char* kind;
    int states, passes, more_on_gfx950;
};
constexpr WaitStates wait_states[] = {
#define HAZARD(kind, producer, consumer, through, states, passes, more, text) {#kind, states, passes, more},
#include "simulator/checks/hazards.def"
#undef HAZARD
};

int states_until(std::string_view kind, const Instruction& producer, int passes) {
    for (const WaitStates& row : wait_states) {
        if (kind != row.kind) continue;
        const bool more = producer.target == isa::Target::gfx950 && passes != 2;
        return row.states + row.passes * passes + (more ? row.more_on_gfx950 : 0);
    }
    return 0;
}

std::string_view name_of(const Instruction& instruction) { return instruction.row->mnemonic; }
bool has(const Instruction& instruction, std::string_view part) {
    return name_of(instruction).find(part) != std::string_view::npos;
}

uint32_t dwords_of(const isa::Operand& operand) { return operand.dwords ? operand.dwords : 1; }

VectorRange range_of(const isa::Operand& operand) {
    if (!operand.is_vgpr() && !operand.is_agpr()) return {};
    return {static_cast<uint16_t>(operand.code - isa::code::first_vgpr),
            static_cast<uint16_t>(dwords_of(operand))};
}

int immediate_of(const Instruction& instruction) {
    for (const isa::Operand& operand : instruction) {
        if (operand.type == isa::OperandType::immediate) return operand.immediate;
    }
    return 0;
}

// M x N x K and the number of blocks are in the name: v_mfma_f32_32x32x4_2b_bf16.
double flops_of(const Instruction& instruction) {
    const char* name = instruction.row->mnemonic;
    const char* shape = std::strchr(name, 'x');
    if (!shape) return 0;
    while (shape > name && shape[-1] != '_') --shape;
    int m = 0, n = 0, k = 0, blocks = 1;
    if (std::sscanf(shape, "%dx%dx%d_%db", &m, &n, &k, &blocks) < 3) return 0;
    return 2.0 * m * n * k * blocks;
}

MatrixType matrix_type_of(const Instruction& instruction) {
    if (has(instruction, "f8f6f4"))
        return instruction.cbsz < 2 || instruction.blgp < 2 ? MatrixType::f8 : MatrixType::f4;
    if (has(instruction, "fp8") || has(instruction, "bf8")) return MatrixType::f8;
    if (has(instruction, "_bf16")) return MatrixType::bf16;
    if (has(instruction, "_f16")) return MatrixType::f16;
    return MatrixType::other;
}

void matrix_cost(const Instruction& instruction, int passes, const Parameters& parameters, Cost& cost) {
    const bool f64 = name_of(instruction).ends_with("_f64"),
               f32 = name_of(instruction).ends_with("_f32") && !has(instruction, "xf32");
    const char* family = f64 ? (has(instruction, "4x4x4") ? "f64_4" : "f64_16") : f32 ? "f32" : "xdl";
    const auto after = [&](const char* kind) {
        const int states = states_until(std::string(family) + kind, instruction, passes);
        return static_cast<uint16_t>(parameters.matrix_pass * (states + 1));
    };
    cost.kind = Kind::matrix;
    cost.matrix_type = matrix_type_of(instruction);
    cost.flops = flops_of(instruction);
    cost.busy = static_cast<uint16_t>(parameters.matrix_pass * passes);
    cost.blocks_vector = (f32 || f64) && parameters.matrix_f32_blocks_vector != 0;
    cost.same_c = static_cast<uint16_t>(cost.busy + (passes == 2 ? 2 * parameters.matrix_pass : 0));
    cost.overlapping_c = std::max(cost.same_c, after("_matrix_c"));
    cost.read = std::max(cost.same_c, after(f64 ? "_read_valu" : "_read"));
    cost.result = range_of(instruction.operands[0]);
    for (int i = 1; i < instruction.operand_count; ++i) {
        if (i == 3 || (i == 0 && instruction.operands[0].is_read)) cost.c = range_of(instruction.operands[i]);
    }
    if (instruction.operands[0].is_read) cost.c = cost.result;  // smfmac accumulates in place
}

LdsAccess access_of(bool store, uint32_t dwords) {
    const int index = std::min<int>(static_cast<int>(dwords), 4) - 1;
    return static_cast<LdsAccess>(index + (store ? 4 : 0));
}

void lds_cost(const Instruction& instruction, const Parameters& parameters, Cost& cost) {
    cost.kind = Kind::lds;
    if (instruction.opcode == Opcode::ds_nop) return;
    uint32_t result = 0, data = 0;
    bool address_seen = false;
    for (const isa::Operand& operand : instruction) {
        if (operand.is_implicit || (!operand.is_vgpr() && !operand.is_agpr())) continue;
        if (operand.is_written) {
            result += dwords_of(operand);
        } else if (!address_seen) {
            address_seen = true;
        } else {
            data += dwords_of(operand);
        }
    }
    const bool pair = has(instruction, "2_b") || has(instruction, "2st64_b");
    const uint32_t accesses = pair ? 2 : 1;
    uint32_t banks = 0;
    if (result)
        banks += accesses * memory::lds_phases(instruction.target, access_of(false, result / accesses)).count;
    if (data)
        banks += accesses * memory::lds_phases(instruction.target, access_of(true, data / accesses)).count;
    cost.lds_banks = static_cast<uint16_t>(banks);
    cost.lds_in = static_cast<uint16_t>(256 * (accesses + data) / parameters.lds_port_in);
    cost.lds_out = static_cast<uint16_t>(256 * result / parameters.lds_port_out);
}

void internal_cost(const Instruction& instruction, const Parameters& parameters, Cost& cost) {
    const int immediate = immediate_of(instruction);
    switch (instruction.opcode) {
        case Opcode::s_waitcnt: {
            const isa::WaitCounts counts = isa::decode_wait_counts(static_cast<uint16_t>(immediate));
            cost.kind = Kind::wait;
            cost.wait_vm = counts.vmcnt;
            cost.wait_lgkm = counts.lgkmcnt;
            break;
        }
        case Opcode::s_barrier:
            cost.kind = Kind::barrier;
            break;
        case Opcode::s_setprio:
            cost.kind = Kind::priority;
            cost.priority = static_cast<uint8_t>(immediate & 3);
            break;
        case Opcode::s_sleep:
            cost.kind = Kind::sleep;
            cost.issue = static_cast<uint16_t>(cost.issue + parameters.sleep_unit * (immediate & 0x7f));
            break;
        case Opcode::s_nop:
            cost.issue = static_cast<uint16_t>(cost.issue * ((immediate & 0xf) + 1));
            break;
        case Opcode::s_endpgm:
            cost.kind = Kind::end;
            break;
        default:
            break;
    }
}

Kind memory_kind(const Instruction& instruction) {
    if (!accesses_vector_memory(instruction)) return Kind::cache_control;
    if (has(instruction, "atomic")) return Kind::vector_atomic;
    if (has(instruction, "store")) return Kind::vector_store;
    return instruction.lds || has(instruction, "load_lds") ? Kind::vector_load_to_lds : Kind::vector_load;
}

Cost cost_of(const Instruction& instruction, const Parameters& parameters) {
    Cost cost;
    cost.issue = cost.busy = static_cast<uint16_t>(parameters.issue);
    cost.address = instruction.address;
    cost.bytes = instruction.bytes;
    if (!instruction.row) return cost;
    const isa::Effects effects = isa::effects(instruction);
    cost.unit = effects.unit;
    for (const isa::Operand& operand : instruction) {
        const VectorRange range = range_of(operand);
        if (range.count && cost.range_count < 6) cost.ranges[cost.range_count++] = range;
    }
    switch (effects.unit) {
        case Unit::valu:
            cost.category = Category::vector;
            cost.kind = Kind::vector;
            cost.busy = static_cast<uint16_t>(parameters.vector_operation);
            break;
        case Unit::transcendental:
            cost.category = Category::vector;
            cost.kind = Kind::vector;
            cost.busy = static_cast<uint16_t>(has(instruction, "f64") ? parameters.transcendental_f64
                                                                      : parameters.transcendental_f32);
            break;
        case Unit::matrix:
            cost.category = Category::vector;
            matrix_cost(instruction, effects.matrix_passes, parameters, cost);
            break;
        case Unit::salu:
        case Unit::message:
            cost.category = Category::scalar;
            cost.kind = Kind::scalar;
            cost.lgkm = effects.unit == Unit::message ? 1 : 0;
            break;
        case Unit::smem:
            cost.category = Category::scalar;
            cost.kind = Kind::scalar_memory;
            cost.has_address = is_scalar_access(instruction);
            // Counts twice for more than one dword (rocjitsu's audit of the hardware's counters).
            cost.lgkm = instruction.operand_count && dwords_of(instruction.operands[0]) > 1 ? 2 : 1;
            break;
        case Unit::lds:
            cost.category = Category::lds;
            cost.lgkm = effects.raises_lgkmcnt ? 1 : 0;
            lds_cost(instruction, parameters, cost);
            break;
        case Unit::vector_memory:
        case Unit::flat:
            cost.category = Category::vector_memory;
            cost.kind = memory_kind(instruction);
            cost.lgkm = effects.raises_lgkmcnt ? 1 : 0;
            cost.bypasses_cache = instruction.sc1;
            break;
        case Unit::branch:
            cost.category = Category::branch;
            cost.kind = Kind::branch;
            break;
        case Unit::internal:
            internal_cost(instruction, parameters, cost);
            break;
    }
    return cost;
}

}  // namespace

MatrixType matrix_type_of(const std::vector<Cost>& costs) {
    int count[6] = {};
    for (const Cost& cost : costs) ++count[static_cast<int>(cost.matrix_type)];
    int best = 0;
    for (int i = 1; i < 6; ++i) {
        if (count[i] && (best == 0 || count[i] > count[best])) best = i;
    }
    return static_cast<MatrixType>(best);
}

std::vector<Cost> static_costs(const Program& program, const Parameters& parameters) {
    std::vector<Cost> costs;
    costs.reserve(program.instructions.size());
    for (const Instruction& instruction : program.instructions)
        costs.push_back(cost_of(instruction, parameters));
    for (const Block& run : program.skip_runs) costs[run.first].skip_run = run.count;
    return costs;
}

}  // namespace hipkittens::simulator::timing
