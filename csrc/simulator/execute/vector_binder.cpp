// simulator/execute/vector_binder.cpp: translates a vector ALU instruction into steps: sources with their modifiers, the
// operation, the result with its modifiers.
// SPDX-License-Identifier: MIT
#include "isa/table.h"
#include "simulator/execute/families.h"
#include "simulator/execute/operand_modifiers.h"
#include "simulator/execute/vector_meaning.h"
#include "simulator/execute/vector_special.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

using isa::Instruction;
using isa::Opcode;
using isa::Operand;
using Type = isa::OperandType;

struct MeaningTable {
    Handler plain[isa::opcode_count] = {}, saturating[isa::opcode_count] = {};
    explicit MeaningTable(isa::Target target) {
        for (const MeaningList& list :
             {integer_meanings(), packed_meanings(), wide_meanings(), float_meanings(),
              transcendental_meanings(), conversion_meanings(), division_meanings(), compare_meanings(),
              float8_meanings(target), lanewise_meanings()}) {
            fill(plain, list);
        }
        // If nothing can overflow, clamp has no effect.
        memcpy(saturating, plain, sizeof saturating);
        fill(saturating, saturating_meanings());
        fill(saturating, lanewise_saturating_meanings());
    }
    static void fill(Handler* table, const MeaningList& list) {
        for (int i = 0; i < list.count; ++i)
            table[static_cast<int>(list.rows[i].opcode)] = list.rows[i].handler;
    }
};
const MeaningTable& meanings(isa::Target target) {
    static const MeaningTable gfx942(isa::Target::gfx942), gfx950(isa::Target::gfx950);
    return target == isa::Target::gfx942 ? gfx942 : gfx950;
}

bool is_float(Type type) {
    return type == Type::f16 || type == Type::f32 || type == Type::f64 || type == Type::pk_f16 ||
           type == Type::pk_f32 || type == Type::pk_bf16;
}

// Instructions new in gfx9 preserve the other half of their 16-bit destination; the older ones clear the
// upper half (LLVM: GCNSubtarget::zeroesHigh16BitsOfDest).
bool keeps_other_half(Opcode opcode) {
    switch (opcode) {
        case Opcode::v_mad_f16:
        case Opcode::v_mad_u16:
        case Opcode::v_mad_i16:
        case Opcode::v_fma_f16:
        case Opcode::v_div_fixup_f16:
        case Opcode::v_min3_f16:
        case Opcode::v_min3_i16:
        case Opcode::v_min3_u16:
        case Opcode::v_max3_f16:
        case Opcode::v_max3_i16:
        case Opcode::v_max3_u16:
        case Opcode::v_med3_f16:
        case Opcode::v_med3_i16:
        case Opcode::v_med3_u16:
        case Opcode::v_add_i16:
        case Opcode::v_sub_i16:
        case Opcode::v_bitop3_b16:
        case Opcode::v_fma_mixlo_f16:
        case Opcode::v_fma_mixhi_f16:
        case Opcode::v_cvt_pk_fp8_f32:
        case Opcode::v_cvt_pk_bf8_f32:
        case Opcode::v_cvt_sr_f16_f32:
        case Opcode::v_cvt_sr_bf16_f32:
        case Opcode::v_ashr_pk_i8_i32:
        case Opcode::v_ashr_pk_u8_i32:
            return true;
        default:
            return false;
    }
}

Placement placement_of(const Instruction& in, const Operand& destination) {
    if (in.has_sdwa && in.sdwa.dst_sel != 6) {
        const uint8_t select = in.sdwa.dst_sel;
        Placement placement;
        placement.width = select < 4 ? 8 : 16;
        placement.shift = static_cast<uint8_t>(select < 4 ? 8 * select : 16 * (select - 4));
        placement.sign_extend = in.sdwa.dst_unused == 1;
        const uint32_t field = (placement.width == 8 ? 0xffu : 0xffffu) << placement.shift;
        if (in.sdwa.dst_unused == 2) placement.kept = ~field;
        return placement;
    }
    const bool high =
        in.opcode == Opcode::v_fma_mixhi_f16 || (in.encoding == isa::Encoding::vop3 && in.op_sel & 8);
    if (destination.dwords == 1 && (high || keeps_other_half(in.opcode))) {
        return {high ? 0x0000ffffu : 0xffff0000u, 16, static_cast<uint8_t>(high ? 16 : 0), false};
    }
    return {};
}

