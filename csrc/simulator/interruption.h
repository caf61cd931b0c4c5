// simulator/interruption.h: lets a host language handle signals while it launches.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens::simulator {

// The function that a launch of the calling thread polls to learn whether to stop; null if there is none.
bool (*interruption_check())();

}  // namespace hipkittens::simulator
