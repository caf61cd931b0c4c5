// code_object/elf.h: the records of ELF64 that a code object uses.
// SPDX-License-Identifier: MIT
//
// Facts: System V gABI (ELF-64), LLVM "User Guide for AMDGPU Backend" (ELF Code Object).
#pragma once

#include <cstdint>

namespace hipkittens::code_object::elf {

struct Header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_header_offset, section_header_offset;
    uint32_t flags;
    uint16_t header_bytes, program_header_bytes, program_headers, section_header_bytes, section_headers,
        name_section;
};
static_assert(sizeof(Header) == 64);

struct ProgramHeader {
    uint32_t type, flags;
    uint64_t offset, address, physical_address, file_bytes, memory_bytes, align;
};
static_assert(sizeof(ProgramHeader) == 56);

struct SectionHeader {
    uint32_t name, type;
    uint64_t flags, address, offset, bytes;
    uint32_t link, info;
    uint64_t align, entry_bytes;
};
static_assert(sizeof(SectionHeader) == 64);

struct Symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, bytes;
};
static_assert(sizeof(Symbol) == 24);

struct Rela {
    uint64_t offset, info;
    int64_t addend;
};
static_assert(sizeof(Rela) == 24);

struct NoteHeader {
    uint32_t name_bytes, description_bytes, type;
};

inline constexpr uint8_t magic[4] = {0x7f, 'E', 'L', 'F'};
inline constexpr uint8_t class_64 = 2, data_little_endian = 1, osabi_amdgpu_hsa = 64;
inline constexpr uint16_t type_relocatable = 1, type_shared = 3, machine_amdgpu = 224;
inline constexpr uint32_t segment_load = 1, segment_note = 4;
inline constexpr uint32_t section_symbols = 2, section_rela = 4, section_note = 7, section_without_bytes = 8,
                          section_dynamic_symbols = 11;
inline constexpr uint32_t flag_executable = 1, flag_writable = 2, flag_readable = 4;
inline constexpr uint16_t section_undefined = 0, section_first_reserved = 0xff00;
inline constexpr uint32_t mach_mask = 0xff, mach_gfx942 = 0x4c, mach_gfx950 = 0x4f;
inline constexpr uint32_t note_amdgpu_metadata = 32;

// Relocation types of AMDGPU.
inline constexpr uint32_t abs32_lo = 1, abs32_hi = 2, abs64 = 3, rel32 = 4, rel64 = 5, abs32 = 6,
                          rel32_lo = 10, rel32_hi = 11, relative64 = 13;

}  // namespace hipkittens::code_object::elf
