// code_object/offload_bundle.h: the container in which clang puts the code objects of several targets.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "code_object/code_object.h"

namespace hipkittens::code_object {

// The code object for `target` in what `file` begins: itself if it is a code object, or else that of a bundle (clang's
// ClangOffloadBundler: "__CLANG_OFFLOAD_BUNDLE__"). Throws Error where the bundle has none for the target.
// Of an image that HIP is given without its length nothing can be known to be cut off.
const uint8_t* code_object_for(Target target, const uint8_t* file, uint64_t bytes = UINT64_MAX);

}  // namespace hipkittens::code_object
