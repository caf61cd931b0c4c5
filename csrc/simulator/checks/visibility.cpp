// simulator/checks/visibility.cpp: loads that may find a stale copy despite BUFFER_WBL2 and BUFFER_INV.
// SPDX-License-Identifier: MIT
#include "simulator/checks/visibility.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator::checks {

void Clock::join(const Clock& other) {
    epoch = std::max(epoch, other.epoch);
    for (size_t wave = 0; wave < number.size(); ++wave)
        number[wave] = std::max(number[wave], other.number[wave]);
}

void Knowledge::join(const Knowledge& other) {
    for (const auto& [id, known] : other.workgroups) {
        const auto [place, is_new] = workgroups.emplace(id, known);
        if (is_new) continue;
        place->second.ordered.join(known.ordered);
        place->second.written_back.join(known.written_back);
    }
}

void Knowledge::join_workgroup(const Knowledge& other, uint32_t workgroup) {
    const auto found = other.workgroups.find(workgroup);
    if (found == other.workgroups.end()) return;
    Known& known = workgroups[workgroup];
    known.ordered.join(found->second.ordered);
    known.written_back.join(found->second.written_back);
}

namespace {

constexpr size_t most_flags = 4;

// The wave's own operations so far, and those of its workgroup before the last barrier.
Clock now(const Wave* wave) {
    Clock clock;
    clock.epoch = wave->shadow->epoch;
    clock.number[wave->index_in_workgroup] = wave->shadow->clock;
    return clock;
}

// After a barrier a wave knows what all waves knew before it.
WaveVisibility& visibility_of(Wave* wave) {
    WaveVisibility& mine = *wave->shadow->visibility;
    if (mine.joined_epoch != wave->shadow->epoch) {
        mine.joined_epoch = wave->shadow->epoch;
        const WorkgroupVisibility& gathered = wave->workgroup->shadow->visibility;
        mine.observed.join(gathered.observed);
        mine.acquired.join(gathered.acquired);
        mine.written_back.join(gathered.written_back);
    }
    return mine;
}

bool is_flag(const PendingOperation* operation) {
    std::array<uint64_t, most_flags> seen;
    size_t count = 0;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint64_t address = operation->address[__builtin_ctzll(left)];
        if (std::find(seen.begin(), seen.begin() + count, address) != seen.begin() + count) continue;
        if (count == most_flags) return false;
        seen[count++] = address;
    }
    return count != 0;
}

bool writes_flags(const MemoryEffects& effects, const PendingOperation* operation) {
    return effects.writes_memory && (effects.is_atomic || effects.sc0 || effects.sc1) && is_flag(operation);
}

bool covers(const Knowledge& knowledge, uint32_t workgroup, Clock Known::* which, uint32_t wave,
            uint32_t epoch, uint32_t number) {
    const auto found = knowledge.workgroups.find(workgroup);
    return found != knowledge.workgroups.end() && (found->second.*which).covers(wave, epoch, number);
}

}  // namespace

template <class Visit>
void Visibility::for_each_dword(const MemoryEffects& effects, const PendingOperation* operation,
                                Visit visit) {
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint64_t begin = operation->address[lane];
        const uint32_t bytes = operation->partial ? operation->valid_bytes[lane] : effects.memory_bytes;
        for (uint64_t address = begin / 4 * 4; address < begin + bytes; address += 4) {
            Shard& shard = shards_[address / page_bytes % shards_.size()];
            std::lock_guard lock(shard.mutex);
            visit(shard, address, lane);
        }
    }
}

void Visibility::issued(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    WaveVisibility& mine = visibility_of(wave);
    if (writes_flags(effects, operation)) {
        Knowledge carried = mine.acquired;
        Known& own = carried.workgroups[wave->workgroup->linear_id];
        own.ordered.join(now(wave));
        own.written_back.join(mine.written_back);
        mine.flags[operation] = std::make_shared<const Knowledge>(std::move(carried));
    }
    const bool passes_l1 = effects.sc1 || (effects.sc0 && !wave->workgroup->shares_l1);
    if (!effects.reads_memory || effects.is_atomic || passes_l1) return;
    for_each_dword(effects, operation, [&](Shard& shard, uint64_t address, uint32_t lane) {
        const auto page = shard.pages.find(address / page_bytes);
        if (page == shard.pages.end()) return;
        const Writer& writer = (*page->second)[address % page_bytes / 4];
        if (writer.workgroup) judge(wave, effects, writer, address, lane);
    });
}

