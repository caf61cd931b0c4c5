// simulator/machine/wave.h: the state of one wave, laid out so that every register is a byte offset from the
// wave.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "isa/instruction.h"

namespace hipkittens::simulator {

struct Step;
struct Workgroup;
struct PendingOperations;
struct WaveTrace;
struct Region;
namespace checks {
struct WaveShadow;
}

enum class WaveStatus : uint8_t { ready, at_barrier, yielded, ended, faulted };

// A wave is this header followed, in the same allocation, by its registers:
//
//   scratch rows   16 x 256 B   operands after modifiers (neg, abs, DPP, SDWA, op_sel), results before clamp
//   scalar rows   128 x  64 B   s0..s101, vcc, m0, exec, ...: each dword repeated 16 times
//   vector rows     n x 256 B   v0.., then the AGPRs: one dword per lane
//   constant rows   n x  64 B   inline constants and literals of this kernel, repeated 16 times
//
// A scalar is kept as a 64-byte broadcast row so that one handler serves an operand that is a VGPR, an SGPR
// or a constant alike: quarter q of an operand (lanes 16q..16q+15) lives at offset + q * stride, stride 64 or
// 0.
struct alignas(64) Wave {
    uint64_t exec = 0;
    uint32_t scc = 0;       // 0 or 1
    uint32_t mode = 0;      // MODE register
    uint32_t barriers = 0;  // passed that order memory for the workgroup (memory/workgroup_order.h)
    WaveStatus status = WaveStatus::ready;
    uint8_t index_in_workgroup = 0;
    uint32_t lds_bytes = 0;
    uint8_t* lds = nullptr;      // this workgroup's LDS, lds_bytes long
    const Step* next = nullptr;  // where to resume
    Workgroup* workgroup = nullptr;
    PendingOperations* pending = nullptr;  // memory operations issued and not yet waited for
    const Region* last_region = nullptr;   // the allocation hit last: most accesses stay in it
    int64_t budget = 0;                    // backward branches left before the wave yields
    const Step* fault_step = nullptr;
    uint64_t fault_address = 0;
    const char* fault_reason = nullptr;  // a literal
    uint32_t fault_lane = 0;
    uint8_t* scratch_memory = nullptr;  // private segment of the wave: private_bytes per lane, lane-major
    uint32_t private_bytes = 0;
    checks::WaveShadow* shadow = nullptr;  // only under checks
    WaveTrace* trace = nullptr;            // only in a traced launch
};

namespace layout {
inline constexpr uint32_t scalar_row_bytes = 64, vector_row_bytes = 256;
inline constexpr uint32_t scratch = (sizeof(Wave) + 255) / 256 * 256;
inline constexpr uint32_t scratch_rows = 16;
inline constexpr uint32_t scalars = scratch + scratch_rows * vector_row_bytes;
inline constexpr uint32_t vectors = scalars + 128 * scalar_row_bytes;
// After the vector registers: their number is the kernel's allocation, and the number of constants is
// unlimited.
constexpr uint32_t constants(uint32_t vgprs) { return vectors + vgprs * vector_row_bytes; }
constexpr uint32_t scalar(uint32_t code) { return scalars + code * scalar_row_bytes; }
inline constexpr uint32_t vcc = scalar(isa::code::vcc_lo), m0 = scalar(isa::code::m0),
                          exec = scalar(isa::code::exec_lo);
}  // namespace layout

// static: this header is compiled at several host levels, and the linker must not share one copy between
// them.
static inline uint8_t* at(Wave* wave, uint32_t offset) { return reinterpret_cast<uint8_t*>(wave) + offset; }
static inline const uint8_t* at(const Wave* wave, uint32_t offset) {
    return reinterpret_cast<const uint8_t*>(wave) + offset;
}

static inline uint32_t read_scalar(const Wave* wave, uint32_t offset) {
    return *reinterpret_cast<const uint32_t*>(at(wave, offset));
}
static inline uint64_t read_scalar64(const Wave* wave, uint32_t offset) {
    return read_scalar(wave, offset) | uint64_t{read_scalar(wave, offset + layout::scalar_row_bytes)} << 32;
}
static inline void write_scalar(Wave* wave, uint32_t offset, uint32_t value) {
    uint32_t* row = reinterpret_cast<uint32_t*>(at(wave, offset));
    for (int lane = 0; lane < 16; ++lane) row[lane] = value;
}
static inline void write_scalar64(Wave* wave, uint32_t offset, uint64_t value) {
    write_scalar(wave, offset, static_cast<uint32_t>(value));
    write_scalar(wave, offset + layout::scalar_row_bytes, static_cast<uint32_t>(value >> 32));
}
// EXEC is stored twice: as a number for masks, and as rows for instructions that read it as an operand.
static inline void write_exec(Wave* wave, uint64_t value) {
    wave->exec = value;
    write_scalar64(wave, layout::exec, value);
}

}  // namespace hipkittens::simulator
