// simulator/machine/settings.h: how a launch is simulated.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator {

// The contents of memory and registers under Settings::poison until something is written: a signaling NaN as
// f32, f16 and bf16 that no kernel computes by chance, and far outside any allocation as an address.
inline constexpr uint32_t poison_pattern = 0x7fa5a5a5;

// How MFMA sums products; the rules are in execute/matrix_arithmetic.h.
//   fast    the host's widest instructions
//   strict  k-sequential f32 fused multiply-add, denormals kept
//   exact   the published CDNA3 rule (for gfx950 an assumption)
enum class Arithmetic : uint8_t { fast, strict, exact };

// The host's instruction sets, weakest first. Every execute/ source is compiled once per entry; amx is
// avx512_bf16 with the bf16 products of tile_unit/.
enum class HostLevel : uint8_t { portable, avx2, avx512, avx512_bf16, amx };

struct TraceSteps;

struct Settings {
    Arithmetic arithmetic = Arithmetic::fast;
    HostLevel host_level = HostLevel::portable;
    uint32_t threads = 0;          // 0: one per core
    uint64_t wave_order_seed = 0;  // 0: waves of a workgroup run in index order up to the next barrier
    bool poison = false;  // destinations of loads in flight, unwritten registers and LDS hold NaN patterns
    bool count_lds_conflicts = false;  // compute Counters::lds_conflict_cycles from the real addresses
    uint64_t instruction_limit =
        0;  // watchdog: wave instructions per workgroup before the launch fails; 0: default
    // Not 0: waves take turns of this many steps, as they progress in parallel on a compute unit. Some of
    // AITER's kernels overwrite LDS that a wave running at a different pace has not read yet: only barriers
    // order waves, and these kernels rely on timing. LDS answers at the end of the turn: it serves a compute
    // unit's waves in the order of their requests, so a read in flight does not see what others write after a
    // barrier. Other memory answers some hundred steps after the issue, even without a wait. AITER's kernels
    // rely on both.
    uint32_t wave_turn = 0;
    // With wave_turn: this many workgroups of a worker advance together, one turn of each wave at a time.
    uint32_t workgroups_side_by_side = 1;
    // A buffer load inside its descriptor but past the launch's memory reads 0 there instead of ending the launch.
    bool tolerate_overreads = false;
    uint32_t checks =
        0;  // of checks::Checker; fixed when a program is translated, so that it costs nothing when off
    const TraceSteps* trace = nullptr;  // also fixed when a program is translated
};

// AMX sums in its own order, which is neither strict nor exact.
inline bool uses_tile_unit(const Settings& settings) {
    return settings.host_level == HostLevel::amx && settings.arithmetic == Arithmetic::fast;
}

}  // namespace hipkittens::simulator
