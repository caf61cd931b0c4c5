// code_object/dwarf_reader.h: bounds-checked reads of numbers and forms of DWARF 4 and 5 from one debug section.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "code_object/file_view.h"

namespace hipkittens::code_object {

// The debug sections of a code object; missing ones are empty.
struct DebugSections {
    explicit DebugSections(std::span<const uint8_t> file);

    struct Section {
        explicit Section(const char* section_name) : name(section_name) {}
        const char* name;
        std::span<const uint8_t> bytes;
        uint64_t file_offset = 0;
    };
    Section line{".debug_line"}, line_strings{".debug_line_str"}, strings{".debug_str"}, info{".debug_info"},
        abbreviations{".debug_abbrev"}, addresses{".debug_addr"}, range_lists{".debug_rnglists"},
        ranges{".debug_ranges"};
};

// DWARF 5, 7.5.6.
enum DwarfForm : uint64_t {
    form_addr = 0x01,
    form_block2 = 0x03,
    form_block4 = 0x04,
    form_data2 = 0x05,
    form_data4 = 0x06,
    form_data8 = 0x07,
    form_string = 0x08,
    form_block = 0x09,
    form_block1 = 0x0a,
    form_data1 = 0x0b,
    form_flag = 0x0c,
    form_sdata = 0x0d,
    form_strp = 0x0e,
    form_udata = 0x0f,
    form_ref_addr = 0x10,
    form_ref1 = 0x11,
    form_ref2 = 0x12,
    form_ref4 = 0x13,
    form_ref8 = 0x14,
    form_ref_udata = 0x15,
    form_sec_offset = 0x17,
    form_exprloc = 0x18,
    form_flag_present = 0x19,
    form_strx = 0x1a,
    form_addrx = 0x1b,
    form_data16 = 0x1e,
    form_line_strp = 0x1f,
    form_implicit_const = 0x21,
    form_loclistx = 0x22,
    form_rnglistx = 0x23,
    form_strx1 = 0x25,
    form_strx2 = 0x26,
    form_strx3 = 0x27,
    form_strx4 = 0x28,
    form_addrx1 = 0x29,
    form_addrx2 = 0x2a,
    form_addrx3 = 0x2b,
    form_addrx4 = 0x2c,
};

// A position in a section that advances as it is read. Throws Error at the section's end.
class DwarfReader {
  public:
    explicit DwarfReader(const DebugSections::Section& section, uint64_t at = 0) : section_(section) {
        seek(at);
    }

    uint64_t at() const { return at_; }
    uint64_t left() const { return section_.bytes.size() - at_; }
    void seek(uint64_t at) {
        if (at > section_.bytes.size()) damaged("a place beyond its end");
        at_ = at;
    }
    void skip(uint64_t count) {
        if (count > left()) damaged("it ends inside a block");
        at_ += count;
    }

    template <class T>
    T take() {
        if (sizeof(T) > left()) damaged("it ends inside a value");
        T value;
        std::memcpy(&value, section_.bytes.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }
    uint64_t take_unsigned();
    int64_t take_signed();

    struct Value {
        std::string_view text;
        uint64_t number = 0;
    };
    Value take_form(uint64_t form, const DebugSections& sections);

    [[noreturn]] void damaged(const char* how) const {
        throw Error(std::string(section_.name) + ": " + how, section_.file_offset + at_,
                    "its source lines cannot be named");
    }

  private:
    const DebugSections::Section& section_;
    uint64_t at_ = 0;
};

}  // namespace hipkittens::code_object
