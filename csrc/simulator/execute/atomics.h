// simulator/execute/atomics.h: the effect of an atomic operation on one value, and on all lanes.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/memory_lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

enum class Atomic : uint8_t {
    add,
    sub,
    rsub,
    inc,
    dec,
    smin,
    smax,
    umin,
    umax,
    bit_and,
    bit_or,
    bit_xor,
    mskor,
    swap,
    cmpswap,  // buffer, flat, global: data = {new, expected}
    cmpst,    // LDS: data0 = expected, data1 = new
    cmpst_float,
    wrap,
    condxchg32,
    add_float,
    min_float,
    max_float,
    pk_add_f16,
    pk_add_bf16,
};

// LDS, or memory that other workgroups may access at the same time.
enum class Shared : uint8_t { lds, device };

struct AtomicOperation {
    Atomic operation;
    uint8_t bytes;  // 4 or 8
};

// The function that completes `operation`, or nullptr.
PendingOperation::Complete atomic_completion(AtomicOperation operation, Shared shared);

// Operands in PendingOperation::data: the first at 0, the second from dword 128 on.
inline constexpr int second_operand = 128;

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
