// simulator/launch_descriptions.h: describes launches instead of running them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "simulator/kernel_arguments.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

std::mutex& launch_descriptions_mutex();  // for fork_handlers.cpp
bool is_describing();
// Equal for two launches of the same work: an address in `arguments` is replaced by an offset and its
// tensor's number, in the order in which the arguments first refer to the tensors.
void describe_launch(const std::string& kernel, const LaunchShape& shape,
                     const std::vector<uint8_t>& arguments, const std::vector<Region>& regions);

}  // namespace hipkittens::simulator
