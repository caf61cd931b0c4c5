// simulator/launch_records.h: the launches that hipkittens_record_launches asked to keep.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "simulator/machine/recording.h"
#include "simulator/simulator.h"

namespace hipkittens::simulator {

bool is_recording();
bool is_tracing();
void keep_launch(const std::string& kernel, int target, const HipkittensReport& report,
                 LaunchRecord&& record);

}  // namespace hipkittens::simulator
