// kernels/delta_rule/scan.h: a gated delta rule chunk by chunk, with the state in accumulators.
// SPDX-License-Identifier: MIT
#pragma once
#include "scan_changes.h"
#include "scan_outputs.h"

namespace hipkittens::delta_rule {

// With S before the chunk, gamma the rows' log_decay and gamma_C that of the last one:
//     V' = T (beta (V - e^gamma K S)),  O = scale (e^gamma Q S + P V'),  S <- e^gamma_C S + K^T (e^(gamma_C - gamma) V')
// (S. Yang and others, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024, with decays.) The float
// quantities S, V', T and P are stored as sums. Operands decides where the decays of K and Q are applied.
//
// Every chunk waits for the state of the previous one, so the latency from state to state determines the time. Four waves work only on
// that. Each has a quarter of the keys of S, whose accumulators serve directly as operands for its part of K S; then rows 16 w .. of the
// sum of these parts and of V'; then the update for its keys. Four more waves compute the outputs of rows 16 w .., one chunk later. Between
// the three barriers of a chunk, a, b and c:
//     Changes  c - a: S after the last chunk, parts of K S     a - b: beta (V - e^gamma K S)    b - c: V'
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
