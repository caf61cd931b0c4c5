// simulator/machine/workgroup.cpp: looks up memory that a launch may touch.
// SPDX-License-Identifier: MIT
#include "simulator/machine/workgroup.h"

#include <algorithm>

namespace hipkittens::simulator {

const Region* find_region(Wave* wave, uint64_t address, uint64_t bytes) {
    const auto& regions = wave->workgroup->dispatch->regions;
    auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                  [](uint64_t value, const Region& region) { return value < region.begin; });
    if (after == regions.begin()) return nullptr;
    const Region& region = *(after - 1);
    if (address >= region.end || bytes > region.end - address) return nullptr;
    wave->last_region = &region;
    return &region;
}

}  // namespace hipkittens::simulator
