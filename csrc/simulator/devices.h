// simulator/devices.h: the devices that this library can simulate.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "code_object/code_object.h"

namespace hipkittens::simulator {

struct DeviceFacts {
    code_object::Target target;
    const char* name;
    const char* gcn_arch_name;  // as in hipDeviceProp_t::gcnArchName, features included
    int major, minor;           // of the architecture: gfx942 is 9.4, gfx950 is 9.5
    int compute_units, xccs;
    uint32_t lds_bytes, lds_granule;  // the same per compute unit and per workgroup
    int clock_khz, memory_clock_khz, memory_bus_bits;
    uint64_t memory_bytes;
    int l2_bytes;  // of one XCD
};

// Sources: rocm.docs.amd.com, "GPU hardware specifications" (compute units, memory, LDS, L2); CDNA3 and CDNA4
// white papers (XCDs, bus width of eight HBM stacks); AMD data sheets (peak engine clock 2100 and 2400 MHz,
// HBM3 5.2 Gbit/s and HBM3E 8 Gbit/s per pin, at two transfers per clock).
inline constexpr DeviceFacts devices[] = {
    {code_object::Target::gfx942, "AMD Instinct MI300X (simulated)", "gfx942:sramecc+:xnack-", 9, 4, 304, 8,
     65536, 512, 2100000, 2600000, 8192, uint64_t{192} << 30, 4 << 20},
    {code_object::Target::gfx950, "AMD Instinct MI355X (simulated)", "gfx950:sramecc+:xnack-", 9, 5, 256, 8,
     163840, 1280, 2400000, 4000000, 8192, uint64_t{288} << 30, 4 << 20},
};

struct Processors {
    int compute_units, xccs;
};

// The same for both (CDNA3 and CDNA4 ISA manuals; LLVM AMDGPU: register file of 512 VGPRs per lane and SIMD).
inline constexpr int wave_size = 64, simds_per_compute_unit = 4, max_waves_per_simd = 8,
                     vgprs_per_simd_lane = 512;
inline constexpr int max_workgroup_size = 1024;
// COMPUTE_TMPRING_SIZE.WAVESIZE has 13 bits that count KiB (LLVM: GCNSubtarget::getMaxWaveScratchSize; ROCr:
// MAX_WAVE_SCRATCH).
inline constexpr uint32_t max_scratch_bytes_per_lane = ((1 << 13) - 1) * 1024 / wave_size;
inline constexpr uint32_t max_grid_x = 0x7fffffff,
                          max_grid_yz = 65535;  // as hipDeviceProp_t::maxGridSize reports

}  // namespace hipkittens::simulator
