// simulator/timing/address_map.h: where a launch's memory would lie on the GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator::timing {

// Guest addresses are host addresses, which differ from run to run and begin anywhere in a line. In the model each region
// begins at a multiple of 2 MiB, as large allocations of HIP do, one behind the other.
class AddressMap {
  public:
    AddressMap() = default;
    explicit AddressMap(const std::vector<Region>& regions) : regions_(regions.data()) {
        uint64_t next = granule;
        for (const Region& region : regions) {
            displacements_.push_back(next - region.begin);
            next += (region.end - region.begin + granule - 1) / granule * granule + granule;
        }
    }

    // What is added to an address in this region, one of those it was made of.
    uint64_t displacement(const Region* region) const {
        return region ? displacements_[static_cast<size_t>(region - regions_)] : 0;
    }

  private:
    static constexpr uint64_t granule = 2 << 20;
    const Region* regions_ = nullptr;
    std::vector<uint64_t> displacements_;
};

}  // namespace hipkittens::simulator::timing
