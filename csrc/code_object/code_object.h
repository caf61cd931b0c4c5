// code_object/code_object.h: an AMD GPU code object (ELF64 of amdhsa, code object V3 to V6) as plain data.
// SPDX-License-Identifier: MIT
//
// Facts: LLVM, "User Guide for AMDGPU Backend" (Code Object, Kernel Descriptor, Code Object Metadata).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "code_object/error.h"
#include "code_object/kernel.h"

namespace hipkittens::code_object {

enum class Target : uint8_t { gfx942, gfx950 };
const char* target_name(Target target);

// A PT_LOAD. Addresses are those of the file; the image begins at CodeObject::image_address.
struct Segment {
    uint64_t address = 0, file_offset = 0, file_bytes = 0, memory_bytes = 0;
    bool is_readable = false, is_writable = false, is_executable = false;
};

enum class SymbolType : uint8_t { none, object, function, other };

struct Symbol {
    std::string name;
    uint64_t address = 0, bytes = 0;
    SymbolType type = SymbolType::none;
    bool is_defined = false;
    bool is_dynamic = false;  // visible to hipModuleGetFunction / hipModuleGetGlobal
};

// S symbol, A addend, B where the image was loaded minus image_address, P the run-time address of the
// relocated place.
enum class RelocationType : uint8_t {
    absolute32_low,   // (S + A) & 0xffffffff     R_AMDGPU_ABS32_LO
    absolute32_high,  // (S + A) >> 32            R_AMDGPU_ABS32_HI
    absolute32,       // S + A, fits 32 bits      R_AMDGPU_ABS32
    absolute64,       // S + A                    R_AMDGPU_ABS64
    relative32,       // S + A - P                R_AMDGPU_REL32
    relative32_low,   // (S + A - P) & 0xffffffff R_AMDGPU_REL32_LO
    relative32_high,  // (S + A - P) >> 32        R_AMDGPU_REL32_HI
    relative64,       // S + A - P                R_AMDGPU_REL64
    base_relative64,  // B + A                    R_AMDGPU_RELATIVE64
};

struct Relocation {
    RelocationType type;
    uint64_t address = 0;  // of the place, in the file's addresses; checked to be in a segment
    int64_t addend = 0;
    bool has_symbol = false;
    uint64_t symbol_address = 0;  // in the file's addresses
};

struct CodeObject {
    Target target = Target::gfx942;
    uint32_t elf_flags = 0;
    uint8_t abi_version = 0;     // EI_ABIVERSION: 1 is code object V3, ... 4 is V6
    uint64_t image_address = 0;  // lowest segment address
    uint64_t image_bytes = 0;    // size of the memory that holds all segments
    std::vector<Segment> segments;
    std::vector<Symbol> symbols;
    std::vector<Relocation> relocations;
    std::vector<Kernel> kernels;

    const Kernel* find_kernel(std::string_view name) const;  // nullptr if there is none
    const Symbol* find_symbol(std::string_view name) const;  // defined symbols only; nullptr if there is none
};

// Throws Error for anything that is not a well-formed code object of a known target. Every offset and size of
// the result has been checked against the file and the image.
CodeObject parse(std::span<const uint8_t> file);

// The size of the file that begins at `file`, from its headers: HIP passes code objects without a size.
// Throws Error for anything that cannot be a code object; memory that does not have the size in its headers
// cannot be detected here.
uint64_t extent(const uint8_t* file);

// Copies the segments to `image` (object.image_bytes long; gaps and .bss become zero) and relocates them for
// an image that runs at `run_address`, normally the address of `image` itself.
void load_image(const CodeObject& object, std::span<const uint8_t> file, std::span<uint8_t> image,
                uint64_t run_address);

}  // namespace hipkittens::code_object
