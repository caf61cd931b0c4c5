// code_object/offload_bundle.cpp: implements code_object/offload_bundle.h.
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

std::optional<std::vector<BundleEntry>> bundle_entries(const uint8_t* file, uint64_t bytes) {
    const auto require_bytes = [&](uint64_t needed) {
        if (needed > bytes) throw Error("the offload bundle is cut off", bytes, "the file is damaged");
    };
    if (bytes < magic.size() || std::memcmp(file, magic.data(), magic.size()) != 0) return std::nullopt;
    require_bytes(magic.size() + sizeof(uint64_t));
    const uint64_t count = word(file + magic.size());
    uint64_t at = magic.size() + sizeof count;
    if (count > most_entries)
        throw Error("the offload bundle counts " + std::to_string(count) + " entries", magic.size(),
                    "the file is damaged");
    std::vector<BundleEntry> entries;
    for (uint64_t i = 0; i < count; ++i) {
        require_bytes(at + 24);
        const uint64_t offset = word(file + at), size = word(file + at + 8),
                       name_bytes = word(file + at + 16);
        if (offset > largest_offset || size > largest_offset || name_bytes > longest_name)
            throw Error("an entry of the offload bundle lies at " + std::to_string(offset) + " and has " +
                            std::to_string(size) + " bytes",
                        at, "the file is damaged");
        require_bytes(at + 24 + name_bytes);
        require_bytes(offset + size);
        const std::string_view name(reinterpret_cast<const char*>(file) + at + 24, name_bytes);
        entries.push_back({name, processor_of(name), std::span(file + offset, size)});
        at += 24 + name_bytes;
    }
    return entries;
}

const uint8_t* code_object_for(Target target, const uint8_t* file, uint64_t bytes) {
    const auto entries = bundle_entries(file, bytes);
    if (!entries) return file;
    std::string others;
    for (const BundleEntry& entry : *entries) {
        if (entry.processor == target_name(target)) return entry.code.data();
        if (entry.processor.empty()) continue;
        others.append(others.empty() ? "" : ", ").append(entry.name);
    }
    throw Error(std::string("the offload bundle has no code object for ") + target_name(target) +
                    "; it has: " + others,
                0, std::string("compile with --offload-arch=") + target_name(target));
}

}  // namespace hipkittens::code_object
