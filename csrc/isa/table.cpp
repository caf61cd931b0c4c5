// isa/table.cpp: converts the text columns of table/*.def into rows at compile time, so that a malformed row is
// a compile error.
// SPDX-License-Identifier: MIT
#include "isa/table.h"

#include <array>
#include <string_view>

namespace hipkittens::isa {
namespace {

struct Word {
    std::string_view name;
    Kind kind;
    OperandType type;
    uint8_t dwords;
};

using enum OperandType;
constexpr Kind any = Kind::vector_or_scalar;
// clang-format off
constexpr Word words[] = {
    {"b16", any, b16, 1}, {"b32", any, b32, 1}, {"b64", any, b64, 2}, {"b96", any, b96, 3}, {"b128", any, b128, 4},
    {"b160", any, b160, 5}, {"b192", any, b192, 6}, {"b256", any, b256, 8}, {"b512", any, b512, 16},
    {"b1024", any, b1024, 32},
    {"i16", any, i16, 1}, {"u16", any, u16, 1}, {"i32", any, i32, 1}, {"u32", any, u32, 1}, {"i64", any, i64, 2},
    {"u64", any, u64, 2}, {"f16", any, f16, 1}, {"bf16", any, bf16, 1}, {"f32", any, f32, 1}, {"f64", any, f64, 2},
    {"pk_f16", any, pk_f16, 1}, {"pk_bf16", any, pk_bf16, 1}, {"pk_i16", any, pk_i16, 1}, {"pk_u16", any, pk_u16, 1},
    {"pk_f32", any, pk_f32, 2}, {"pk_b32", any, pk_b32, 2},
    {"mask", Kind::mask, lane_mask, 2}, {"vgpr", Kind::vgpr, b32, 1}, {"agpr", Kind::agpr, b32, 1},
    {"sgpr", Kind::sgpr, b32, 1},
    {"vgpr_pk_f32", Kind::vgpr, pk_f32, 2}, {"reg32", Kind::scalar_register, b32, 1},
    {"reg64", Kind::scalar_register, b64, 2}, {"literal", Kind::literal, b32, 1},
    {"literal16", Kind::literal, b16, 1},
    {"imm", Kind::imm, immediate, 0}, {"uimm", Kind::uimm, immediate, 0}, {"label", Kind::label, immediate, 0},
    {"waitcnt", Kind::waitcnt, immediate, 0}, {"hwreg", Kind::hwreg, immediate, 0},
    {"sendmsg", Kind::sendmsg, immediate, 0}, {"gpr_idx", Kind::gpr_idx, immediate, 0},
    {"probe", Kind::probe, immediate, 0},
    {"addr", Kind::addr, b32, 1}, {"vaddr", Kind::vaddr, b64, 2}, {"saddr", Kind::saddr, b64, 2},
    {"sbase", Kind::sbase, b64, 2}, {"srsrc", Kind::srsrc, b128, 4}, {"soffset", Kind::soffset, b32, 1},
    {"vcc", Kind::implicit_vcc, lane_mask, 2}, {"exec", Kind::implicit_exec, lane_mask, 2},
    {"m0", Kind::implicit_m0, b32, 1},
};
// clang-format on

constexpr bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

constexpr OperandForm form_named(std::string_view name) {
    for (const Word& word : words) {
        if (word.name == name) {
            OperandForm form;
            form.kind = word.kind;
            form.type = word.type;
            form.dwords = word.dwords;
            return form;
        }
    }
    throw "unknown operand in a row";
}

// Reads "f32+ = f32:4, b32 | vcc =exec" into row.forms.
constexpr void parse_operands(std::string_view text, Row& row) {
    enum { destinations, sources, implicit } part = destinations;
    bool written = false;
    for (size_t at = 0; at < text.size();) {
        const char c = text[at];
        if (c == ' ' || c == ',') {
            ++at;
        } else if (c == '=' && part == destinations) {
            row.destination_count = row.form_count;
            part = sources;
            ++at;
        } else if (c == '=' && part == implicit) {
            written = true;
            ++at;
        } else if (c == '|') {
            part = implicit;
            ++at;
        } else {
            const size_t begin = at;
            while (at < text.size() && is_word(text[at])) ++at;
            OperandForm form = form_named(text.substr(begin, at - begin));
            if (at < text.size() && text[at] == ':') {
                form.dwords = 0;
                for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
                    form.dwords = static_cast<uint8_t>(form.dwords * 10 + (text[at] - '0'));
                }
            }
            form.is_written = part == destinations || written;
            form.is_read = !form.is_written;
            written = false;
            for (; at < text.size() && (text[at] == '+' || text[at] == '?' || text[at] == '!'); ++at) {
                if (text[at] == '+') form.is_read = form.is_written = true;
                if (text[at] == '?') form.only_if_returning = true;
                if (text[at] == '!') {
                    form.is_read = form.written_if_returning = true;
                    form.is_written = false;
                }
            }
            if (part == destinations && form.kind == Kind::mask) form.is_read = false;
            row.forms[row.form_count++] = form;
        }
    }
    if (part == destinations) throw "a row without `=`";
}

struct Targets {
    bool gfx942, gfx950;
};

constexpr Row make_row(const char* mnemonic, Opcode opcode, Encoding encoding, uint16_t number,
                       Targets targets, std::string_view operands, uint32_t modifiers) {
    Row row;
    row.mnemonic = mnemonic;
    row.opcode = opcode;
    row.encoding = encoding;
    row.number = number;
    row.on_gfx942 = targets.gfx942;
    row.on_gfx950 = targets.gfx950;
    row.modifiers = modifiers;
    parse_operands(operands, row);
    return row;
}

constexpr Targets both{true, true}, gfx942{true, false}, gfx950{false, true};

// One constant per row, so that no single constant expression grows with the table (compilers limit its
// steps).
namespace each {
#define ROW(mnemonic, encoding, number, targets, operands, ...)                                         \
    constexpr Row mnemonic = make_row(#mnemonic, Opcode::mnemonic, Encoding::encoding, number, targets, \
                                      operands, 0u __VA_OPT__(|) __VA_ARGS__);
#include "isa/table/all.def"
#undef ROW
}  // namespace each

constexpr Row table[] = {
#define ROW(mnemonic, ...) each::mnemonic,
#include "isa/table/all.def"
#undef ROW
};
static_assert(std::size(table) == opcode_count - 1);

}  // namespace

std::span<const Row> rows() { return table; }

const Row& row_of(Opcode opcode) { return table[static_cast<int>(opcode) - 1]; }

}  // namespace hipkittens::isa
