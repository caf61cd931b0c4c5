// code_object/offload_bundle.h: the container in which clang puts the code objects of several targets.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "code_object/code_object.h"

namespace hipkittens::code_object {

struct BundleEntry {
    std::string_view name;       // "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+"
    std::string_view processor;  // "gfx942"; empty: the host's entry
    std::span<const uint8_t> code;
};

// What a bundle has, with texts and bytes in `file`; nothing if `file` begins no bundle. Throws Error where it is damaged.
std::optional<std::vector<BundleEntry>> bundle_entries(const uint8_t* file, uint64_t bytes = UINT64_MAX);

// The code object for `target` in what `file` begins: itself if it is a code object, or else that of a bundle (clang's
// ClangOffloadBundler: "__CLANG_OFFLOAD_BUNDLE__"). Throws Error where the bundle has none for the target.
// Of an image that HIP is given without its length nothing can be known to be cut off.
const uint8_t* code_object_for(Target target, const uint8_t* file, uint64_t bytes = UINT64_MAX);

}  // namespace hipkittens::code_object
