// simulator/execute/operand_modifiers.cpp: see operand_modifiers.h.
// SPDX-License-Identifier: MIT
#include "simulator/execute/operand_modifiers.h"

#include "isa/table.h"
#include "simulator/execute/lane_permutation.h"
#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

using isa::Instruction;
using isa::Operand;
using Type = isa::OperandType;

// ---- Steps on one dword row, all lanes: destination = f(source[0]).

template <class Function>
HIPKITTENS_INLINE const Step* on_row(Wave* wave, const Step* step, Function function) {
    const Operands operands(step);
    for (int quarter = 0; quarter < 4; ++quarter) {
        store_whole_quarter(wave, operands.destination, quarter,
                            function(operands.read<u32x16>(wave, 0, quarter)));
    }
    return step + 1;
}

const Step* copy_row(Wave* wave, const Step* step) {
    return on_row(wave, step, [](u32x16 a) __attribute__((always_inline)) { return a; });
}
// Signs: extra[0] is and-ed (abs), extra[1] xor-ed (neg).
const Step* change_signs(Wave* wave, const Step* step) {
    const uint32_t keep = step->extra[0], flip = step->extra[1];
    return on_row(wave, step,
                  [keep, flip](u32x16 a) __attribute__((always_inline)) { return (a & keep) ^ flip; });
}
// A field of extra[0] bits at bit extra[1] (SDWA source select).
const Step* take_field(Wave* wave, const Step* step) {
    const int left = static_cast<int>(32 - step->extra[0] - step->extra[1]),
              right = static_cast<int>(32 - step->extra[0]);
    return on_row(wave, step, [=](u32x16 a) __attribute__((always_inline)) { return (a << left) >> right; });
}
const Step* take_signed_field(Wave* wave, const Step* step) {
    const int left = static_cast<int>(32 - step->extra[0] - step->extra[1]),
              right = static_cast<int>(32 - step->extra[0]);
    return on_row(wave, step, [=](u32x16 a) __attribute__((always_inline)) {
        return (u32x16)((i32x16)(a << left) >> right);
    });
}
// Halves: the new low half starts at bit extra[0], the new high half at bit extra[1] (0 or 16 each).
const Step* take_halves(Wave* wave, const Step* step) {
    const int low = static_cast<int>(step->extra[0]), high = static_cast<int>(step->extra[1]);
    return on_row(wave, step, [=](u32x16 a) __attribute__((always_inline)) {
        return ((a >> low) & 0xffff) | (a >> high) << 16;
    });
}
const Step* widen_half(Wave* wave, const Step* step) {
    const int low = static_cast<int>(step->extra[0]);
    return on_row(wave, step,
                  [=](u32x16 a) __attribute__((always_inline)) { return (u32x16)half_to_float(a >> low); });
}

bool is_16_bit(Type type) {
    return type == Type::f16 || type == Type::bf16 || type == Type::b16 || type == Type::i16 ||
           type == Type::u16;
}
bool is_packed_16(Type type) {
    return type == Type::pk_f16 || type == Type::pk_bf16 || type == Type::pk_i16 || type == Type::pk_u16;
}
bool is_packed_32(Type type) { return type == Type::pk_f32 || type == Type::pk_b32; }

// A source while it is being modified: one row per dword.
class SourceRows {
  public:
    SourceRows(StepBuilder& builder, const StepBuilder::Source& source, int dwords, int index)
        : builder_(builder), dwords_(dwords), scratch_(2 * index) {
        for (int i = 0; i < dwords; ++i) {
            offset_[i] = next_register(source.offset, source.stride, static_cast<uint32_t>(i));
            stride_[i] = source.stride;
        }
    }
    int dwords() const { return dwords_; }

    // Emits a step from row `from` to the scratch row of dword `to`, which then holds the dword.
    Step& transform(Handler handler, int from, int to) {
        Step& step = builder_.emit(handler);
        step.source[0] = offset_[from];
        step.stride[0] = stride_[from];
        step.destination = builder_.scratch_row(scratch_ + to);
        offset_[to] = step.destination;
        stride_[to] = 64;
        changed_ = true;
        return step;
    }
    Step& transform(Handler handler, int dword) { return transform(handler, dword, dword); }

