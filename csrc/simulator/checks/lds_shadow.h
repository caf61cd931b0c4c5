// simulator/checks/lds_shadow.h: records who last wrote and read each byte of a workgroup's LDS.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/checks/check_plan.h"

namespace hipkittens::simulator {

struct Wave;
struct PendingOperation;

namespace checks {

// Barriers do not drain counters: an access counts as done when a wait of its issuer has made it complete,
// and another wave may rely on it after a barrier at which the issuer arrived later. So every access records
// how many barriers its issuer had passed when it was issued and when it completed.
struct LdsAccess {
    uint32_t instruction;
    uint8_t wave;
    Queue queue;
    bool is_atomic;
    uint32_t issue_epoch, completion_epoch;  // barriers the issuer had arrived at
    uint32_t issue_clock, completion_clock;  // order within the issuer
};

// Bytes that are always accessed together share a cell. Cells start at 16 bytes and are split, for the rest of the
// launch, when an access covers part of one: LDS is tracked byte by byte only where a kernel accesses it that way.
class LdsShadow {
  public:
    void resize(uint32_t bytes);
    void clear();
    // Called when `operation` is about to complete.
    void access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation);
    // Called when it has completed: of unordered writes, those that left LDS unchanged are a note and not a
    // race. Compilers let several waves write data that all of them hold (Triton's replicated layouts).
    void judge_equal_writes(Wave* wave);
    // The lanes of one access, as byte offsets.
    void access(Wave* wave, const MemoryEffects& effects, const PendingOperation* operation,
                const uint32_t* address, uint64_t lanes, uint32_t bytes);

  private:
    // An access in the form needed to see quickly that it is ordered before another: from bit 40 up, one more
    // than the number of barriers its issuer had passed when it completed; below that, the issuer. 0: none.
    using Stamp = uint64_t;
    static constexpr uint32_t wave_bit = 32, epoch_bit = 40;
    static uint32_t access_of(Stamp stamp) { return static_cast<uint32_t>(stamp); }
    static bool are_of_one_wave(Stamp a, Stamp b) { return !((a ^ b) >> wave_bit & 0xff); }
    struct Cell {
        Stamp writer = 0, reader = 0;
        Stamp other_reader = 0;  // the last reader from another wave than `reader`
    };
    void split_to(uint32_t shift);
    struct Touch;
    template <bool writes>
    void touch(Wave* wave, const MemoryEffects& effects, uint32_t me, const uint32_t* address, uint64_t lanes,
               uint32_t bytes);
    void read(const Touch& touch, Cell& cell);
    template <bool writes>
    bool touch_all(const Touch& touch, const uint32_t* address, uint32_t per_lane);
    bool is_ordered(const LdsAccess& earlier, const LdsAccess& later) const;
    void report_race(Wave* wave, uint32_t earlier, uint32_t later, uint32_t address, uint32_t bytes,
                     uint32_t lane, bool earlier_writes, bool later_writes);
    void report_undefined(Wave* wave, uint32_t later, uint32_t address, uint32_t bytes, uint32_t lane);

    struct UnorderedWrite {
        uint32_t earlier, later, address, bytes, lane;
        uint8_t before[16];  // contents of LDS at the earlier write
    };

    std::vector<UnorderedWrite> unordered_writes_;  // of the operation that is completing
    std::vector<Cell> cells_;
    std::vector<LdsAccess> accesses_;
    uint32_t bytes_ = 0, shift_ = 4;
};

}  // namespace checks
}  // namespace hipkittens::simulator
