// simulator/checks/registers.cpp: registers read before their load has completed, overwritten while a load is in flight, or
// read before anything was written to them.
// SPDX-License-Identifier: MIT
#include <cinttypes>
#include <cstdio>

#include "simulator/checks/shadow.h"
#include "simulator/machine/program.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

namespace {

// The weakest wait that makes `operation` complete: the number of younger operations that may stay in flight.
std::string wait_for(const Wave* wave, const PendingOperation* operation, Queue queue) {
    const PendingOperations* pending = wave->pending;
    uint32_t younger = 0;
    switch (queue) {
        case Queue::vector_memory:
            for (uint32_t i = pending->vm_head; i != pending->vm_tail; ++i) {
                if (static_cast<int32_t>(pending->vm[i % 64]->sequence - operation->sequence) > 0) ++younger;
            }
            return "s_waitcnt vmcnt(" + std::to_string(younger) + ")";
        case Queue::lds:
            for (uint32_t i = pending->lds_head; i != pending->lds_tail; ++i) {
                if (static_cast<int32_t>(pending->lds[i % 16]->sequence - operation->sequence) > 0) ++younger;
            }
            // Scalar loads count too, and return in any order.
            if (pending->scalar_count) younger = 0;
            return "s_waitcnt lgkmcnt(" + std::to_string(younger) + ")";
        case Queue::flat:
            return "s_waitcnt vmcnt(0) lgkmcnt(0)";
        default:
            return "s_waitcnt lgkmcnt(0)";
    }
}

class RunChecker {
  public:
    RunChecker(Wave* wave, const Plan& plan) : wave_(wave), shadow_(*wave->shadow), plan_(plan) {}

    void check(uint32_t index) {
        index_ = index;
        effects_ = &plan_.effects[index];
        lanes_ = effects_->ignores_exec ? ~uint64_t{0} : wave_->exec;
        for_each(effects_->reads, shadow_.in_flight,
                 [&](uint32_t number) { judge_in_flight(number, false); });
        for_each(effects_->writes, shadow_.in_flight,
                 [&](uint32_t number) { judge_in_flight(number, true); });
        if (!(plan_.checkers & initcheck)) return;
        if (effects_->copies) return copy();
        for_each(effects_->reads, shadow_.undefined, [&](uint32_t number) {
            if (number - effects_->saved_first >= effects_->saved_count) judge_undefined(number);
        });
        for_each(effects_->writes, shadow_.undefined,
                 [&](uint32_t number) { define(number, effects_->partly_writes ? ~uint64_t{0} : lanes_); });
    }

  private:
    template <class Visit>
    static void for_each(const RegisterSet& set, const uint64_t* among, Visit visit) {
        for (uint32_t i = 0; i < set.count; ++i) {
            for (uint64_t left = among[set.words[i].word] & set.words[i].bits; left; left &= left - 1)
                visit(set.words[i].word * 64 + static_cast<uint32_t>(__builtin_ctzll(left)));
        }
    }

    void judge_in_flight(uint32_t number, bool writes) {
        const PendingOperation* operation = shadow_.in_flight_by[number];
        const MemoryEffects& load = *static_cast<const MemoryEffects*>(operation->checked);
        const bool is_scalar = number < first_vector;
        const uint64_t lanes = is_scalar ? 0 : operation->lanes & lanes_;
        if (!is_scalar && !lanes) return;
        // Loads of one kind return in issue order, scalar loads in any order.
        const Queue queue = effects_->queue;
        if (writes && queue == load.queue && (queue == Queue::vector_memory || queue == Queue::lds)) return;
        // A 16-bit load preserves the other half of its register, so it reads what it writes.
        if (!writes && queue == load.queue && queue != Queue::none && effects_->writes.has(number) &&
            queue != Queue::scalar)
            return;
        const char* kind = writes ? "overwritten_in_flight" : "read_in_flight";
        report(wave_, synccheck, kind, load.instruction, index_, [&](Finding& finding) {
            finding.first_wave = finding.second_wave = wave_->index_in_workgroup;
            finding.lanes = lanes;
            finding.place = register_name(number, plan_.accum_offset);
            finding.message = "wave " + std::to_string(wave_->index_in_workgroup) +
                              (writes ? " overwrites " : " reads ") + finding.place +
                              " with {2} while {1} is still loading it";
            finding.fix = wait_for(wave_, operation, load.queue) + " before the second";
        });
    }

    void judge_undefined(uint32_t number) {
        const uint64_t missing = number < first_vector ? 1 : ~shadow_.defined_lanes[number] & lanes_;
        if (!missing) return;
        report(wave_, initcheck, "uninitialised_register", no_instruction, index_, [&](Finding& finding) {
            finding.second_wave = wave_->index_in_workgroup;
            finding.lanes = number < first_vector ? 0 : missing;
            finding.place = register_name(number, plan_.accum_offset);
            char lanes[40] = "";
            if (number >= first_vector) std::snprintf(lanes, sizeof lanes, " in lanes 0x%" PRIx64, missing);
            finding.message = "wave " + std::to_string(wave_->index_in_workgroup) + " reads " +
                              finding.place + " with {2}, and nothing has been written to it" + lanes;
            finding.fix = "write it first";
        });
        define(number, ~uint64_t{0});  // report each mistake only once
    }

