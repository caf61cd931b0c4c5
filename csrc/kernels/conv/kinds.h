// kernels/conv/kinds.h: the arguments of a causal convolution, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::conv {

// pre[c, t] = bias[c] + sum_j weight[c, j] x[c, t - width + 1 + j], y = pre, or silu(pre) = pre / (1 + e^-pre). Channels are
// independent; the inputs before a sequence are its state, or 0.

// Consecutive times that a thread computes.
inline constexpr int tile = 8;
inline constexpr int smallest_width = 2, largest_width = 4;

struct ConvConfig {
    ElementType element;
    bool channels_last;  // a row holds the channels of one time; otherwise the times of one channel
    // Adjacent channels that a thread computes: whole 16-byte vectors of them, or fewer where a gradient keeps more values per time;
    // 1 for rows of any length and alignment.
    int channels;
};

// For updates: sequences that continue by one time step, as in decoding, with contiguous channels.
struct UpdateConfig {
    ElementType element;
    int channels;  // adjacent channels that a thread computes: few, since steps of few sequences have few threads
    int columns;  // of the states: as many as the inputs before a time, or one more
    bool
        channels_last;  // the channels of the states are contiguous; otherwise the columns of a channel are, channel after channel
};
// For the convolutions of updates.
inline constexpr int update_width = 4, update_threads = 64;

// Sequences of one length, each with its own rows; or packed along time.
struct Sequences {
    // Null: one length. Otherwise where each packed sequence begins, and where the last one ends; what comes after it is 0.
    const int32_t* starts;
    uint32_t count;
    uint32_t length;  // of each, or the total of packed ones
    uint32_t slots;   // tiles of all sequences: plan.h
};

// Strides in elements: between sequences, and between rows.
struct Sequenced {
    const void* data;  // y and dx are written
    int64_t sequence, row;
};

// The inputs before each sequence: [slot][channel][column]; a sequence continues its last `width` - 1 columns.
struct States {
    void* data;            // null: zeros before every sequence, and no state is stored
    const int32_t* slots;  // per sequence; null: its index. For an invalid slot, y is 0 and no state changes
    const uint8_t* present;  // per sequence, 0: zeros precede it regardless of its state; null: 1
    // The position of a sequence, modulo the columns, is where its first input is written; the columns before it are those it continues.
    const int32_t* positions;
    // How many of the last call's inputs were accepted, from 1: the sequence continues after these.
    const int32_t* accepted;
    int64_t slot, channel, column;  // strides
    uint32_t count;                 // of slots
    uint32_t columns;
};

// Results of a convolution whose channels are split, such as those of queries, keys and values.
inline constexpr uint32_t most_results = 3;

// Channels [0, ends[0]) are written to y[0], those from ends[i] on to y[i + 1].
struct ForwardArguments {
    Sequenced x, y[most_results];
    uint32_t ends[most_results - 1];
    const void* weight;  // [channel][width]
    const void* bias;    // null: 0
    States states;
    Sequences sequences;
    uint32_t channels;
    uint32_t width;
    uint32_t silu;
    uint32_t padding;
};

// For an update. The first dimension of the grid is channels, the second sequences: adjacent workgroups are on different XCDs, each
// of which then reads different weights. The first seven words are what loads need (preloaded_arguments.h); strides are in elements.
struct UpdateArguments {
    const void* x;
    void* states;
    const void* weight;    // [channel][update_width]
    const void* bias;      // null: 0
    const int32_t* slots;  // as in States
    uint32_t x_sequence, slot;
    uint32_t column;    // for states with contiguous channels
    uint32_t channels;  // a multiple of a thread's channels
    void* y[most_results];
    uint32_t y_sequence[most_results];
    uint32_t ends[most_results - 1];  // as in ForwardArguments
    uint32_t count;                   // of slots
    uint32_t silu;
    uint32_t padding;
};

// All values are as computed by forward, without states.
struct BackwardArguments {
    Sequenced x, dy, dx;
    const void* weight;
    const void* bias;
    float* partial;  // [worker][width + 1][channel]: partial gradients of each tap of weight, and of bias
    Sequences sequences;
    uint32_t channels;
    uint32_t width;
    uint32_t silu;
    uint32_t workers;  // that share the tiles: threads of adjacent channels, or waves of a channel
};

// Adds the workers' sums, in order.
struct ReduceArguments {
    const float* partial;
    void* dweight;
    void* dbias;  // null: not needed
    uint32_t workers, channels, width;
    uint32_t padding;
};

inline constexpr int threads = 256;

template <ConvConfig config>
struct Forward;
template <UpdateConfig config>
struct Update;
template <ConvConfig config>
struct Backward;
template <ElementConfig config>
struct Reduce;

namespace kinds {

struct forward : Kind<ConvConfig, ForwardArguments, Forward> {};
struct update : Kind<UpdateConfig, UpdateArguments, Update> {};
struct backward : Kind<ConvConfig, BackwardArguments, Backward> {};
struct reduce : Kind<ElementConfig, ReduceArguments, Reduce> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
    using enum ElementType;
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::conv
