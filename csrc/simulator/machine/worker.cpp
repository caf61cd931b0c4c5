// simulator/machine/worker.cpp: one host thread that runs workgroups until the grid is done.
// SPDX-License-Identifier: MIT
#include "simulator/machine/worker.h"

#include <algorithm>

#include "simulator/checks/shadow.h"
#include "simulator/machine/debugger.h"
#include "simulator/machine/fault_report.h"
#include "simulator/machine/float_mode.h"
#include "simulator/machine/launch_trace.h"
#include "simulator/machine/program.h"
#include "simulator/memory/pending.h"

namespace hipkittens::simulator {

namespace {

// Backward branches before a wave has to let others run. Memory has answered long before.
constexpr int64_t branch_budget = 1 << 16;
// Wave instructions of one workgroup before the launch is aborted: minutes of simulation, far beyond any real
// kernel.
constexpr uint64_t default_instruction_limit = uint64_t{1} << 31;
// Barriers, or turns, between two checks of that limit: a check sums over all blocks of the program.
constexpr uint32_t barriers_per_visit = 1024, visits_between_looks = 64;

uint64_t next_random(uint64_t& state) {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// Shows the debugger every instruction before it runs. A turn of `steps` ends between instructions.
void run_wave(Wave* wave, uint64_t steps, Debugger& debugger) {
    const Program& program = *wave->workgroup->dispatch->program;
    const Step* step = wave->next;
    while (step) {
        const uint32_t address = program.instructions[step->instruction].address;
        if (step == program.steps.data() + program.step_at[address / 4]) {
            wave->next = step;
            if (steps == 0) return;
            debugger.before_instruction(wave);
            enter_float_mode(wave->mode);
        }
        if (steps) --steps;
        step = step->handler(wave, step);
    }
    if (wave->status == WaveStatus::ended || wave->status == WaveStatus::faulted) debugger.wave_stopped(wave);
}

void run_wave(Wave* wave) {
    if (Debugger* debugger = wave->workgroup->dispatch->debugger)
        return run_wave(wave, UINT64_MAX, *debugger);
    enter_float_mode(wave->mode);
    const Step* step = wave->next;
    while (step) step = step->handler(wave, step);
}

void run_wave(Wave* wave, uint64_t steps) {
    if (Debugger* debugger = wave->workgroup->dispatch->debugger) return run_wave(wave, steps, *debugger);
    enter_float_mode(wave->mode);
    const Step* step = wave->next;
    // A turn ends between instructions: the checks of an instruction follow it before anything else happens.
    for (uint32_t instruction = step->instruction; step && (steps || step->instruction == instruction);) {
        instruction = step->instruction;
        if (steps) --steps;
        step = step->handler(wave, step);
    }
    if (step) wave->next = step;
}

enum class Outcome { finished, paused, yielded, faulted };

Wave* find_faulted(const Workgroup& workgroup) {
    for (Wave* wave : workgroup.waves) {
        if (wave->status == WaveStatus::faulted) return wave;
    }
    return nullptr;
}

// Every ready wave gets `turn` steps; unless `once`, this repeats until none is ready, or one faults or yields.
void take_turns(const std::vector<Wave*>& waves, uint64_t turn, bool once) {
    for (bool again = true; again;) {
        again = false;
        for (Wave* wave : waves) {
            if (wave->status != WaveStatus::ready) continue;
            again = !once;
            run_wave(wave, turn);
            if (wave->status == WaveStatus::faulted || wave->status == WaveStatus::yielded) return;
            if (wave->status != WaveStatus::ended) answer_in_time(wave, static_cast<uint32_t>(turn));
        }
    }
}

// One pass over the waves in the requested order. Every ready wave runs to its next barrier, yield or end.
void run_waves_once(WorkgroupSlot& slot) {
    const auto& waves = slot.workgroup.waves;
    const Settings& settings = slot.workgroup.dispatch->settings;
    if (settings.wave_turn)
        return take_turns(waves, settings.wave_turn, settings.workgroups_side_by_side > 1);
    const uint64_t seed = settings.wave_order_seed;
    if (seed == 0) {
        for (Wave* wave : waves) {
            if (wave->status != WaveStatus::ready) continue;
            run_wave(wave);
            if (wave->status == WaveStatus::faulted) return;
        }
        return;
    }
    Wave* ready[64];
    for (;;) {
        size_t count = 0;
        for (Wave* wave : waves) {
            if (wave->status == WaveStatus::ready) ready[count++] = wave;
        }
        if (count == 0) return;
        Wave* wave = ready[next_random(slot.order_state) % count];
        run_wave(wave, 1 + next_random(slot.order_state) % 64);
        if (wave->status == WaveStatus::faulted) return;
        if (wave->status == WaveStatus::yielded) return;
    }
}

void make_ready(const std::vector<Wave*>& waves, WaveStatus from) {
    for (Wave* wave : waves) {
        if (wave->status != from) continue;
        wave->status = WaveStatus::ready;
        wave->budget = branch_budget;
    }
}

Outcome run_workgroup(WorkgroupSlot& slot) {
    const auto& waves = slot.workgroup.waves;
    make_ready(waves, WaveStatus::yielded);
    for (uint32_t barriers = 0;;) {
        run_waves_once(slot);
        size_t at_barrier = 0, ended = 0, yielded = 0, ready = 0;
        for (Wave* wave : waves) {
            if (wave->status == WaveStatus::faulted) return Outcome::faulted;
            at_barrier += wave->status == WaveStatus::at_barrier;
            ended += wave->status == WaveStatus::ended;
            yielded += wave->status == WaveStatus::yielded;
            ready += wave->status == WaveStatus::ready;
        }
        if (ended == waves.size()) return Outcome::finished;
        if (yielded) {
            // This long after its issue, memory has answered whether or not anyone waits: the store of a wave
            // that stores a flag and then spins on another one must become visible to the other side.
            for (Wave* wave : waves) {
                if (wave->status == WaveStatus::yielded || wave->status == WaveStatus::at_barrier)
                    complete_all(wave);
            }
            return Outcome::yielded;
        }
        if (at_barrier + ended == waves.size()) {
            if (ended) checks::report_missing_at_barrier(slot.workgroup);
            make_ready(waves, WaveStatus::at_barrier);
            // Waves that keep meeting at barriers must not prevent the worker from checking for a stop.
            if (++barriers == barriers_per_visit) return Outcome::paused;
        }
        if (ready) return Outcome::paused;
    }
}

uint64_t instructions_executed(const WorkgroupSlot& slot) {
    const auto& blocks = slot.workgroup.dispatch->program->blocks;
    uint64_t sum = 0;
    for (size_t block = 0; block < blocks.size(); ++block)
        sum += slot.block_counts[block] * blocks[block].count;
    return sum;
}

void stop_grid(Grid& grid, uint32_t workgroup, std::string error) {
    std::lock_guard lock(grid.mutex);
    grid.stop.stop();
    if (workgroup < grid.error_workgroup) {
        grid.error_workgroup = workgroup;
        grid.error = std::move(error);
    }
}

std::string describe_endless(const WorkgroupSlot& slot, uint64_t executed) {
    std::string text =
        "stopped by the watchdog after " + std::to_string(executed) +
        " wave instructions of one workgroup (raise instruction_limit if the kernel is meant to run longer)";
    for (const Wave* wave : slot.workgroup.waves) {
        if (wave->status == WaveStatus::ended) continue;
        text += "\n  " + describe_place(*wave, wave->next) +
                (wave->status == WaveStatus::at_barrier ? " (waits at a barrier before it)" : "");
    }
    return text;
}

void add(Counters& sum, const Counters& part) {
    sum.lds_conflict_cycles += part.lds_conflict_cycles;
    sum.lds_accesses += part.lds_accesses;
    sum.global_bytes_loaded += part.global_bytes_loaded;
    sum.global_bytes_stored += part.global_bytes_stored;
}

class Worker {
  public:
    explicit Worker(Grid& grid) : grid_(grid), block_counts_(grid.block_counts.size()) {}

    void run() {
        while (!grid_.stop.is_interrupted() &&
               (!running_.empty() || (!grid_.stop.is_stopping() && start_next(true)))) {
            bool waiting = false;
            for (size_t index = 0; index < running_.size() && !grid_.stop.is_interrupted();) {
                const Outcome outcome = run_workgroup(*running_[index]);
                if (outcome == Outcome::paused || outcome == Outcome::yielded) {
                    const bool waits = outcome == Outcome::yielded;
                    const bool looks = waits || ++visits_ % visits_between_looks == 0;
                    waiting |= waits;
                    const bool endless = looks && !check_limit(*running_[index]);
                    // After a fault, a workgroup that waits for another may wait forever.
                    if (endless || (waits && grid_.stop.is_stopping())) {
                        finish(index);
                    } else {
                        ++index;
                    }
                    continue;
                }
                if (outcome == Outcome::faulted) {
                    const Workgroup& workgroup = running_[index]->workgroup;
                    checks::report_fault(find_faulted(workgroup));
                    stop_grid(grid_, workgroup.linear_id, describe_fault(*find_faulted(workgroup)));
                }
                finish(index);
            }
            // A waiting workgroup may depend on one that has not started yet.
            const bool room = running_.size() < grid_.dispatch.settings.workgroups_side_by_side;
            if (!running_.empty() && !grid_.stop.is_stopping() && (waiting || room)) start_next(false);
        }
        while (!running_.empty()) finish(running_.size() - 1);
        publish();
    }

  private:
    bool start_next(bool must) {
        if (!must && grid_.resident.load() >= grid_.resident_limit) return false;
        const uint32_t id = grid_.next_workgroup.fetch_add(1);
        if (id >= grid_.workgroup_count) {
            grid_.next_workgroup = grid_.workgroup_count;
            return false;
        }
        ++grid_.resident;
        LaunchTrace* const trace = grid_.dispatch.trace;
        if (trace && must)
            while (!trace->wait_for_room(id) && !grid_.stop.is_stopping()) {
            }
        if (idle_.empty())
            idle_.push_back(
                std::make_unique<WorkgroupSlot>(grid_.dispatch, grid_.kernel, grid_.dispatch_packet));
        running_.push_back(std::move(idle_.back()));
        idle_.pop_back();
        running_.back()->begin(id);
        for (Wave* wave : running_.back()->workgroup.waves) wave->budget = branch_budget;
        if (trace) trace->begin(running_.back()->workgroup);
        return true;
    }

    void finish(size_t index) {
        WorkgroupSlot& slot = *running_[index];
        if (grid_.dispatch.trace) grid_.dispatch.trace->end(slot.workgroup);
        for (size_t block = 0; block < block_counts_.size(); ++block)
            block_counts_[block] += slot.block_counts[block];
        add(counters_, slot.workgroup.counters);
        idle_.push_back(std::move(running_[index]));
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
        --grid_.resident;
    }

    bool check_limit(const WorkgroupSlot& slot) {
        const uint64_t limit = grid_.dispatch.settings.instruction_limit;
        const uint64_t executed = instructions_executed(slot);
        if (executed <= (limit ? limit : default_instruction_limit)) return true;
        stop_grid(grid_, slot.workgroup.linear_id, describe_endless(slot, executed));
        return false;
    }

    void publish() {
        std::lock_guard lock(grid_.mutex);
        for (size_t block = 0; block < block_counts_.size(); ++block)
            grid_.block_counts[block] += block_counts_[block];
        add(grid_.counters, counters_);
    }

    Grid& grid_;
    std::vector<std::unique_ptr<WorkgroupSlot>> running_, idle_;
    std::vector<uint64_t> block_counts_;
    uint64_t visits_ = 0;
    Counters counters_;
};

}  // namespace

void run_worker(Grid& grid) { Worker(grid).run(); }

}  // namespace hipkittens::simulator
