// simulator/machine/recording.h: records every instruction of a launch and every byte it touches.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isa/effects.h"
#include "simulator/machine/program.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

struct PendingOperation;

struct RecordedInstruction {
    uint64_t executions = 0;
    uint64_t bytes = 0;  // moved between lanes and the memory passed to this launch
    uint64_t lds_conflict_cycles = 0;
    uint32_t address = 0;  // from the start of the text
    isa::Unit unit = isa::Unit::internal;
    uint32_t vm_in_flight = 0, lgkm_in_flight = 0;  // s_waitcnt: the largest counter values on reaching it
};

struct RecordedRegion {
    std::string name;
    uint64_t bytes_loaded = 0, bytes_stored = 0;  // by lanes: a byte may count more than once
    uint64_t distinct_bytes_loaded = 0, distinct_bytes_stored = 0;
};

struct LaunchRecord {
    std::vector<RecordedInstruction> instructions;  // those that were executed, by address
    std::vector<RecordedRegion> regions;
    std::vector<uint32_t> trace;  // simulator.h, hipkittens_record_launches; digests likewise
    std::vector<uint64_t> digests;
};

// Written by handlers of all workers. Arguments, code and scratch do not count, since they belong to no
// tensor.
class Recording {
  public:
    Recording(const Program& program, const std::vector<Region>& regions, bool traces);

    void add_bytes(const Region* region, uint64_t bytes, const Step* step, bool store);
    void touch(const Region* region, uint64_t begin, uint64_t end, bool store);  // addresses
    void add_lds_conflicts(const Step* step, uint64_t cycles);
    void add_wait(const Step* step, uint32_t vm_in_flight, uint32_t lgkm_in_flight);
    enum class Event : uint32_t { barrier, wait, vector_memory, to_lds, lds };
    void add_event(const Wave* wave, const Step* step, Event event, uint32_t bytes = 0, uint64_t lanes = 0,
                   const uint32_t* addresses = nullptr);
    bool goes_to_lds(const Step* step) const;
    LaunchRecord finish(const std::vector<uint64_t>& block_counts) const;

  private:
    using Word = std::atomic<uint64_t>;
    // One bit for each byte of a region. calloc: untouched pages are never allocated.
    struct Free {
        void operator()(Word* words) const;
    };
    struct Touched {
        std::unique_ptr<Word[], Free> loaded, stored;
        size_t words = 0;
        Word bytes_loaded{0}, bytes_stored{0};
    };
    struct Sums {
        Word bytes{0}, lds_conflict_cycles{0}, vm_in_flight{0}, lgkm_in_flight{0};
    };

    const Program& program_;
    const std::vector<Region>& regions_;
    std::vector<Touched> touched_;  // parallel to regions_
    std::vector<Sums> instructions_;
    bool traces_;
    std::mutex trace_mutex_;
    std::vector<uint32_t> trace_;
};

// Records the lanes of a global load or store whose addresses have been checked.
void record_access(Wave* wave, const Step* step, const PendingOperation* operation, bool store);
void record_lds_access(const Wave* wave, const Step* step, uint64_t cycles, const uint32_t* addresses);
void record_barrier(const Wave* wave, const Step* step);
void record_wait(const Wave* wave, const Step* step);  // called before anything completes

}  // namespace hipkittens::simulator
