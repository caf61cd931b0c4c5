// simulator/timing/address_map.cpp: where a launch's memory would be located on the GPU.
// SPDX-License-Identifier: MIT
#include "simulator/timing/address_map.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <tuple>

namespace hipkittens::simulator::timing {
namespace {

size_t region_at(const std::vector<Region>& regions, uint64_t address) {
    const auto after =
        std::upper_bound(regions.begin(), regions.end(), address,
                         [](uint64_t value, const Region& region) { return value < region.begin; });
    if (after == regions.begin() || address >= (after - 1)->end) return regions.size();
    return static_cast<size_t>(after - 1 - regions.begin());
}

}  // namespace

AddressMap::AddressMap(const Dispatch& dispatch) : regions_(dispatch.regions.data()) {
    const std::vector<Region>& regions = dispatch.regions;
    constexpr uint64_t nowhere = ~uint64_t{0};
    std::vector<uint64_t> argument(regions.size(), nowhere);  // the first one that points into the region
    const uint64_t begin = reinterpret_cast<uint64_t>(dispatch.kernel_arguments);
    if (const size_t own = region_at(regions, begin); own != regions.size()) {
        for (uint64_t offset = 0; begin + offset + 8 <= regions[own].end; offset += 8) {
            uint64_t pointer;
            std::memcpy(&pointer, dispatch.kernel_arguments + offset, sizeof pointer);
            const size_t region = region_at(regions, pointer);
            if (region != regions.size()) argument[region] = std::min(argument[region], offset);
        }
    }
    std::vector<size_t> order(regions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto key = [&](size_t index) {
        // Names that end in a number are sorted by that number.
        const std::string_view name = regions[index].name;
        return std::tuple(argument[index], regions[index].is_own, name.size(), name, regions[index].begin);
    };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    displacements_.resize(regions.size());
    uint64_t next = granule;
    for (const size_t index : order) {
        displacements_[index] = next - regions[index].begin;
        next += (regions[index].end - regions[index].begin + granule - 1) / granule * granule + granule;
    }
    private_begin_ = next;
}

}  // namespace hipkittens::simulator::timing
