// simulator/timing/compute_unit.h: four SIMDs that issue the traced instructions of their waves.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "simulator/timing/event_log.h"
#include "simulator/timing/front_caches.h"
#include "simulator/timing/lds_port.h"
#include "simulator/timing/stalls.h"
#include "simulator/timing/static_cost.h"
#include "simulator/timing/vector_cache.h"
#include "simulator/timing/wave_trace.h"

namespace hipkittens::simulator::timing {

inline constexpr int simd_count = 4;

struct ResidentWorkgroup {
    std::shared_ptr<const WorkgroupTrace> trace;
    std::vector<std::shared_ptr<const WorkgroupTrace>> echoes;  // by XCD other than the first
    std::vector<std::vector<uint32_t>> echoed;                  // accesses of those already replayed, by wave
    uint32_t waves_left = 0, at_barrier = 0;
    double barrier_time = 0, begin = 0;
};

// A wave that is being replayed.
struct ReplayedWave {
    double at = 0;       // when the wave itself is ready to issue its next instruction
    double free_at = 0;  // the earliest time allowed by the previous instruction; any excess is a stall
    const Cost* next = nullptr;
    const Cost* block_end = nullptr;
    uint64_t order = 0;  // older waves go first
    Stall reason = Stall::none;
    uint8_t priority = 0;
    bool waits_at_barrier = false;
    uint8_t index = 0;  // within its workgroup
    ResidentWorkgroup* workgroup = nullptr;
    const WaveTrace* trace = nullptr;
    uint32_t block = 0, access = 0, lds = 0, scalar = 0, skip_run = 0;
    uint64_t fetched = ~uint64_t{0};  // line of instructions it has fetched
    // Completion times of its operations in flight; vector memory in order.
    uint32_t vm_head = 0, lgkm_head = 0;
    double vm[64] = {};
    double lgkm[32] = {};
    uint32_t matrix_next = 0;
    struct InFlight {
        VectorRange result;
        double same_c = 0, overlapping_c = 0, read = 0;
    } matrix[4];
    double begin = 0;
};

struct InstructionCounts {
    uint64_t issues = 0;
    double stalls[stall_count] = {};
};

// State shared by all compute units of a launch, and the totals they add to.
struct Replay {
    const Parameters& parameters;
    const Program& program;
    const std::vector<Cost>& costs;
    MemorySystem& memory;
    std::vector<InstructionCounts>& counts;
    uint64_t text_address;       // in the model's address space
    EventLog* events = nullptr;  // null: no timeline requested
};

class Echo;

class ComputeUnit {
  public:
    ComputeUnit(Replay& replay, FrontCaches& front, Echo* echo, uint32_t xcd, uint32_t index);

    // Assigns it a workgroup whose waves start at `time`. first_simd: the SIMD of its first wave.
    void start(std::unique_ptr<ResidentWorkgroup> workgroup, double time);
    // Issues everything that issues before `until`.
    void advance(double until);
    double next_time() const;
    bool idle() const { return residents_.empty(); }
    // Workgroups that ended, with the time at which their slot is free.
    struct Ended {
        double time;
        double begin;
    };
    std::vector<Ended> take_ended();

    uint32_t resident_workgroups() const { return static_cast<uint32_t>(residents_.size()); }
    double last_store() const { return last_store_; }
    const LdsPort& lds() const { return lds_; }
    const VectorCache& cache() const { return cache_; }
    double vector_busy() const { return vector_busy_; }
    double matrix_busy() const { return matrix_busy_; }
    double wave_clocks() const { return wave_clocks_; }
    const double* flops() const { return flops_; }

  private:
    struct Simd {
        std::vector<ReplayedWave*> waves;
        double next = 0;  // no earlier slot has anything to issue
        double vector_free = 0, matrix_free = 0;
    };

    double slot_at(uint32_t simd, double time) const;  // the first slot of that SIMD at or after `time`
    double candidate(uint32_t simd, const ReplayedWave& wave, Stall* why) const;
    void plan(uint32_t simd);
    void issue_slot(uint32_t simd, double time);
    void issue(uint32_t simd, ReplayedWave& wave, double time, Stall why);
    void move_on(ReplayedWave& wave, double time);  // to the next instruction of the trace
    bool leave_out(ReplayedWave& wave) const;       // skips the next instructions, if VSKIP was on
    void enter_next_block(ReplayedWave& wave) const;
    void wait_for_operands(ReplayedWave& wave);
    void log(uint32_t simd, const ReplayedWave& wave, const Cost& cost, double time, float stalled,
             Stall stall, double done, uint32_t conflicts);
    void raise(double* ready, ReplayedWave& wave, double time, Stall why) const;
    void add_vm(ReplayedWave& wave, double done);
    void add_lgkm(ReplayedWave& wave, double done, uint32_t weight);
    void arrive(ReplayedWave& wave, double time);
    void release(ResidentWorkgroup& workgroup);
    void end(uint32_t simd, ReplayedWave& wave, double time);

    Replay& replay_;
    FrontCaches& front_;
    Echo* echo_;
    uint32_t xcd_, index_;
    LdsPort lds_;
    VectorCache cache_;
    Simd simds_[simd_count];
    std::vector<std::unique_ptr<ResidentWorkgroup>> residents_;
    std::vector<std::unique_ptr<ReplayedWave>> idle_waves_, waves_;
    std::vector<Ended> ended_;
    uint64_t order_ = 0;
    uint32_t next_simd_ = 0;
    double last_store_ = 0, vector_busy_ = 0, matrix_busy_ = 0, wave_clocks_ = 0;
    double flops_[6] = {};  // by MatrixType
};

}  // namespace hipkittens::simulator::timing
