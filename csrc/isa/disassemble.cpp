// isa/disassemble.cpp: converts an Instruction to LLVM's text.
// SPDX-License-Identifier: MIT
#include "isa/disassemble.h"

#include "isa/operand_text.h"
#include "isa/table.h"

namespace hipkittens::isa {
namespace {

class Printer {
  public:
    explicit Printer(const Instruction& instruction) : in_(instruction), row_(*instruction.row) {}

    std::string mnemonic() const { return std::string(row_.mnemonic) + suffix(); }

    std::string print() {
        text_ = mnemonic();
        print_operands();
        switch (in_.encoding) {
            case Encoding::vop1:
            case Encoding::vop2:
            case Encoding::vopc:
                if (in_.has_sdwa) print_sdwa();
                if (in_.has_dpp) print_dpp();
                break;
            case Encoding::vop3:
            case Encoding::vop3_sdst:
                print_vop3();
                break;
            case Encoding::vop3p:
            case Encoding::mai:
            case Encoding::mfma_scale:
                print_packed();
                break;
            case Encoding::smem:
                flag("glc", in_.sc0);
                break;
            case Encoding::ds:
                print_ds();
                break;
            case Encoding::mubuf:
            case Encoding::mtbuf:
            case Encoding::flat:
            case Encoding::global:
            case Encoding::scratch:
                print_vector_memory();
                break;
            default:
                break;
        }
        return text_;
    }

  private:
    const char* suffix() const {
        if (row_.form_count == 0) return "";
        if (in_.has_sdwa) return "_sdwa";
        if (in_.has_dpp) return "_dpp";
        const bool has_both = (row_.encoding == Encoding::vop1 || row_.encoding == Encoding::vop2 ||
                               row_.encoding == Encoding::vopc) &&
                              !row_.has(no_vop3);
        if (!has_both) return "";
        return in_.encoding == row_.encoding ? "_e32" : "_e64";
    }

    // The vcc of e32 forms is printed; registers after the row's bar are not.
    void print_operands() {
        bool is_first = true;
        int form = 0, source = 0;
        for (const Operand& operand : in_) {
            while (form < row_.form_count && is_skipped(row_.forms[form])) ++form;
            if (form == row_.form_count || row_.forms[form].kind >= Kind::implicit_vcc) break;
            const bool is_source = form >= row_.destination_count;
            const std::string piece = operand_text(operand, row_.forms[form], is_source ? source : -1);
            source += is_source && row_.forms[form].kind != Kind::literal;
            ++form;
            if (piece.empty()) continue;
            text_ += is_first ? " " : ", ";
            text_ += piece;
            is_first = false;
        }
        if (in_.encoding == Encoding::mtbuf) {
            const std::string format = buffer_format_text(in_.format);
            if (!format.empty()) text_ += " " + format;
        }
    }

    // Operand forms that this instruction has no operand for.
    bool is_skipped(const OperandForm& form) const {
        if (form.only_if_returning && !in_.sc0) return true;
        return in_.lds && &form == row_.forms;
    }

    std::string operand_text(const Operand& operand, const OperandForm& form, int source) {
        switch (form.kind) {
            case Kind::uimm:
                if (row_.opcode == Opcode::s_endpgm && operand.immediate == 0) return "";
                [[fallthrough]];
            case Kind::imm:
            case Kind::label:
            case Kind::waitcnt:
            case Kind::hwreg:
            case Kind::sendmsg:
            case Kind::gpr_idx:
            case Kind::probe:
                return immediate_text(form.kind, in_.encoding, operand.immediate);
            case Kind::literal:
                return literal_field_text(in_.encoding, in_.literal);
            default:
                break;
        }
        if (in_.encoding == Encoding::smem && form.kind == Kind::soffset) {
            const std::string offset = hexadecimal(in_.offset);
            if (operand.code == code::none) return offset;
            return register_text(operand, 0) + (in_.has_offset ? " offset:" + offset : "");
        }
        std::string text = register_text(operand, in_.literal);
        if (source < 0 || source > 2) return text;
        if (in_.has_sdwa && source < 2 && in_.sdwa.sext[source]) return "sext(" + text + ")";
        if (in_.encoding == Encoding::mai || (in_.encoding == Encoding::vop3p && !row_.has(mix))) return text;
        const bool is_negated = in_.neg >> source & 1, is_absolute = in_.abs >> source & 1;
        if (is_absolute) text = "|" + text + "|";
        if (!is_negated) return text;
        // -1 and neg(1) are different constants.
        return operand.is_constant() && !is_absolute ? "neg(" + text + ")" : "-" + text;
    }

