// simulator/timing/compute_unit.cpp: four SIMDs that issue the traced instructions of their waves.
// SPDX-License-Identifier: MIT
#include "simulator/timing/compute_unit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "simulator/timing/echo.h"

namespace hipkittens::simulator::timing {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

bool overlap(const VectorRange& a, const VectorRange& b) {
    return a.first < b.first + b.count && b.first < a.first + a.count;
}

}  // namespace

ComputeUnit::ComputeUnit(Replay& replay, FrontCaches& front, Echo* echo, uint32_t xcd, uint32_t index)
    : replay_(replay),
      front_(front),
      echo_(echo),
      xcd_(xcd),
      index_(index),
      lds_(replay.parameters),
      cache_(replay.parameters, replay.memory, xcd) {
    for (Simd& simd : simds_) simd.next = never;
}

double ComputeUnit::slot_at(uint32_t simd, double time) const {
    const double period = replay_.parameters.issue;
    return simd + period * std::ceil((time - simd) / period);
}

void ComputeUnit::start(std::unique_ptr<ResidentWorkgroup> workgroup, double time) {
    workgroup->begin = time;
    workgroup->waves_left = static_cast<uint32_t>(workgroup->trace->waves.size());
    // Consecutive waves go to consecutive SIMDs, starting with the one with the fewest waves.
    constexpr uint32_t order[simd_count] = {0, 2, 1, 3};
    uint32_t first = 0;
    for (uint32_t simd : order) {
        if (simds_[simd].waves.size() < simds_[first].waves.size()) first = simd;
    }
    for (uint32_t i = 0; i < workgroup->waves_left; ++i) {
        if (idle_waves_.empty()) idle_waves_.push_back(std::make_unique<ReplayedWave>());
        std::unique_ptr<ReplayedWave> wave = std::move(idle_waves_.back());
        idle_waves_.pop_back();
        *wave = ReplayedWave{};
        wave->workgroup = workgroup.get();
        wave->trace = &workgroup->trace->waves[i];
        wave->index = static_cast<uint8_t>(i);
        wave->order = order_++;
        wave->begin = time;
        wave->at = wave->free_at = time + replay_.parameters.wave_start;
        enter_next_block(*wave);
        while (leave_out(*wave)) enter_next_block(*wave);
        wait_for_operands(*wave);
        simds_[(first + i) % simd_count].waves.push_back(wave.get());
        waves_.push_back(std::move(wave));
    }
    residents_.push_back(std::move(workgroup));
    for (uint32_t simd = 0; simd < simd_count; ++simd) plan(simd);
}

double ComputeUnit::next_time() const {
    double next = never;
    for (const Simd& simd : simds_) next = std::min(next, simd.next);
    return next;
}

void ComputeUnit::advance(double until) {
    for (;;) {
        uint32_t first = 0;
        for (uint32_t simd = 1; simd < simd_count; ++simd) {
            if (simds_[simd].next < simds_[first].next) first = simd;
        }
        if (simds_[first].next >= until) return;
        issue_slot(first, simds_[first].next);
        plan(first);
    }
}

// The time at which its unit can accept the wave's next instruction.
double ComputeUnit::candidate(uint32_t index, const ReplayedWave& wave, Stall* why) const {
    const Simd& simd = simds_[index];
    const Cost& cost = *wave.next;
    double unit = 0;
    Stall reason = Stall::issue_slot;
    switch (cost.category) {
        case Category::vector:
            unit = simd.vector_free;
            reason = Stall::vector_busy;
            if (cost.kind == Kind::matrix && simd.matrix_free > unit) {
                unit = simd.matrix_free;
                reason = Stall::matrix_busy;
            }
            break;
        case Category::vector_memory:
            unit = cache_.room();
            reason = Stall::vector_memory_busy;
            break;
        case Category::lds:
            unit = lds_.room(index);
            reason = Stall::lds_busy;
            break;
        default:
            break;
    }
    if (why) *why = unit > wave.at ? reason : Stall::issue_slot;
    return std::max(wave.at, unit);
}

void ComputeUnit::plan(uint32_t index) {
    Simd& simd = simds_[index];
    double next = never;
    for (const ReplayedWave* wave : simd.waves) {
        if (!wave->waits_at_barrier) next = std::min(next, candidate(index, *wave, nullptr));
    }
    simd.next = next == never ? never : slot_at(index, next);
}

