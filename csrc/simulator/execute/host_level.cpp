// simulator/execute/host_level.cpp: selects the host level that this CPU can run. Compiled once, for the
// baseline.
// SPDX-License-Identifier: MIT
#include <stdexcept>

#include "simulator/execute/families.h"
#include "simulator/tile_unit/tile_unit.h"

namespace hipkittens::simulator {

const Families& families(HostLevel level) {
    switch (level) {
#if defined(HIPKITTENS_HAS_avx512_bf16)
        case HostLevel::amx:
        case HostLevel::avx512_bf16: {
            // Only the matrix sources are compiled at this level.
            static const Families mixed = [] {
                Families families = avx512::families();
                families.matrix = avx512_bf16::bind_matrix;
                return families;
            }();
            return mixed;
        }
#endif
#if defined(HIPKITTENS_HAS_avx512)
        case HostLevel::avx512:
            return avx512::families();
#endif
#if defined(HIPKITTENS_HAS_avx2)
        case HostLevel::avx2:
            return avx2::families();
#endif
#if defined(HIPKITTENS_HAS_portable)
        case HostLevel::portable:
            return portable::families();
#endif
        default:
            throw std::runtime_error(
                "the simulator was built without the host instructions asked for, or for a machine that has "
                "others; build it here again, with -DHIPKITTENS_HOST_LEVELS=all for all levels, as wheels "
                "are");
    }
}

// The best level in this build. Each level requires everything its sources are compiled with (CMakeLists.txt).
HostLevel best_host_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl");
    [[maybe_unused]] const bool has_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
#if defined(HIPKITTENS_HAS_avx512_bf16)
    if (has_bf16) return tile_unit::is_available() ? HostLevel::amx : HostLevel::avx512_bf16;
#endif
#if defined(HIPKITTENS_HAS_avx512)
    if (has_avx512) return HostLevel::avx512;
#endif
#if defined(HIPKITTENS_HAS_avx2)
    if (has_avx2) return HostLevel::avx2;
#endif
#endif
    return HostLevel::portable;
}

}  // namespace hipkittens::simulator
