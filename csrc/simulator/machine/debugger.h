// simulator/machine/debugger.h: the interface through which a debugger follows a launch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "code_object/kernel.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

class Debugger;

// Runs the grid of a launch alone under another order of waves, without checkers, from the memory with which
// the launch began; afterwards memory is restored to its state before the call. `follower` follows that run,
// and its `launch_ends` sees the run's results in memory. Returns the error that the run ended with, if any.
using Replay = std::function<std::string(Debugger& follower, uint64_t wave_order_seed)>;

// Called in the only thread that runs the launch. A call that does not return blocks the whole launch.
class Debugger {
  public:
    virtual ~Debugger() = default;
    // Called before the first workgroup. `replay` may be called until the launch has ended, but its first
    // call must happen now or never.
    virtual void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                               const Replay& replay) = 0;
    // Registers are in the state that the instruction at wave->next will see.
    virtual void before_instruction(Wave* wave) = 0;
    // The wave has ended or faulted, according to its status.
    virtual void wave_stopped(Wave* wave) = 0;
    // `error` is empty if the grid completed.
    virtual void launch_ends(const std::string& error) = 0;
};

}  // namespace hipkittens::simulator
