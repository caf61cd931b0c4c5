// code_object/offload_bundle.cpp: code_object/offload_bundle.h.
// SPDX-License-Identifier: MIT
#include "code_object/offload_bundle.h"

#include <cstring>
#include <string>
#include <string_view>

#include "code_object/error.h"

namespace hipkittens::code_object {
namespace {

constexpr std::string_view magic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr uint64_t most_entries = 256, longest_name = 4096, largest_offset = uint64_t{1} << 40;

uint64_t word(const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+" -> "gfx942"; the host's entry has no processor.
std::string_view processor_of(std::string_view name) {
    const size_t begin = name.rfind("gfx");
    if (begin == std::string_view::npos) return {};
    return name.substr(begin, name.find(':', begin) - begin);
}

}  // namespace

const uint8_t* code_object_for(Target target, const uint8_t* file, uint64_t bytes) {
    const auto require_bytes = [&](uint64_t needed) {
        if (needed > bytes) throw Error("the offload bundle is cut off", bytes, "the file is damaged");
    };
    if (bytes < magic.size() || std::memcmp(file, magic.data(), magic.size()) != 0) return file;
    require_bytes(magic.size() + sizeof(uint64_t));
    const uint64_t entries = word(file + magic.size());
    uint64_t at = magic.size() + sizeof entries;
    if (entries > most_entries)
        throw Error("the offload bundle counts " + std::to_string(entries) + " entries", magic.size(),
                    "the file is damaged");
    std::string others;
    for (uint64_t i = 0; i < entries; ++i) {
        require_bytes(at + 24);
        const uint64_t offset = word(file + at), name_bytes = word(file + at + 16);
        if (offset > largest_offset || name_bytes > longest_name)
            throw Error("an entry of the offload bundle lies at " + std::to_string(offset), at,
                        "the file is damaged");
        require_bytes(at + 24 + name_bytes);
        const std::string_view name(reinterpret_cast<const char*>(file) + at + 24, name_bytes);
        if (processor_of(name) == target_name(target)) {
            require_bytes(offset + sizeof(uint64_t));
            return file + offset;
        }
        others.append(others.empty() ? "" : ", ").append(name);
        at += 24 + name_bytes;
    }
    throw Error(std::string("the offload bundle has no code object for ") + target_name(target) +
                    "; it has: " + others,
                0, std::string("compile with --offload-arch=") + target_name(target));
}

}  // namespace hipkittens::code_object
