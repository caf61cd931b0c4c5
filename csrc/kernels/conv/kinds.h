// kernels/conv/kinds.h: what is passed to a causal convolution, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "../row.h"

namespace hipkittens::conv {

// pre[c, t] = bias[c] + sum_j weight[c, j] x[c, t - width + 1 + j], y = pre, or silu(pre) = pre / (1 + e^-pre). Each channel by
// itself; what lies before a sequence is its state, or 0.

// Neighbouring times that a thread computes.
inline constexpr int tile = 8;
inline constexpr int smallest_width = 2, largest_width = 4;

struct ConvConfig {
    ElementType element;
    bool channels_last;  // rows are a time's channels; else a channel's times
    // Neighbouring channels that a thread computes: of whole vectors of them, 16 bytes, or fewer where a gradient keeps more of each
    // time; 1 of rows of any length and alignment.
    int channels;
};

// Of updates: sequences that go on by one time, as in decoding, whose channels are neighbours.
struct UpdateConfig {
    ElementType element;
    int channels;  // neighbouring ones that a thread computes: few, as steps of few sequences have few threads
    int columns;   // of the states: as many as are before a time, or one more
    bool
        channels_last;  // the states' channels are neighbours; else a channel's columns, behind those of the one before
};
// Of the convolutions of updates.
inline constexpr int update_width = 4, update_threads = 64;

// Sequences of one length, each with rows of its own; or packed one after the other in time.
struct Sequences {
    // Null: of one length. Else where each packed one begins, and where the last one ends; what is behind that is 0.
    const int32_t* starts;
    uint32_t count;
    uint32_t length;  // of each, or of all packed ones together
    uint32_t slots;   // tiles of all sequences: plan.h
};

// Strides in elements: from sequence to sequence, and from row to row.
struct Sequenced {
    const void* data;  // y and dx are written
    int64_t sequence, row;
};

// The inputs before each sequence: [slot][channel][column], the last `width` - 1 columns of which a sequence continues.
struct States {
    void* data;  // null: zeros before every sequence, and nothing is kept
    const int32_t*
        slots;  // of each sequence; null: its number. One that does not exist: y is 0, and no state changes
    const uint8_t* present;  // of each sequence, 0: zeros are before it, whatever its state is; null: 1
    // A sequence's position, modulo the columns, is where its first input is written, and before it are those that it continues.
    const int32_t* positions;
    // How many of the last call's inputs count, from 1: the sequence continues behind these.
    const int32_t* accepted;
    int64_t slot, channel, column;  // strides
    uint32_t count;                 // of slots
    uint32_t columns;
};

// Results of a convolution whose channels go apart, such as those of queries, keys and values.
inline constexpr uint32_t most_results = 3;

// Channels [0, ends[0]) go to y[0], the others from ends[i] on to y[i + 1].
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

// Of an update. The grid's first dimension is channels, the second sequences: neighbouring workgroups are on different XCDs, each
// of which then reads weights of its own. The first seven words are what loads need (preloaded_arguments.h); strides are in elements.
struct UpdateArguments {
    const void* x;
    void* states;
    const void* weight;    // [channel][update_width]
    const void* bias;      // null: 0
    const int32_t* slots;  // as in States
    uint32_t x_sequence, slot;
    uint32_t column;    // of states whose channels are neighbours
    uint32_t channels;  // a whole number of threads'
    void* y[most_results];
    uint32_t y_sequence[most_results];
    uint32_t ends[most_results - 1];  // as in ForwardArguments
    uint32_t count;                   // of slots
    uint32_t silu;
    uint32_t padding;
};

// Everything is as forward computed it, without states.
struct BackwardArguments {
    Sequenced x, dy, dx;
    const void* weight;
    const void* bias;
    float* partial;  // [worker][width + 1][channel]: of the gradients of each tap of weight, and of bias
    Sequences sequences;
    uint32_t channels;
    uint32_t width;
    uint32_t silu;
    uint32_t workers;  // that share the tiles: threads of neighbouring channels, or waves of a channel
};

// Adds the workers' sums, in order.
struct ReduceArguments {
    const float* partial;
    void* dweight;
    void* dbias;  // null: nobody asks for it
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
