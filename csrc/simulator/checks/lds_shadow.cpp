// simulator/checks/lds_shadow.cpp: races and reads of uninitialized bytes in LDS.
// SPDX-License-Identifier: MIT
#include "simulator/checks/lds_shadow.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

namespace {

// Reserved indices that are not accesses: nobody, and a write so long ago that its record was dropped.
constexpr uint32_t forgotten = 1, first_access = 2;

}  // namespace

void LdsShadow::resize(uint32_t bytes) {
    bytes_ = (bytes + 15) / 16 * 16;
    cells_.assign(bytes_ >> shift_, Cell{});
    accesses_.assign(first_access, LdsAccess{});
}

void LdsShadow::clear() {
    std::fill(cells_.begin(), cells_.end(), Cell{});
    accesses_.erase(accesses_.begin() + first_access, accesses_.end());
    unordered_writes_.clear();
}

void LdsShadow::split_to(uint32_t shift) {
    std::vector<Cell> finer(bytes_ >> shift);
    for (size_t cell = 0; cell < finer.size(); ++cell) finer[cell] = cells_[cell >> (shift_ - shift)];
    cells_ = std::move(finer);
    shift_ = shift;
}

bool LdsShadow::is_ordered(const LdsAccess& earlier, const LdsAccess& later) const {
    if (earlier.is_atomic && later.is_atomic) return true;
    // A wave's operations in one queue reach LDS in issue order.
    if (earlier.wave == later.wave) {
        return (earlier.queue == later.queue && earlier.queue != Queue::flat) ||
               later.issue_clock > earlier.completion_clock;
    }
    return later.issue_epoch > earlier.completion_epoch;
}

void LdsShadow::access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    if (effects.is_counter) {
        const uint32_t address[1] = {operation->lds_offset};
        return access(wave, effects, operation, address, operation->lanes ? 1 : 0, 4);
    }
    if (effects.to_lds) {
        uint32_t address[64];
        for (uint32_t lane = 0; lane < 64; ++lane)
            address[lane] = operation->lds_offset + lane * effects.bytes;
        return access(wave, effects, operation, address, operation->lanes, effects.bytes);
    }
    access(wave, effects, operation, operation->lds_address, operation->lanes, effects.bytes);
    if (effects.is_pair) {
        uint32_t address[64];
        for (uint32_t lane = 0; lane < 64; ++lane)
            address[lane] = operation->lds_address[lane] + effects.second;
        access(wave, effects, operation, address, operation->lanes, effects.bytes);
    }
}

void LdsShadow::access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                       const uint32_t* address, uint64_t lanes, uint32_t bytes) {
    if (!lanes) return;
    uint32_t low_bits = bytes;
    if (lanes == ~uint64_t{0}) {
        for (int lane = 0; lane < 64; ++lane) low_bits |= address[lane];
    } else {
        for (uint64_t left = lanes; left; left &= left - 1) low_bits |= address[__builtin_ctzll(left)];
    }
    if (low_bits & ((1u << shift_) - 1)) split_to(static_cast<uint32_t>(__builtin_ctz(low_bits)));
    const WaveShadow& shadow = *wave->shadow;
    accesses_.push_back({effects.instruction, wave->index_in_workgroup, effects.queue, effects.is_atomic,
                         operation->issue_epoch, shadow.epoch, operation->issue_clock, shadow.clock});
    const uint32_t me = static_cast<uint32_t>(accesses_.size()) - 1;
    if (effects.writes_lds) {
        touch<true>(wave, effects, me, address, lanes, bytes);
    } else {
        touch<false>(wave, effects, me, address, lanes, bytes);
    }
    // A kernel that never ends must not exhaust the host's memory: the oldest accesses are dropped.
    if (accesses_.size() > (1u << 22) && unordered_writes_.empty()) {
        for (Cell& cell : cells_) cell = {cell.writer ? forgotten : 0, 0, 0};
        accesses_.erase(accesses_.begin() + first_access, accesses_.end());
    }
}

