// simulator/debug/debugged_launch.cpp: whether a launch is debugged, and the settings this requires.
// SPDX-License-Identifier: MIT
#include "simulator/debug/debugged_launch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "simulator/debug/debug_session.h"

namespace hipkittens::simulator::debug {

namespace {

struct ProcessSession {
    std::mutex mutex;
    std::unique_ptr<DebugSession> session;
};

// A forked child has its own session: the parent's may be in the middle of a line, with its lock held.
ProcessSession& process_session() {
    static ProcessSession* of_process = nullptr;
    static pid_t owner = 0;
    static std::mutex making;
    const std::lock_guard lock(making);
    if (owner != getpid()) {
        owner = getpid();
        of_process = new ProcessSession;
    }
    return *of_process;
}

}  // namespace

DebuggedLaunch::DebuggedLaunch() {
    static const char* const path = std::getenv("HIPKITTENS_DEBUG_SOCKET");
    if (!path) return;
    ProcessSession& process = process_session();
    lock_ = std::unique_lock(process.mutex);
    if (!process.session) process.session = std::make_unique<DebugSession>(path);
    debugger_ = process.session.get();
}

void adjust_for_debugger(Settings& settings) {
    // From avx512_bf16 on, products are moved together (machine/product_runs.h).
    settings.host_level = std::min(settings.host_level, HostLevel::avx512);
}

}  // namespace hipkittens::simulator::debug
