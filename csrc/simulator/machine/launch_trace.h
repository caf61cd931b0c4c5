// simulator/machine/launch_trace.h: the seam for who follows what every wave of a launch does, such as the cycle model.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include "simulator/machine/step.h"

namespace hipkittens::code_object {
struct Kernel;
}

namespace hipkittens::simulator {

struct Dispatch;
struct Program;
class StepBuilder;

// Adds steps to a program while it is translated.
class TraceBuilder {
  public:
    virtual ~TraceBuilder() = default;
    // The instruction's own steps are left out: nothing that is traced depends on them.
    virtual bool leaves_out(uint32_t instruction) = 0;
    virtual void before(uint32_t instruction) = 0;  // its own steps follow
    virtual void after(uint32_t instruction) = 0;   // its own steps were emitted
};

// One static object for each kind of trace: programs are kept for it, so that a launch without a trace pays nothing.
struct TraceSteps {
    Handler enter_block;  // in the place of count_block, and counts as it does
    Handler skip_vector;  // in the place of the other one, and skips as it does
    std::unique_ptr<TraceBuilder> (*prepare)(const Program& program, StepBuilder& builder);
};

class LaunchTrace {
  public:
    virtual ~LaunchTrace() = default;
    virtual const TraceSteps& steps() const = 0;
    // Called by the workers, each with its own workgroups. Between begin and end the steps write to Wave::trace.
    // False after a while without room; nothing waits for a workgroup of this worker meanwhile.
    virtual bool wait_for_room(uint32_t workgroup) = 0;
    virtual void begin(Workgroup& workgroup) = 0;  // its registers are set up
    virtual void end(Workgroup& workgroup) = 0;
    // The workers are done, after an error with workgroups missing.
    virtual void finish() = 0;
    virtual void give_up() = 0;  // what is not used up by now is of no interest
    // Runs in a thread of its own beside the workers, until finish has been called and all is used up.
    virtual void consume(const Dispatch& dispatch, const code_object::Kernel& kernel) = 0;
};

}  // namespace hipkittens::simulator
