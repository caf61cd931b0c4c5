// kernels/probe/kinds.h: the arguments of a probe, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
// hipkittens/_probes.py states what each probe tests and the expected result. No operator launches them: they go through
// hipkittens.kernel, like users' kernels.
#pragma once
#include <stdint.h>

#include "../row.h"

namespace hipkittens::probe {

struct ProbeArguments {
    const uint32_t* input;
    uint32_t* output;
    uint32_t input_bytes;    // of the buffer descriptor of `input`
    uint32_t output_bytes;   // of that of `output`
    uint32_t scalar_offset;  // soffset of buffer instructions
    uint32_t which;          // one of the kernel's cases
    uint32_t warm_steps;     // taken before the clock is read
    uint32_t steps;
};

// Seven words are preloaded (preloaded_arguments.h), the eighth is not.
struct PreloadedArguments {
    uint32_t* output;
    uint64_t words[7];
};

struct DirectToLdsConfig {
    int bytes;
};

// The cases of a kernel. hipkittens/_probes.py has the same numbers.
enum class BufferAccess : uint32_t { load_b128, store_b128 };
enum class LdsAccess : uint32_t {
    read_b32,
    read_b64,
    read_b96,
    read_b128,
    write_b32,
    write_b64,
    write_b96,
    write_b128,
    read_transposed
};
enum class MatrixFormat : uint32_t { bf16, f16, fp8, f32 };
enum class WaitOrder : uint32_t { loads, load_then_store, lds_reads, direct_to_lds };
enum class Chain : uint32_t { vector, transcendental, matrix, matrix_independent, lds, memory, barrier };

template <NoConfig config>
struct BufferRange;
template <DirectToLdsConfig config>
struct DirectToLds;
template <NoConfig config>
struct TransposedRead;
template <NoConfig config>
struct LdsAccessTime;
template <NoConfig config>
struct MatrixProduct;
template <NoConfig config>
struct Conversion;
template <NoConfig config>
struct Placement;
template <NoConfig config>
struct Preloaded;
template <NoConfig config>
struct WaitForOlder;
template <NoConfig config>
struct ChainTime;

namespace kinds {

struct buffer_range : Kind<NoConfig, ProbeArguments, BufferRange> {};
struct direct_to_lds : Kind<DirectToLdsConfig, ProbeArguments, DirectToLds> {};
struct transposed_read : Kind<NoConfig, ProbeArguments, TransposedRead> {};
struct lds_access : Kind<NoConfig, ProbeArguments, LdsAccessTime> {};
struct matrix_product : Kind<NoConfig, ProbeArguments, MatrixProduct> {};
struct conversion : Kind<NoConfig, ProbeArguments, Conversion> {};
struct placement : Kind<NoConfig, ProbeArguments, Placement> {};
struct preloaded : Kind<NoConfig, PreloadedArguments, Preloaded> {};
struct wait_order : Kind<NoConfig, ProbeArguments, WaitForOlder> {};
struct chain : Kind<NoConfig, ProbeArguments, ChainTime> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::probe
