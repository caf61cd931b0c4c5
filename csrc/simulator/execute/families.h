// simulator/execute/families.h: the families of instructions, each with the binder that gives its instructions meaning.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

// Adds the steps of one instruction. False: the instruction is not in this family (or not with these
// modifiers).
using Binder = bool (*)(const isa::Instruction&, StepBuilder&);

struct Families {
    Binder scalar;  // SOP1 SOP2 SOPK SOPC SOPP, except those the machine handles itself (machine/control.cpp)
    Binder scalar_memory;  // SMEM
    Binder vector;         // VOP1 VOP2 VOPC VOP3 VOP3P, accvgpr moves, readlane and the like
    Binder matrix;         // MAI (StepBuilder::settings().arithmetic selects how products are summed)
    Binder lds;            // DS
    Binder vector_memory;  // MUBUF MTBUF FLAT GLOBAL SCRATCH
};

// Each level's namespace defines these; execute/families.cpp, compiled once per level, collects them.
#define HIPKITTENS_DECLARE_LEVEL(level)                             \
    namespace level {                                               \
    bool bind_scalar(const isa::Instruction&, StepBuilder&);        \
    bool bind_scalar_memory(const isa::Instruction&, StepBuilder&); \
    bool bind_vector(const isa::Instruction&, StepBuilder&);        \
    bool bind_matrix(const isa::Instruction&, StepBuilder&);        \
    bool bind_lds(const isa::Instruction&, StepBuilder&);           \
    bool bind_vector_memory(const isa::Instruction&, StepBuilder&); \
    const Families& families();                                     \
    }
HIPKITTENS_DECLARE_LEVEL(portable)
HIPKITTENS_DECLARE_LEVEL(avx2)
HIPKITTENS_DECLARE_LEVEL(avx512)
HIPKITTENS_DECLARE_LEVEL(avx512_bf16)
#undef HIPKITTENS_DECLARE_LEVEL

const Families& families(HostLevel level);
HostLevel best_host_level();  // detected by CPUID

}  // namespace hipkittens::simulator