// In each category the wave with the highest priority issues, among equals the oldest.
void ComputeUnit::issue_slot(uint32_t index, double time) {
    Simd& simd = simds_[index];
    ReplayedWave* chosen[category_count + 8];
    Stall whys[category_count + 8];
    int best[category_count];
    std::fill(best, best + category_count, -1);
    int count = 0;
    for (ReplayedWave* wave : simd.waves) {
        if (wave->waits_at_barrier || wave->at > time) continue;
        Stall why;
        if (candidate(index, *wave, &why) > time) continue;
        const int category = static_cast<int>(wave->next->category);
        if (wave->next->category != Category::internal && best[category] >= 0) {
            ReplayedWave*& other = chosen[best[category]];
            if (std::pair(-int{wave->priority}, wave->order) <
                std::pair(-int{other->priority}, other->order)) {
                other = wave;
                whys[best[category]] = why;
            }
            continue;
        }
        best[category] = count;
        chosen[count] = wave;
        whys[count++] = why;
    }
    for (int i = 0; i < count; ++i) issue(index, *chosen[i], time, whys[i]);
}

void ComputeUnit::raise(double* ready, ReplayedWave& wave, double time, Stall why) const {
    if (time <= *ready) return;
    *ready = time;
    wave.reason = why;
}

// Times of the youngest entries, of which `allowed` may still be outstanding.
static double open_until(const double* ring, uint32_t head, uint32_t allowed) {
    double latest[16];
    const uint32_t count = std::min(head, 16u);
    for (uint32_t i = 0; i < count; ++i) latest[i] = ring[(head - 1 - i) % 32];
    if (allowed >= count) return 0;
    std::nth_element(latest, latest + allowed, latest + count, std::greater<>());
    return latest[allowed];
}

// The time at which the operands of the wave's next instruction are available.
void ComputeUnit::wait_for_operands(ReplayedWave& wave) {
    const Cost& cost = *wave.next;
    double& at = wave.at;
    const uint64_t line = (replay_.text_address + cost.address) / scalar_line_bytes;
    if (line != wave.fetched) {
        wave.fetched = line;
        raise(&at, wave, front_.fetch(line, wave.free_at), Stall::instruction_fetch);
    }
    switch (cost.kind) {
        case Kind::wait:
            if (cost.wait_vm < wave.vm_head && cost.wait_vm < 63)
                raise(&at, wave, wave.vm[(wave.vm_head - cost.wait_vm - 1) % 64], Stall::vmcnt);
            if (cost.wait_lgkm < 15)
                raise(&at, wave, open_until(wave.lgkm, wave.lgkm_head, cost.wait_lgkm), Stall::lgkmcnt);
            return;
        case Kind::vector_load:
        case Kind::vector_store:
        case Kind::vector_atomic:
        case Kind::vector_load_to_lds:
        case Kind::cache_control: {
            const uint32_t limit = static_cast<uint32_t>(replay_.parameters.vmcnt_limit);
            if (wave.vm_head >= limit)
                raise(&at, wave, wave.vm[(wave.vm_head - limit) % 64], Stall::counter_full);
            break;
        }
        default:
            break;
    }
    if (cost.lgkm)
        raise(&at, wave,
              open_until(wave.lgkm, wave.lgkm_head,
                         static_cast<uint32_t>(replay_.parameters.lgkmcnt_limit) - cost.lgkm),
              Stall::counter_full);
    if (cost.range_count == 0) return;
    for (const ReplayedWave::InFlight& matrix : wave.matrix) {
        if (matrix.read <= at) continue;
        if (cost.kind == Kind::matrix) {
            if (cost.c.count && overlap(cost.c, matrix.result)) {
                const bool same = cost.c.first == matrix.result.first && cost.c.count == matrix.result.count;
                raise(&at, wave, same ? matrix.same_c : matrix.overlapping_c, Stall::matrix_result);
            }
            for (int i = 0; i < cost.range_count; ++i) {
                const VectorRange& range = cost.ranges[i];
                const bool is_accumulator = range.first == cost.c.first || range.first == cost.result.first;
                if (!is_accumulator && overlap(range, matrix.result))
                    raise(&at, wave, matrix.read, Stall::matrix_result);
            }
        } else {
            for (int i = 0; i < cost.range_count; ++i) {
                if (overlap(cost.ranges[i], matrix.result))
                    raise(&at, wave, matrix.read, Stall::matrix_result);
            }
        }
    }
}

