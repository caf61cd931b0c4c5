// simulator/checks/global_shadow.cpp: races between workgroups and waves in global memory, and reads of uninitialized memory.
// SPDX-License-Identifier: MIT
#include "simulator/checks/global_shadow.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

namespace {

std::string bytes_text(const Region& region, uint64_t address, uint32_t bytes) {
    char text[160];
    std::snprintf(text, sizeof text, "bytes 0x%" PRIx64 " to 0x%" PRIx64 " of '%s'", address - region.begin,
                  address - region.begin + bytes - 1, region.name);
    return text;
}

uint32_t bytes_of(const PendingOperation* operation, const MemoryEffects& effects, uint32_t lane) {
    return operation->partial ? operation->valid_bytes[lane] : effects.memory_bytes;
}

}  // namespace

void GlobalShadow::access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                          const Region& region) {
    uint64_t current = UINT64_MAX;
    Page* page = nullptr;
    std::unique_lock<std::mutex> lock;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        uint64_t address = operation->address[lane];
        if (address < region.begin || address >= region.end) continue;  // a flat lane in LDS or scratch
        for (uint32_t bytes = bytes_of(operation, effects, lane); bytes;) {
            const uint32_t part =
                std::min<uint32_t>(bytes, page_bytes - static_cast<uint32_t>(address % page_bytes));
            if (address / page_bytes != current) {
                current = address / page_bytes;
                Shard& shard = shards_[current % shards_.size()];
                if (lock) lock.unlock();
                lock = std::unique_lock(shard.mutex);
                page = &shard.pages[current];
            }
            touch(*page, wave, effects, operation, region, address, part, lane);
            address += part;
            bytes -= part;
        }
    }
}

void GlobalShadow::touch(Page& page, Wave* wave, const MemoryEffects& effects,
                         const PendingOperation* operation, const Region& region, uint64_t address,
                         uint32_t bytes, uint32_t lane) {
    const uint32_t low_bits = static_cast<uint32_t>(address % page_bytes) | bytes;
    const uint32_t shift = std::min<uint32_t>(page.shift, static_cast<uint32_t>(__builtin_ctz(low_bits)));
    if (page.cells.empty()) {
        page.cells.resize(page_bytes >> shift);
        page.shift = shift;
    } else if (shift < page.shift) {
        std::vector<Cell> finer(page_bytes >> shift);
        for (size_t cell = 0; cell < finer.size(); ++cell)
            finer[cell] = page.cells[cell >> (page.shift - shift)];
        page.cells = std::move(finer);
        page.shift = shift;
    }
    const Party me{wave->workgroup->linear_id + 1, effects.instruction,
                   operation->issue_epoch,         wave->shadow->epoch,
                   wave->index_in_workgroup,       effects.is_atomic};
    const auto same_wave = [&](const Party& other) {
        return other.workgroup == me.workgroup && other.wave == me.wave;
    };
    const auto judge = [&](const Party& other, uint64_t at, bool other_writes) {
        if (!other.workgroup || same_wave(other) || (other.is_atomic && me.is_atomic)) return;
        if (other.workgroup == me.workgroup) {
            const bool is_ordered = wave->workgroup->shares_l1 ? me.issue_epoch != other.issue_epoch
                                                               : me.issue_epoch > other.completion_epoch;
            if (is_ordered) return;
        }
        static constexpr const char* kinds[2][3] = {
            {"global_write_after_read", "global_write_after_write", "global_read_after_write"},
            {"workgroups_write_after_read", "workgroups_write_after_write", "workgroups_read_after_write"}};
        const bool across = other.workgroup != me.workgroup;
        const char* kind = kinds[across][!other_writes ? 0 : effects.writes_memory ? 1 : 2];
        report(wave, racecheck, kind, other.instruction, me.instruction, [&](Finding& finding) {
            finding.first_wave = other.wave;
            finding.second_wave = me.wave;
            finding.lanes = uint64_t{1} << lane;
            finding.place = bytes_text(region, at, 1u << page.shift);
            const std::string mine = "wave " + std::to_string(me.wave) +
                                     (across ? " of workgroup " + std::to_string(me.workgroup - 1) : "");
            const std::string others = "wave " + std::to_string(other.wave) +
                                       (across ? " of workgroup " + std::to_string(other.workgroup - 1) : "");
            finding.message = mine + (effects.writes_memory ? " writes " : " reads ") + finding.place +
                              " with {2}, " + others + (other_writes ? " writes" : " reads") +
                              " them with {1}, and nothing orders the two";
            finding.fix = across ? "atomics, or another launch: workgroups run in any order"
                          : wave->workgroup->shares_l1 ? "s_barrier between the two"
                                                       : "s_waitcnt vmcnt, then s_barrier, between the two";
        });
    };
    const size_t first = address % page_bytes >> page.shift;
    for (size_t index = first; index < first + (bytes >> page.shift); ++index) {
        Cell& cell = page.cells[index];
        const uint64_t at = address / page_bytes * page_bytes + (index << page.shift);
        judge(cell.writer, at, true);
        if (effects.writes_memory) {
            judge(cell.reader, at, false);
            judge(cell.other_reader, at, false);
            cell = {me, {}, {}};
        } else {
            if (cell.reader.workgroup && !same_wave(cell.reader)) cell.other_reader = cell.reader;
            cell.reader = me;
        }
    }
}

void check_unwritten_memory(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                            const Region& region) {
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint64_t address = operation->address[lane];
        if (address < region.begin || address >= region.end) continue;
        const uint32_t bytes = bytes_of(operation, effects, lane);
        for (uint32_t at = 0; at + 4 <= bytes; at += 4) {
            uint32_t value;
            std::memcpy(&value, reinterpret_cast<const void*>(address + at), 4);
            if (value != region.unwritten) continue;
            report(wave, initcheck, "uninitialised_memory", no_instruction, effects.instruction,
                   [&](Finding& finding) {
                       finding.second_wave = wave->index_in_workgroup;
                       finding.lanes = uint64_t{1} << lane;
                       finding.place = bytes_text(region, address + at, 4);
                       finding.message = "wave " + std::to_string(wave->index_in_workgroup) + " reads " +
                                         finding.place + " with {2}, and nothing has been written there";
                       finding.fix = "write them first";
                   });
            return;
        }
    }
}

}  // namespace hipkittens::simulator::checks
