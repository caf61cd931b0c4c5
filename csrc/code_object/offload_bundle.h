// code_object/offload_bundle.h: the container in which clang stores the code objects of several targets.
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
    std::string_view processor;  // "gfx942"; empty for the host's entry
    std::span<const uint8_t> code;
};

// The entries of a bundle, with texts and bytes in `file`; nothing if `file` does not begin with a bundle.
// Throws Error if it is damaged.
std::optional<std::vector<BundleEntry>> bundle_entries(const uint8_t* file, uint64_t bytes = UINT64_MAX);

// The code object for `target` in `file`: the file itself if it is a code object, otherwise the one in a
// bundle (clang's ClangOffloadBundler: "__CLANG_OFFLOAD_BUNDLE__"). Throws Error if the bundle has none for
// the target. Truncation cannot be detected in an image that HIP receives without its length.
const uint8_t* code_object_for(Target target, const uint8_t* file, uint64_t bytes = UINT64_MAX);

}  // namespace hipkittens::code_object
