// simulator/interruption.h: signals that reach a host language while it launches.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens::simulator {

// What a launch of the calling thread shall ask now and then whether to stop; null if there is nobody to ask.
bool (*interruption_check())();

}  // namespace hipkittens::simulator