void ComputeUnit::add_vm(ReplayedWave& wave, double done) {
    // Counted in issue order.
    if (wave.vm_head) done = std::max(done, wave.vm[(wave.vm_head - 1) % 64]);
    wave.vm[wave.vm_head++ % 64] = done;
}

void ComputeUnit::add_lgkm(ReplayedWave& wave, double done, uint32_t weight) {
    for (uint32_t i = 0; i < weight; ++i) wave.lgkm[wave.lgkm_head++ % 32] = done;
}

void ComputeUnit::issue(uint32_t index, ReplayedWave& wave, double time, Stall why) {
    const Parameters& parameters = replay_.parameters;
    const Cost& cost = *wave.next;
    Simd& simd = simds_[index];
    InstructionCounts& counts = replay_.counts[static_cast<size_t>(&cost - replay_.costs.data())];
    ++counts.issues;
    const float stalled = static_cast<float>(time - wave.free_at);
    const Stall stall = wave.at - wave.free_at > time - wave.at ? wave.reason : why;
    double done = 0;  // of a memory operation
    uint32_t conflicts = 0;
    if (wave.at > wave.free_at) counts.stalls[static_cast<int>(wave.reason)] += wave.at - wave.free_at;
    if (time > wave.at) counts.stalls[static_cast<int>(why)] += time - std::max(wave.at, wave.free_at);

    wave.reason = Stall::none;
    wave.at = wave.free_at = time + cost.issue;
    switch (cost.kind) {
        case Kind::vector:
            simd.vector_free = time + cost.busy;
            vector_busy_ += cost.busy;
            break;
        case Kind::matrix: {
            simd.matrix_free = time + cost.busy;
            simd.vector_free = time + (cost.blocks_vector ? cost.busy : cost.issue);
            matrix_busy_ += cost.busy;
            flops_[static_cast<int>(cost.matrix_type)] += cost.flops;
            wave.matrix[wave.matrix_next++ % 4] = {cost.result, time + cost.same_c, time + cost.overlapping_c,
                                                   time + cost.read};
            break;
        }
        case Kind::vector_load:
        case Kind::vector_store:
        case Kind::vector_atomic:
        case Kind::vector_load_to_lds: {
            const uint64_t* access = &wave.trace->lines[wave.trace->memory_starts[wave.access++]];
            done = cache_.issue(time, cost, access);
            add_vm(wave, done);
            add_lgkm(wave, wave.vm[(wave.vm_head - 1) % 64], cost.lgkm);
            last_store_ = std::max(last_store_, done);
            if (cost.kind == Kind::vector_load_to_lds) lds_.fill(time, byte_count(access[0]));
            if (echo_) echo_->play(*wave.workgroup, index_, wave.index, wave.access, time);
            break;
        }
        case Kind::cache_control:
            add_vm(wave, time + parameters.l2_hit);
            break;
        case Kind::lds:
            if (cost.lgkm) {
                conflicts = wave.trace->lds_conflicts[wave.lds++];
                done = lds_.issue(time, index, cost, conflicts);
                add_lgkm(wave, done, cost.lgkm);
            }
            break;
        case Kind::scalar_memory: {
            done = time + parameters.scalar_hit;
            if (cost.has_address) {
                const uint64_t lines = wave.trace->scalar_lines[wave.scalar++];
                done = front_.load(lines >> 4, static_cast<uint32_t>(lines & 15), time);
            }
            add_lgkm(wave, done, cost.lgkm);
            break;
        }
        case Kind::scalar:
            add_lgkm(wave, time + parameters.scalar_hit, cost.lgkm);
            break;
        case Kind::priority:
            wave.priority = cost.priority;
            break;
        case Kind::barrier:
            log(index, wave, cost, time, stalled, stall, 0, 0);
            move_on(wave, time);
            arrive(wave, time);
            return;
        case Kind::end:
            log(index, wave, cost, time, stalled, stall, 0, 0);
            end(index, wave, time);
            return;
        default:
            break;
    }
    log(index, wave, cost, time, stalled, stall, done, conflicts);
    move_on(wave, time);
}