    void define(uint32_t number, uint64_t lanes) {
        shadow_.defined_lanes[number] |= lanes;
        if (number >= first_vector && ~shadow_.defined_lanes[number]) return;
        const uint64_t bit = uint64_t{1} << number % 64;
        shadow_.undefined[number / 64] &= ~bit;
        if (!(shadow_.in_flight[number / 64] & bit)) shadow_.watched[number / 64] &= ~bit;
    }

    // The destination is as defined as its source. A selection passes if either side was written: which side
    // a lane uses depends on data. A scalar register passes if any lane of its source was written.
    void copy() {
        bool is_any_undefined = false;
        for_each(effects_->reads, shadow_.undefined, [&](uint32_t) { is_any_undefined = true; });
        uint32_t first_write = register_count, writes = 0;
        for (uint32_t i = 0; i < effects_->writes.count; ++i) {
            for (uint64_t left = effects_->writes.words[i].bits; left; left &= left - 1) {
                const uint32_t number =
                    effects_->writes.words[i].word * 64 + static_cast<uint32_t>(__builtin_ctzll(left));
                first_write = number < first_write ? number : first_write;
                ++writes;
            }
        }
        uint64_t source = 0;
        bool has_register_source = false;
        for (uint32_t i = 0; i < effects_->reads.count; ++i) {
            for (uint64_t left = effects_->reads.words[i].bits; left; left &= left - 1) {
                const uint32_t number =
                    effects_->reads.words[i].word * 64 + static_cast<uint32_t>(__builtin_ctzll(left));
                has_register_source = true;
                source |= defined_lanes(shadow_, number);
            }
        }
        if (!has_register_source || !is_any_undefined || effects_->partly_writes) source = ~uint64_t{0};
        for (uint32_t number = first_write; number < first_write + writes; ++number) {
            const bool is_scalar = number < first_vector;
            if (is_scalar) {
                if (source) {
                    if (!defined_lanes(shadow_, number)) define(number, ~uint64_t{0});
                } else {
                    undefine(shadow_, number, ~uint64_t{0});
                }
                continue;
            }
            const uint64_t lanes = effects_->partly_writes ? ~uint64_t{0} : lanes_;
            if (~source & lanes) undefine(shadow_, number, ~source & lanes);
            if (~defined_lanes(shadow_, number) & source & lanes) define(number, source & lanes);
        }
    }

    Wave* wave_;
    WaveShadow& shadow_;
    const Plan& plan_;
    uint32_t index_ = 0;
    const Effects* effects_ = nullptr;
    uint64_t lanes_ = 0;
};

}  // namespace

uint64_t defined_lanes(const WaveShadow& shadow, uint32_t number) {
    if (!(shadow.undefined[number / 64] >> number % 64 & 1)) return ~uint64_t{0};
    return number < first_vector ? 0 : shadow.defined_lanes[number];
}

void undefine(WaveShadow& shadow, uint32_t number, uint64_t lanes) {
    const uint64_t bit = uint64_t{1} << number % 64;
    const uint64_t was = defined_lanes(shadow, number);
    shadow.defined_lanes[number] = was & ~lanes;
    shadow.undefined[number / 64] |= bit;
    shadow.watched[number / 64] |= bit;
}

const Step* check_run(Wave* wave, const Step* step) {
    const Run& run = *static_cast<const Run*>(step->data);
    const WaveShadow& shadow = *wave->shadow;
    if (__builtin_expect(run.touches.meets(shadow.watched), 0)) {
        RunChecker checker(wave, *wave->workgroup->shadow->plan);
        for (uint32_t index = run.first; index < run.first + run.count; ++index) checker.check(index);
    }
    return step + 1;
}

// Without an active lane it reads lane 0 (ISA manual), which holds whatever the last active code left there.
const Step* check_first_lane(Wave* wave, const Step* step) {
    if (__builtin_expect(wave->exec != 0, 1)) return step + 1;
    report(wave, synccheck, "no_active_lane", no_instruction, step->instruction, [&](Finding& finding) {
        finding.second_wave = wave->index_in_workgroup;
        finding.message = "wave " + std::to_string(wave->index_in_workgroup) +
                          " executes {2} while EXEC is 0, and gets lane 0's value";
        finding.fix = "branch around it with s_cbranch_execz";
    });
    return step + 1;
}

void report_missing_at_barrier(Workgroup& workgroup) {
    if (!workgroup.shadow || !(workgroup.shadow->plan->checkers & synccheck)) return;
    const Wave* waiting = nullptr;
    const Wave* ended = nullptr;
    for (const Wave* wave : workgroup.waves) {
        if (wave->status == WaveStatus::at_barrier && !waiting) waiting = wave;
        if (wave->status == WaveStatus::ended && !ended) ended = wave;
    }
    if (!waiting || !ended) return;
    // wave->next is the step after the barrier's own step.
    const uint32_t barrier = (waiting->next - 1)->instruction;
    report(workgroup.waves[0], synccheck, "barrier_divergence", no_instruction, barrier,
           [&](Finding& finding) {
               finding.first_wave = ended->index_in_workgroup;
               finding.second_wave = waiting->index_in_workgroup;
               finding.message = "wave " + std::to_string(waiting->index_in_workgroup) +
                                 " waits at {2}, and wave " + std::to_string(ended->index_in_workgroup) +
                                 " has ended without coming there";
               finding.fix = "every wave of the workgroup has to reach the same barriers";
           });
}

}  // namespace hipkittens::simulator::checks
