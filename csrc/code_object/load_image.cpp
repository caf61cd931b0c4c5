// code_object/load_image.cpp: copies segments to where they run and relocates them.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "code_object/code_object.h"
#include "code_object/file_view.h"

namespace hipkittens::code_object {
namespace {

void relocate(const Relocation& relocation, uint64_t base, uint64_t image_address, std::span<uint8_t> image) {
    const uint64_t place = base + relocation.address;
    const uint64_t target = (relocation.has_symbol ? base + relocation.symbol_address : 0) +
                            static_cast<uint64_t>(relocation.addend);
    const auto store = [&]<class T>(T value) {
        const uint64_t offset = relocation.address - image_address;
        if (relocation.address < image_address || offset > image.size() ||
            sizeof value > image.size() - offset) {
            throw Error("a relocation lies outside the image", relocation.address,
                        "this CodeObject belongs to another file");
        }
        std::memcpy(image.data() + offset, &value, sizeof value);
    };
    switch (relocation.type) {
        case RelocationType::absolute32_low:
            return store(static_cast<uint32_t>(target));
        case RelocationType::absolute32_high:
            return store(static_cast<uint32_t>(target >> 32));
        case RelocationType::absolute32:
            if (target >> 32) {
                throw Error("a 32-bit relocation does not fit", relocation.address,
                            "compile with 64-bit references");
            }
            return store(static_cast<uint32_t>(target));
        case RelocationType::absolute64:
            return store(target);
        case RelocationType::relative32:
        case RelocationType::relative32_low:
            return store(static_cast<uint32_t>(target - place));
        case RelocationType::relative32_high:
            return store(static_cast<uint32_t>((target - place) >> 32));
        case RelocationType::relative64:
            return store(target - place);
        case RelocationType::base_relative64:
            return store(base + static_cast<uint64_t>(relocation.addend));
    }
}

}  // namespace

void load_image(const CodeObject& object, std::span<const uint8_t> file, std::span<uint8_t> image,
                uint64_t run_address) {
    if (image.size() < object.image_bytes) {
        throw Error("the image has room for " + std::to_string(image.size()) + " of " +
                        std::to_string(object.image_bytes) + " bytes",
                    0, "pass image_bytes of memory");
    }
    const FileView view(file);
    std::fill(image.begin(), image.end(), uint8_t{0});
    for (const Segment& segment : object.segments) {
        if (segment.file_bytes == 0) continue;
        const auto bytes = view.range(segment.file_offset, segment.file_bytes, "a segment");
        std::memcpy(image.data() + (segment.address - object.image_address), bytes.data(), bytes.size());
    }
    const uint64_t base = run_address - object.image_address;
    for (const Relocation& relocation : object.relocations)
        relocate(relocation, base, object.image_address, image);
}

}  // namespace hipkittens::code_object