struct LdsShadow::Touch {
    Stamp stamp;
    // Stamps from here on may belong to an access that is not ordered before this one; an access that
    // completed before the last barrier this access knows of is ordered.
    Stamp first_doubtful;
    Stamp first_defined;  // lower stamps are findings: 1 where reading bytes that nobody wrote is one
};

inline void LdsShadow::read(const Touch& touch, Cell& cell) {
    const Stamp before = cell.reader;
    cell.other_reader = before && !are_of_one_wave(before, touch.stamp) ? before : cell.other_reader;
    cell.reader = touch.stamp;
}

// All 64 lanes: the most common access and the most costly. Returns whether nothing is left to judge; if
// something is, a write has not changed anything yet.
template <bool writes>
bool LdsShadow::touch_all(const Touch& touch, const uint32_t* address, uint32_t per_lane) {
    Cell* const cells = cells_.data();
    const uint32_t shift = shift_;
    bool is_clear = true;
    for (int lane = 0; lane < 64; ++lane) {
        Cell* cell = cells + (address[lane] >> shift);
        for (uint32_t part = 0; part < per_lane; ++part) {
            const Stamp writer = cell[part].writer;
            is_clear &= (writer < touch.first_doubtful) & (writer >= touch.first_defined);
            if constexpr (writes) {
                is_clear &= (cell[part].reader < touch.first_doubtful) &
                            (cell[part].other_reader < touch.first_doubtful);
            } else {
                read(touch, cell[part]);
            }
        }
    }
    if (!writes || !is_clear) return is_clear;
    for (int lane = 0; lane < 64; ++lane) {
        Cell* cell = cells + (address[lane] >> shift);
        for (uint32_t part = 0; part < per_lane; ++part) cell[part] = {touch.stamp, 0, 0};
    }
    return true;
}

template <bool writes>
void LdsShadow::touch(Wave* wave, const MemoryEffects& effects, uint32_t me, const uint32_t* address,
                      uint64_t lanes, uint32_t bytes) {
    const uint32_t checkers = wave->workgroup->shadow->plan->checkers;
    const bool races = checkers & racecheck, undefined = (checkers & initcheck) && effects.reads_lds;
    const LdsAccess mine = accesses_[me];
    const uint32_t per_lane = bytes >> shift_, cell_bytes = 1u << shift_;
    const Touch touch{uint64_t{mine.completion_epoch + 1} << epoch_bit | uint64_t{mine.wave} << wave_bit | me,
                      races ? uint64_t{mine.issue_epoch + 1} << epoch_bit : ~Stamp{0}, undefined};
    if (lanes == ~uint64_t{0}) {
        const bool is_done = per_lane == 1 ? touch_all<writes>(touch, address, 1)
                                           : touch_all<writes>(touch, address, per_lane);
        if (is_done) return;
    }
    const auto judge = [&](Stamp earlier, uint32_t at, uint32_t lane, bool earlier_writes) {
        if (access_of(earlier) == me || is_ordered(accesses_[access_of(earlier)], mine)) return;
        if (earlier_writes && writes) {
            UnorderedWrite both{access_of(earlier), me, at, cell_bytes, lane, {}};
            std::memcpy(both.before, wave->lds + at, cell_bytes);
            unordered_writes_.push_back(both);
        } else {
            report_race(wave, access_of(earlier), me, at, cell_bytes, lane, earlier_writes, writes);
        }
    };
    for (uint64_t left = lanes; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        uint32_t at = address[lane];
        Cell* cell = &cells_[at >> shift_];
        for (uint32_t part = 0; part < per_lane; ++part, ++cell, at += cell_bytes) {
            if (cell->writer >= touch.first_doubtful) judge(cell->writer, at, lane, true);
            if (cell->writer < touch.first_defined) report_undefined(wave, me, at, cell_bytes, lane);
            if constexpr (writes) {
                if (cell->reader >= touch.first_doubtful) judge(cell->reader, at, lane, false);
                if (cell->other_reader >= touch.first_doubtful) judge(cell->other_reader, at, lane, false);
                *cell = {touch.stamp, 0, 0};
            } else {
                read(touch, *cell);
            }
        }
    }
}

