// simulator/machine/launch_trace.h: the interface for observers of every wave of a launch, such as the cycle model.
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
    // The instruction's own steps are omitted: nothing that is traced depends on them.
    virtual bool leaves_out(uint32_t instruction) = 0;
    virtual void before(uint32_t instruction) = 0;  // called before its own steps are emitted
    virtual void after(uint32_t instruction) = 0;   // called after its own steps were emitted
};

// One static object for each kind of trace: programs are cached per object, so that a launch without a trace
// costs nothing extra.
struct TraceSteps {
    Handler enter_block;  // replaces count_block, and counts like it
    Handler skip_vector;  // replaces the ordinary skip_vector, and skips like it
    std::unique_ptr<TraceBuilder> (*prepare)(const Program& program, StepBuilder& builder);
};

class LaunchTrace {
  public:
    virtual ~LaunchTrace() = default;
    virtual const TraceSteps& steps() const = 0;
    // Called by the workers, each with its own workgroups. Between begin and end the steps write to Wave::trace.
    // Returns false after a while without room; nothing waits for a workgroup of this worker meanwhile.
    virtual bool wait_for_room(uint32_t workgroup) = 0;
    virtual void begin(Workgroup& workgroup) = 0;  // called once its registers are set up
    virtual void end(Workgroup& workgroup) = 0;
    // The workers are done; after an error, workgroups are missing.
    virtual void finish() = 0;
    virtual void give_up() = 0;  // traces not consumed by now are discarded
    // Runs in its own thread alongside the workers, until finish has been called and everything is consumed.
    virtual void consume(const Dispatch& dispatch, const code_object::Kernel& kernel) = 0;
};

}  // namespace hipkittens::simulator
