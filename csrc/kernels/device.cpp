// kernels/device.cpp: the entry point of one row of an operation's variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target. The build names the operation, whose folder it searches for headers, and the kind and
// name of the row.
#include <kernels.h>

#include "preloaded_arguments.h"

#define STRING_(text) #text
#define STRING(text) STRING_(text)
#define PASTE_(a, b, c, d, e, f) a##b##c##d##e##f
#define PASTE(a, b, c, d, e, f) PASTE_(a, b, c, d, e, f)

namespace hipkittens::HIPKITTENS_OPERATION {

using Kind = kinds::HIPKITTENS_KIND;
using Arguments = Kind::Arguments;

constexpr bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) ++a, ++b;
    return *a == *b;
}
constexpr Kind::Config config_of(const char* name) {
    for (const Row<Kind>& row : variants<Kind>)
        if (same_text(row.name, name)) return row.config;
    __builtin_unreachable();  // not a constant, hence a compile error
}
using Kernel = Kind::Kernel<config_of(STRING(HIPKITTENS_ROW))>;

template <class Kernel>
KITTENS_DEVICE void enter(const Arguments& arguments) {
    if constexpr (Kernel::lds_bytes > 0) {
        static __attribute__((shared, aligned(1024))) char lds[Kernel::lds_bytes];
        Kernel::run(arguments, (kittens::shared_byte*)lds);
    } else {
        Kernel::run(arguments);
    }
}

// The number of registers per wave follows from the number of waves per SIMD.
#define KERNEL                                                                            \
    __attribute__((global, amdgpu_flat_work_group_size(Kernel::threads, Kernel::threads), \
                   amdgpu_waves_per_eu(Kernel::waves_per_simd))) void                     \
    PASTE(hipkittens_, HIPKITTENS_OPERATION, _, HIPKITTENS_ROW, _, KITTENS_TARGET_NAME)

// A signature cannot depend on a type: kernels.h defines PRELOADS_<kind> for the kinds that use it.
extern "C" {
#if PASTE(PRELOADS_, HIPKITTENS_KIND, , , , )
KERNEL(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
       NotPreloaded<Arguments> rest) {
    enter<Kernel>(joined<Arguments>({a, b, c, d, e, f, g}, rest));
}
#else
KERNEL(Arguments arguments) { enter<Kernel>(arguments); }
#endif
}

}  // namespace hipkittens::HIPKITTENS_OPERATION
