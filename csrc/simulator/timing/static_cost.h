// simulator/timing/static_cost.h: the cost of an instruction, as far as it is known before the instruction runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "isa/effects.h"
#include "simulator/machine/program.h"
#include "simulator/timing/parameters.h"

namespace hipkittens::simulator::timing {

// A SIMD issues at most one instruction of each category per slot, from different waves (rocprof-compute
// documentation).
enum class Category : uint8_t { vector, vector_memory, scalar, lds, branch, internal };
inline constexpr int category_count = 6;

// clang-format off
enum class Kind : uint8_t {
    vector, matrix, scalar, scalar_memory, vector_load, vector_store, vector_atomic, vector_load_to_lds, cache_control, lds,
    branch, wait, barrier, priority, sleep, end, other,
};
// clang-format on

// Formats whose products consume different power (clock.h).
enum class MatrixType : uint8_t { none, f16, bf16, f8, f4, other };

struct VectorRange {
    uint16_t first = 0;  // v0 is 0, a0 is 256
    uint16_t count = 0;
};

struct Cost {
    Category category = Category::internal;
    Kind kind = Kind::other;
    isa::Unit unit = isa::Unit::internal;
    MatrixType matrix_type = MatrixType::none;
    uint16_t issue = 4;          // clk until the wave's next instruction
    uint16_t busy = 4;           // clk of its unit
    bool blocks_vector = false;  // a matrix instruction during which the VALU cannot work
    bool bypasses_cache = false;
    uint8_t lgkm = 0;          // its contribution to lgkmcnt
    bool has_address = false;  // scalar memory: the trace has its lines
    uint8_t wait_vm = 63, wait_lgkm = 15;
    uint8_t priority = 0;
    // Clocks from issue until a dependent instruction may issue: one with the same accumulators, with
    // overlapping accumulators, any other.
    uint16_t same_c = 0, overlapping_c = 0, read = 0;
    uint16_t lds_banks = 0, lds_in = 0, lds_out = 0;  // clk of the banks without conflicts, and of the port
    uint8_t range_count = 0;
    VectorRange ranges[6];            // vector registers it touches
    VectorRange result, c;            // of a matrix instruction
    uint32_t address = 0, bytes = 4;  // in the text
    uint32_t skip_run = 0;            // number of instructions from here on that VSKIP may skip together
    double flops = 0;                 // of a matrix instruction, for one wave
};

// The most frequent type among the matrix instructions in a kernel's text.
MatrixType matrix_type_of(const std::vector<Cost>& costs);

std::vector<Cost> static_costs(const Program& program, const Parameters& parameters);

}  // namespace hipkittens::simulator::timing
