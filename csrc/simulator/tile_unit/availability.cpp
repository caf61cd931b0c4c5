// simulator/tile_unit/availability.cpp: whether the tile unit may be used. Compiled for the baseline CPU.
// SPDX-License-Identifier: MIT
#include <sys/syscall.h>
#include <unistd.h>

#include "simulator/tile_unit/tile_unit.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hipkittens::simulator::tile_unit {

bool is_available() {
#if defined(__x86_64__)
    static const bool available = [] {
        unsigned eax, ebx, ecx, edx;
        if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
        constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
        if (!(edx & amx_bf16) || !(edx & amx_tile)) return false;
        // Linux grants the tile registers on request only (Documentation/arch/x86/xstate.rst).
        constexpr long request_permission = 0x1023, tile_data = 18;
        return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return available;
#else
    return false;
#endif
}

}  // namespace hipkittens::simulator::tile_unit