    // Selects both dwords from other dwords at once (op_sel of packed f32).
    void choose(int low, int high) {
        if (low == 0 && high == 1) return;
        const uint32_t offset[2] = {offset_[low], offset_[high]};
        const uint8_t stride[2] = {stride_[low], stride_[high]};
        // Swapping a scratch pair ({1, 0}) cannot be done in place; sources are in registers or constants
        // here.
        for (int i = 0; i < 2; ++i) {
            offset_[i] = offset[i];
            stride_[i] = stride[i];
        }
        moved_ = true;
    }

    StepBuilder::Source result() {
        if (changed_ || moved_) {
            for (int i = 0; i < dwords_; ++i) {
                if (offset_[i] != builder_.scratch_row(scratch_ + i)) transform(copy_row, i);
            }
        }
        return {offset_[0], stride_[0]};
    }

  private:
    StepBuilder& builder_;
    int dwords_, scratch_;
    uint32_t offset_[2] = {0, 0};
    uint8_t stride_[2] = {0, 0};
    bool changed_ = false, moved_ = false;
};

void select_sdwa(SourceRows& rows, const isa::Sdwa& sdwa, int index) {
    const int select = sdwa.src_sel[index];
    if (select == 6) return;
    Step& step = rows.transform(sdwa.sext[index] ? take_signed_field : take_field, 0);
    step.extra[0] = select < 4 ? 8 : 16;
    step.extra[1] = static_cast<uint32_t>(select < 4 ? 8 * select : 16 * (select - 4));
}

void select_halves(SourceRows& rows, bool low_from_high, bool high_from_high) {
    if (!low_from_high && high_from_high) return;
    Step& step = rows.transform(take_halves, 0);
    step.extra[0] = low_from_high ? 16 : 0;
    step.extra[1] = high_from_high ? 16 : 0;
}

void sign(SourceRows& rows, int dword, uint32_t sign_bits, bool absolute, uint32_t negated) {
    if (!absolute && !negated) return;
    Step& step = rows.transform(change_signs, dword);
    step.extra[0] = absolute ? ~sign_bits : ~0u;
    step.extra[1] = negated;
}

}  // namespace

bool modify_source(const Instruction& in, StepBuilder& builder, const Operand& operand, int index,
                   StepBuilder::Source* source) {
    *source = builder.source(in, operand);
    const bool negate = in.neg >> index & 1, negate_high = in.neg_hi >> index & 1,
               absolute = in.abs >> index & 1;
    const bool low_select = in.op_sel >> index & 1, high_select = in.op_sel_hi >> index & 1;
    const bool permuted = in.has_dpp && index == 0;
    const bool packed_encoding = in.encoding == isa::Encoding::vop3p;
    const bool selected = in.has_sdwa && index < 2 && in.sdwa.src_sel[index] != 6;
    // In a mixed operation op_sel_hi marks the f16 sources; in a packed one it is 1 if nothing is to be done.
    const bool halves = packed_encoding && in.row->has(isa::mix) ? high_select
                        : packed_encoding                        ? low_select || !high_select
                                                                 : low_select && is_16_bit(operand.type);
    if (!permuted && !selected && !halves && !negate && !negate_high && !absolute) return true;
    if (operand.dwords > 2 || operand.type == Type::lane_mask) return !negate && !absolute && !permuted;

    SourceRows rows(builder, *source, operand.dwords, index);
    if (permuted) {
        const LanePermutation* permutation = lane_permutation(in.dpp.control);
        if (!permutation) return false;
        for (int dword = 0; dword < rows.dwords(); ++dword) {
            Step& step =
                rows.transform(permutation->within_rows ? permute_within_rows : permute_across_rows, dword);
            step.data = permutation;
            step.immediate = in.dpp.bound_ctrl;
        }
    }
    if (selected) select_sdwa(rows, in.sdwa, index);

    if (packed_encoding && in.row->has(isa::mix)) {
        // op_sel_hi marks the source as f16, op_sel selects the half.
        if (high_select) rows.transform(widen_half, 0).extra[0] = low_select ? 16 : 0;
        sign(rows, 0, 0x80000000, absolute, negate ? 0x80000000 : 0);
    } else if (packed_encoding && is_packed_32(operand.type)) {
        rows.choose(low_select, in.opcode == isa::Opcode::v_pk_mov_b32 ? 1 : high_select);
        sign(rows, 0, 0x80000000, false, negate ? 0x80000000 : 0);
        sign(rows, 1, 0x80000000, false, negate_high ? 0x80000000 : 0);
    } else if (packed_encoding && is_packed_16(operand.type)) {
        select_halves(rows, low_select, high_select);
        sign(rows, 0, 0x80008000, false, (negate ? 0x8000u : 0) | (negate_high ? 0x80000000u : 0));
    } else if (packed_encoding && operand.type == Type::b32) {
        select_halves(rows, low_select, high_select);  // dot products of bytes and nibbles
    } else if (packed_encoding) {
        sign(rows, 0, 0x80000000, false, negate ? 0x80000000 : 0);
    } else {
        if (halves) {
            Step& step = rows.transform(take_field, 0);
            step.extra[0] = step.extra[1] = 16;
        }
        const uint32_t sign_bit = is_16_bit(operand.type) ? 0x8000 : 0x80000000;
        sign(rows, operand.dwords - 1, sign_bit, absolute, negate ? sign_bit : 0);
    }
    *source = rows.result();
    return true;
}

