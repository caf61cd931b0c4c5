// simulator/timing/address_map.h: where a launch's memory would be located on the GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator::timing {

// Guest addresses are host addresses, which differ from run to run and may begin anywhere within a line. In the model
// each region begins at a multiple of 2 MiB, like large allocations of HIP, in consecutive order: first the regions that
// the kernel's arguments point into, in argument order, then the others by name. So equal launches have equal addresses.
class AddressMap {
  public:
    AddressMap() = default;
    explicit AddressMap(const Dispatch& dispatch);

    // The amount to add to an address in this region, which is one of the dispatch's.
    uint64_t displacement(const Region* region) const {
        return region ? displacements_[static_cast<size_t>(region - regions_)] : 0;
    }
    // The address of dword `dword` of a lane's private segment: the dwords of all lanes of a wave are
    // adjacent, as the hardware swizzles them. Waves that may run at the same time have separate segments.
    uint64_t private_dword(uint32_t wave, uint32_t private_bytes, uint32_t dword, uint32_t lane) const {
        return private_begin_ + 64 * (uint64_t{wave % private_waves} * private_bytes + 4 * uint64_t{dword}) +
               4 * uint64_t{lane};
    }

  private:
    static constexpr uint64_t granule = 2 << 20;
    static constexpr uint32_t private_waves =
        8192;  // the most waves that run on a chip: 256 CUs, four SIMDs, eight waves
    const Region* regions_ = nullptr;
    std::vector<uint64_t> displacements_;
    uint64_t private_begin_ = 0;
};

}  // namespace hipkittens::simulator::timing
