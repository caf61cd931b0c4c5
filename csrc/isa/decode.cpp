// isa/decode.cpp: finds the row of an instruction word and decodes the scalar encodings.
// SPDX-License-Identifier: MIT
#include "isa/decode.h"

#include <array>
#include <cstring>

#include "isa/decoder.h"

namespace hipkittens::isa {
namespace {

constexpr int encoding_count = static_cast<int>(Encoding::scratch) + 1;
constexpr int number_limit = 1024;

// Maps (target, encoding, number) to a row. vop1, vop2 and vopc rows are also entered under vop3.
struct Index {
    std::array<std::array<std::array<const Row*, number_limit>, encoding_count>, 2> rows{};

    Index() {
        for (const Row& row : isa::rows()) {
            enter(row, row.encoding, row.number);
            if (row.has(no_vop3)) continue;
            if (row.encoding == Encoding::vop1) enter(row, Encoding::vop3, row.number + 0x140);
            if (row.encoding == Encoding::vop2) enter(row, Encoding::vop3, row.number + 0x100);
            if (row.encoding == Encoding::vopc) enter(row, Encoding::vop3, row.number);
            if (row.encoding == Encoding::vop3_sdst) enter(row, Encoding::vop3, row.number);
        }
    }

    void enter(const Row& row, Encoding encoding, int number) {
        for (Target target : {Target::gfx942, Target::gfx950}) {
            if (row.is_on(target)) rows[static_cast<int>(target)][static_cast<int>(encoding)][number] = &row;
        }
    }
};

const Row* find_row(Target target, Encoding encoding, uint32_t number) {
    static const Index index;
    return number < number_limit ? index.rows[static_cast<int>(target)][static_cast<int>(encoding)][number]
                                 : nullptr;
}

constexpr uint32_t first_trap_sgpr = 108, last_trap_sgpr = 123;

// SGPR tuples are aligned to their size; for larger tuples an alignment of four registers suffices.
bool is_aligned_tuple(uint32_t index, uint32_t dwords) {
    return dwords == 1 || (dwords == 2 ? index % 2 == 0 : index % 4 == 0);
}

bool is_scalar_register(uint32_t code, uint32_t dwords) {
    if (code <= 101) return is_aligned_tuple(code, dwords) && code + dwords <= 102;
    if (code >= first_trap_sgpr && code <= last_trap_sgpr) {
        return is_aligned_tuple(code - first_trap_sgpr, dwords) && code + dwords <= last_trap_sgpr + 1;
    }
    if (code == code::m0) return dwords == 1;
    const bool is_pair = code == code::flat_scratch_lo || code == code::xnack_mask_lo ||
                         code == code::vcc_lo || code == code::exec_lo;
    const bool is_single = is_pair || code == code::flat_scratch_hi || code == code::xnack_mask_hi ||
                           code == code::vcc_hi || code == code::exec_hi;
    return dwords == 1 ? is_single : dwords == 2 && is_pair;
}

bool is_inline_constant(uint32_t code) {
    return (code >= code::first_inline_constant && code <= 208) ||
           (code >= 240 && code <= code::last_inline_constant);
}

}  // namespace

Decoder::Decoder(Target target, const uint8_t* bytes, size_t size, Instruction& instruction)
    : target_(target), bytes_(bytes), size_(size), out_(instruction) {
    std::memcpy(&word_, bytes, size < sizeof word_ ? size : sizeof word_);
    out_.target = target;
}

uint32_t Decoder::dword_at(size_t offset) const {
    uint32_t value;
    std::memcpy(&value, bytes_ + offset, sizeof value);
    return value;
}

bool Decoder::find(Encoding encoding, uint32_t number) {
    row_ = find_row(target_, encoding, number);
    if (row_ == nullptr) return false;
    out_.row = row_;
    out_.opcode = row_->opcode;
    out_.encoding = encoding;
    return true;
}

bool Decoder::set_size(size_t bytes) {
    out_.bytes = static_cast<uint8_t>(bytes);
    return bytes <= size_;
}

Operand& Decoder::add(const OperandForm& form, uint32_t code) {
    Operand& operand = out_.operands[out_.operand_count++];
    operand.code = static_cast<uint16_t>(code);
    operand.dwords = form.dwords;
    operand.type = form.type;
    operand.is_read = form.is_read;
    operand.is_written = form.is_written;
    return operand;
}

bool Decoder::vgpr(const OperandForm& form, uint32_t index, bool accumulation) {
    // Tuples of vector registers start at an even register from gfx90a on.
    if (index + form.dwords > 256 || (form.dwords > 1 && index % 2 != 0)) return false;
    add(form, (accumulation ? code::first_agpr : code::first_vgpr) + index);
    return true;
}

bool Decoder::sgpr(const OperandForm& form, uint32_t code) {
    if (!is_scalar_register(code, form.dwords)) return false;
    add(form, code);
    return true;
}

bool Decoder::inline_constant(const OperandForm& form, uint32_t code) {
    if (!is_inline_constant(code)) return false;
    add(form, code);
    return true;
}

bool Decoder::constant_or_sgpr(const OperandForm& form, uint32_t code) {
    if (code == code::literal) {
        needs_literal_ = true;
        add(form, code);
        return true;
    }
    const bool is_special = (code >= code::shared_base && code <= 239) || code == code::vccz ||
                            code == code::execz || code == code::scc;
    if (is_special && form.dwords <= 2) {
        add(form, code);
        return true;
    }
    return inline_constant(form, code) || sgpr(form, code);
}

bool Decoder::source(const OperandForm& form, uint32_t code) {
    switch (form.kind) {
        case Kind::vgpr:
            return code >= 256 && vgpr(form, code - 256);
        case Kind::agpr:
            return code >= 256 && vgpr(form, code - 256, true);
        case Kind::mask:
            return sgpr(form, code);
        case Kind::sgpr:
            return code < 256 && constant_or_sgpr(form, code);
        default:
            break;
    }
    if (code >= 256) return vgpr(form, code - 256);
    return form.dwords <= 2 && constant_or_sgpr(form, code);
}

bool Decoder::immediate(const OperandForm& form, int32_t value) {
    add(form, code::none).immediate = value;
    return true;
}

bool Decoder::absent(const OperandForm& form) {
    add(form, code::none).is_read = false;
    return true;
}

bool Decoder::vcc(const OperandForm& form) {
    add(form, code::vcc_lo).is_implicit = true;
    return true;
}

bool Decoder::literal(const OperandForm& form) {
    needs_literal_ = true;
    add(form, code::literal);
    return true;
}

bool Decoder::finish() {
    for (const OperandForm& form : *this) {
        uint16_t code;
        switch (form.kind) {
            case Kind::implicit_vcc:
                code = code::vcc_lo;
                break;
            case Kind::implicit_exec:
                code = code::exec_lo;
                break;
            case Kind::implicit_m0:
                code = code::m0;
                break;
            default:
                continue;
        }
        add(form, code).is_implicit = true;
    }
    if (needs_literal_) {
        const size_t begin = out_.bytes;
        if (!set_size(begin + 4)) return false;
        out_.literal = dword_at(begin);
        // The literal of a 16-bit operand has 16 bits.
        for (const Operand& operand : out_) {
            const bool is_half = operand.type == OperandType::f16 || operand.type == OperandType::bf16 ||
                                 operand.type == OperandType::i16 || operand.type == OperandType::u16 ||
                                 operand.type == OperandType::b16;
            if (operand.code == code::literal && is_half && out_.literal > 0xffff) return false;
        }
    }
    return true;
}

bool Decoder::decode_scalar() {
    const uint32_t top = bits(31, 23);
    const Encoding encoding = top == 0x17d          ? Encoding::sop1
                              : top == 0x17e        ? Encoding::sopc
                              : top == 0x17f        ? Encoding::sopp
                              : bits(31, 28) == 0xb ? Encoding::sopk
                                                    : Encoding::sop2;
    uint32_t number = 0;
    switch (encoding) {
        case Encoding::sop1:
            number = bits(15, 8);
            break;
        case Encoding::sop2:
            number = bits(29, 23);
            break;
        case Encoding::sopk:
            number = bits(27, 23);
            break;
        default:
            number = bits(22, 16);
            break;
    }
    if (!find(encoding, number) || !set_size(4)) return false;

    uint32_t sources[2] = {bits(7, 0), bits(15, 8)};
    int next_source = 0;
    const bool has_destination_field =
        encoding == Encoding::sop1 || encoding == Encoding::sop2 || encoding == Encoding::sopk;
    const bool has_immediate_field = encoding == Encoding::sopk || encoding == Encoding::sopp;
    bool destination_used = !has_destination_field, immediate_used = !has_immediate_field;
    for (const OperandForm& form : *this) {
        const int32_t simm16 = static_cast<int16_t>(bits(15, 0)), uimm16 = static_cast<int32_t>(bits(15, 0));
        bool good = true;
        switch (form.kind) {
            case Kind::imm:
            case Kind::label:
                good = immediate(form, simm16);
                immediate_used = true;
                break;
            case Kind::uimm:
            case Kind::waitcnt:
            case Kind::hwreg:
            case Kind::sendmsg:
                good = immediate(form, uimm16);
                immediate_used = true;
                break;
            case Kind::gpr_idx: {
                const uint32_t mask = encoding == Encoding::sopc ? sources[1] : bits(15, 0);
                next_source = 2;
                good = mask <= 0xf && immediate(form, static_cast<int32_t>(mask));
                immediate_used = true;
                break;
            }
            case Kind::literal:
                good = literal(form);
                break;
            case Kind::implicit_vcc:
            case Kind::implicit_exec:
            case Kind::implicit_m0:
                break;
            default:
                if (form.is_written ||
                    encoding == Encoding::sopk) {  // SOPK compares read their register from sdst
                    good = !destination_used && sgpr(form, bits(22, 16));
                    destination_used = true;
                } else {
                    const uint32_t code = sources[next_source++];
                    good =
                        form.kind == Kind::scalar_register ? sgpr(form, code) : constant_or_sgpr(form, code);
                }
        }
        if (!good) return false;
    }
    // Fields that the instruction does not use must be zero.
    if (!destination_used && bits(22, 16) != 0) return false;
    if (!immediate_used && bits(15, 0) != 0) return false;
    if (encoding == Encoding::sop1 && next_source == 0 && sources[0] != 0) return false;
    return finish();
}

bool decode(Target target, const uint8_t* bytes, size_t size, uint32_t address, Instruction* instruction) {
    *instruction = Instruction{};
    instruction->address = address;
    if (size < 4) return false;
    Decoder decoder(target, bytes, size, *instruction);
    const uint32_t word = decoder.first_dword();
    if (word >> 31 == 0) return decoder.decode_vector_short();
    if (word >> 30 == 0b10) return decoder.decode_scalar();
    if (size < 8) return false;
    switch (word >> 26) {
        case 0x30:
            return decoder.decode_scalar_memory();
        case 0x34:
            return decoder.decode_vector_long();
        case 0x36:
            return decoder.decode_ds();
        case 0x37:
            return decoder.decode_flat();
        case 0x38:
            return decoder.decode_buffer(Encoding::mubuf);
        case 0x3a:
            return decoder.decode_buffer(Encoding::mtbuf);
        default:
            return false;
    }
}

}  // namespace hipkittens::isa
