// simulator/checks/finding.h: what a checker found, and the lists that collect findings.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace hipkittens::simulator {

struct Dispatch;

namespace checks {

// Named like the tools of NVIDIA's compute-sanitizer; `notes` concern speed only, never correctness.
enum Checker : uint32_t {
    memcheck = 1,
    racecheck = 2,
    initcheck = 4,
    synccheck = 8,
    notes = 16,
    all_checkers = 31,
};

inline constexpr uint32_t no_instruction = UINT32_MAX;
inline constexpr uint8_t no_wave = 0xff;

// One kind of finding between one pair of instructions. The first occurrence is kept, later ones are counted.
struct Finding {
    Checker checker = memcheck;
    const char* kind = "";                                     // a literal: lds_race, register_in_flight, ...
    uint32_t first = no_instruction, second = no_instruction;  // indices into the program's instructions
    uint8_t first_wave = no_wave, second_wave = no_wave;
    uint32_t workgroup = 0;  // linear id
    uint64_t lanes = 0;
    std::string place;    // "v12", "LDS bytes 0x100 to 0x10f"
    std::string message;  // one sentence: what happened, with {1} and {2} for the two instructions
    std::string fix;      // the wait, barrier or s_nop that would order them
    uint64_t count = 1;
};

// Findings of one worker's slot, or of a launch: one per kind and pair of instructions.
class FindingList {
  public:
    // The finding of that kind and pair, with its count incremented, if it already exists; else nullptr.
    Finding* count_known(const char* kind, uint32_t first, uint32_t second);
    void add(Finding finding);
    void drop(std::string_view kind_prefix);
    void merge(const FindingList& other);
    bool empty() const { return findings_.empty(); }
    const Finding* latest() const { return latest_; }  // the last one added, unless dropped since
    std::vector<const Finding*> ordered() const;       // sorted by instruction

  private:
    std::map<std::tuple<uint32_t, uint32_t, const char*>, Finding> findings_;
    const Finding* latest_ = nullptr;
};

// A finding as one JSON object.
std::string to_json(const Finding& finding, const Dispatch& dispatch);

// The findings of all launches of this process since they were last taken, as JSON objects: Python's autograd
// launches from several threads.
class FindingLog {
  public:
    void append(std::vector<std::string> launch);
    std::string json();  // an array
    void clear();
    std::string
    kept_json();  // an array of all since the process began, even if cleared or taken; under HIPKITTENS_CHECKS
    // For fork_handlers.cpp.
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

  private:
    std::mutex mutex_;
    std::vector<std::string> entries_;
    std::vector<std::string> kept_;
    void write_file();
};
FindingLog& finding_log();

// The checkers requested by HIPKITTENS_CHECKS: "all", or checkers' names separated by commas. 0 if it is not
// set. If it is set, HIPKITTENS_CHECKS_FILE names a file to which all findings are written as JSON when the
// process exits.
uint32_t checkers_of_environment();

}  // namespace checks
}  // namespace hipkittens::simulator
