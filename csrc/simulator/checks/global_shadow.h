// simulator/checks/global_shadow.h: records which workgroup and wave last accessed each byte of writable memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "simulator/checks/check_plan.h"

namespace hipkittens::simulator {

struct Wave;
struct PendingOperation;
struct Region;

namespace checks {

// The workgroups of a launch run in any order: no workgroup may read or write what another writes, except
// with atomics. Within a workgroup a barrier between the two instructions orders them, since its waves share
// a vector L1 (memory/workgroup_order.h); in code built for tgsplit they do not share it, and the rule for
// LDS applies (lds_shadow.h). Memory that a launch may only read is not tracked.
class GlobalShadow {
  public:
    // Called when `operation` is about to complete; its lanes are in `region`.
    void access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                const Region& region);

  private:
    struct Party {
        uint32_t workgroup = 0;  // linear id + 1, 0: none
        uint32_t instruction = 0;
        uint32_t issue_epoch = 0, completion_epoch = 0;  // barriers that its wave had arrived at
        uint8_t wave = 0;
        bool is_atomic = false;
    };
    struct Cell {
        Party writer, reader, other_reader;  // other_reader: from another workgroup or wave than reader
    };
    // Cells are split like those of LdsShadow, page by page; a page has none before its first access.
    struct Page {
        uint32_t shift = 4;
        std::vector<Cell> cells;
    };
    struct Shard {
        std::mutex mutex;
        std::unordered_map<uint64_t, Page> pages;
    };
    static constexpr uint32_t page_bytes = 4096;

    void touch(Page& page, Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
               const Region& region, uint64_t address, uint32_t bytes, uint32_t lane);

    std::array<Shard, 64> shards_;
};

// initcheck: loads of memory that still holds the pattern of uninitialized memory.
void check_unwritten_memory(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                            const Region& region);

}  // namespace checks
}  // namespace hipkittens::simulator
