// simulator/debug/debugged_launch.h: whether a launch is debugged, and what that asks of its settings.
// SPDX-License-Identifier: MIT
#pragma once

#include <mutex>

#include "simulator/machine/debugger.h"
#include "simulator/machine/settings.h"

namespace hipkittens::simulator::debug {

// Lives as long as the launch. Under HIPKITTENS_DEBUG_SOCKET a process runs one launch at a time.
class DebuggedLaunch {
  public:
    // Throws std::runtime_error if the variable is set and nobody listens there.
    DebuggedLaunch();
    Debugger* debugger() const { return debugger_; }  // null without that variable

  private:
    std::unique_lock<std::mutex> lock_;
    Debugger* debugger_ = nullptr;
};

// So that every instruction runs where the code has it, and a debugger sees it.
void adjust_for_debugger(Settings& settings);

}  // namespace hipkittens::simulator::debug
