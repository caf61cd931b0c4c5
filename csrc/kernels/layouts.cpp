// kernels/layouts.cpp: the argument struct and the configuration of each kind, for tools/kernel_layouts.py.
// SPDX-License-Identifier: MIT
// Parsed, never compiled to code: sizeof makes clang lay out a struct and print the layout.
#include <kinds.h>

namespace hipkittens::HIPKITTENS_OPERATION {

template <class Kind>
struct Layout {
    typename Kind::Arguments arguments;
    typename Kind::Config config;
};
#undef ROW
#define ROW(kind, ...) static_assert(sizeof(Layout<kinds::kind>) > 0);
#include <variants.def>

}  // namespace hipkittens::HIPKITTENS_OPERATION
