// code_object/metadata.h: parses the metadata note and the kernel descriptors into Kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "code_object/kernel.h"

namespace hipkittens::code_object {

struct KernelMetadata {
    Kernel kernel;                  // without the fields that come from the descriptor
    std::string descriptor_symbol;  // .symbol
    uint64_t file_offset = 0;
};

// `note` is the description of NT_AMDGPU_METADATA, which begins at `file_offset` of the file.
std::vector<KernelMetadata> read_metadata(std::span<const uint8_t> note, uint64_t file_offset);

// Fills in the fields given by the 64 bytes of a kernel descriptor at `address`. `file_offset` is for
// messages.
void read_descriptor(std::span<const uint8_t> descriptor, uint64_t address, uint64_t file_offset,
                     Kernel& kernel);

}  // namespace hipkittens::code_object