// The operands of an instruction, by their role in its operation.
struct Roles {
    const Operand* result = nullptr;  // a VGPR, or the mask of a comparison
    const Operand* mask = nullptr;    // the carry or scale mask in addition to a result
    const Operand* sources[3] = {};
    int source_count = 0;
};
bool sort_operands(const Instruction& in, Roles* roles) {
    const int destinations = in.row->destination_count;
    for (int i = 0; i < in.operand_count && i < in.row->form_count; ++i) {
        const Operand& operand = in.operands[i];
        if (in.row->forms[i].kind >= isa::Kind::implicit_vcc) continue;
        if (i == 0) {
            roles->result = &operand;
        } else if (i < destinations) {
            roles->mask = &operand;
        } else {
            if (roles->source_count == 3) return false;
            roles->sources[roles->source_count++] = &operand;
        }
    }
    if (!roles->result) return false;
    // v_fmac and the like: the destination is the last source. (According to the row: SDWA may read what it
    // preserves.)
    if (in.row->forms[0].is_read && in.opcode != Opcode::v_fma_mixlo_f16 &&
        in.opcode != Opcode::v_fma_mixhi_f16) {
        if (roles->source_count == 3) return false;
        roles->sources[roles->source_count++] = roles->result;
    }
    return true;
}

bool is_exec(const Operand& operand) {
    return operand.code == isa::code::exec_lo || operand.code == isa::code::exec_hi;
}

const Step* copy_to_exec(Wave* wave, const Step* step) {
    write_exec(wave, read_scalar64(wave, step->source[0]));
    return step + 1;
}

const Step* nothing(Wave*, const Step* step) { return step + 1; }

}  // namespace

bool bind_vector(const Instruction& in, StepBuilder& builder) {
    if (in.opcode == Opcode::v_nop || in.opcode == Opcode::v_clrexcp) {
        builder.emit(nothing);
        return true;
    }
    if (bind_special(in, builder) || bind_scaled_convert(in, builder)) return true;

    Roles roles;
    if (!sort_operands(in, &roles)) return false;
    const Operand& result = *roles.result;
    const bool is_compare = result.type == Type::lane_mask;
    const bool clamps_float = in.clamp && !is_compare && is_float(result.type);
    const uint8_t omod = is_float(result.type) ? in.omod : 0;
    const MeaningTable& table = meanings(in.target);
    const int opcode = static_cast<int>(in.opcode);
    const Handler handler = in.clamp && !clamps_float ? table.saturating[opcode] : table.plain[opcode];
    if (!handler) return false;

    StepBuilder::Source sources[3] = {};
    for (int i = 0; i < roles.source_count; ++i) {
        const Operand& operand = *roles.sources[i];
        if (&operand == roles.result) {
            sources[i] = builder.source(in, operand);  // modifiers do not apply to the accumulator
        } else if (!modify_source(in, builder, operand, i, &sources[i])) {
            return false;
        }
    }
    const bool narrowed = begin_dpp(in, builder);

    const uint32_t destination = builder.offset_of(result.code);
    const Placement placement = is_compare ? Placement{} : placement_of(in, result);
    const bool through_scratch = clamps_float || omod || !placement.is_plain();
    Step& step = builder.emit(handler);
    step.destination = through_scratch ? builder.scratch_row(result_scratch_row) : destination;
    for (int i = 0; i < roles.source_count; ++i) {
        step.source[i] = sources[i].offset;
        step.stride[i] = sources[i].stride;
    }
    step.immediate = in.bitop3;
    if (roles.mask) step.extra[0] = builder.offset_of(roles.mask->code);

    if (through_scratch) finish_result(builder, destination, result, omod, clamps_float, placement);
    if (narrowed) end_dpp(builder);
    const Operand* const mask = is_compare ? roles.result : roles.mask;
    if (mask && is_exec(*mask)) builder.emit_exec_update();
    for (const Operand& operand : in) {
        if (is_compare && operand.is_implicit && operand.is_written && is_exec(operand)) {
            builder.emit(copy_to_exec).source[0] = destination;  // v_cmpx
        }
    }
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
