// simulator/timing/parameters.cpp: the parameters of parameters.def for one device.
// SPDX-License-Identifier: MIT
#include "simulator/timing/parameters.h"

#include <strings.h>
#include <cmath>
#include <cstring>

#include "simulator/json_text.h"

namespace hipkittens::simulator::timing {
namespace {

constexpr const char* names[device_count] = {"MI300X", "MI308X", "MI325X", "MI350X", "MI355X"};

struct Row {
    const char* name;
    double Parameters::* member;
    double value[device_count];
    const char *unit, *source;
};

constexpr Row table[] = {
#define PARAMETER(name, mi300x, mi308x, mi325x, mi350x, mi355x, unit, source) \
    {#name, &Parameters::name, {mi300x, mi308x, mi325x, mi350x, mi355x}, unit, source},
#include "simulator/timing/parameters.def"
#undef PARAMETER
};

// False for parameters that the engine divides by.
bool may_be_zero(const Row& row) {
    return std::strcmp(row.unit, "flag") == 0 || std::strcmp(row.unit, "clk") == 0 ||
           std::strcmp(row.unit, "ns") == 0 || std::strcmp(row.unit, "us") == 0 ||
           std::strcmp(row.unit, "64 B lines") == 0;
}

}  // namespace

const char* device_name(Device device) { return names[static_cast<int>(device)]; }

std::string device_names() {
    std::string text = names[0];
    for (int i = 1; i < device_count; ++i) text += std::string(", ") + names[i];
    return text;
}

bool device_of(std::string_view name, Device* device) {
    for (int i = 0; i < device_count; ++i) {
        if (name.size() != std::strlen(names[i]) || strncasecmp(name.data(), names[i], name.size()) != 0)
            continue;
        *device = static_cast<Device>(i);
        return true;
    }
    return false;
}

isa::Target target_of(Device device) {
    return device <= Device::mi325x ? isa::Target::gfx942 : isa::Target::gfx950;
}

Parameters parameters_of(Device device) {
    Parameters parameters;
    for (const Row& row : table) parameters.*row.member = row.value[static_cast<int>(device)];
    return parameters;
}

std::string set_parameter(Parameters& parameters, std::string_view name, double value) {
    for (const Row& row : table) {
        if (name != row.name) continue;
        if (!std::isfinite(value) || value < 0 || (value == 0 && !may_be_zero(row)))
            return std::string(name) + " is " + std::to_string(value) + "; allowed are finite numbers " +
                   (may_be_zero(row) ? "from 0 on" : "above 0");
        parameters.*row.member = value;
        return "";
    }
    return "the cycle model has no parameter '" + std::string(name) +
           "'; hipkittens_timing_parameters lists them";
}

std::string describe_parameters(Device device, const Parameters& parameters) {
    JsonText json;
    json.open('{').member("device", device_name(device)).key("parameters").open('[');
    for (const Row& row : table) {
        json.open('{')
            .member("name", row.name)
            .member("value", parameters.*row.member)
            .member("unit", row.unit)
            .member("source", row.source)
            .close('}');
    }
    return json.close(']').close('}').text();
}

}  // namespace hipkittens::simulator::timing
