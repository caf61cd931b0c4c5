// simulator/timing/parameters.h: the parameters of parameters.def for one device.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "isa/instruction.h"

namespace hipkittens::simulator::timing {

enum class Device : int { mi300x, mi308x, mi325x, mi350x, mi355x };
inline constexpr int device_count = 5;
const char* device_name(Device device);
std::string device_names();  // of all devices, for messages
// Returns false if there is no device with this name; case is ignored.
bool device_of(std::string_view name, Device* device);
isa::Target target_of(Device device);

struct Parameters {
#define PARAMETER(name, mi300x, mi308x, mi325x, mi350x, mi355x, unit, source) double name;
#include "simulator/timing/parameters.def"
#undef PARAMETER
};

Parameters parameters_of(Device device);

// Sets a parameter by name; returns an empty text, or the reason it was rejected.
std::string set_parameter(Parameters& parameters, std::string_view name, double value);

// JSON: {"device": ..., "parameters": [{"name", "value", "unit", "source"}]}.
std::string describe_parameters(Device device, const Parameters& parameters);

}  // namespace hipkittens::simulator::timing
