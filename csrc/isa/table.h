// isa/table.h: the rows of table/*.def as data, and the meaning of their columns.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "isa/instruction.h"

namespace hipkittens::isa {

// clang-format off
// ROW(mnemonic, encoding, number, targets, "operands", modifiers)
//
// encoding    the shortest encoding of the mnemonic; number is its opcode there. A vop1, vop2 or vopc row also
//             exists as vop3 (vop3_sdst, if it writes a mask in addition to a VGPR), number + 0x140, 0x100 or 0.
// targets     both, gfx942 or gfx950
// operands    "destinations = sources | implicit registers", in assembly order
//     f32, i16, b64, ...     register or constant of that OperandType; `:4` after it: dwords covered
//     mask                   64-bit lane mask in an SGPR pair; vcc in the vop2 and vopc encodings
//     vgpr, agpr, sgpr       b32, always in a vector / accumulation / scalar register
//     vgpr_pk_f32            pk_f32, always in a vector register
//     reg32, reg64           a scalar register, never a constant
//     literal, literal16     a literal that is always present
//     imm, uimm, label, waitcnt, hwreg, sendmsg, gpr_idx, probe
//                            the immediate field, and how LLVM prints it
//     addr                   LDS byte address, one VGPR
//     vaddr, saddr, sbase, srsrc, soffset      see below
//     + after an operand     a destination that is also read, a source that is also written
//     ?                      a destination that is present only when sc0 is set
//     !                      read, and also written when sc0 (smem: glc) is set
//     after the bar          a register that is read; with `=` before it, written
// modifiers   what LLVM accepts around and after the operands, see Modifier
//
// Operands of memory instructions, by position. `off` is present as code::none.
//     smem               sdata, sbase or srsrc, soffset (none: only the immediate, Instruction::offset)
//     ds                 read: vdst, addr · write: addr, data0[, data1] · rtn: vdst, addr, data0[, data1]
//     flat               load: vdst, vaddr · store: vaddr, vdata · atomic: [vdst,] vaddr, vdata
//     global, scratch    like flat, then saddr (none: `off`); scratch: vaddr may be none too
//     mubuf, mtbuf       vdata, vaddr, srsrc, soffset; vaddr: none without offen and idxen, two VGPRs with both
//     direct to LDS      like the load without its vdst or vdata; M0 is implicit
// An atomic's vdst is present only if sc0 is set. A buffer atomic has one vdata: read, and written if sc0 is set
// (by cmpswap: its first half).
enum Modifier : uint32_t {
    dpp = 1 << 0,
    dpp_broadcast = 1 << 1,   // DPP with row_newbcast only (64-bit operands)
    sdwa = 1 << 2,
    sdwa_source = 1 << 3,     // SDWA that selects in the source, not in the destination
    no_vop3 = 1 << 4,         // a vop1, vop2 or vopc row that does not exist as vop3
    clamp = 1 << 5,
    omod = 1 << 6,
    op_sel = 1 << 7,          // vop3: halves of sources and destination; vop3p: op_sel and op_sel_hi
    op_sel_bytes = 1 << 8,    // vop3: op_sel's upper two bits select a destination byte; LLVM prints four entries
    no_signs = 1 << 9,        // vop3: no neg and abs; otherwise every floating-point source accepts them
    neg = 1 << 10,            // vop3p: neg_lo and neg_hi; mai: neg in place of blgp
    mix = 1 << 11,            // vop3p: neg and abs; op_sel_hi marks the f16 sources
    bitop3 = 1 << 12,         // truth table in the bits of omod, abs and neg
    fetch = 1 << 13,          // vop3: op_sel bits 0 and 1 are fi and bound_ctrl
    cbsz = 1 << 14,
    abid = 1 << 15,
    blgp = 1 << 16,
    broadcast = cbsz | abid | blgp,
    lds = 1 << 17,            // mubuf: has a direct-to-LDS form
    gds = 1 << 18,            // ds: only with gds set
    offset_pair = 1 << 19,    // ds: two 8-bit offsets instead of one of 16 bits
    swizzle = 1 << 20,        // ds: the offset is a lane pattern
    // Matrix: passes of four cycles (AMD matrix instruction calculator; LLVM's SISchedule.td). effects.cpp
    // handles the two exceptions that also depend on target or format.
    passes_2 = 2 << 24, passes_4 = 4 << 24, passes_8 = 8 << 24, passes_16 = 16 << 24,
};

enum class Kind : uint8_t {
    vector_or_scalar, mask, vgpr, agpr, sgpr, scalar_register, literal,
    imm, uimm, label, waitcnt, hwreg, sendmsg, gpr_idx, probe,
    addr, vaddr, saddr, sbase, srsrc, soffset,
    implicit_vcc, implicit_exec, implicit_m0,
};
// clang-format on

struct OperandForm {
    Kind kind = Kind::vector_or_scalar;
    OperandType type = OperandType::none;
    uint8_t dwords = 0;
    bool is_read = false, is_written = false;
    bool only_if_returning = false;     // `?`
    bool written_if_returning = false;  // `!`
};

struct Row {
    const char* mnemonic = nullptr;
    Opcode opcode = Opcode::invalid;
    Encoding encoding = Encoding::sopp;
    uint16_t number = 0;
    bool on_gfx942 = false, on_gfx950 = false;
    uint32_t modifiers = 0;  // of enum Modifier
    uint8_t form_count = 0;
    uint8_t destination_count = 0;
    OperandForm forms[8];

    bool is_on(Target target) const { return target == Target::gfx942 ? on_gfx942 : on_gfx950; }
    bool has(Modifier modifier) const { return modifiers & modifier; }
    int passes() const { return static_cast<int>(modifiers >> 24); }
};

// All rows, in the order of Opcode (row i has opcode i + 1).
std::span<const Row> rows();
const Row& row_of(Opcode opcode);

}  // namespace hipkittens::isa
