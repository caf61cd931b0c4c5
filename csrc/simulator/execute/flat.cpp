// simulator/execute/flat.cpp: flat addresses, which access memory, LDS or scratch lane by lane.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_memory.h"
#include "simulator/memory/apertures.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Apertures are above every host address: translating aperture addresses to host addresses lets all lanes
// complete the same way.
bool record_flat_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const uint32_t* low = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    const uint32_t* high =
        reinterpret_cast<const uint32_t*>(at(wave, step->source[0] + layout::vector_row_bytes));
    const uint64_t bytes = step->extra[0];
    uint64_t in_memory = 0;
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint64_t address =
            (low[lane] | uint64_t{high[lane]} << 32) + static_cast<uint64_t>(int64_t{step->immediate});
        const uint32_t aperture = static_cast<uint32_t>(address >> 32),
                       offset = static_cast<uint32_t>(address);
        if (aperture == memory::shared_aperture_high) {
            if (offset + bytes > wave->lds_bytes) {
                fault(wave, step, "LDS access outside the workgroup's allocation", offset, lane);
                return false;
            }
            operation->address[lane] = reinterpret_cast<uint64_t>(wave->lds) + offset;
        } else if (aperture == memory::private_aperture_high) {
            if (offset + bytes > wave->private_bytes) {
                fault(wave, step, "scratch access outside the lane's private segment", offset, lane);
                return false;
            }
            operation->address[lane] = reinterpret_cast<uint64_t>(wave->scratch_memory) +
                                       uint64_t{lane} * wave->private_bytes + offset;
        } else {
            operation->address[lane] = address;
            in_memory |= uint64_t{1} << lane;
        }
    }
    // The region check covers only the lanes in memory.
    alignas(64) uint64_t host[64];
    memcpy(host, operation->address, sizeof host);
    operation->lanes = wave->exec;
    operation->valid = in_memory;
    operation->partial = false;
    fill_idle_lanes(operation->address, in_memory);
    if (!check_regions(wave, step, operation)) return false;
    memcpy(operation->address, host, sizeof host);
    operation->valid = wave->exec;
    fill_idle_lanes(operation->address, wave->exec);
    return true;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
