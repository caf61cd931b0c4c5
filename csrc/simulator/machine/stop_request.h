// simulator/machine/stop_request.h: how a running launch is stopped.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace hipkittens::simulator {

// Shared by the workers of one launch. A worker stops it when a wave faults; from outside it is stopped by
// `should_stop`, which the launching thread polls twenty times a second (null: not polled).
class StopRequest {
  public:
    StopRequest(bool (*should_stop)(), bool uses_tile_unit)
        : should_stop_(should_stop), uses_tile_unit_(uses_tile_unit) {}

    void stop() { stopping_ = true; }
    // No further workgroup may start.
    bool is_stopping() { return stopping_.load(std::memory_order_relaxed) || is_interrupted(); }
    // Running workgroups must stop too. After a fault they continue: if several fault, the first is to be
    // reported.
    bool is_interrupted() {
        if (interrupted_.load(std::memory_order_relaxed)) return true;
        return should_stop_ && std::this_thread::get_id() == launching_ && ask();
    }

    bool was_interrupted() const { return interrupted_; }

    static constexpr std::chrono::milliseconds patience{50};

  private:
    bool ask();

    bool (*should_stop_)();
    bool uses_tile_unit_;
    std::thread::id launching_ = std::this_thread::get_id();
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + patience;
    std::atomic<bool> stopping_{false}, interrupted_{false};
};

}  // namespace hipkittens::simulator
