// simulator/visible_devices.cpp: simulator/visible_devices.h, read from the environment once.
// SPDX-License-Identifier: MIT
#include "simulator/visible_devices.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

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
        // HIP ends the list at the first entry that is no device.
        if (error != std::errc() || end != word.data() + word.size() || number >= all.size()) break;
        chosen.push_back(all[number]);
    }
    return chosen;
}

const std::vector<const DeviceFacts*>& visible_devices() {
    static const std::vector<const DeviceFacts*>& all = *new std::vector(read_devices());
    return all;
}

}  // namespace

int visible_device_count() { return static_cast<int>(visible_devices().size()); }

const DeviceFacts& visible_device(int ordinal) { return *visible_devices()[static_cast<size_t>(ordinal)]; }

}  // namespace hipkittens::simulator