// ---- DPP write mask.

namespace {

// extra[0], extra[1]: lanes that row_mask and bank_mask keep; data: the permutation, whose invalid lanes are
// not written either unless immediate (bound_ctrl) is set.
const Step* narrow_exec(Wave* wave, const Step* step) {
    const uint64_t exec = wave->exec;
    memcpy(at(wave, step->destination), &exec, sizeof exec);
    uint64_t lanes = step->extra[0] | uint64_t{step->extra[1]} << 32;
    if (!step->immediate) lanes &= valid_lanes(*static_cast<const LanePermutation*>(step->data), exec);
    wave->exec = exec & lanes;
    return step + 1;
}
const Step* restore_exec(Wave* wave, const Step* step) {
    memcpy(&wave->exec, at(wave, step->destination), sizeof wave->exec);
    return step + 1;
}

}  // namespace

bool begin_dpp(const Instruction& in, StepBuilder& builder) {
    if (!in.has_dpp || (in.dpp.bound_ctrl && in.dpp.row_mask == 0xf && in.dpp.bank_mask == 0xf)) return false;
    uint64_t lanes = 0;
    for (int lane = 0; lane < 64; ++lane) {
        if (in.dpp.row_mask >> (lane / 16) & 1 && in.dpp.bank_mask >> (lane % 16 / 4) & 1)
            lanes |= uint64_t{1} << lane;
    }
    Step& step = builder.emit(narrow_exec);
    step.destination = builder.scratch_row(saved_exec_scratch_row);
    step.extra[0] = static_cast<uint32_t>(lanes);
    step.extra[1] = static_cast<uint32_t>(lanes >> 32);
    step.immediate = in.dpp.bound_ctrl;
    step.data = lane_permutation(in.dpp.control);
    return true;
}

void end_dpp(StepBuilder& builder) {
    builder.emit(restore_exec).destination = builder.scratch_row(saved_exec_scratch_row);
}

// ---- Results.

