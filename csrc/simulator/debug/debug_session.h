// simulator/debug/debug_session.h: a launch that another program can stop, inspect and resume.
// SPDX-License-Identifier: MIT
//
// The other end of the socket (hipkittens/debugging/) handles sources and symbols; this end handles registers and memory. It sends
// events, each a line of JSON, and after each event it answers commands, each a line of words:
//
//   code                              the original code object
//   waves                             the stopped workgroup's waves: status, next instruction, EXEC, operations in flight
//   vector WAVE FIRST COUNT           vector registers of the unified file, in hexadecimal digits
//   scalar WAVE CODE COUNT            SGPRs and special registers by operand code
//   lds OFFSET BYTES · memory ADDRESS BYTES
//   set_vector WAVE NUMBER DIGITS · set_scalar WAVE CODE VALUE · set_lds OFFSET DIGITS · set_memory ADDRESS DIGITS
//   breakpoints [ADDRESS ...]         replaces the previous breakpoints; addresses are those of the file
//   watch NUMBER [vector WAVE FIRST COUNT | lane WAVE REGISTER LANE | lds OFFSET BYTES | memory ADDRESS BYTES]
//                                     stops when the place changes; removed if no place is given, or when the launch has ended
//   replay SEED                       before a launch: first runs it under that order of waves, and then stops each wave of the launch
//                                     at its first instruction that finds different values in the registers it reads
//   continue · step WORKGROUP WAVE [BEGIN END ...]   until that wave is outside all these address ranges; answered by events only
//
// A line that arrives while the launch is running stops it ("pause").
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "simulator/debug/issue_log.h"
#include "simulator/debug/line_channel.h"
#include "simulator/debug/order_comparison.h"
#include "simulator/machine/debugger.h"

namespace hipkittens::simulator::debug {

class DebugSession : public Debugger {
  public:
    explicit DebugSession(const std::string& socket_path) : channel_(socket_path) {}

    void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                       const Replay& replay) override;
    void before_instruction(Wave* wave) override;
    void wave_stopped(Wave* wave) override;
    void launch_ends(const std::string& error) override;

  private:
    struct AddressRange {
        uint64_t begin, end;
    };
    // Continues until `wave` of `workgroup` is outside all ranges.
    struct SingleStep {
        uint32_t workgroup, wave;
        std::vector<AddressRange> inside;
    };
    struct Watch {
        uint32_t number;
        uint32_t workgroup;  // whose LDS or registers these are
        std::span<uint8_t> bytes;
        std::vector<uint8_t> before;
        bool is_global;
    };

    uint64_t address_of(const Wave& wave) const;  // of its next instruction, or of its last
    std::string reason_to_stop(const Wave& wave);
    // Whether any changed; if so, `changes_` holds a line of JSON for all that did.
    bool watched_bytes_changed(const Workgroup& workgroup);
    void stop(Wave* wave, const std::string& reason, const std::string& text);
    void serve(Wave* wave);
    // The answer to a command, or nothing if the launch continues.
    std::optional<std::string> answer(Wave* wave, const std::string& line);
    void set_breakpoints(const std::vector<std::string>& words);
    std::string compare_orders(Wave* wave, uint64_t wave_order_seed);
    void set_watch(Wave* wave, const std::vector<std::string>& words);
    std::span<uint8_t> named_bytes(Wave* wave, const std::vector<std::string>& words, size_t first);
    std::string describe_waves(const Workgroup& workgroup) const;

    LineChannel channel_;
    bool is_detached_ = false;
    uint64_t launches_ = 0;
    const Dispatch* dispatch_ = nullptr;
    std::vector<bool> breaks_;  // by instruction
    std::optional<SingleStep> step_;
    std::vector<Watch> watches_;
    std::string changes_;  // of watched bytes, before this instruction
    Replay replay_;        // of the current launch
    std::unique_ptr<OrderComparison> comparison_;
    std::string difference_;  // the one found before this instruction
    const void* last_finding_ = nullptr;
    std::map<const Wave*, IssueLog> issues_;
    uint32_t instructions_until_poll_ = 0;
};

}  // namespace hipkittens::simulator::debug
