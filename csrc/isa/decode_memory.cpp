// isa/decode_memory.cpp: decodes SMEM, DS, MUBUF, MTBUF, FLAT, GLOBAL and SCRATCH.
// SPDX-License-Identifier: MIT
#include "isa/decoder.h"

namespace hipkittens::isa {
namespace {

int32_t sign_extend(uint32_t value, int bits) {
    const int shift = 32 - bits;
    return static_cast<int32_t>(value << shift) >> shift;
}

constexpr uint32_t no_address_register = 0x7f;  // `off` in the saddr field

}  // namespace

bool Decoder::decode_scalar_memory() {
    if (!find(Encoding::smem, bits(25, 18)) || !set_size(8)) return false;
    const bool soffset_enable = bit(14), has_immediate = bit(17);
    const uint32_t data = bits(12, 6);
    out_.sc0 = bit(16);
    out_.has_offset = has_immediate;
    if (bit(13) || bit(15) || bits(56, 53)) return false;
    bool has_address = false, has_data = false;
    for (const OperandForm& form : *this) {
        bool good = true;
        switch (form.kind) {
            case Kind::probe:
                has_data = true;
                good = !out_.sc0 && immediate(form, static_cast<int32_t>(data));
                break;
            case Kind::sbase:
            case Kind::srsrc:
                has_address = true;
                // A buffer's offset is unsigned, other offsets are signed.
                if (form.kind == Kind::srsrc && bit(52)) return false;
                if (has_immediate) out_.offset = sign_extend(bits(52, 32), 21);
                good = sgpr(form, bits(5, 0) * 2);
                break;
            case Kind::soffset:
                // With an immediate, soffset is an additional register. Without one, the low offset bits name
                // the register.
                if (!has_immediate) {
                    good = !soffset_enable && bits(63, 39) == 0 && sgpr(form, bits(38, 32));
                } else if (soffset_enable) {
                    good = sgpr(form, bits(63, 57));
                } else {
                    good = bits(63, 57) == 0 && absent(form);
                }
                break;
            default:
                has_data = true;
                // LLVM does not allow M0 and EXEC as scalar memory data.
                if (data == code::m0 || data == code::exec_lo || data == code::exec_hi) return false;
                good = sgpr(form, data);
                if (good && form.written_if_returning)
                    out_.operands[out_.operand_count - 1].is_written = out_.sc0;
        }
        if (!good) return false;
    }
    if (!has_address && (bits(5, 0) || bits(63, 32) || soffset_enable || has_immediate)) return false;
    if (!has_data && data != 0) return false;
    if (out_.sc0 && !(has_address && has_data)) return false;
    return finish();
}

bool Decoder::decode_ds() {
    if (!find(Encoding::ds, bits(24, 17)) || !set_size(8)) return false;
    const bool accumulation = bit(25);
    out_.gds = bit(16);
    if (out_.gds != row_->has(isa::gds)) return false;
    if (row_->has(offset_pair)) {
        out_.offset = static_cast<int32_t>(bits(7, 0));
        out_.offset1 = static_cast<int32_t>(bits(15, 8));
    } else {
        out_.offset = static_cast<int32_t>(bits(15, 0));
    }
    const uint32_t data[2] = {bits(47, 40), bits(55, 48)};
    bool address_used = false, destination_used = false;
    int next_data = 0;
    for (const OperandForm& form : *this) {
        bool good = true;
        if (form.kind >= Kind::implicit_vcc) continue;
        if (form.kind == Kind::addr) {
            address_used = true;
            good = vgpr(form, bits(39, 32));
        } else if (form.is_written) {
            destination_used = true;
            good = vgpr(form, bits(63, 56), accumulation);
        } else if (row_->has(isa::gds)) {
            // Global wave sync takes its operand from the address field; gfx90a and later require an even
            // register.
            address_used = true;
            good = bit(32) == 0 && vgpr(form, bits(39, 32), accumulation);
        } else {
            good = vgpr(form, data[next_data++], accumulation);
        }
        if (!good) return false;
    }
    if (!address_used && bits(39, 32) != 0) return false;
    if (!destination_used && bits(63, 56) != 0) return false;
    if (accumulation && !destination_used && next_data == 0) return false;
    for (; next_data < 2; ++next_data) {
        if (data[next_data] != 0) return false;
    }
    if (row_->form_count == 0 && (bits(15, 0) || accumulation)) return false;
    return finish();
}

bool Decoder::decode_buffer(Encoding encoding) {
    const bool is_typed = encoding == Encoding::mtbuf;
    if (!find(encoding, is_typed ? bits(18, 15) : bits(24, 18)) || !set_size(8)) return false;
    out_.offset = static_cast<int32_t>(bits(11, 0));
    out_.offen = bit(12);
    out_.idxen = bit(13);
    out_.sc0 = bit(14);
    if (is_typed) {
        out_.format = static_cast<uint8_t>(bits(25, 19));
        out_.sc1 = bit(53);
        out_.nt = bit(54);
    } else {
        out_.sc1 = bit(15);
        out_.lds = bit(16);
        out_.nt = bit(17);
        if (bit(25) || bits(54, 53)) return false;
    }
    const bool accumulation = bit(55);
    if (row_->form_count == 0) {  // buffer_inv, buffer_wbl2: cache control bits only
        return bits(13, 0) == 0 && !out_.lds && !out_.nt && bits(63, 32) == 0;
    }
    if (out_.lds) {
        // gfx942 moves at most a dword per lane into LDS.
        const bool is_wide = row_->forms[0].dwords > 1;
        if (!row_->has(isa::lds) || (is_wide && target_ == Target::gfx942)) return false;
        if (accumulation || bits(47, 40) != 0) return false;
    }
    for (const OperandForm& form : *this) {
        bool good = true;
        switch (form.kind) {
            case Kind::vaddr: {
                OperandForm address = form;
                address.dwords = static_cast<uint8_t>(out_.offen + out_.idxen);
                address.type = address.dwords == 2 ? OperandType::b64 : OperandType::b32;
                if (address.dwords == 0) {
                    good = bits(39, 32) == 0 && absent(address);
                } else {
                    good = vgpr(address, bits(39, 32));
                }
                break;
            }
            case Kind::srsrc:
                good = sgpr(form, bits(52, 48) * 4);
                break;
            case Kind::soffset:
                good = bits(63, 56) != code::literal && constant_or_sgpr(form, bits(63, 56));
                break;
            case Kind::implicit_m0:
                break;
            default:
                if (out_.lds) break;
                good = vgpr(form, bits(47, 40), accumulation);
                if (good && form.written_if_returning)
                    out_.operands[out_.operand_count - 1].is_written = out_.sc0;
        }
        if (!good) return false;
    }
    if (out_.lds) {
        OperandForm m0{.kind = Kind::implicit_m0, .type = OperandType::b32, .dwords = 1, .is_read = true};
        add(m0, code::m0).is_implicit = true;
    }
    return finish();
}

bool Decoder::decode_flat() {
    const uint32_t segment = bits(15, 14);
    if (segment == 3) return false;
    const Encoding encoding = segment == 0   ? Encoding::flat
                              : segment == 1 ? Encoding::scratch
                                             : Encoding::global;
    if (!find(encoding, bits(24, 18)) || !set_size(8)) return false;
    out_.offset =
        encoding == Encoding::flat ? static_cast<int32_t>(bits(11, 0)) : sign_extend(bits(12, 0), 13);
    out_.sc0 = bit(16);
    out_.nt = bit(17);
    out_.sc1 = bit(25);
    const bool accumulation = bit(55), has_vector_address = bit(13);  // bit 13, sve: scratch only
    const uint32_t saddr = bits(54, 48);
    if (encoding == Encoding::flat && (bit(12) || saddr != 0)) return false;
    if (encoding != Encoding::scratch && has_vector_address) return false;
    bool data_used = false, destination_used = false;
    for (const OperandForm& form : *this) {
        bool good = true;
        switch (form.kind) {
            case Kind::vaddr: {
                OperandForm address = form;
                const bool is_offset = encoding == Encoding::scratch || saddr != no_address_register;
                address.dwords = encoding != Encoding::flat && is_offset ? 1 : 2;
                address.type = address.dwords == 2 ? OperandType::b64 : OperandType::b32;
                if (encoding == Encoding::scratch && !has_vector_address) {
                    good = bits(39, 32) == 0 && absent(address);
                } else {
                    good = vgpr(address, bits(39, 32));
                }
                break;
            }
            case Kind::saddr: {
                OperandForm address = form;
                if (encoding == Encoding::scratch) {
                    address.dwords = 1;
                    address.type = OperandType::b32;
                }
                if (saddr == code::exec_lo && encoding == Encoding::global) return false;
                good = saddr == no_address_register ? absent(address) : sgpr(address, saddr);
                break;
            }
            case Kind::implicit_m0:
                break;
            default:
                if (form.only_if_returning && !out_.sc0) break;
                if (form.is_written) {
                    destination_used = true;
                    good = vgpr(form, bits(63, 56), accumulation);
                } else {
                    data_used = true;
                    good = vgpr(form, bits(47, 40), accumulation);
                }
        }
        if (!good) return false;
    }
    if (!data_used && bits(47, 40) != 0) return false;
    if (!destination_used && bits(63, 56) != 0) return false;
    if (accumulation && !data_used && !destination_used) return false;
    return finish();
}

}  // namespace hipkittens::isa
