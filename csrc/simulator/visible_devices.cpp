// simulator/visible_devices.cpp: implements simulator/visible_devices.h; the list is read from the environment once.
// SPDX-License-Identifier: MIT
#include "simulator/visible_devices.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/hip_call.h"
#include "simulator/timed_launches.h"

namespace hipkittens::simulator {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    while (true) {
        const size_t comma = text.find(',');
        words.push_back(text.substr(0, comma));
        if (comma == std::string_view::npos) return words;
        text.remove_prefix(comma + 1);
    }
}

std::vector<const DeviceFacts*> read_devices() {
    std::vector<const DeviceFacts*> all;
    const char* const list = std::getenv("HIPKITTENS_SIMULATED_DEVICES");
    if (!list || !*list) {
        for (const DeviceFacts& device : devices) all.push_back(&device);
        return all;
    }
    for (const std::string_view word : words_of(list))
        for (const DeviceFacts& device : devices)
            if (word == code_object::target_name(device.target)) all.push_back(&device);
    const char* const visible = std::getenv("HIP_VISIBLE_DEVICES");
    if (!visible) return all;
    std::vector<const DeviceFacts*> chosen;
    for (const std::string_view word : words_of(visible)) {
        size_t number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        // HIP ends the list at the first entry that is not a device.
        if (error != std::errc() || end != word.data() + word.size() || number >= all.size()) break;
        chosen.push_back(all[number]);
    }
    return chosen;
}

std::atomic<int> partitions{1};

const std::vector<const DeviceFacts*>& visible_devices() {
    static const std::vector<const DeviceFacts*>& all = *new std::vector(read_devices());
    return all;
}

}  // namespace

int visible_device_count() { return static_cast<int>(visible_devices().size()); }

const DeviceFacts& visible_device(int ordinal) { return *visible_devices()[static_cast<size_t>(ordinal)]; }

Processors visible_processors(const DeviceFacts& device) {
    const Processors all = processors_of(device);
    const int parts = partitions;
    return {all.compute_units / parts, all.xccs / parts};
}

int visible_partitions() { return partitions; }

void show_partitions(int count) {
    if (count != 1 && count != 2 && count != 4 && count != 8) {
        throw HipError(hip::hipErrorInvalidValue,
                       "partitions are " + std::to_string(count) + "; allowed are 1, 2, 4 and 8");
    }
    partitions = count;
}

}  // namespace hipkittens::simulator