namespace {

std::string bytes_text(uint32_t address, uint32_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "LDS bytes 0x%x to 0x%x", address, address + bytes - 1);
    return text;
}

const char* counter_of(Queue queue) {
    return queue == Queue::vector_memory ? "vmcnt" : queue == Queue::flat ? "vmcnt and lgkmcnt" : "lgkmcnt";
}

}  // namespace

void LdsShadow::report_race(Wave* wave, uint32_t earlier, uint32_t later, uint32_t address, uint32_t bytes,
                            uint32_t lane, bool earlier_writes, bool later_writes) {
    const LdsAccess a = accesses_[earlier], b = accesses_[later];
    const char* kind = !earlier_writes ? "lds_write_after_read"
                       : later_writes  ? "lds_write_after_write"
                                       : "lds_read_after_write";
    report(wave, racecheck, kind, a.instruction, b.instruction, [&](Finding& finding) {
        finding.first_wave = a.wave;
        finding.second_wave = b.wave;
        finding.lanes = uint64_t{1} << lane;
        finding.place = bytes_text(address, bytes);
        finding.message = "wave " + std::to_string(b.wave) + (later_writes ? " writes " : " reads ") +
                          finding.place + " with {2}, wave " + std::to_string(a.wave) +
                          (earlier_writes ? " writes" : " reads") +
                          " them with {1}, and nothing orders the two";
        // The access that completed first may have been issued last: in that case the other one must be
        // waited for.
        const bool in_order =
            a.wave == b.wave ? a.issue_clock < b.issue_clock : a.issue_epoch <= b.issue_epoch;
        const LdsAccess& sooner = in_order ? a : b;
        const std::string wait = std::string("s_waitcnt ") + counter_of(sooner.queue);
        if (a.wave == b.wave) {
            finding.fix = wait + " between the two";
        } else if (sooner.completion_epoch > sooner.issue_epoch) {
            finding.fix = wait + " in wave " + std::to_string(sooner.wave) +
                          " before the barrier between the two, which does not wait for memory";
        } else {
            finding.fix =
                wait + " in wave " + std::to_string(sooner.wave) + ", then s_barrier, between the two";
        }
    });
}

void LdsShadow::judge_equal_writes(Wave* wave) {
    for (const UnorderedWrite& both : unordered_writes_) {
        if (std::memcmp(both.before, wave->lds + both.address, both.bytes)) {
            report_race(wave, both.earlier, both.later, both.address, both.bytes, both.lane, true, true);
            continue;
        }
        if (!(wave->workgroup->shadow->plan->checkers & notes)) continue;
        const LdsAccess a = accesses_[both.earlier], b = accesses_[both.later];
        report(wave, notes, "equal_lds_writes", a.instruction, b.instruction, [&](Finding& finding) {
            finding.first_wave = a.wave;
            finding.second_wave = b.wave;
            finding.lanes = uint64_t{1} << both.lane;
            finding.place = bytes_text(both.address, both.bytes);
            finding.message = "wave " + std::to_string(b.wave) + " writes " + finding.place +
                              " with {2}, wave " + std::to_string(a.wave) +
                              " writes them with {1}, nothing orders the two, and both write the same";
            finding.fix = "one wave writes them";
        });
    }
    unordered_writes_.clear();
}

void LdsShadow::report_undefined(Wave* wave, uint32_t later, uint32_t address, uint32_t bytes,
                                 uint32_t lane) {
    const LdsAccess b = accesses_[later];
    report(wave, initcheck, "uninitialised_lds", no_instruction, b.instruction, [&](Finding& finding) {
        finding.second_wave = b.wave;
        finding.lanes = uint64_t{1} << lane;
        finding.place = bytes_text(address, bytes);
        finding.message = "wave " + std::to_string(b.wave) + " reads " + finding.place +
                          " with {2}, and no wave has written them";
        finding.fix = "write them first";
    });
}

}  // namespace hipkittens::simulator::checks