namespace {

// MODE: bits 4, 5 denormals of f32 (in, out), 6, 7 of f16 and f64, 8 DX10_CLAMP, 9 IEEE.
template <class Float, class Bits>
HIPKITTENS_INLINE Float scaled_and_clamped(const Wave* wave, const Step* step, Float a,
                                           uint32_t denormal_bit) {
    constexpr float factor[4] = {1.0f, 2.0f, 4.0f, 0.5f};
    // Output modifiers take effect only where denormals are flushed and IEEE mode is off; they turn -0 into
    // +0.
    if (step->extra[0] && !(wave->mode & (denormal_bit | 0x200))) a = a * factor[step->extra[0]] + 0.0f;
    if (step->extra[1]) {
        const Float clamped = pick(a > 0, pick(a < 1, a, Float{} + 1), Float{});
        a = wave->mode & 0x100 ? clamped : pick(a != a, a, clamped);
    }
    return a;
}
const Step* adjust_f32(Wave* wave, const Step* step) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const f32x16 a = load_quarter<f32x16>(wave, step->destination, 64, quarter);
        store_whole_quarter(wave, step->destination, quarter,
                            scaled_and_clamped<f32x16, u32x16>(wave, step, a, 0x20));
    }
    return step + 1;
}
const Step* adjust_f16(Wave* wave, const Step* step) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const f32x16 a = half_to_float(load_quarter<u32x16>(wave, step->destination, 64, quarter));
        store_whole_quarter(
            wave, step->destination, quarter,
            float_to_half(within_half(wave, scaled_and_clamped<f32x16, u32x16>(wave, step, a, 0x80))));
    }
    return step + 1;
}
const Step* adjust_pk_f16(Wave* wave, const Step* step) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 both = load_quarter<u32x16>(wave, step->destination, 64, quarter);
        const f32x16 low = scaled_and_clamped<f32x16, u32x16>(wave, step, half_to_float(both), 0x80);
        const f32x16 high = scaled_and_clamped<f32x16, u32x16>(wave, step, half_to_float(both >> 16), 0x80);
        store_whole_quarter(wave, step->destination, quarter,
                            float_to_half(within_half(wave, low)) | float_to_half(within_half(wave, high))
                                                                        << 16);
    }
    return step + 1;
}
const Step* adjust_pk_bf16(Wave* wave, const Step* step) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 both = load_quarter<u32x16>(wave, step->destination, 64, quarter);
        const f32x16 low = scaled_and_clamped<f32x16, u32x16>(wave, step, bfloat_to_float(both), 0x80);
        const f32x16 high = scaled_and_clamped<f32x16, u32x16>(wave, step, bfloat_to_float(both >> 16), 0x80);
        store_whole_quarter(wave, step->destination, quarter,
                            float_to_bfloat(low) | float_to_bfloat(high) << 16);
    }
    return step + 1;
}
const Step* adjust_f64(Wave* wave, const Step* step) {
    const Float64Mode guard(wave);
    for (int quarter = 0; quarter < 4; ++quarter) {
        const Wide<f64x8> a = Access<F64>::read(wave, step->destination, 64, quarter);
        Access<F64>::write(wave, step->destination, quarter, ~uint64_t{0},
                           Wide<f64x8>{scaled_and_clamped<f64x8, u64x8>(wave, step, a.first, 0x80),
                                       scaled_and_clamped<f64x8, u64x8>(wave, step, a.second, 0x80)});
    }
    return step + 1;
}

// extra[0]: bits of the register that are preserved; immediate: shift; dwords: width of the result.
const Step* merge(Wave* wave, const Step* step) {
    const Operands operands(step);
    const uint32_t kept = step->extra[0];
    const int left = 32 - step->dwords, right = left - step->immediate;
    const bool sign_extend = step->extra[1];
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 result = operands.read<u32x16>(wave, 0, quarter) << left;
        const u32x16 placed = sign_extend ? (u32x16)((i32x16)result >> right) : result >> right;
        const u32x16 old = load_quarter<u32x16>(wave, operands.destination, 64, quarter);
        store_quarter(wave, operands.destination, quarter, (old & kept) | (placed & ~kept));
    }
    return step + 1;
}

Handler adjuster(Type type) {
    switch (type) {
        case Type::f16:
            return adjust_f16;
        case Type::pk_f16:
            return adjust_pk_f16;
        case Type::pk_bf16:
            return adjust_pk_bf16;
        case Type::f64:
            return adjust_f64;
        default:
            return adjust_f32;
    }
}

}  // namespace

void finish_result(StepBuilder& builder, uint32_t destination, const Operand& operand, uint8_t omod,
                   bool clamp, const Placement& placement) {
    const uint32_t scratch = builder.scratch_row(result_scratch_row);
    if (omod || clamp) {
        const int rows = operand.type == Type::pk_f32 ? 2 : 1;
        for (int row = 0; row < rows; ++row) {
            Step& step = builder.emit(adjuster(operand.type));
            step.destination = scratch + row * layout::vector_row_bytes;
            step.extra[0] = omod;
            step.extra[1] = clamp;
        }
    }
    for (int row = 0; row < operand.dwords; ++row) {
        Step& step = builder.emit(merge);
        step.source[0] = scratch + row * layout::vector_row_bytes;
        step.stride[0] = 64;
        step.destination = destination + row * layout::vector_row_bytes;
        step.extra[0] = placement.kept;
        step.extra[1] = placement.sign_extend;
        step.immediate = placement.shift;
        step.dwords = placement.width;
    }
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
