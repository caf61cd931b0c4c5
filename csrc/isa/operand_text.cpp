// isa/operand_text.cpp: text of registers, constants and immediate fields, as LLVM prints them.
// SPDX-License-Identifier: MIT
#include "isa/operand_text.h"

#include <bit>
#include <cstdio>
#include <span>

#include "isa/effects.h"

namespace hipkittens::isa {
namespace {

std::string tuple(const char* name, uint32_t first, uint32_t dwords) {
    if (dwords == 1) return name + std::to_string(first);
    return std::string(name) + "[" + std::to_string(first) + ":" + std::to_string(first + dwords - 1) + "]";
}

const char* special_name(uint32_t code, bool is_pair) {
    switch (code) {
        case code::flat_scratch_lo:
            return is_pair ? "flat_scratch" : "flat_scratch_lo";
        case code::flat_scratch_hi:
            return "flat_scratch_hi";
        case code::xnack_mask_lo:
            return is_pair ? "xnack_mask" : "xnack_mask_lo";
        case code::xnack_mask_hi:
            return "xnack_mask_hi";
        case code::vcc_lo:
            return is_pair ? "vcc" : "vcc_lo";
        case code::vcc_hi:
            return "vcc_hi";
        case code::m0:
            return "m0";
        case code::exec_lo:
            return is_pair ? "exec" : "exec_lo";
        case code::exec_hi:
            return "exec_hi";
        case code::shared_base:
            return "src_shared_base";
        case code::shared_limit:
            return "src_shared_limit";
        case code::private_base:
            return "src_private_base";
        case code::private_limit:
            return "src_private_limit";
        case 239:
            return "src_pops_exiting_wave_id";
        case 240:
            return "0.5";
        case 241:
            return "-0.5";
        case 242:
            return "1.0";
        case 243:
            return "-1.0";
        case 244:
            return "2.0";
        case 245:
            return "-2.0";
        case 246:
            return "4.0";
        case 247:
            return "-4.0";
        case code::vccz:
            return "src_vccz";
        case code::execz:
            return "src_execz";
        case code::scc:
            return "src_scc";
        default:
            return nullptr;
    }
}

bool is_64_bit(OperandType type) {
    return type == OperandType::b64 || type == OperandType::i64 || type == OperandType::u64 ||
           type == OperandType::f64 || type == OperandType::lane_mask;
}

// The constants 0.5, -0.5, 1, -1, 2, -2, 4, -4 and 1 / (2 pi), codes 240..248.
constexpr uint32_t f32_constants[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                      0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
constexpr uint32_t f16_constants[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118};
constexpr uint32_t bf16_constants[] = {0x3f00, 0xbf00, 0x3f80, 0xbf80, 0x4000,
                                       0xc000, 0x4080, 0xc080, 0x3e22};
constexpr uint32_t f64_constant_halves[] = {0x3fe00000, 0xbfe00000, 0x3ff00000, 0xbff00000,
                                            0x40000000, 0xc0000000, 0x40100000, 0xc0100000};

// Inline constant code of a 32-bit value, or 0.
uint32_t inline_code(uint32_t value, std::span<const uint32_t> floats, uint32_t sign_mask) {
    if (value <= 64) return code::first_inline_constant + value;
    const uint32_t magnitude = (~value & sign_mask) + 1;  // of a negative number
    if (magnitude <= 16 && (value & ~sign_mask) == 0) return 192 + magnitude;
    for (size_t i = 0; i < floats.size(); ++i) {
        if (floats[i] == value) return 240 + static_cast<uint32_t>(i);
    }
    return 0;
}

// Whether an assembler would use an inline constant for this value.
bool is_inlinable(OperandType type, uint32_t value) {
    switch (type) {
        case OperandType::f16:
            return inline_code(value, f16_constants, 0xffff) != 0;
        case OperandType::bf16:
            return inline_code(value, bf16_constants, 0xffff) != 0;
        case OperandType::pk_f16:
        case OperandType::pk_bf16:
            return inline_code(value, type == OperandType::pk_f16 ? f16_constants : bf16_constants,
                               0xffffffff) != 0;
        case OperandType::i16:
        case OperandType::u16:
        case OperandType::b16:
            return inline_code(value, {}, 0xffff) != 0;
        case OperandType::f64:
            for (uint32_t half : f64_constant_halves) {
                if (half == value) return true;
            }
            return value <= 64;
        case OperandType::b64:
        case OperandType::i64:
        case OperandType::u64:
        case OperandType::pk_f32:
        case OperandType::pk_b32:
            return value <= 64;
        default:
            return inline_code(value, f32_constants, 0xffffffff) != 0;
    }
}

std::string hardware_register_text(uint32_t value) {
    // clang-format off
    static constexpr const char* names[] = {
        nullptr, "MODE", "STATUS", "TRAPSTS", "HW_ID", "GPR_ALLOC", "LDS_ALLOC", "IB_STS", nullptr, nullptr, nullptr,
        nullptr, nullptr, nullptr, nullptr, "SH_MEM_BASES", "TBA_LO", "TBA_HI", "TMA_LO", "TMA_HI", "XCC_ID",
        "SQ_PERF_SNAPSHOT_DATA", "SQ_PERF_SNAPSHOT_DATA1", "SQ_PERF_SNAPSHOT_PC_LO", "SQ_PERF_SNAPSHOT_PC_HI"};
    // clang-format on
    const uint32_t id = value & 0x3f, offset = value >> 6 & 0x1f, width = (value >> 11) + 1;
    std::string text = "hwreg(";
    text += id < std::size(names) && names[id] ? std::string("HW_REG_") + names[id] : std::to_string(id);
    if (offset != 0 || width != 32) text += ", " + std::to_string(offset) + ", " + std::to_string(width);
    return text + ")";
}

std::string message_text(uint32_t value) {
    // clang-format off
    static constexpr const char* names[16] = {
        nullptr, "MSG_INTERRUPT", "MSG_GS", "MSG_GS_DONE", "MSG_SAVEWAVE", "MSG_STALL_WAVE_GEN", "MSG_HALT_WAVES",
        "MSG_ORDERED_PS_DONE", "MSG_EARLY_PRIM_DEALLOC", "MSG_GS_ALLOC_REQ", "MSG_GET_DOORBELL", nullptr, nullptr,
        nullptr, nullptr, "MSG_SYSMSG"};
    // clang-format on
    static constexpr const char* geometry_names[] = {"GS_OP_NOP", "GS_OP_CUT", "GS_OP_EMIT",
                                                     "GS_OP_EMIT_CUT"};
    static constexpr const char* system_names[] = {nullptr, "SYSMSG_OP_ECC_ERR_INTERRUPT", "SYSMSG_OP_REG_RD",
                                                   "SYSMSG_OP_HOST_TRAP_ACK", "SYSMSG_OP_TTRACE_PC"};
    constexpr uint32_t gs = 2, gs_done = 3, sysmsg = 15;
    const uint32_t id = value & 0xf, operation = value >> 4 & 7, stream = value >> 8 & 3;
    if (value >> 10 != 0 || (value & 0x80) != 0) return std::to_string(value);
    const bool is_geometry = id == gs || id == gs_done;
    std::string text = "sendmsg(";
    if (is_geometry && operation < 4 && (operation != 0 || (id == gs_done && stream == 0))) {
        text += std::string(names[id]) + ", " + geometry_names[operation];
        if (operation != 0) text += ", " + std::to_string(stream);
    } else if (id == sysmsg && operation >= 1 && operation <= 4 && stream == 0) {
        text += std::string(names[id]) + ", " + system_names[operation];
    } else if (!is_geometry && id != sysmsg && names[id] && operation == 0 && stream == 0) {
        text += names[id];
    } else {
        text += std::to_string(id) + ", " + std::to_string(operation) + ", " + std::to_string(stream);
    }
    return text + ")";
}

std::string wait_text(uint32_t value) {
    const WaitCounts counts = decode_wait_counts(static_cast<uint16_t>(value));
    const bool all = counts.vmcnt == 63 && counts.expcnt == 7 && counts.lgkmcnt == 15;
    std::string text;
    const auto append = [&](const char* name, int count, int limit) {
        if (count == limit && !all) return;
        if (!text.empty()) text += ' ';
        text += std::string(name) + "(" + std::to_string(count) + ")";
    };
    append("vmcnt", counts.vmcnt, 63);
    append("expcnt", counts.expcnt, 7);
    append("lgkmcnt", counts.lgkmcnt, 15);
    return text;
}

std::string index_mode_text(uint32_t value) {
    static constexpr const char* names[] = {"SRC0", "SRC1", "SRC2", "DST"};
    std::string text = "gpr_idx(";
    for (int i = 0; i < 4; ++i) {
        if (!(value >> i & 1)) continue;
        if (text.back() != '(') text += ',';
        text += names[i];
    }
    return text + ")";
}

}  // namespace

std::string hexadecimal(int64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "%s0x%llx", value < 0 ? "-" : "",
                  static_cast<unsigned long long>(value < 0 ? -value : value));
    return text;
}

std::string register_text(const Operand& operand, uint32_t literal) {
    const uint32_t code = operand.code;
    if (code == code::none) return "off";
    if (code == code::literal) {
        return is_inlinable(operand.type, literal) ? "lit(" + hexadecimal(literal) + ")"
                                                   : hexadecimal(literal);
    }
    if (operand.is_vgpr()) return tuple("v", code - code::first_vgpr, operand.dwords);
    if (operand.is_agpr()) return tuple("a", code - code::first_agpr, operand.dwords);
    if (code <= 101) return tuple("s", code, operand.dwords);
    if (code >= 108 && code <= 123) return tuple("ttmp", code - 108, operand.dwords);
    if (code >= 128 && code <= 192) return std::to_string(code - 128);
    if (code >= 193 && code <= 208) return std::to_string(192 - static_cast<int>(code));
    if (code == 248) return is_64_bit(operand.type) ? "0.15915494309189532" : "0.15915494";  // 1 / (2 pi)
    return special_name(code, operand.dwords == 2);
}

std::string immediate_text(Kind kind, Encoding encoding, int32_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) & 0xffff;
    switch (kind) {
        case Kind::label:
            return std::to_string(value);
        case Kind::waitcnt:
            return wait_text(bits);
        case Kind::hwreg:
            return hardware_register_text(bits);
        case Kind::sendmsg:
            return message_text(bits);
        case Kind::gpr_idx:
            return index_mode_text(bits);
        default:
            break;
    }
    const bool is_small = bits <= 64 && encoding != Encoding::sopk;
    return is_small ? std::to_string(bits) : hexadecimal(bits);
}

