// kernels/delta_rule/kinds.h: the arguments of gated delta rules, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::delta_rule {

// Each value head has a state S (key x value), and for each of its tokens, in order,
//     S <- e^g S,  d = beta (v - S^T k),  S <- S + k d^T,  o = scale S^T q
// (S. Yang, J. Kautz, A. Hatamizadeh, Gated Delta Networks, 2024). Value head i uses the query and key of head i / group. With
// decays per channel, g has an element for each key, and row i of S is multiplied by e^g_i (Kimi Linear, 2025).
enum class Decay { head, channel };

// Strides in elements: between sequences (0 if sequences are packed), tokens and heads.
struct TokenHeads {
    const void* data;
    int64_t sequence, token, head;
};

// One state per slot and value head. For step: four adjacent elements have the alignment of their vector, and are all present or none is.
struct States {
    void* data;  // null: zeros before every sequence, and no state is stored
    int64_t slot, head, key, value;
};

struct Sequences {
    const int32_t*
        starts;  // null: one length. Otherwise where each packed one begins, and where the last one ends
    uint32_t count;
    uint32_t length;  // of each; unused if they are packed
};

// A workgroup takes `step_values` columns of a state through all tokens of its sequence, and each of its waves `step_keys` rows.
inline constexpr int step_values = 32, step_keys = 32;

struct StepConfig {
    ElementType element;
    ElementType state;
    int key;              // largest supported
    bool value_by_value;  // a state's keys are contiguous in memory; otherwise its values
};
constexpr int step_threads(const StepConfig& config) { return 64 * config.key / step_keys; }

struct StepArguments {
    // The arguments that the first addresses depend on come first: as many as fit arrive in registers (kernels.h), and the rest
    // occupies few cache lines of memory, followed by arguments that only results need.
    Divisor slices, heads;
    Sequences sequences;
    Divisor group;
    TokenHeads k, q, v, g, beta;
    // Null: g is ln of the decay. Otherwise g is x of the decay exp(-exp(a_log) softplus(x + dt_bias)) or, for channels with a
    // negative lower_bound, exp(lower_bound sigmoid(exp(a_log) (x + dt_bias))).
    const float* a_log;    // per head
    const float* dt_bias;  // with a_log; per head, or per channel of each head
    // [sequence][slots_per_sequence]: the slots of each sequence's state; null: the index of the sequence. With more than one, the state
    // after token t is written to slot t, and the sequence continues that of token accepted - 1. Out-of-range values mean no slot.
    const int32_t* slots;
    const int32_t* accepted;  // null: 1
    States initial;
    uint32_t slots_per_sequence, slot_count;
    uint32_t key, value;
    float scale, beta_factor;
    uint32_t normalize, beta_is_logit, wide_g, wide_beta;  // wide: float32
    float lower_bound;
    uint32_t padding;
    TokenHeads out;
    States final;
};

// Tokens that are processed together as matrix products.
inline constexpr int chunk_tokens = 64;

// The values that prepare stores per row of a chunk. The factors are those that make q and k unit vectors, or 1.
struct RowFactors {
    float log_decay;  // sum of g from the chunk's first row to this one
    float beta, key, query;
};

// The chunks of a sequence have consecutive indices; for packed ones, the first is floor(start / chunk_tokens) + sequence.
struct Chunks {
    Sequences sequences;
    Divisor per_sequence;  // for sequences of one length
    uint32_t count;        // an upper bound if they are packed
};

struct PrepareConfig {
    ElementType element;
    int key;  // largest supported
};

// For every chunk and value head: T = (I + A)^-1 with A_ij = beta_i k_i.k_j e^(gamma_i - gamma_j) for i > j, and P_ij =
// q_i.k_j e^(gamma_i - gamma_j) for i >= j, where gamma is log_decay; both as sums: for 16-bit elements, the rounded value and the rounded rest.
struct PrepareArguments {
    TokenHeads q, k;
    TokenHeads g, beta;   // float32
    RowFactors* factors;  // [chunk][head][chunk_tokens]
    // [chunk][head][T, P, and for gradients T^T, P^T][part][chunk_tokens * chunk_tokens], in the order of matrix_element.
    void* matrices;
    Chunks chunks;
    Divisor heads, group;
    uint32_t key;
    uint32_t normalize;
    uint32_t matrices_of_chunk;  // 2, or 4 for gradients
    uint32_t padding;
};