    void flag(const char* name, bool is_set) {
        if (is_set) text_ += std::string(" ") + name;
    }
    void number(const char* name, int value) {
        if (value) text_ += std::string(" ") + name + ":" + std::to_string(value);
    }
    void list(const char* name, uint32_t bits, int count) {
        text_ += std::string(" ") + name + ":[";
        for (int i = 0; i < count; ++i) text_ += std::string(i ? "," : "") + (bits >> i & 1 ? "1" : "0");
        text_ += "]";
    }

    void print_output_modifiers() {
        static constexpr const char* scales[] = {"", " mul:2", " mul:4", " div:2"};
        flag("clamp", in_.clamp);
        text_ += scales[in_.omod];
    }

    int source_count() const {
        int count = 0;
        for (int i = row_.destination_count; i < row_.form_count; ++i) {
            count += row_.forms[i].kind < Kind::implicit_vcc;
        }
        return count;
    }

    void print_sdwa() {
        static constexpr const char* unused[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"};
        const bool is_compare = in_.encoding == Encoding::vopc;
        if (!is_compare) print_output_modifiers();
        if (!is_compare && !row_.has(sdwa_source)) {
            text_ += std::string(" dst_sel:") + sdwa_select_text(in_.sdwa.dst_sel);
            text_ += std::string(" dst_unused:") + unused[in_.sdwa.dst_unused];
        }
        text_ += std::string(" src0_sel:") + sdwa_select_text(in_.sdwa.src_sel[0]);
        if (in_.encoding != Encoding::vop1)
            text_ += std::string(" src1_sel:") + sdwa_select_text(in_.sdwa.src_sel[1]);
    }

    void print_dpp() {
        text_ += " " + dpp_control_text(in_.dpp.control);
        text_ +=
            " row_mask:" + hexadecimal(in_.dpp.row_mask) + " bank_mask:" + hexadecimal(in_.dpp.bank_mask);
        flag("bound_ctrl:1", in_.dpp.bound_ctrl);
    }

    void print_vop3() {
        if (in_.bitop3) {
            text_ += " bitop3:" + (in_.bitop3 <= 10 ? std::to_string(in_.bitop3) : hexadecimal(in_.bitop3));
        }
        if (row_.has(fetch)) {
            flag("bound_ctrl:1", in_.op_sel & 2);
            flag("fi:1", in_.op_sel & 1);
        } else if (in_.op_sel) {
            // The destination's half is printed last, wherever its bit is.
            const int sources = row_.has(op_sel_bytes) ? 3 : source_count();
            list("op_sel", (in_.op_sel & ((1u << sources) - 1)) | (in_.op_sel >> 3 & 1u) << sources,
                 sources + 1);
        }
        print_output_modifiers();
    }

    void print_packed() {
        if (in_.encoding == Encoding::mai && row_.forms[1].kind != Kind::agpr &&
            row_.forms[0].kind != Kind::agpr) {
            print_matrix();
            return;
        }
        if (in_.encoding == Encoding::mai) return;
        const int sources = in_.encoding == Encoding::mfma_scale ? 3 : source_count();
        const uint32_t ones = (1u << sources) - 1;
        if (in_.op_sel) list("op_sel", in_.op_sel, sources);
        if (row_.has(isa::op_sel) && (in_.op_sel_hi & ones) != (row_.has(mix) ? 0 : ones)) {
            list("op_sel_hi", in_.op_sel_hi, sources);
        }
        if (!row_.has(mix)) {
            if (in_.neg) list("neg_lo", in_.neg, sources);
            if (in_.neg_hi) list("neg_hi", in_.neg_hi, sources);
        }
        flag("clamp", in_.clamp);
        if (in_.encoding == Encoding::mfma_scale) print_matrix();
    }

    void print_matrix() {
        number("cbsz", in_.cbsz);
        number("abid", in_.abid);
        number("blgp", in_.blgp);
        if (in_.neg) list("neg", in_.neg, 3);
    }

    void print_ds() {
        if (row_.has(offset_pair)) {
            number("offset0", in_.offset);
            number("offset1", in_.offset1);
        } else if (row_.has(swizzle)) {
            if (in_.offset) text_ += " offset:" + swizzle_text(static_cast<uint32_t>(in_.offset));
        } else {
            number("offset", in_.offset);
        }
        flag("gds", in_.gds);
    }

    void print_vector_memory() {
        flag("idxen", in_.idxen);
        flag("offen", in_.offen);
        number("offset", in_.offset);
        flag("sc0", in_.sc0);
        flag("nt", in_.nt);
        flag("sc1", in_.sc1);
        flag("lds", in_.lds);
    }

    const Instruction& in_;
    const Row& row_;
    std::string text_;
};

}  // namespace

std::string disassemble(const Instruction& instruction) {
    return instruction.row ? Printer(instruction).print() : std::string("<no instruction>");
}

std::string mnemonic_text(const Instruction& instruction) { return Printer(instruction).mnemonic(); }

}  // namespace hipkittens::isa
