// simulator/debug/debugged_launch.h: whether a launch is debugged, and the settings this requires.
// SPDX-License-Identifier: MIT
#pragma once

#include <mutex>

#include "simulator/machine/debugger.h"
#include "simulator/machine/settings.h"

namespace hipkittens::simulator::debug {

// Lives as long as the launch. Under HIPKITTENS_DEBUG_SOCKET a process runs one launch at a time.
class DebuggedLaunch {
  public:
    // Throws std::runtime_error if the variable is set and nobody listens on the socket.
    DebuggedLaunch();
    Debugger* debugger() const { return debugger_; }  // null without that variable

  private:
    std::unique_lock<std::mutex> lock_;
    Debugger* debugger_ = nullptr;
};

// Makes every instruction run at its position in the code, so that a debugger sees it.
void adjust_for_debugger(Settings& settings);

}  // namespace hipkittens::simulator::debug
