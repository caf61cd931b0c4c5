// isa/instruction.h: one decoded instruction, and the register names its operands use.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "isa/opcode.h"

namespace hipkittens::isa {

enum class Target : uint8_t { gfx942, gfx950 };

// clang-format off
// The encoding a particular instruction word uses. A VOP1/VOP2/VOPC row can also appear as vop3.
enum class Encoding : uint8_t {
    sop1, sop2, sopk, sopc, sopp, smem,
    vop1, vop2, vopc, vop3, vop3_sdst, vop3p, mai, mfma_scale,
    ds, mubuf, mtbuf, flat, global, scratch,
};

// The 9-bit source space of the ISA manual ("Source operand encodings"), continued by the AGPRs:
//   0..101 s0..s101 · 102.. flat_scratch/xnack_mask/vcc · 124 m0 · 126/127 exec · 128..248 inline constants
//   235..239 apertures · 251 vccz · 252 execz · 253 scc · 255 literal · 256..511 v0..v255 · 512..767 a0..a255
namespace code {
inline constexpr uint16_t flat_scratch_lo = 102, flat_scratch_hi = 103, xnack_mask_lo = 104,
                          xnack_mask_hi = 105;
inline constexpr uint16_t vcc_lo = 106, vcc_hi = 107, m0 = 124, exec_lo = 126, exec_hi = 127;
inline constexpr uint16_t first_inline_constant = 128, last_inline_constant = 248;
inline constexpr uint16_t shared_base = 235, shared_limit = 236, private_base = 237, private_limit = 238;
inline constexpr uint16_t sdwa = 249, dpp = 250, vccz = 251, execz = 252, scc = 253, literal = 255;
inline constexpr uint16_t first_vgpr = 256, first_agpr = 512, end = 768;
inline constexpr uint16_t none = 0xffff;
}  // namespace code

// How the bits of an operand are interpreted: determines inline-constant patterns and the meaning of
// neg/abs/clamp.
enum class OperandType : uint8_t {
    none,
    b16, b32, b64, b96, b128, b160, b192, b256, b512, b1024,  // untyped bits
    i16, u16, i32, u32, i64, u64,
    f16, bf16, f32, f64,
    pk_f16, pk_bf16, pk_i16, pk_u16, pk_f32, pk_b32,          // packed math: two values per operand
    lane_mask,                                                // 64-bit SGPR pair, one bit per lane (vcc, carry, v_cmp)
    immediate,                                                // value in Operand::immediate, no register
};
// clang-format on

struct Operand {
    uint16_t code = code::none;  // see namespace code
    uint8_t dwords = 0;          // registers covered
    OperandType type = OperandType::none;
    bool is_read = false;
    bool is_written = false;
    bool is_implicit = false;  // vcc of v_add_co_u32_e32, m0, exec, scc: not printed unless LLVM prints it
    int32_t immediate = 0;     // simm16, hwreg, waitcnt, ... when type is immediate

    bool is_vgpr() const { return code >= code::first_vgpr && code < code::first_agpr; }
    bool is_agpr() const { return code >= code::first_agpr && code < code::end; }
    bool is_scalar() const { return code < code::first_vgpr; }  // SGPR, special, constant or literal
    bool is_constant() const {
        return (code >= code::first_inline_constant && code <= 208) || (code >= 240 && code <= 248) ||
               code == code::literal;
    }
};

// SDWA selects, as encoded: byte_0..byte_3 = 0..3, word_0, word_1 = 4, 5, dword = 6.
struct Sdwa {
    uint8_t dst_sel = 6, dst_unused = 0;  // dst_unused: 0 pad with zero, 1 sign extend, 2 preserve
    uint8_t src_sel[2] = {6, 6};
    bool sext[2] = {false, false};
};

struct Dpp {
    uint16_t control = 0;  // dpp_ctrl, 9 bits
    uint8_t row_mask = 0xf, bank_mask = 0xf;
    bool bound_ctrl = false;  // true: an invalid source lane reads 0
};

struct Row;  // isa/table.h

struct Instruction {
    const Row* row = nullptr;
    Opcode opcode = Opcode::invalid;
    Encoding encoding = Encoding::sopp;
    Target target = Target::gfx942;
    uint32_t address = 0;  // byte offset from the start of the decoded range
    uint8_t bytes = 0;     // 4, 8, 12 or 16

    // Operands in assembly order, destinations first, at the same positions in every encoding of a mnemonic:
    // vcc of the e32 forms is where the e64 form has its SGPR pair, flagged is_implicit. An absent field
    // (`off`) is present as code::none. Registers that the text does not name (m0, exec, vcc of v_div_fmas)
    // follow, is_implicit. Positions of memory operands: isa/table.h.
    static constexpr int max_operands = 8;
    uint8_t operand_count = 0;
    Operand operands[max_operands];
    uint32_t literal = 0;  // value of code::literal

    // Bit i of neg/abs/op_sel refers to source i (0..2); op_sel bit 3 selects the destination half (VOP3).
    // For rows with the modifier `fetch` (v_permlane*_swap), bits 0 and 1 are fi and bound_ctrl.
    uint8_t neg = 0, abs = 0;  // VOP3P: neg is neg_lo
    uint8_t neg_hi = 0, op_sel = 0, op_sel_hi = 0;
    uint8_t omod = 0;  // 0 none, 1 *2, 2 *4, 3 /2
    bool clamp = false;
    bool has_dpp = false, has_sdwa = false;
    Dpp dpp;
    Sdwa sdwa;

    // Memory instructions.
    int32_t offset = 0;   // immediate byte offset, sign extended where the encoding says so
    int32_t offset1 = 0;  // DS read2/write2: second offset; `offset` is then the first; both in elements
    bool offen = false, idxen = false, lds = false, gds = false;
    bool has_offset = false;                    // SMEM: `offset` is in the encoding, even if it is 0
    bool sc0 = false, sc1 = false, nt = false;  // sc0 on an atomic: return the previous value
    uint8_t format = 0;                         // MTBUF: data format in bits 3..0, number format in bits 6..4

    uint8_t bitop3 = 0;                    // truth table of v_bitop3
    uint8_t cbsz = 0, abid = 0, blgp = 0;  // matrix instructions; v_mfma_f64 has neg in place of blgp

    const Operand* begin() const { return operands; }
    const Operand* end() const { return operands + operand_count; }
};

}  // namespace hipkittens::isa
