// simulator/timed_launches.h: the launches modelled for hipkittens_time_launches.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <mutex>

#include "simulator/devices.h"
#include "simulator/timing/timed_launch.h"

namespace hipkittens::simulator {

std::mutex& timed_launches_mutex();  // for fork_handlers.cpp
// Null unless launches are being timed. Throws HipError if the model is for a target other than 942 or 950,
// or if the launch is also to be checked.
std::unique_ptr<timing::TimedLaunch> begin_timed_launch(int target, const Settings& settings);
// Those of the modelled product while launches for the device's target are timed: a plan is made for the modelled device.
Processors processors_of(const DeviceFacts& device);
void keep_timed_launch(timing::TimedLaunch& launch);

}  // namespace hipkittens::simulator
