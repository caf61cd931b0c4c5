// kernels/delta_rule/scan.h: a gated delta rule chunk after chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_changes.h"
#include "scan_outputs.h"

namespace hipkittens::delta_rule {

// With S before the chunk, gamma the rows' log_decay and gamma_C that of the last one:
//     V' = T (beta (V - e^gamma K S)),  O = scale (e^gamma Q S + P V'),  S <- e^gamma_C S + K^T (e^(gamma_C - gamma) V')
// (S. Yang and others, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024, with decays.) What is a float,
// S, V', T and P, is a sum. Where the decays of K and Q are, is their Operands' affair.
//
// Every chunk waits for the state of the last, so that time is what passes from state to state. Four waves do nothing else: each has a
// quarter of the keys of S, whose accumulators are operands of its part of K S as they are, then rows 16 w .. of the sum of these parts
// and of V', then its keys' part of the update. Four more waves have the outputs of rows 16 w .., a chunk behind. Between the
// three barriers of a chunk, a, b and c:
//     Changes  c - a: S behind the last chunk, parts of K S    a - b: beta (V - e^gamma K S)    b - c: V'
//     Outputs  c - a: the rest of Q S, P V' of the last chunk  a - b: stores O, half of Q S     b - c: queries and factors of the next
template <ScanConfig config, class Operands>
struct ChunkAfterChunk {
    using Shared = ScanShared<config, Operands>;
    static constexpr int threads = scan_threads, waves_per_simd = 2, lds_bytes = Shared::bytes;

    KITTENS_DEVICE static void run(const ScanArguments& all, kittens::shared_byte* lds) {
        const ChunkArguments& arguments = all.common;
        StateColumns at(arguments, all.slices, all.xcds, config.columns);
        const ChunksOf chunks(arguments, at);
        const Shared shared(lds);
        const bool is_of_outputs = at.wave >= scan_waves;
        at.wave %= scan_waves;
        if (is_of_outputs)
            Outputs<config, Operands>::run(all, at, chunks, shared);
        else
            Changes<config, Operands>::run(all, at, chunks, shared);
    }
};

template <ScanConfig config>
struct Scan : ChunkAfterChunk<config, HeadOperands<config>> {};
template <ScanConfig config>
struct ChannelScan : ChunkAfterChunk<config, ChannelRows<config>> {};

}  // namespace hipkittens::delta_rule
