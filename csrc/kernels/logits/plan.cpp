// kernels/logits/plan.cpp: selects the kernel that computes logits, and the number of tokens and keys per workgroup.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hipkittens::logits {

namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
// This many workgroups per compute unit are enough to balance the work; past that, each workgroup gets more keys, so that q is
// loaded less often.
constexpr int64_t workgroups_per_unit = 32, most_turns = 16;
// Keys are counted in 32 bits, also one iteration past the last one.
constexpr int64_t most_keys = INT32_MAX - most_turns * turn_keys;

[[noreturn]] void refuse(const std::string& text) {
    throw std::invalid_argument("logits of an indexer: " + text);
}

}  // namespace

Launch plan(const Problem& p, LogitsArguments arguments) {
    if (p.keys > most_keys || p.heads < 1 || p.heads > INT32_MAX / 2)
        refuse(std::to_string(p.keys) + " keys and " + std::to_string(p.heads) + " heads; up to " +
               std::to_string(most_keys) + " keys and 1 head or more are allowed");
    for (const Row<kinds::score>& row : variants<kinds::score>) {
        const LogitsConfig& config = row.config;
        if (!includes(row.targets, p.device.target) || config.element != p.element ||
            config.head_dim != p.head_dim || config.paged != (p.page > 0))
            continue;
        // Tokens whose heads fit in LDS together share the loaded keys.
        const int64_t block_tokens =
            std::clamp<int64_t>(config.rows() / (divide_up(p.heads, 16) * 16), 1, p.queries);
        const int64_t token_blocks = divide_up(p.queries, block_tokens);
        const int64_t all_turns = divide_up(p.keys, turn_keys), rows = token_blocks * p.sequences;
        const int64_t wanted = workgroups_per_unit * p.device.compute_units;
        const int64_t turns = std::clamp<int64_t>(rows * all_turns / wanted, 1, most_turns);
        const int64_t key_blocks = divide_up(all_turns, turns), workgroups = key_blocks * rows;
        // HIP counts the threads of a grid dimension in 32 bits.
        if (workgroups > UINT32_MAX / threads || p.queries > INT32_MAX / p.sequences)
            refuse(std::to_string(p.sequences * p.queries) + " tokens and " + std::to_string(p.keys) +
                   " keys have 2^32 threads or more");
        arguments.page = divisor_of(static_cast<uint32_t>(std::max<int64_t>(p.page, 1)));
        arguments.token_blocks = divisor_of(static_cast<uint32_t>(token_blocks));
        arguments.key_blocks = divisor_of(static_cast<uint32_t>(key_blocks));
        arguments.heads = static_cast<uint32_t>(p.heads);
        arguments.queries = static_cast<uint32_t>(p.queries);
        arguments.keys = static_cast<uint32_t>(p.keys);
        arguments.limit =
            p.page ? static_cast<uint32_t>(std::min(p.keys, p.page * p.most_pages)) : arguments.keys;
        arguments.block_tokens = static_cast<uint32_t>(block_tokens);
        arguments.turns = static_cast<uint32_t>(turns);
        return launch_of("logits", row.name, p.device.target, {static_cast<uint32_t>(workgroups), 1, 1},
                         threads, arguments);
    }
    refuse("no kernel has a head size of " + std::to_string(p.head_dim));
}

}  // namespace hipkittens::logits
