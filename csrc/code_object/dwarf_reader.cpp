// code_object/dwarf_reader.cpp: bounds-checked reads of numbers and forms of DWARF 4 and 5 from one debug section.
// SPDX-License-Identifier: MIT
#include "code_object/dwarf_reader.h"

#include <vector>

#include "code_object/elf.h"

namespace hipkittens::code_object {

DebugSections::DebugSections(std::span<const uint8_t> bytes) {
    const FileView file(bytes);
    const auto header = file.read<elf::Header>(0, "the ELF header");
    if (header.section_headers == 0) return;
    std::vector<elf::SectionHeader> sections;
    for (uint64_t i = 0; i < header.section_headers; ++i) {
        sections.push_back(file.read<elf::SectionHeader>(
            header.section_header_offset + i * sizeof(elf::SectionHeader), "a section header"));
    }
    if (header.name_section >= sections.size()) return;
    const elf::SectionHeader& names = sections[header.name_section];
    const auto name_table = file.range(names.offset, names.bytes, "the section names");
    for (const elf::SectionHeader& section : sections) {
        const std::string_view name = FileView::text(name_table, section.name, names.offset);
        for (Section* wanted :
             {&line, &line_strings, &strings, &info, &abbreviations, &addresses, &range_lists, &ranges}) {
            if (name != wanted->name) continue;
            wanted->bytes = file.range(section.offset, section.bytes, "a debug section");
            wanted->file_offset = section.offset;
        }
    }
}

uint64_t DwarfReader::take_unsigned() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t byte = take<uint8_t>();
        value |= uint64_t{byte & 0x7fu} << shift;
        if (!(byte & 0x80)) return value;
    }
    damaged("a number has more than 64 bits");
}

int64_t DwarfReader::take_signed() {
    int64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t byte = take<uint8_t>();
        value |= static_cast<int64_t>(uint64_t{byte & 0x7fu} << shift);
        if (byte & 0x80) continue;
        if ((byte & 0x40) && shift + 7 < 64) value |= static_cast<int64_t>(~uint64_t{0} << (shift + 7));
        return value;
    }
    damaged("a number has more than 64 bits");
}

DwarfReader::Value DwarfReader::take_form(uint64_t form, const DebugSections& sections) {
    switch (form) {
        case form_string: {
            const std::string_view text = FileView::text(section_.bytes, at_, section_.file_offset);
            skip(text.size() + 1);
            return {text};
        }
        case form_line_strp:
            return {FileView::text(sections.line_strings.bytes, take<uint32_t>(), section_.file_offset)};
        case form_strp:
            return {FileView::text(sections.strings.bytes, take<uint32_t>(), section_.file_offset)};
        case form_flag_present:
        case form_implicit_const:
            return {};
        case form_data1:
        case form_flag:
        case form_ref1:
        case form_strx1:
        case form_addrx1:
            return {{}, take<uint8_t>()};
        case form_data2:
        case form_ref2:
        case form_strx2:
        case form_addrx2:
            return {{}, take<uint16_t>()};
        case form_strx3:
        case form_addrx3: {
            const uint64_t low = take<uint16_t>();
            return {{}, low | uint64_t{take<uint8_t>()} << 16};
        }
        case form_data4:
        case form_ref4:
        case form_ref_addr:
        case form_sec_offset:
        case form_strx4:
        case form_addrx4:
            return {{}, take<uint32_t>()};
        case form_data8:
        case form_ref8:
        case form_addr:
            return {{}, take<uint64_t>()};
        case form_udata:
        case form_ref_udata:
        case form_strx:
        case form_addrx:
        case form_loclistx:
        case form_rnglistx:
            return {{}, take_unsigned()};
        case form_sdata:
            return {{}, static_cast<uint64_t>(take_signed())};
        case form_data16:
            skip(16);
            return {};
        case form_block1:
            skip(take<uint8_t>());
            return {};
        case form_block2:
            skip(take<uint16_t>());
            return {};
        case form_block4:
            skip(take<uint32_t>());
            return {};
        case form_block:
        case form_exprloc:
            skip(take_unsigned());
            return {};
        default:
            damaged("a form that is not handled");
    }
}

}  // namespace hipkittens::code_object
