// simulator/machine/control.cpp: branches, waits, barriers and the end of a wave.
// SPDX-License-Identifier: MIT
#include "simulator/machine/control.h"

#include "isa/effects.h"
#include "simulator/machine/program.h"
#include "simulator/machine/recording.h"
#include "simulator/machine/stop_request.h"
#include "simulator/machine/workgroup.h"
#include "simulator/memory/pending.h"

namespace hipkittens::simulator {

using isa::Opcode;

const Step* fault(Wave* wave, const Step* step, const char* reason, uint64_t address, uint32_t lane) {
    wave->status = WaveStatus::faulted;
    wave->fault_step = step;
    wave->fault_reason = reason;
    wave->fault_address = address;
    wave->fault_lane = lane;
    return nullptr;
}

const Step* count_block(Wave* wave, const Step* step) {
    ++wave->workgroup->block_counts[step->immediate];
    return step + 1;
}

const Step* fault_unknown_bytes(Wave* wave, const Step* step) {
    return fault(wave, step,
                 "these bytes are no instruction of this target that the simulator has a row for");
}

const Step* fault_no_meaning(Wave* wave, const Step* step) {
    return fault(wave, step, "the simulator has no meaning for this instruction");
}
const Step* fault_missing_register(Wave* wave, const Step* step) {
    return fault(
        wave, step,
        "the instruction names a vector register beyond those that the kernel's descriptor allocates");
}

namespace {

const Step* stop(Wave* wave, const Step* next, WaveStatus status) {
    wave->next = next;
    wave->status = status;
    return nullptr;
}

// Only backward branches can keep a wave busy forever, so only they count against the budget.
bool has_to_yield(Wave* wave) {
    constexpr int64_t branches_between_looks = 1024;
    if (--wave->budget < 0) return true;
    return wave->budget % branches_between_looks == 0 && wave->workgroup->dispatch->stop->is_interrupted();
}

const Step* jump(Wave* wave, const Step* step) {
    const Step* target = step + step->immediate;
    if (step->immediate <= 0 && has_to_yield(wave)) return stop(wave, target, WaveStatus::yielded);
    return target;
}

template <class Condition>
inline const Step* branch_if(Wave* wave, const Step* step, Condition condition) {
    return condition(wave) ? jump(wave, step) : step + 1;
}

uint64_t vcc(const Wave* wave) { return read_scalar64(wave, layout::vcc); }

Handler branch_handler(Opcode opcode) {
    switch (opcode) {
        case Opcode::s_branch:
            return jump;
        case Opcode::s_cbranch_scc0:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return wave->scc == 0; });
            };
        case Opcode::s_cbranch_scc1:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return wave->scc != 0; });
            };
        case Opcode::s_cbranch_vccz:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return vcc(wave) == 0; });
            };
        case Opcode::s_cbranch_vccnz:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return vcc(wave) != 0; });
            };
        case Opcode::s_cbranch_execz:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return wave->exec == 0; });
            };
        case Opcode::s_cbranch_execnz:
            return [](Wave* w, const Step* s) {
                return branch_if(w, s, [](const Wave* wave) { return wave->exec != 0; });
            };
        default:
            return nullptr;
    }
}

const Step* end_program(Wave* wave, const Step*) {
    complete_all(wave);
    return stop(wave, nullptr, WaveStatus::ended);
}

const Step* barrier(Wave* wave, const Step* step) {
    if (__builtin_expect(wave->workgroup->dispatch->recording != nullptr, 0)) record_barrier(wave, step);
    wave->barriers += wave->workgroup->shares_l1;
    return stop(wave, step + 1, WaveStatus::at_barrier);
}

const Step* wait_count(Wave* wave, const Step* step) {
    if (__builtin_expect(wave->workgroup->dispatch->recording != nullptr, 0)) record_wait(wave, step);
    if (step->extra[0] < 63) complete_vector_memory(wave, step->extra[0]);
    if (step->extra[1] < 15) complete_lgkm(wave, step->extra[1]);
    return step + 1;
}