void Visibility::judge(Wave* wave, const MemoryEffects& effects, const Writer& writer, uint64_t address,
                       uint32_t lane) {
    const WaveVisibility& mine = *wave->shadow->visibility;
    const uint32_t id = writer.workgroup - 1;
    const bool is_own = id == wave->workgroup->linear_id;
    if (is_own && (wave->workgroup->shares_l1 || writer.wave == wave->index_in_workgroup)) return;
    const auto known = [&](const Knowledge& knowledge, Clock Known::* which) {
        return covers(knowledge, id, which, writer.wave, writer.epoch, writer.number);
    };
    const bool is_acquired = known(mine.acquired, &Known::ordered);
    const bool is_behind_barrier = is_own && writer.epoch < wave->shadow->epoch;
    if (!is_acquired && !is_behind_barrier && !known(mine.observed, &Known::ordered)) return;
    const bool is_written_back = is_own || writer.passes_l2 || known(mine.observed, &Known::written_back) ||
                                 known(mine.acquired, &Known::written_back);
    if (is_written_back && is_acquired) return;
    const char* kind = is_written_back ? "stale_without_invalidate" : "stale_without_write_back";
    report(wave, racecheck, kind, writer.instruction, effects.instruction, [&](Finding& finding) {
        finding.first_wave = writer.wave;
        finding.second_wave = wave->index_in_workgroup;
        finding.lanes = uint64_t{1} << lane;
        char place[160] = "memory";
        if (const Region* region = find_region(wave, address, 4))
            std::snprintf(place, sizeof place, "bytes 0x%" PRIx64 " to 0x%" PRIx64 " of '%s'",
                          address - region->begin, address - region->begin + 3, region->name);
        finding.place = place;
        const std::string reader = "wave " + std::to_string(wave->index_in_workgroup) + " of workgroup " +
                                   std::to_string(wave->workgroup->linear_id);
        const std::string from =
            "wave " + std::to_string(writer.wave) + " of workgroup " + std::to_string(id);
        const std::string what = reader + " reads " + finding.place + " with {2} after a " +
                                 (is_behind_barrier ? "barrier" : "flag") + " that follows {1} of " + from;
        if (is_written_back) {
            finding.message = what + ", and may find an old copy in its caches";
            finding.fix =
                is_own ? "buffer_inv sc0 behind the barrier or the load of the flag"
                       : "buffer_inv sc1 behind the load of the flag, and the wait for that load before it";
        } else {
            finding.message = what + ", and what was written may still be in the L2 of another XCD alone";
            finding.fix = "buffer_wbl2 sc1 and s_waitcnt vmcnt(0) between the store and that of the flag";
        }
    });
}

void Visibility::takes_effect(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    if (!effects.writes_memory) return;
    WaveVisibility& mine = *wave->shadow->visibility;
    std::shared_ptr<const Knowledge> carried;
    if (const auto found = mine.flags.find(operation); found != mine.flags.end()) {
        carried = std::move(found->second);
        mine.flags.erase(found);
    }
    const Writer me{wave->workgroup->linear_id + 1, effects.instruction,
                    operation->issue_epoch,         operation->issue_clock,
                    wave->index_in_workgroup,       effects.is_atomic || effects.sc1};
    for_each_dword(effects, operation, [&](Shard& shard, uint64_t address, uint32_t) {
        std::unique_ptr<Page>& page = shard.pages[address / page_bytes];
        if (!page) page = std::make_unique<Page>();
        (*page)[address % page_bytes / 4] = me;
        if (!carried) return;
        std::shared_ptr<const Knowledge>& flag = shard.flags[address];
        if (effects.is_atomic && flag && flag != carried) {
            Knowledge both = *flag;  // an atomic continues from what earlier ones have released
            both.join(*carried);
            flag = std::make_shared<const Knowledge>(std::move(both));
        } else {
            flag = carried;
        }
    });
}

void Visibility::returned(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation) {
    const bool returns =
        effects.is_atomic ? effects.sc0 : effects.reads_memory && (effects.sc0 || effects.sc1);
    if (!returns) return;
    WaveVisibility& mine = visibility_of(wave);
    const bool sees_all = effects.is_atomic || effects.sc1;
    for_each_dword(effects, operation, [&](Shard& shard, uint64_t address, uint32_t) {
        const auto flag = shard.flags.find(address);
        if (flag == shard.flags.end()) return;
        if (sees_all) {
            mine.observed.join(*flag->second);
        } else {
            mine.observed.join_workgroup(*flag->second, wave->workgroup->linear_id);
        }
    });
}

void arrive_at_barrier(Wave* wave) {
    const WaveVisibility& mine = visibility_of(wave);
    WorkgroupVisibility& gathered = wave->workgroup->shadow->visibility;
    gathered.observed.join(mine.observed);
    // Another compute unit's L1 is not invalidated together with this one's.
    (wave->workgroup->shares_l1 ? gathered.acquired : gathered.observed).join(mine.acquired);
    gathered.written_back.join(mine.written_back);
}

const Step* check_write_back(Wave* wave, const Step* step) {
    WaveVisibility& mine = visibility_of(wave);
    mine.asked = true;
    mine.asked_for = now(wave);
    mine.asked_at = wave->pending->vm_tail;
    return step + 1;
}

const Step* check_written_back(Wave* wave, const Step* step) {
    WaveVisibility& mine = visibility_of(wave);
    if (mine.asked && step->extra[0] <= wave->pending->vm_tail - mine.asked_at) {
        mine.written_back.join(mine.asked_for);
        mine.asked = false;
    }
    return step + 1;
}

const Step* check_invalidate(Wave* wave, const Step* step) {
    WaveVisibility& mine = visibility_of(wave);
    const uint32_t own = wave->workgroup->linear_id;
    if (step->extra[0]) {
        mine.acquired.join(mine.observed);
    } else {
        mine.acquired.join_workgroup(mine.observed, own);
    }
    mine.acquired.workgroups[own].ordered.epoch = wave->shadow->epoch;
    return step + 1;
}

}  // namespace hipkittens::simulator::checks
