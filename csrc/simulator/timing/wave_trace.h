// simulator/timing/wave_trace.h: what the cycle model needs to know about a wave's execution.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/machine/launch_trace.h"

namespace hipkittens::simulator {

// A vector memory access is a header and as many runs of 128-byte lines as the header specifies.
//   header   bits 11..0 runs, 23..12 tag lookups, 47..24 bytes moved, 48 set by stores and atomics, 49 by atomics
//   run      bits 7..0 lines - 1, the rest the first line's address / 128
// Tag lookups: every quarter of the wave (16 lanes) looks up each of its lines once.
namespace timing {
class AddressMap;
}

struct WaveTrace {
    const timing::AddressMap* addresses = nullptr;  // while it is being written
    bool is_detailed = true;                        // false: only `lines` are filled
    std::vector<uint32_t> blocks;         // of the program, in the order in which the wave entered them
    std::vector<uint64_t> lines;          // vector memory, in order
    std::vector<uint32_t> memory_starts;  // where in `lines` each access begins
    std::vector<uint16_t> lds_conflicts;  // each LDS read or write: cycles beyond one per phase
    std::vector<uint64_t> scalar_lines;   // each scalar memory access: first 64-byte line << 4 | lines
    std::vector<bool> skipped;            // for each of Program::skip_runs that was reached: VSKIP was on
    struct Pattern {                      // the latest conflicts of an LDS instruction, which mostly repeat
        const void* step = nullptr;
        uint64_t lanes = 0;
        uint32_t first = 0;
        uint16_t conflicts = 0;
        uint32_t distance[64];
    };
    std::vector<Pattern> patterns;

    void clear();
};

// The traces of the waves of one workgroup.
struct WorkgroupTrace {
    uint32_t linear_id = 0;
    double work = 0;  // clk that its instructions take to issue, and its matrix instructions to finish
    std::vector<WaveTrace> waves;
};

namespace timing {

inline constexpr uint32_t line_bytes = 128, scalar_line_bytes = 64;

struct LineRun {
    uint64_t first;
    uint32_t count;
};
inline uint32_t run_count(uint64_t header) { return header & 0xfff; }
inline uint32_t lookup_count(uint64_t header) { return header >> 12 & 0xfff; }
inline uint32_t byte_count(uint64_t header) { return header >> 24 & 0xffffff; }
inline bool writes(uint64_t header) { return header >> 48 & 1; }
inline bool is_atomic(uint64_t header) { return header >> 49 & 1; }
inline LineRun unpack_run(uint64_t word) { return {word >> 8, static_cast<uint32_t>(word & 0xff) + 1}; }

// The steps that fill WaveTrace: with all values computed, and without those that neither control flow nor
// addresses depend on (value_slice.h).
extern const TraceSteps steps_with_values, steps_without_values;

}  // namespace timing
}  // namespace hipkittens::simulator
