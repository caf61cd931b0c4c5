// simulator/timing/echo.cpp: XCDs that are not simulated in detail, but whose loads and stores use the shared memory.
// SPDX-License-Identifier: MIT
#include "simulator/timing/echo.h"

#include "simulator/timing/wave_trace.h"

namespace hipkittens::simulator::timing {

Echo::Echo(const Parameters& parameters, MemorySystem& memory) : parameters_(parameters), memory_(memory) {
    for (int xcd = 0; xcd < static_cast<int>(parameters.xcds); ++xcd) {
        caches_.emplace_back(static_cast<size_t>(parameters.compute_units_per_xcd),
                             RecentLines(static_cast<uint32_t>(parameters.vector_cache_bytes / line_bytes)));
    }
}

void Echo::play(ResidentWorkgroup& workgroup, uint32_t compute_unit, uint32_t wave, uint32_t accesses,
                double time) {
    const size_t all = workgroup.trace->waves[wave].memory_starts.size();
    for (size_t echo = 0; echo < workgroup.echoes.size(); ++echo) {
        const size_t own = workgroup.echoes[echo]->waves[wave].memory_starts.size();
        play_until(workgroup, echo, compute_unit, wave, own == all ? accesses : own * accesses / all, time);
    }
}

void Echo::play_rest(ResidentWorkgroup& workgroup, uint32_t compute_unit, double time) {
    for (size_t echo = 0; echo < workgroup.echoes.size(); ++echo) {
        for (uint32_t wave = 0; wave < workgroup.echoes[echo]->waves.size(); ++wave) {
            play_until(workgroup, echo, compute_unit, wave,
                       workgroup.echoes[echo]->waves[wave].memory_starts.size(), time);
        }
    }
}

void Echo::play_until(ResidentWorkgroup& workgroup, size_t echo, uint32_t compute_unit, uint32_t wave,
                      size_t end, double time) {
    const WaveTrace& trace = workgroup.echoes[echo]->waves[wave];
    const uint32_t xcd = workgroup.echoes[echo]->linear_id % static_cast<uint32_t>(parameters_.xcds);
    RecentLines& cache = caches_[xcd][compute_unit];
    for (uint32_t& played = workgroup.echoed[echo][wave]; played < end; ++played) {
        const uint64_t* access = &trace.lines[trace.memory_starts[played]];
        const uint64_t header = access[0];
        uint64_t lines = 0;
        for (uint32_t i = 1; i <= run_count(header); ++i) lines += unpack_run(access[i]).count;
        const double share = lines ? static_cast<double>(byte_count(header)) / static_cast<double>(lines) : 0;
        double at = time;
        for (uint32_t i = 1; i <= run_count(header); ++i) {
            const LineRun run = unpack_run(access[i]);
            for (uint64_t line = run.first; line < run.first + run.count; ++line, at += 1) {
                if (is_atomic(header)) {
                    memory_.update(xcd, line, at, share);
                } else if (writes(header)) {
                    memory_.write(xcd, line, at, share);
                } else if (!cache.touch(line)) {
                    memory_.read(xcd, line, at);
                }
            }
        }
    }
}

}  // namespace hipkittens::simulator::timing
