// kernels/delta_rule/kinds.h: what is passed to gated delta rules, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../divisor.h"
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::delta_rule {

// Each value head has a state S (key x value), and each of its tokens, in order,
//     S <- e^g S,  d = beta (v - S^T k),  S <- S + k d^T,  o = scale S^T q
// (S. Yang, J. Kautz, A. Hatamizadeh, Gated Delta Networks, 2024). Value head i has the query and the key of head i / group. Where
// channels have decays, g has an element for each key, and row i of S is multiplied by e^g_i (Kimi Linear, 2025).
enum class Decay { head, channel };

// Strides in elements: from sequence to sequence (0 where sequences are packed), from token to token, from head to head.
struct TokenHeads {
    const void* data;
    int64_t sequence, token, head;
};

// One state for each slot and value head. Of step: four neighbours begin on the alignment of their vector, and are all there or not.
struct States {
    void* data;  // null: zeros before every sequence, and nothing is kept
    int64_t slot, head, key, value;
};

struct Sequences {
    const int32_t* starts;  // null: of one length. Else where each packed one begins, and the last one ends
    uint32_t count;
    uint32_t length;  // of each; unused where they are packed
};

// A workgroup takes `step_values` columns of a state through all tokens of its sequence, and each of its waves `step_keys` rows.
inline constexpr int step_values = 32, step_keys = 32;

struct StepConfig {
    ElementType element;
    ElementType state;
    int key;              // largest
    bool value_by_value;  // a state's keys are neighbours in memory; else its values
};
constexpr int step_threads(const StepConfig& config) { return 64 * config.key / step_keys; }

struct StepArguments {
    // What the first addresses are made of: it comes in registers as far as they go (kernels.h), and the rest in few lines of memory,
    // with what only results need behind it.
    Divisor slices, heads;
    Sequences sequences;
    Divisor group;
    TokenHeads k, q, v, g, beta;
    // Null: g is ln of the decay. Else g is x of the decay exp(-exp(a_log) softplus(x + dt_bias)), or of channels, with a lower_bound
    // below 0, exp(lower_bound sigmoid(exp(a_log) (x + dt_bias))).
    const float* a_log;    // of each head
    const float* dt_bias;  // with a_log; of each head, or of each of its channels
    // [sequence][slots_per_sequence]: the slots of each sequence's state; null: its number. With more than one the state after
    // token t goes to slot t, and the sequence continues that of token accepted - 1. What is out of range: no slot.
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

// Tokens that become matrix products together.
inline constexpr int chunk_tokens = 64;

// What prepare leaves of a row of a chunk. The factors are those that make q and k unit vectors, or 1.
struct RowFactors {
    float log_decay;  // sum of g from the chunk's first row to this one
    float beta, key, query;
};

// The chunks of a sequence have numbers that follow each other; of packed ones, floor(start / chunk_tokens) + sequence is the first.
struct Chunks {
    Sequences sequences;
    Divisor per_sequence;  // of sequences of one length
    uint32_t count;        // an upper bound where they are packed
};

struct PrepareConfig {
    ElementType element;
    int key;  // largest
};

// Of every chunk and value head: T = (I + A)^-1 with A_ij = beta_i k_i.k_j e^(gamma_i - gamma_j) for i > j, and P_ij =
// q_i.k_j e^(gamma_i - gamma_j) for i >= j, where gamma is log_decay; both as sums: of 16-bit elements what they are rounded to, and the rounded rest.
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

// What channel_prepare leaves for scans, with e^gamma of channel c and row i the product of its decays from the chunk's first row on:
// the rows e^gamma q and e^gamma k, and e^(gamma_C - gamma) k with a row for each key; all as sums.
enum class ScaledRows { queries, keys, kept_keys };
struct ChannelOperands {
    void*
        scaled;  // [chunk][head][ScaledRows][part][chunk_tokens * the row's key], in the order of matrix_element
    float* decays;  // [chunk][head][the row's key]: e^gamma_C
};

// T and P of channels: A_ij = beta_i sum over c of k_ic k_jc e^(gamma_ic - gamma_jc), P likewise.
struct ChannelPrepareArguments {
    TokenHeads q, k, g, beta;
    const float *a_log, *dt_bias;  // as of StepArguments
    RowFactors* factors;           // beta; what is in ChannelOperands needs no other
    void* matrices;                // T and P, as of PrepareArguments
    ChannelOperands operands;
    Chunks chunks;
    Divisor heads, group;
    uint32_t key;
    uint32_t normalize, beta_is_logit, wide_g, wide_beta;  // wide: float32
    float lower_bound;
};

// Threads of a scan, half of them for changes of states and half for outputs, and of the pass back.
inline constexpr int scan_threads = 512, reverse_threads = 256;

struct ScanConfig {
    ElementType element;
    int key;      // largest
    int columns;  // of a state that a workgroup takes
};

// What all passes over chunks are told.
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
    TokenHeads out;         // null: nobody asks for it
    States initial, final;  // float32, slot: the sequence
    float* states;          // [chunk][head][key][value]: before each chunk; null: nobody asks
    float* changes;         // [chunk][head][chunk_tokens][value]: V'; with states
    Divisor slices;
    Divisor xcds;              // 1 where the states are no multiple of them
    ChannelOperands operands;  // of channel_scan
};

// From the last chunk back: the gradients of states, and Y = T^T dV'.
struct ReverseArguments {
    ChunkArguments common;
    TokenHeads dout, dv;
    States final, initial;  // their gradients
    float* dstates;         // [chunk][head][key][value]: of the state behind each chunk
    float* solved;          // [chunk][head][chunk_tokens][value]: Y
    Divisor slices;
    Divisor xcds;
};

// What is left, of each chunk and value head by itself.
struct GradientArguments {
    ChunkArguments common;
    TokenHeads dout, dq, dk, dg, dbeta;  // dq and dk of value heads; dg and dbeta float32
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
