// simulator/machine/debugger.h: the seam at which a debugger follows a launch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "code_object/kernel.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

class Debugger;

// Runs the grid of a launch by itself under another order of waves, without checkers, from the memory that the launch began with;
// then memory is what it was before the call. `follower` follows that run, and `launch_ends` finds its results in memory. The
// error, if there is one, is what the run ended with.
using Replay = std::function<std::string(Debugger& follower, uint64_t wave_order_seed)>;

// Called in the one thread that runs the launch. A call that does not return holds the whole launch.
class Debugger {
  public:
    virtual ~Debugger() = default;
    // Before the first workgroup. `replay` can be called until the launch has ended, and by its first call now or never.
    virtual void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                               const Replay& replay) = 0;
    // Registers are as the instruction at wave->next will find them.
    virtual void before_instruction(Wave* wave) = 0;
    // The wave has ended or faulted, as its status says.
    virtual void wave_stopped(Wave* wave) = 0;
    // `error` is empty if the grid ran to its end.
    virtual void launch_ends(const std::string& error) = 0;
};

}  // namespace hipkittens::simulator
