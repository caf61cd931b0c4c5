// kernels/probe/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "arithmetic.h"
#include "clocks.h"

namespace hipkittens::probe {

// Reports XCC_ID and HW_ID of each wave.
template <NoConfig config>
struct Placement {
    static constexpr int threads = 512, waves_per_simd = 2, lds_bytes = 0;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments) {
        uint32_t chiplet, hardware;
        asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(chiplet));
        asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(hardware));
        const uint32_t wave = kittens::workgroup_id_x() * (threads / 64) + kittens::wave_id();
        if (kittens::lane_id() == 0) {
            store(arguments, wave * 2, chiplet);
            store(arguments, wave * 2 + 1, hardware);
        }
    }
};

// Reads the arguments from registers, and again from memory.
#define PRELOADS_preloaded 1
template <NoConfig config>
struct Preloaded : OneWave {
    static constexpr int lds_bytes = 0;

    KITTENS_DEVICE static void run(const PreloadedArguments& arguments) {
        const PreloadedArguments in_memory = kittens::reload_arguments<PreloadedArguments>();
        auto* output = (global<uint64_t>)arguments.output;
        if (kittens::lane_id() != 0) return;
        for (int i = 0; i < 7; ++i) {
            output[i] = arguments.words[i];
            output[7 + i] = in_memory.words[i];
        }
    }
};

}  // namespace hipkittens::probe