void ComputeUnit::log(uint32_t simd, const ReplayedWave& wave, const Cost& cost, double time, float stalled,
                      Stall stall, double done, uint32_t conflicts) {
    if (!replay_.events || !replay_.events->wants(xcd_, index_)) return;
    TimelineEvent event;
    event.begin = time;
    event.duration = cost.busy;
    event.stalled = stalled;
    event.latency = done > time ? static_cast<float>(done - time) : 0;
    event.address = cost.address;
    event.workgroup = wave.workgroup->trace->linear_id;
    event.compute_unit = static_cast<uint16_t>(index_);
    event.lds_conflicts = static_cast<uint16_t>(conflicts);
    event.simd = static_cast<uint8_t>(simd);
    event.wave = wave.index;
    event.unit = static_cast<uint8_t>(cost.unit);
    event.stall = static_cast<uint32_t>(stalled > 0 ? stall : Stall::none);
    replay_.events->add(event);
    if (cost.kind != Kind::end) return;
    event.is_wave = 1;
    event.begin = wave.begin;
    event.duration = static_cast<float>(time - wave.begin);
    event.stalled = event.latency = 0;
    replay_.events->add(event);
}

void ComputeUnit::enter_next_block(ReplayedWave& wave) const {
    const Block& block = replay_.program.blocks[wave.trace->blocks[wave.block++]];
    wave.next = &replay_.costs[block.first];
    wave.block_end = wave.next + block.count;
}

// Each instruction that the wave skips costs an issue slot. True: the block ends with skipped instructions.
bool ComputeUnit::leave_out(ReplayedWave& wave) const {
    while (const uint32_t count = wave.next->skip_run) {
        if (!wave.trace->skipped[wave.skip_run++]) return false;
        wave.next += count;
        wave.at += count * replay_.parameters.skipped_instruction;
        wave.free_at += count * replay_.parameters.skipped_instruction;
        if (wave.next == wave.block_end) return true;
    }
    return false;
}

void ComputeUnit::move_on(ReplayedWave& wave, double time) {
    const Kind kind = wave.next->kind;
    bool block_ends = ++wave.next == wave.block_end;
    if (block_ends && kind == Kind::branch) {
        const uint32_t from = wave.trace->blocks[wave.block - 1], to = wave.trace->blocks[wave.block];
        const bool taken = to != from + 1;
        raise(&wave.at, wave,
              time + (taken ? replay_.parameters.branch_taken : replay_.parameters.branch_not_taken),
              Stall::branch);
    }
    if (!block_ends) block_ends = leave_out(wave);
    while (block_ends) {
        enter_next_block(wave);
        block_ends = leave_out(wave);
    }
    wait_for_operands(wave);
}

void ComputeUnit::arrive(ReplayedWave& wave, double time) {
    ResidentWorkgroup& workgroup = *wave.workgroup;
    wave.waits_at_barrier = true;
    ++workgroup.at_barrier;
    workgroup.barrier_time = std::max(workgroup.barrier_time, time);
    if (workgroup.at_barrier == workgroup.waves_left) release(workgroup);
}

void ComputeUnit::release(ResidentWorkgroup& workgroup) {
    const double time = workgroup.barrier_time + replay_.parameters.barrier;
    for (const std::unique_ptr<ReplayedWave>& wave : waves_) {
        if (wave->workgroup != &workgroup || !wave->waits_at_barrier) continue;
        wave->waits_at_barrier = false;
        raise(&wave->at, *wave, time, Stall::barrier);
    }
    workgroup.at_barrier = 0;
    for (uint32_t simd = 0; simd < simd_count; ++simd) plan(simd);
}

void ComputeUnit::end(uint32_t index, ReplayedWave& wave, double time) {
    Simd& simd = simds_[index];
    ResidentWorkgroup* const workgroup = wave.workgroup;
    wave_clocks_ += time - wave.begin;
    simd.waves.erase(std::find(simd.waves.begin(), simd.waves.end(), &wave));
    const auto place =
        std::find_if(waves_.begin(), waves_.end(), [&](const auto& w) { return w.get() == &wave; });
    idle_waves_.push_back(std::move(*place));
    waves_.erase(place);
    if (--workgroup->waves_left) {
        if (workgroup->at_barrier == workgroup->waves_left) release(*workgroup);
        return;
    }
    if (echo_) echo_->play_rest(*workgroup, index_, time);
    ended_.push_back({time + replay_.parameters.wave_end, workgroup->begin});
    residents_.erase(std::find_if(residents_.begin(), residents_.end(),
                                  [&](const auto& resident) { return resident.get() == workgroup; }));
}

std::vector<ComputeUnit::Ended> ComputeUnit::take_ended() { return std::exchange(ended_, {}); }

}  // namespace hipkittens::simulator::timing
