// simulator/fork_handlers.cpp: keeps the library usable in a forked child.
// SPDX-License-Identifier: MIT
#include <pthread.h>

#include <mutex>
#include <new>
#include <shared_mutex>

#include "simulator/checks/finding.h"
#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"
#include "simulator/launch_descriptions.h"
#include "simulator/launch_records.h"
#include "simulator/machine/program_cache.h"
#include "simulator/timed_launches.h"

// A child has only the thread that forked. Locks that are held briefly are acquired before the fork, so that
// the data they guard is consistent; those that a launch or a translation holds for long are reinitialized in
// the child. The launches of other threads continue in the parent only. No lock is held here or there while
// anything acquires Python's.
namespace hipkittens::simulator {
namespace {

void before_fork() {
    Objects& all = objects();
    all.modules.lock();
    all.functions.lock();
    all.streams.lock();
    all.events.lock();
    all.graphs.lock();
    all.nodes.lock();
    all.executables.lock();
    device_memory().lock();
    checks::finding_log().lock();
    program_cache().lock();
    launch_descriptions_mutex().lock();
    launch_records_mutex().lock();
    timed_launches_mutex().lock();
    process_settings_mutex().lock();
}

void after_fork() {
    process_settings_mutex().unlock();
    timed_launches_mutex().unlock();
    launch_records_mutex().unlock();
    launch_descriptions_mutex().unlock();
    program_cache().unlock();
    checks::finding_log().unlock();
    device_memory().unlock();
    Objects& all = objects();
    all.executables.unlock();
    all.nodes.unlock();
    all.graphs.unlock();
    all.events.unlock();
    all.streams.unlock();
    all.functions.unlock();
    all.modules.unlock();
}

void after_fork_in_child() {
    const bool others_were_launching = launches_under_way().exchange(0) != 0;
    objects().modules.for_each(
        [&](Module& module) { module.code.start_again_after_fork(others_were_launching); });
    new (&device_memory().launches) std::shared_mutex;
    after_fork();
}

[[gnu::constructor]] void register_fork_handlers() {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

}  // namespace
}  // namespace hipkittens::simulator
