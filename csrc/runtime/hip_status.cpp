// runtime/hip_status.cpp: the results of the search and the devices' properties as JSON.
// SPDX-License-Identifier: MIT
#include "runtime/hip_status.h"

#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/hip_search.h"

namespace hipkittens::runtime {
namespace {

std::string json_text(const std::string& text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result + "\"";
}

std::string json_list(const std::vector<std::string>& items) {
    std::string result = "[";
    for (const std::string& item : items) result += (result.size() > 1 ? ", " : "") + item;
    return result + "]";
}

std::string json_texts(std::vector<std::string> texts) {
    for (std::string& text : texts) text = json_text(text);
    return json_list(texts);
}

std::string json_version(hipError_t (*ask)(int*)) {
    int version = 0;
    return ask(&version) == hip::hipSuccess ? std::to_string(version) : "null";
}

std::string json_device(int ordinal) {
    std::string text = "{\"ordinal\": " + std::to_string(ordinal);
    try {
        const Device& device = any_hip_device(ordinal);
        text += ", \"name\": " + json_text(device.name) + ", \"arch\": " + json_text(device.arch) +
                ", \"compute_units\": " + std::to_string(device.processors.compute_units) +
                ", \"xcds\": " + std::to_string(device.processors.xcds) +
                ", \"lds_bytes\": " + std::to_string(device.lds_bytes);
        hip_device(ordinal);
        return text + ", \"error\": null}";
    } catch (const Error& error) {
        return text + ", \"error\": " + json_text(error.what()) + "}";
    }
}

}  // namespace
}  // namespace hipkittens::runtime

extern "C" __attribute__((visibility("default"))) const char* hipkittens_runtime_hip_status(void) {
    using namespace hipkittens::runtime;
    thread_local std::string text;
    const SystemHip& hip = system_hip();
    std::vector<std::string> devices;
    for (int i = 0; i < hip.device_count; ++i) devices.push_back(json_device(i));
    const auto version = [&](auto member) {
        return hip.library ? json_version(hip.library->functions.*member) : std::string("null");
    };
    text = "{\"path\": " + (hip.library ? json_text(hip.library->path()) : "null") +
           ", \"found_by\": " + json_text(hip.found_by) + ", \"message\": " + json_text(hip.message) +
           ", \"driver_version\": " + version(&HipFunctions::hipDriverGetVersion) +
           ", \"runtime_version\": " + version(&HipFunctions::hipRuntimeGetVersion) +
           ", \"device_count\": " + std::to_string(hip.device_count) +
           ", \"devices\": " + json_list(devices) +
           ", \"candidates\": " + json_texts(system_hip_candidates()) +
           ", \"mapped\": " + json_texts(mapped_libraries("libamdhip64.so")) + "}";
    return text.c_str();
}