// The results of channel_prepare for scans, where e^gamma of channel c and row i is the product of its decays from the chunk's first
// row on: the rows e^gamma q and e^gamma k, and e^(gamma_C - gamma) k with one row per key; all as sums.
enum class ScaledRows { queries, keys, kept_keys };
struct ChannelOperands {
    void*
        scaled;  // [chunk][head][ScaledRows][part][chunk_tokens * the row's key], in the order of matrix_element
    float* decays;  // [chunk][head][the row's key]: e^gamma_C
};

// T and P for channels: A_ij = beta_i sum over c of k_ic k_jc e^(gamma_ic - gamma_jc), P likewise.
struct ChannelPrepareArguments {
    TokenHeads q, k, g, beta;
    const float *a_log, *dt_bias;  // as in StepArguments
    RowFactors* factors;           // beta; the contents of ChannelOperands need no other
    void* matrices;                // T and P, as in PrepareArguments
    ChannelOperands operands;
    Chunks chunks;
    Divisor heads, group;
    uint32_t key;
    uint32_t normalize, beta_is_logit, wide_g, wide_beta;  // wide: float32
    float lower_bound;
};

// Threads of a scan, half of them for changes of states and half for outputs; and of the backward pass.
inline constexpr int scan_threads = 512, reverse_threads = 256;

struct ScanConfig {
    ElementType element;
    int key;      // largest supported
    int columns;  // columns of a state per workgroup
};

// The arguments shared by all passes over chunks.
struct ChunkArguments {
    TokenHeads q, k, v;
    const RowFactors* factors;
    const void* matrices;
    Chunks chunks;
    Divisor heads, group;
    uint32_t key, value;
    float scale;
    uint32_t matrices_of_chunk;
};

struct ScanArguments {
    ChunkArguments common;
    TokenHeads out;         // null: not needed
    States initial, final;  // float32, slot: the sequence
    float* states;          // [chunk][head][key][value]: before each chunk; null: not needed
    float* changes;         // [chunk][head][chunk_tokens][value]: V'; with states
    Divisor slices;
    Divisor xcds;              // 1 if the number of states is not a multiple of it
    ChannelOperands operands;  // for channel_scan
};

// From the last chunk back: the gradients of states, and Y = T^T dV'.
struct ReverseArguments {
    ChunkArguments common;
    TokenHeads dout, dv;
    States final, initial;  // their gradients
    float* dstates;         // [chunk][head][key][value]: of the state after each chunk
    float* solved;          // [chunk][head][chunk_tokens][value]: Y
    Divisor slices;
    Divisor xcds;
};

// The remaining gradients, for each chunk and value head separately.
struct GradientArguments {
    ChunkArguments common;
    TokenHeads dout, dq, dk, dg, dbeta;  // dq and dk per value head; dg and dbeta float32
    const float *states, *changes, *dstates, *solved;
    uint32_t normalize;
    uint32_t wide;  // dq and dk are float32
};

template <StepConfig config>
struct Step;
template <StepConfig config>
struct ChannelStep;
template <PrepareConfig config>
struct Prepare;
template <PrepareConfig config>
struct ChannelPrepare;
template <ScanConfig config>
struct Scan;
template <ScanConfig config>
struct ChannelScan;
template <ScanConfig config>
struct Reverse;
template <PrepareConfig config>
struct Gradient;

namespace kinds {

struct step : Kind<StepConfig, StepArguments, Step> {};
struct channel_step : Kind<StepConfig, StepArguments, ChannelStep> {};
struct prepare : Kind<PrepareConfig, PrepareArguments, Prepare> {};
struct channel_prepare : Kind<PrepareConfig, ChannelPrepareArguments, ChannelPrepare> {};
struct scan : Kind<ScanConfig, ScanArguments, Scan> {};
struct channel_scan : Kind<ScanConfig, ScanArguments, ChannelScan> {};
struct reverse : Kind<ScanConfig, ReverseArguments, Reverse> {};
struct gradient : Kind<PrepareConfig, GradientArguments, Gradient> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::delta_rule
