// simulator/checks/visibility.h: whether a load may find a stale copy of what another workgroup wrote.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "simulator/checks/check_plan.h"

namespace hipkittens::simulator {

struct Wave;
struct PendingOperation;
struct Region;

namespace checks {

// LLVM's memory model (AMDGPUUsage, "Memory Model gfx942"): every compute unit has a vector L1 that no other unit's stores
// update, and every XCD has its own L2. What a workgroup stores becomes visible to another's loads through a flag if
//   * BUFFER_WBL2 sc1, which writes the L2 back, and the wait for it come between the stores and the flag; or the stores
//     are atomics or bypass the L2 themselves (sc1);
//   * BUFFER_INV sc1, which drops stale copies, comes between the load that saw the flag and the loads; or the loads bypass
//     the caches themselves.
// In code for tgsplit the waves of a workgroup may run on several compute units of an XCD, and BUFFER_INV sc0 must come between.
//
// The simulated caches hold no data, so every load gets the newest value; this check finds loads that might not on hardware. It
// does not consider which XCD a workgroup ran on, which is random, nor whether the line was in a cache. Accesses that no flag
// orders are left to GlobalShadow. Flags are written by stores with sc0 or sc1 and by atomics, at up to four addresses; more are data.

// Memory operations of one workgroup: those of each wave up to a number, and all those before a barrier.
struct Clock {
    uint32_t epoch = 0;
    std::array<uint32_t, 16> number{};

    bool covers(uint32_t wave, uint32_t at_epoch, uint32_t at_number) const {
        return at_epoch < epoch || at_number <= number[wave];
    }
    void join(const Clock& other);
};

// What is known about a workgroup's stores: which come earlier, and which of these the L2 has written back.
struct Known {
    Clock ordered, written_back;
};

struct Knowledge {
    std::map<uint32_t, Known> workgroups;  // by linear id

    void join(const Knowledge& other);
    void join_workgroup(const Knowledge& other, uint32_t workgroup);
};

struct WaveVisibility {
    Knowledge observed;  // from flags that loads have returned
    Knowledge acquired;  // the part that a BUFFER_INV has followed
    Clock written_back;  // of its own workgroup
    bool asked = false;  // BUFFER_WBL2 is in progress
    Clock asked_for;
    uint32_t asked_at = 0;      // operations before it
    uint32_t joined_epoch = 0;  // barriers whose collected knowledge has been merged
    std::unordered_map<const PendingOperation*, std::shared_ptr<const Knowledge>> flags;  // being written
};

// What waves contribute at a barrier.
struct WorkgroupVisibility {
    Knowledge observed, acquired;
    Clock written_back;
};

class Visibility {
  public:
    void issued(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation);
    void takes_effect(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation);
    void returned(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation);

  private:
    struct Writer {
        uint32_t workgroup = 0;  // linear id + 1, 0: none
        uint32_t instruction = 0, epoch = 0, number = 0;
        uint8_t wave = 0;
        bool passes_l2 = false;  // an atomic, or sc1
    };
    static constexpr uint32_t page_bytes = 4096;
    using Page = std::array<Writer, page_bytes / 4>;
    struct Shard {
        std::mutex mutex;
        std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
        std::unordered_map<uint64_t, std::shared_ptr<const Knowledge>> flags;  // by address of the dword
    };

    template <class Visit>
    void for_each_dword(const MemoryEffects& effects, const PendingOperation* operation, Visit visit);
    void judge(Wave* wave, const MemoryEffects& effects, const Writer& writer, uint64_t address,
               uint32_t lane);

    std::array<Shard, 64> shards_;
};

void arrive_at_barrier(Wave* wave);

}  // namespace checks
}  // namespace hipkittens::simulator
