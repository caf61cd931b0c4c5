// simulator/launch_records.h: the launches recorded for hipkittens_record_launches.
// SPDX-License-Identifier: MIT
#pragma once

#include <mutex>
#include <string>

#include "simulator/machine/recording.h"
#include "simulator/simulator.h"

namespace hipkittens::simulator {

std::mutex& launch_records_mutex();  // for fork_handlers.cpp
bool is_recording();
bool is_tracing();
bool takes_digests();
void keep_launch(const std::string& kernel, int target, const HipkittensReport& report,
                 LaunchRecord&& record);

}  // namespace hipkittens::simulator
