// simulator/launch_descriptions.cpp: describes launches instead of running them.
// SPDX-License-Identifier: MIT
#include "simulator/launch_descriptions.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "simulator/hip_call.h"
#include "simulator/json_text.h"
#include "simulator/simulator.h"

namespace hipkittens::simulator {

namespace {

std::atomic<bool> describing{false};
std::mutex mutex;
std::vector<std::string> descriptions;

void write_triple(JsonText& json, const char* name, const uint32_t (&of)[3]) {
    json.key(name).open('[').value(of[0]).value(of[1]).value(of[2]).close(']');
}

}  // namespace

std::mutex& launch_descriptions_mutex() { return mutex; }
bool is_describing() { return describing; }

void describe_launch(const std::string& kernel, const LaunchShape& shape,
                     const std::vector<uint8_t>& arguments, const std::vector<Region>& regions) {
    JsonText json;
    json.open('{').member("kernel", kernel);
    write_triple(json, "grid", shape.grid);
    write_triple(json, "block", shape.block);
    json.member("dynamic_lds_bytes", shape.dynamic_lds_bytes).key("arguments").open('[');
    std::vector<uint64_t> tensors;  // by their addresses
    for (size_t at = 0; at < arguments.size(); at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, &arguments[at], std::min<size_t>(8, arguments.size() - at));
        char text[48];
        const auto holds = [&](uint64_t past_the_end) {
            return std::find_if(regions.begin(), regions.end(), [&](const Region& each) {
                return !each.is_own && each.begin <= word && word < each.end + past_the_end;
            });
        };
        auto region = holds(0);
        if (region == regions.end()) region = holds(1);  // an empty part at the end of a workspace
        if (region == regions.end()) {
            std::snprintf(text, sizeof text, "%016" PRIx64, word);
        } else {
            const auto known = std::find(tensors.begin(), tensors.end(), region->begin);
            const auto number = static_cast<size_t>(known - tensors.begin());
            if (known == tensors.end()) tensors.push_back(region->begin);
            std::snprintf(text, sizeof text, "tensor %zu+%" PRIu64, number, word - region->begin);
        }
        json.value(text);
    }
    json.close(']').close('}');
    std::lock_guard lock(mutex);
    descriptions.push_back(json.text());
}

}  // namespace hipkittens::simulator

using namespace hipkittens::simulator;

HIPKITTENS_EXPORT void hipkittens_describe_launches(int on) {
    std::lock_guard lock(mutex);
    if (on) descriptions.clear();
    describing = on != 0;
}

HIPKITTENS_EXPORT size_t hipkittens_described_launches(char* text, size_t size) {
    std::lock_guard lock(mutex);
    return hand_out(json_array(descriptions), text, size);
}
