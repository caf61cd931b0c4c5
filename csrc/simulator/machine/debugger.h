// simulator/machine/debugger.h: the seam at which a debugger follows a launch.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "code_object/kernel.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

// Called in the one thread that runs the launch. A call that does not return holds the whole launch.
class Debugger {
  public:
    virtual ~Debugger() = default;
    // Before the first workgroup.
    virtual void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel) = 0;
    // Registers are as the instruction at wave->next will find them.
    virtual void before_instruction(Wave* wave) = 0;
    // The wave has ended or faulted, as its status says.
    virtual void wave_stopped(Wave* wave) = 0;
    // `error` is empty if the grid ran to its end.
    virtual void launch_ends(const std::string& error) = 0;
};

}  // namespace hipkittens::simulator