std::string literal_field_text(Encoding encoding, uint32_t value) {
    const int32_t number = static_cast<int32_t>(value);
    const bool is_small = encoding == Encoding::sopk && number >= -16 && number <= 64;
    return is_small ? std::to_string(number) : hexadecimal(value);
}

std::string swizzle_text(uint32_t offset) {
    const auto number = [](uint32_t value) { return std::to_string(value); };
    if (offset >= 0xe000 && offset < 0xe020) return "swizzle(FFT," + number(offset & 0x1f) + ")";
    if (offset >= 0xc000 && (offset & ~0x7e0u) == 0xc000) {
        return "swizzle(ROTATE," + number(offset >> 10 & 1) + "," + number(offset >> 5 & 0x1f) + ")";
    }
    if (offset >> 8 == 0x80) {
        std::string text = "swizzle(QUAD_PERM";
        for (int i = 0; i < 4; ++i) text += "," + number(offset >> (2 * i) & 3);
        return text + ")";
    }
    if (offset & 0x8000) return number(offset);
    const uint32_t and_mask = offset & 0x1f, or_mask = offset >> 5 & 0x1f, xor_mask = offset >> 10 & 0x1f;
    if (and_mask == 0x1f && or_mask == 0 && std::has_single_bit(xor_mask)) {
        return "swizzle(SWAP," + number(xor_mask) + ")";
    }
    if (and_mask == 0x1f && or_mask == 0 && xor_mask > 0 && std::has_single_bit(xor_mask + 1)) {
        return "swizzle(REVERSE," + number(xor_mask + 1) + ")";
    }
    const uint32_t group = 0x20 - and_mask;
    if (group > 1 && std::has_single_bit(group) && or_mask < group && xor_mask == 0) {
        return "swizzle(BROADCAST," + number(group) + "," + number(or_mask) + ")";
    }
    // For each bit of the lane number: the results of the pattern for a 0 and for a 1.
    const uint32_t from_zeros = or_mask ^ xor_mask, from_ones = (and_mask | or_mask) ^ xor_mask;
    std::string text = "swizzle(BITMASK_PERM,\"";
    for (int bit = 4; bit >= 0; --bit) {
        const bool zero = from_zeros >> bit & 1, one = from_ones >> bit & 1;
        text += zero == one ? (zero ? '1' : '0') : (zero ? 'i' : 'p');
    }
    return text + "\")";
}

