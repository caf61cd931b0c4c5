// fuzz/launch_header.h: how an input of simulated_launch.cpp chooses its launch. fuzz/seeds.py writes it too.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::fuzz {

enum : uint8_t { flag_poison = 1, flag_lds_conflicts = 2, flag_side_by_side = 4, flag_record = 8 };

struct LaunchHeader {
    uint8_t checks;           // of HipkittensSettings::checks, five bits
    uint8_t flags;            // flag_*
    uint8_t arithmetic;       // modulo 3
    uint8_t wave_order_seed;  // 0: in order
    uint8_t wave_turn;
    uint8_t block;         // work-items - 1, unless the kernel demands a size
    uint8_t grid;          // x: 1 + modulo 3; y: 1 + bit 4
    uint8_t lds_granules;  // dynamic LDS in 64 bytes
    uint8_t numbers[8];    // what arguments that are no pointers hold, one dword each
};
static_assert(sizeof(LaunchHeader) == 16);

}  // namespace hipkittens::fuzz
