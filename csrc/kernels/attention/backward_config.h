// kernels/attention/backward_config.h: the compile-time configuration of an attention backward kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_arguments.h"
#include "config.h"

namespace hipkittens::attention {

struct BackwardConfig {
    GradientTarget gradient_of;
    ElementType input;
    // Of the tiles of Q and K, and of V and dO; any smaller multiple of 8 runs with the rest of the row masked.
    int head_dim, value_dim;
    int waves;
    int stream_rows;  // of the other side, in LDS at a time
    ScoreTerms terms;
    bool dropout;  // elements of P were dropped

    static constexpr int rows_per_wave = 32;
    constexpr int rows() const { return waves * rows_per_wave; }
    constexpr int threads() const { return waves * 64; }
};

inline constexpr int delta_threads = 256;
struct SinksConfig {
    int threads;
};
// Each workgroup of the convert kernel processes 32 keys of dK or dV, with this many columns.
inline constexpr int convert_columns = 64;
constexpr int convert_workgroups(int width) { return 4 * width / convert_columns; }

}  // namespace hipkittens::attention