std::string buffer_format_text(uint32_t format) {
    // clang-format off
    static constexpr const char* data_names[16] = {
        "INVALID", "8", "16", "8_8", "32", "16_16", "10_11_11", "11_11_10", "10_10_10_2", "2_10_10_10", "8_8_8_8",
        "32_32", "16_16_16_16", "32_32_32", "32_32_32_32", "RESERVED_15"};
    // clang-format on
    static constexpr const char* number_names[8] = {"UNORM", "SNORM", "USCALED",    "SSCALED",
                                                    "UINT",  "SINT",  "RESERVED_6", "FLOAT"};
    const uint32_t data = format & 0xf, number = format >> 4;
    constexpr uint32_t default_data = 1, default_number = 0;
    std::string text;
    if (data != default_data) text = std::string("BUF_DATA_FORMAT_") + data_names[data];
    if (number != default_number) {
        if (!text.empty()) text += ',';
        text += std::string("BUF_NUM_FORMAT_") + number_names[number];
    }
    return text.empty() ? text : "format:[" + text + "]";
}

std::string dpp_control_text(uint32_t control) {
    const std::string amount = std::to_string(control & 0xf);
    if (control <= 0xff) {
        std::string text = "quad_perm:[";
        for (int i = 0; i < 4; ++i) text += (i ? "," : "") + std::to_string(control >> (2 * i) & 3);
        return text + "]";
    }
    switch (control & 0x1f0) {
        case 0x100:
            return "row_shl:" + amount;
        case 0x110:
            return "row_shr:" + amount;
        case 0x120:
            return "row_ror:" + amount;
        case 0x150:
            return "row_newbcast:" + amount;
        default:
            break;
    }
    switch (control) {
        case 0x130:
            return "wave_shl:1";
        case 0x134:
            return "wave_rol:1";
        case 0x138:
            return "wave_shr:1";
        case 0x13c:
            return "wave_ror:1";
        case 0x140:
            return "row_mirror";
        case 0x141:
            return "row_half_mirror";
        case 0x142:
            return "row_bcast:15";
        default:
            return "row_bcast:31";
    }
}

const char* sdwa_select_text(uint32_t select) {
    static constexpr const char* names[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                            "WORD_0", "WORD_1", "DWORD"};
    return names[select];
}

}  // namespace hipkittens::isa
