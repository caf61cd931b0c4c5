// simulator/interruption.cpp: lets a host language handle signals while it launches.
// SPDX-License-Identifier: MIT
#include "simulator/interruption.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {
namespace {

// Of the main thread only.
HipkittensInterpreter interpreter{};
std::atomic<bool> has_interpreter{false};
bool was_interrupted = false;
void* raised[3] = {};

// Python runs handlers in its main thread only. No other thread may need its lock here: while the process
// exits it could no longer acquire it.
bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

bool handler_raised() {
    const int state = interpreter.enter();
    const bool result = interpreter.run_signal_handlers() != 0;
    if (result) {
        interpreter.take_error(&raised[0], &raised[1], &raised[2]);
        was_interrupted = true;
    }
    interpreter.leave(state);
    return result;
}

}  // namespace

bool (*interruption_check())() { return has_interpreter && is_main_thread() ? handler_raised : nullptr; }

}  // namespace hipkittens::simulator

using namespace hipkittens::simulator;

HIPKITTENS_EXPORT void hipkittens_set_interpreter(const HipkittensInterpreter* functions) {
    if (functions && !has_interpreter) interpreter = *functions;
    has_interpreter = functions != nullptr;
}

HIPKITTENS_EXPORT int hipkittens_take_interruption(void* error[3]) {
    if (!is_main_thread() || !was_interrupted) return 0;
    was_interrupted = false;
    for (int i = 0; i < 3; ++i) {
        error[i] = raised[i];
        raised[i] = nullptr;
    }
    return 1;
}