const Program& program_of(const Wave* wave) { return *wave->workgroup->dispatch->program; }

// s_getpc, s_setpc, s_swappc and s_call operate on guest addresses.
uint64_t address_after(Wave* wave, const Step* step) {
    const Program& program = program_of(wave);
    return program.address_of(step) + program.instructions[step->instruction].bytes;
}

const Step* go_to(Wave* wave, const Step* step, uint64_t address) {
    const Step* target = program_of(wave).step_for_address(address);
    if (!target)
        return fault(wave, step, "jump to an address that holds no instruction of this code object", address);
    if (target <= step && has_to_yield(wave)) return stop(wave, target, WaveStatus::yielded);
    return target;
}

const Step* get_pc(Wave* wave, const Step* step) {
    write_scalar64(wave, step->destination, address_after(wave, step));
    return step + 1;
}
const Step* set_pc(Wave* wave, const Step* step) {
    return go_to(wave, step, read_scalar64(wave, step->source[0]));
}
const Step* swap_pc(Wave* wave, const Step* step) {
    const uint64_t target = read_scalar64(wave, step->source[0]);
    write_scalar64(wave, step->destination, address_after(wave, step));
    return go_to(wave, step, target);
}
const Step* call(Wave* wave, const Step* step) {
    const uint64_t after = address_after(wave, step);
    write_scalar64(wave, step->destination, after);
    return go_to(wave, step, after + 4 * static_cast<int64_t>(step->immediate));
}

const Step* do_nothing(Wave*, const Step* step) { return step + 1; }
const Step* trap(Wave* wave, const Step* step) {
    return fault(wave, step, "the kernel executed s_trap (an assertion or __builtin_trap)");
}

const isa::Operand* immediate_of(const isa::Instruction& instruction) {
    for (const isa::Operand& operand : instruction) {
        if (operand.type == isa::OperandType::immediate) return &operand;
    }
    return nullptr;
}

}  // namespace

Control bind_control(const isa::Instruction& instruction, StepBuilder& builder) {
    const isa::Operand* immediate = immediate_of(instruction);
    if (Handler handler = branch_handler(instruction.opcode)) {
        Step& step = builder.emit(handler);
        step.immediate = static_cast<int32_t>(instruction.address) + 4 + 4 * immediate->immediate;
        return Control::branch;
    }
    switch (instruction.opcode) {
        case Opcode::s_endpgm:
            builder.emit(end_program);
            return Control::ends;
        case Opcode::s_barrier:
            builder.emit(barrier);
            return Control::falls_through;
        case Opcode::s_waitcnt: {
            const isa::WaitCounts counts =
                isa::decode_wait_counts(static_cast<uint16_t>(immediate->immediate));
            Step& step = builder.emit(wait_count);
            step.extra[0] = counts.vmcnt;
            step.extra[1] = counts.lgkmcnt;
            return Control::falls_through;
        }
        case Opcode::s_getpc_b64:
            builder.emit(get_pc).destination = builder.offset_of(instruction.operands[0].code);
            break;
        case Opcode::s_setpc_b64:
            builder.emit(set_pc).source[0] = builder.offset_of(instruction.operands[0].code);
            return Control::ends;
        case Opcode::s_swappc_b64: {
            const uint32_t target = builder.source(instruction, instruction.operands[1]).offset;
            Step& step = builder.emit(swap_pc);
            step.destination = builder.offset_of(instruction.operands[0].code);
            step.source[0] = target;
            return Control::ends;
        }
        case Opcode::s_call_b64: {
            Step& step = builder.emit(call);
            step.destination = builder.offset_of(instruction.operands[0].code);
            step.immediate = immediate->immediate;
            return Control::ends;
        }
        case Opcode::s_trap:
            builder.emit(trap);
            break;
        // Messages request interrupts or debugging from the host; none affects what a compute kernel
        // computes.
        case Opcode::s_sendmsg:
            builder.emit(do_nothing);
            break;
        default:
            return Control::none;
    }
    return Control::falls_through;
}

}  // namespace hipkittens::simulator
