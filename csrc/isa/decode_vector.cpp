// isa/decode_vector.cpp: decodes VOP1, VOP2, VOPC with SDWA and DPP, VOP3, VOP3P and the matrix encodings.
// SPDX-License-Identifier: MIT
#include <cstring>

#include "isa/decoder.h"

namespace hipkittens::isa {
namespace {

bool takes_signs(OperandType type) {
    switch (type) {
        case OperandType::f16:
        case OperandType::bf16:
        case OperandType::f32:
        case OperandType::f64:
        case OperandType::pk_f16:
        case OperandType::pk_bf16:
        case OperandType::pk_f32:
            return true;
        default:
            return false;
    }
}

// Number of registers of an f8f6f4 matrix operand, by its format: fp8, bf8, fp6, bf6, fp4.
int f8f6f4_dwords(uint32_t format) {
    switch (format) {
        case 0:
        case 1:
            return 8;
        case 2:
        case 3:
            return 6;
        case 4:
            return 4;
        default:
            return 0;
    }
}

bool is_dpp_control(uint32_t control, bool broadcast_only) {
    const bool is_broadcast = control >= 0x150 && control <= 0x15f;  // row_newbcast
    if (broadcast_only) return is_broadcast;
    if (control <= 0xff || is_broadcast) return true;  // quad_perm
    const uint32_t kind = control & 0x1f0, amount = control & 0xf;
    if (kind == 0x100 || kind == 0x110 || kind == 0x120) return amount != 0;  // row_shl, row_shr, row_ror
    if (kind == 0x130) return amount % 4 == 0;  // wave_shl, wave_rol, wave_shr, wave_ror by 1
    return kind == 0x140 && amount <= 3;        // row_mirror, row_half_mirror, row_bcast15, 31
}

}  // namespace

// neg and abs (here already in out_) are legal only on sources of a floating-point type.
bool Decoder::signs_fit() const {
    int index = 0;
    for (const OperandForm& form : *this) {
        if (form.kind >= Kind::implicit_vcc || &form - begin() < row_->destination_count) continue;
        if (!takes_signs(form.type) && (((out_.neg | out_.abs) >> index) & 1)) return false;
        ++index;
    }
    return (out_.neg | out_.abs) >> index == 0;
}

bool Decoder::sdwa(bool has_second_source) {
    const uint32_t word = dword_at(4);
    const auto field = [word](int high, int low) { return word >> low & ((2u << (high - low)) - 1); };
    const bool is_compare = row_->encoding == Encoding::vopc;
    out_.has_sdwa = true;
    Sdwa& sdwa = out_.sdwa;
    if (!is_compare) {
        sdwa.dst_sel = static_cast<uint8_t>(field(10, 8));
        sdwa.dst_unused = static_cast<uint8_t>(field(12, 11));
        out_.clamp = field(13, 13);
        out_.omod = static_cast<uint8_t>(field(15, 14));
        if (sdwa.dst_sel > 6 || sdwa.dst_unused > 2) return false;
        // OMOD scales a floating-point result; SDWA does not accept it with an integer result.
        if (out_.omod && !(row_->has(isa::omod) && takes_signs(row_->forms[0].type))) return false;
        if (row_->has(sdwa_source) && (sdwa.dst_sel != 6 || sdwa.dst_unused != 0)) return false;
    }
    sdwa.src_sel[0] = static_cast<uint8_t>(field(18, 16));
    sdwa.sext[0] = field(19, 19);
    if (sdwa.src_sel[0] > 6 || field(22, 22) || field(30, 30)) return false;
    if (has_second_source) {
        sdwa.src_sel[1] = static_cast<uint8_t>(field(26, 24));
        sdwa.sext[1] = field(27, 27);
        if (sdwa.src_sel[1] > 6) return false;
    } else if (field(31, 24) != 0) {
        return false;
    }
    out_.neg = static_cast<uint8_t>(field(20, 20) | field(28, 28) << 1);
    out_.abs = static_cast<uint8_t>(field(21, 21) | field(29, 29) << 1);

    const uint32_t source_codes[2] = {field(7, 0) | (field(23, 23) ? 0 : 256u),
                                      bits(16, 9) | (field(31, 31) ? 0 : 256u)};
    int index = 0;
    for (const OperandForm& form : *this) {
        bool good = true;
        if (form.kind >= Kind::implicit_vcc) continue;
        if (form.kind == Kind::mask && form.is_written && is_compare && field(15, 15)) {
            good = sgpr(form, field(14, 8));
        } else if (form.kind == Kind::mask) {
            if (is_compare && field(14, 8) != 0) return false;
            good = vcc(form);
        } else if (&form - begin() < row_->destination_count) {
            good = vgpr(form, bits(24, 17));
            constexpr int preserve = 2, dword = 6;
            if (good && sdwa.dst_unused == preserve && sdwa.dst_sel != dword) out_.operands[0].is_read = true;
        } else {
            // Integer sources sign-extend, floating-point ones accept neg and abs.
            if (takes_signs(form.type) && sdwa.sext[index]) return false;
            if (row_->has(sdwa_source) && sdwa.sext[index]) return false;
            good = source_codes[index] != code::literal && source(form, source_codes[index]);
            // A constant has no sign to extend.
            if (good && sdwa.sext[index] && out_.operands[out_.operand_count - 1].is_constant()) return false;
            ++index;
        }
        if (!good) return false;
    }
    return signs_fit() && finish();
}

bool Decoder::dpp(bool has_second_source) {
    const uint32_t word = dword_at(4);
    const auto field = [word](int high, int low) { return word >> low & ((2u << (high - low)) - 1); };
    out_.has_dpp = true;
    out_.dpp.control = static_cast<uint16_t>(field(16, 8));
    out_.dpp.bound_ctrl = field(19, 19);
    out_.dpp.bank_mask = static_cast<uint8_t>(field(27, 24));
    out_.dpp.row_mask = static_cast<uint8_t>(field(31, 28));
    out_.neg = static_cast<uint8_t>(field(20, 20) | field(22, 22) << 1);
    out_.abs = static_cast<uint8_t>(field(21, 21) | field(23, 23) << 1);
    if (field(18, 17) || !is_dpp_control(out_.dpp.control, row_->has(dpp_broadcast))) return false;
    if (!has_second_source && field(23, 22)) return false;
    bool is_first_source = true;
    for (const OperandForm& form : *this) {
        bool good = true;
        if (form.kind >= Kind::implicit_vcc) continue;
        if (form.kind == Kind::mask) {
            good = vcc(form);
        } else if (&form - begin() < row_->destination_count) {
            good = vgpr(form, bits(24, 17));
        } else {
            good = vgpr(form, is_first_source ? field(7, 0) : bits(16, 9));
            is_first_source = false;
        }
        if (!good) return false;
    }
    if (is_first_source && (field(7, 0) != 0 || bits(24, 17) != 0)) return false;  // v_nop
    return signs_fit() && finish();
}

bool Decoder::decode_vector_short() {
    const uint32_t top = bits(31, 25);
    const Encoding encoding = top == 0x3f ? Encoding::vop1 : top == 0x3e ? Encoding::vopc : Encoding::vop2;
    const uint32_t number = encoding == Encoding::vop1   ? bits(16, 9)
                            : encoding == Encoding::vopc ? bits(24, 17)
                                                         : bits(30, 25);
    if (!find(encoding, number)) return false;
    const bool has_second_source = encoding != Encoding::vop1;
    const uint32_t first = bits(8, 0);
    if (first == code::sdwa || first == code::dpp) {
        const bool allowed = first == code::sdwa ? row_->has(isa::sdwa) || row_->has(sdwa_source)
                                                 : row_->has(isa::dpp) || row_->has(dpp_broadcast);
        if (!allowed || !set_size(8)) return false;
        return first == code::sdwa ? sdwa(has_second_source) : dpp(has_second_source);
    }
    if (!set_size(4)) return false;
    int index = 0;
    bool destination_used = encoding == Encoding::vopc;
    for (const OperandForm& form : *this) {
        bool good = true;
        if (form.kind >= Kind::implicit_vcc) continue;
        if (form.kind == Kind::mask) {
            good = vcc(form);
        } else if (form.kind == Kind::literal) {
            good = literal(form);
        } else if (&form - begin() < row_->destination_count) {
            destination_used = true;
            good = form.kind == Kind::sgpr ? sgpr(form, bits(24, 17))
                                           : vgpr(form, bits(24, 17), form.kind == Kind::agpr);
        } else {
            good = source(form, index++ == 0 ? first : bits(16, 9) + 256);
        }
        if (!good) return false;
    }
    if (!destination_used && bits(24, 17) != 0) return false;
    if (index == 0 && first != 0) return false;
    // M0 cannot be the destination of a lane read (LLVM: SReg_32_XM0).
    if (row_->forms[0].kind == Kind::sgpr && out_.operands[0].code == code::m0) return false;
    return finish();
}

bool Decoder::decode_vector_long() {
    if (bits(31, 23) != 0x1a7) {
        if (!find(Encoding::vop3, bits(25, 16)) || !set_size(8)) return false;
        bool has_mask = false, has_register = false;
        for (int i = 0; i < row_->destination_count; ++i) {
            (row_->forms[i].kind == Kind::mask ? has_mask : has_register) = true;
        }
        if (has_mask && has_register) out_.encoding = Encoding::vop3_sdst;
        return decode_vop3(has_mask && has_register);
    }
    const uint32_t number = bits(22, 16);
    // A scale prefix followed by a scaled matrix instruction is one instruction of sixteen bytes. Bits 2 of
    // op_sel and op_sel_hi belong to an operand that it does not have: LLVM writes zeros, AITER's assembler
    // any value.
    if (number == 0x2c && (bit(14) == 0 || is_scaled_matrix_next())) return decode_matrix_scale();
    if (find(Encoding::mai, number)) return set_size(8) && decode_matrix(word_);
    return find(Encoding::vop3p, number) && set_size(8) && decode_vop3p();
}

bool Decoder::decode_vop3(bool with_mask) {
    out_.neg = static_cast<uint8_t>(bits(63, 61));
    out_.omod = static_cast<uint8_t>(bits(60, 59));
    out_.clamp = bit(15);
    if (!with_mask) {
        out_.abs = static_cast<uint8_t>(bits(10, 8));
        out_.op_sel = static_cast<uint8_t>(bits(14, 11));
    }
    const uint32_t source_codes[3] = {bits(40, 32), bits(49, 41), bits(58, 50)};
    int index = 0;
    for (const OperandForm& form : *this) {
        bool good = true;
        if (form.kind >= Kind::implicit_vcc) continue;
        if (&form - begin() < row_->destination_count) {
            const bool is_scalar = form.kind == Kind::mask || form.kind == Kind::sgpr;
            good = !is_scalar ? vgpr(form, bits(7, 0)) : sgpr(form, with_mask ? bits(14, 8) : bits(7, 0));
        } else {
            good = source_codes[index] != code::literal && source(form, source_codes[index]);
            ++index;
        }
        if (!good) return false;
    }
    for (; index < 3; ++index) {
        if (source_codes[index] != 0) return false;
    }
    if (row_->forms[0].kind == Kind::sgpr && out_.operands[0].code == code::m0) return false;

    if (row_->has(isa::bitop3)) {
        out_.bitop3 = static_cast<uint8_t>(out_.omod << 6 | out_.abs << 3 | out_.neg);
        out_.neg = out_.omod = out_.abs = 0;
    }
    if (out_.clamp && !row_->has(isa::clamp)) return false;
    if (out_.omod && !row_->has(isa::omod)) return false;
    if (row_->has(isa::op_sel)) {
        int sources = 0;
        for (const OperandForm& form : *this) sources += form.kind < Kind::implicit_vcc;
        sources -= row_->destination_count;
        if ((out_.op_sel & 7) >> sources) return false;
    } else if (row_->has(isa::fetch)) {
        if (out_.op_sel > 3) return false;
    } else if (out_.op_sel && !row_->has(op_sel_bytes)) {
        return false;
    }
    if (row_->has(no_signs) && (out_.neg | out_.abs)) return false;
    return signs_fit() && finish();
}

bool Decoder::decode_vop3p() {
    out_.neg = static_cast<uint8_t>(bits(63, 61));
    (row_->has(mix) ? out_.abs : out_.neg_hi) = static_cast<uint8_t>(bits(10, 8));
    out_.op_sel = static_cast<uint8_t>(bits(13, 11));
    out_.op_sel_hi = static_cast<uint8_t>(bits(60, 59) | bit(14) << 2);
    out_.clamp = bit(15);
    const uint32_t source_codes[3] = {bits(40, 32), bits(49, 41), bits(58, 50)};
    int index = 0;
    for (const OperandForm& form : *this) {
        if (&form - begin() < row_->destination_count) {
            if (!vgpr(form, bits(7, 0))) return false;
        } else {
            if (source_codes[index] == code::literal || !source(form, source_codes[index])) return false;
            ++index;
        }
    }
    if (row_->destination_count == 0 && bits(7, 0) != 0) return false;
    const int sources = index;
    for (; index < 3; ++index) {
        if (source_codes[index] != 0) return false;
    }
    // Assemblers set op_sel_hi to ones if it has no effect.
    if (!row_->has(isa::op_sel) && (out_.op_sel != 0 || out_.op_sel_hi != 7)) return false;
    if (sources < 3 && (out_.op_sel_hi & 4) == 0) return false;
    const uint32_t unused = 0xffu << sources;
    if ((out_.op_sel | out_.neg | out_.neg_hi | out_.abs) & unused) return false;
    if (!row_->has(isa::neg) && !row_->has(mix) && (out_.neg | out_.neg_hi)) return false;
    if (out_.clamp && !row_->has(isa::clamp)) return false;
    return finish();
}

bool Decoder::matrix_source(OperandForm form, uint32_t code, bool accumulation) {
    return code >= 256 && vgpr(form, code - 256, accumulation);
}

// `word` is the matrix instruction itself, which is the second half of a scaled one.
bool Decoder::decode_matrix(uint64_t word) {
    const auto field = [word](int high, int low) {
        return static_cast<uint32_t>(word >> low & ((uint64_t{2} << (high - low)) - 1));
    };
    const uint32_t sources[3] = {field(40, 32), field(49, 41), field(58, 50)};
    const bool accumulation[3] = {field(59, 59) != 0, field(60, 60) != 0, field(15, 15) != 0};
    if (row_->forms[0].kind == Kind::agpr || row_->forms[1].kind == Kind::agpr) {  // v_accvgpr_read, _write
        // Assemblers set the three op_sel_hi bits.
        if (field(14, 8) != 0x40 || field(15, 15) || field(63, 59) != 3 || sources[1] || sources[2])
            return false;
        if (sources[0] == code::literal ||
            !vgpr(row_->forms[0], field(7, 0), row_->forms[0].kind == Kind::agpr)) {
            return false;
        }
        return source(row_->forms[1], sources[0]);
    }
    out_.cbsz = static_cast<uint8_t>(field(10, 8));
    out_.abid = static_cast<uint8_t>(field(14, 11));
    (row_->has(isa::neg) ? out_.neg : out_.blgp) = static_cast<uint8_t>(field(63, 61));
    if (out_.cbsz && !row_->has(isa::cbsz)) return false;
    if (out_.abid && !row_->has(isa::abid) && out_.encoding != Encoding::mfma_scale) return false;
    if (out_.blgp && !row_->has(isa::blgp)) return false;

    OperandForm first = row_->forms[1], second = row_->forms[2];
    const OperandForm& third = row_->forms[3];
    if (row_->has(isa::cbsz) && !row_->has(isa::abid)) {  // f8f6f4: cbsz and blgp select the formats
        first.dwords = static_cast<uint8_t>(f8f6f4_dwords(out_.cbsz));
        second.dwords = static_cast<uint8_t>(f8f6f4_dwords(out_.blgp));
        if (first.dwords == 0 || second.dwords == 0) return false;
    }
    if (!vgpr(row_->forms[0], field(7, 0), accumulation[2])) return false;
    if (!matrix_source(first, sources[0], accumulation[0])) return false;
    if (!matrix_source(second, sources[1], accumulation[1])) return false;
    const bool is_sparse = row_->forms[0].is_read;  // its third source is the index, never in an AGPR
    if (sources[2] >= 256) return matrix_source(third, sources[2], !is_sparse && accumulation[2]);
    return !is_sparse && inline_constant(third, sources[2]);
}

// LLVM sets abid to 1 in the second half to mark it as scaled.
bool Decoder::is_scaled_matrix_next() const {
    if (size_ < 16) return false;
    uint64_t second;
    std::memcpy(&second, bytes_ + 8, sizeof second);
    const uint64_t number = second >> 16 & 0x7f, abid = second >> 11 & 15;
    return (second >> 23 & 0x1ff) == 0x1a7 && (number == 0x2d || number == 0x2e) && abid == 1;
}

bool Decoder::decode_matrix_scale() {
    if (bits(31, 23) != 0x1a7 || !is_scaled_matrix_next()) return false;
    uint64_t second;
    std::memcpy(&second, bytes_ + 8, sizeof second);
    if (!find(Encoding::mfma_scale, second >> 16 & 0x7f) || !set_size(16)) return false;
    out_.op_sel = static_cast<uint8_t>(bits(12, 11));
    out_.op_sel_hi = static_cast<uint8_t>(bits(60, 59));
    if (bits(10, 0) || bit(15) || bits(63, 61) || bits(58, 50)) return false;
    if (!decode_matrix(second)) return false;
    out_.abid = 0;
    return source(row_->forms[4], bits(40, 32)) && source(row_->forms[5], bits(49, 41)) && !needs_literal_;
}

}  // namespace hipkittens::isa
