// fuzz/code_object_reader.cpp: any bytes as a code object: refused with a text, or consistent.
// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "code_object/code_object.h"
#include "code_object/line_table.h"
#include "fuzz/property.h"

using namespace hipkittens::code_object;

namespace {

constexpr uint64_t largest_image = uint64_t{1} << 24;  // to keep a run short; larger ones are only parsed

void check(const Error& error) {
    HIPKITTENS_PROPERTY(std::strlen(error.what()) >= 20, "a refusal without a reason: '%s'", error.what());
}

void check(const CodeObject& object, std::span<const uint8_t> file) {
    const uint64_t end = object.image_address + object.image_bytes;
    for (const Segment& segment : object.segments) {
        HIPKITTENS_PROPERTY(segment.address >= object.image_address &&
                                segment.address + segment.memory_bytes <= end &&
                                segment.file_bytes <= segment.memory_bytes &&
                                segment.file_offset + segment.file_bytes <= file.size(),
                            "a segment at %#lx leaves the image or the file", segment.address);
    }
    for (const Relocation& relocation : object.relocations) {
        const bool is_wide = relocation.type == RelocationType::absolute64 ||
                             relocation.type == RelocationType::relative64 ||
                             relocation.type == RelocationType::base_relative64;
        HIPKITTENS_PROPERTY(
            relocation.address >= object.image_address && relocation.address + (is_wide ? 8 : 4) <= end,
            "a relocation at %#lx leaves the image", relocation.address);
    }
    for (const Kernel& kernel : object.kernels) {
        HIPKITTENS_PROPERTY(object.find_kernel(kernel.name), "kernel '%s' cannot be found by its name",
                            kernel.name.c_str());
        HIPKITTENS_PROPERTY(kernel.start_address >= object.image_address && kernel.start_address < end,
                            "the entry %#lx is outside the image", kernel.start_address);
        uint32_t registers = 0;
        for (const UserSgprRange& range : kernel.user_sgprs) {
            HIPKITTENS_PROPERTY(range.first == registers, "user SGPRs do not follow each other");
            registers += range.count;
        }
        for (const Argument& argument : kernel.arguments) {
            HIPKITTENS_PROPERTY(uint64_t{argument.offset} + argument.bytes <= kernel.kernarg_bytes,
                                "argument %s leaves the argument segment", argument.name.c_str());
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // An exact-sized heap copy lets AddressSanitizer see a read one byte beyond.
    const std::vector<uint8_t> file(data, data + size);
    try {
        const LineTable lines(file);
        for (uint64_t address : {uint64_t{0}, uint64_t{0x1000}, uint64_t{0x1804}, UINT64_MAX})
            (void)(lines.source_line(address) + lines.called_from(address));
    } catch (const Error& error) {
        check(error);
    }
    try {
        const CodeObject object = parse(file);
        check(object, file);
        // HIP passes code objects without their length: what was accepted must be found whole.
        HIPKITTENS_PROPERTY(extent(file.data()) <= file.size(), "extent() is beyond the file's %zu bytes",
                            file.size());
        if (object.image_bytes <= largest_image) {
            std::vector<uint8_t> image(object.image_bytes);
            load_image(object, file, image, 0x7f0000001000);
        }
    } catch (const Error& error) {
        check(error);
    }
    return 0;
}
