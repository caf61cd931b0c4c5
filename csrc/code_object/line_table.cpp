// code_object/line_table.cpp: from an address in a code object to the source line it was compiled from.
// SPDX-License-Identifier: MIT
#include "code_object/line_table.h"

#include <algorithm>
#include <filesystem>

#include "code_object/elf.h"
#include "code_object/file_view.h"

namespace hipkittens::code_object {

namespace {

// DWARF 5, table 7.27 (content types), 7.5.6 (forms), 7.22 (opcodes).
enum ContentType : uint64_t { content_path = 1, content_directory_index = 2 };
enum Form : uint64_t {
    form_data2 = 0x05,
    form_data4 = 0x06,
    form_data8 = 0x07,
    form_string = 0x08,
    form_block = 0x09,
    form_data1 = 0x0b,
    form_strp = 0x0e,
    form_udata = 0x0f,
    form_data16 = 0x1e,
    form_line_strp = 0x1f,
};
enum StandardOpcode : uint8_t {
    extended = 0,
    copy = 1,
    advance_pc = 2,
    advance_line = 3,
    set_file = 4,
    const_add_pc = 8,
    fixed_advance_pc = 9,
};
enum ExtendedOpcode : uint8_t { end_sequence = 1, set_address = 2 };

struct Sections {
    std::span<const uint8_t> line, line_strings, strings;
    uint64_t line_offset = 0;
};

Sections find_sections(std::span<const uint8_t> bytes) {
    const FileView file(bytes);
    const auto header = file.read<elf::Header>(0, "the ELF header");
    Sections found;
    if (header.section_headers == 0) return found;
    std::vector<elf::SectionHeader> sections;
    for (uint64_t i = 0; i < header.section_headers; ++i) {
        sections.push_back(file.read<elf::SectionHeader>(
            header.section_header_offset + i * sizeof(elf::SectionHeader), "a section header"));
    }
    if (header.name_section >= sections.size()) return found;
    const elf::SectionHeader& names = sections[header.name_section];
    const auto name_table = file.range(names.offset, names.bytes, "the section names");
    for (const elf::SectionHeader& section : sections) {
        const std::string_view name = FileView::text(name_table, section.name, names.offset);
        if (!name.starts_with(".debug_")) continue;
        const auto content = file.range(section.offset, section.bytes, "a debug section");
        if (name == ".debug_line") {
            found.line = content;
            found.line_offset = section.offset;
        }
        if (name == ".debug_line_str") found.line_strings = content;
        if (name == ".debug_str") found.strings = content;
    }
    return found;
}

}  // namespace

// One unit of .debug_line after the other.
class LineProgramReader {
  public:
    LineProgramReader(const Sections& sections, LineTable& table) : sections_(sections), table_(table) {}

    void read_all() {
        while (at_ < sections_.line.size()) read_unit();
    }

  private:
    template <class T>
    T take() {
        if (sizeof(T) > sections_.line.size() - at_) damaged("it ends inside a value");
        T value;
        std::memcpy(&value, sections_.line.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }

    void skip(uint64_t count) {
        if (count > sections_.line.size() - at_) damaged("it ends inside a block");
        at_ += count;
    }

    uint64_t take_unsigned() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const uint8_t byte = take<uint8_t>();
            value |= uint64_t{byte & 0x7fu} << shift;
            if (!(byte & 0x80)) return value;
        }
        damaged("a number has more than 64 bits");
    }

    int64_t take_signed() {
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

    [[noreturn]] void damaged(const char* how) const {
        throw Error(std::string(".debug_line: ") + how, sections_.line_offset + at_,
                    "its source lines cannot be named");
    }

    struct Value {
        std::string_view text;
        uint64_t number = 0;
    };

    Value take_form(uint64_t form) {
        switch (form) {
            case form_string: {
                const std::string_view text = FileView::text(sections_.line, at_, sections_.line_offset);
                skip(text.size() + 1);
                return {text};
            }
            case form_line_strp:
                return {FileView::text(sections_.line_strings, take<uint32_t>(), sections_.line_offset)};
            case form_strp:
                return {FileView::text(sections_.strings, take<uint32_t>(), sections_.line_offset)};
            case form_udata:
                return {{}, take_unsigned()};
            case form_data1:
                return {{}, take<uint8_t>()};
            case form_data2:
                return {{}, take<uint16_t>()};
            case form_data4:
                return {{}, take<uint32_t>()};
            case form_data8:
                return {{}, take<uint64_t>()};
            case form_data16:
                skip(16);
                return {};
            case form_block:
                skip(take_unsigned());
                return {};
            default:
                damaged("a form that is not handled");
        }
    }

    struct Entry {
        std::string path;
        uint64_t directory = 0;
    };

    std::vector<Entry> take_entries() {
        std::vector<std::pair<uint64_t, uint64_t>> format(take<uint8_t>());
        for (auto& [content, form] : format) {
            content = take_unsigned();
            form = take_unsigned();
        }
        std::vector<Entry> entries;
        const uint64_t count = take_unsigned();
        if (count > sections_.line.size()) damaged("more names than bytes");
        for (uint64_t i = 0; i < count; ++i) {
            Entry& entry = entries.emplace_back();
            for (const auto& [content, form] : format) {
                const Value value = take_form(form);
                if (content == content_path) entry.path = value.text;
                if (content == content_directory_index) entry.directory = value.number;
            }
        }
        return entries;
    }

    void read_unit() {
        const uint32_t length = take<uint32_t>();
        if (length > sections_.line.size() - at_) damaged("a unit reaches beyond its section");
        const uint64_t end = at_ + length;
        if (take<uint16_t>() != 5) damaged("a version other than DWARF 5");
        skip(2);  // address and selector sizes
        const uint32_t header_length = take<uint32_t>();
        if (header_length > end - at_) damaged("a header reaches beyond its unit");
        const uint64_t program = at_ + header_length;
        minimum_instruction_bytes_ = take<uint8_t>();
        skip(2);  // operations per instruction (no VLIW here), default_is_stmt
        line_base_ = take<int8_t>();
        line_range_ = take<uint8_t>();
        opcode_base_ = take<uint8_t>();
        if (line_range_ == 0 || opcode_base_ == 0) damaged("a header without opcodes");
        operand_counts_.assign(opcode_base_, 0);
        for (unsigned opcode = 1; opcode < opcode_base_; ++opcode) operand_counts_[opcode] = take<uint8_t>();

        const std::vector<Entry> directories = take_entries();
        first_file_ = table_.files_.size();
        for (const Entry& entry : take_entries()) {
            std::filesystem::path path = entry.path;
            if (entry.directory < directories.size()) path = directories[entry.directory].path / path;
            table_.files_.push_back(path.lexically_normal().string());
        }
        at_ = program;
        run(end);
        at_ = end;
    }

    void run(uint64_t end) {
        state_ = {};
        while (at_ < end) {
            const uint8_t opcode = take<uint8_t>();
            if (opcode >= opcode_base_) {
                const unsigned adjusted = opcode - opcode_base_;
                state_.address += uint64_t{adjusted / line_range_} * minimum_instruction_bytes_;
                state_.line += static_cast<uint32_t>(line_base_ + static_cast<int>(adjusted % line_range_));
                append(false);
                continue;
            }
            switch (opcode) {
                case extended:
                    run_extended();
                    break;
                case copy:
                    append(false);
                    break;
                case advance_pc:
                    state_.address += take_unsigned() * minimum_instruction_bytes_;
                    break;
                case advance_line:
                    state_.line += static_cast<uint32_t>(take_signed());
                    break;
                case set_file:
                    state_.file = take_unsigned();
                    break;
                case const_add_pc:
                    state_.address +=
                        uint64_t{(255u - opcode_base_) / line_range_} * minimum_instruction_bytes_;
                    break;
                case fixed_advance_pc:
                    state_.address += take<uint16_t>();
                    break;
                default:
                    for (unsigned i = 0; i < operand_counts_[opcode]; ++i) take_unsigned();
            }
        }
    }

    void run_extended() {
        const uint64_t length = take_unsigned();
        if (length == 0 || length > sections_.line.size() - at_) damaged("an extended opcode without room");
        const uint64_t end = at_ + length;
        const uint8_t opcode = take<uint8_t>();
        if (opcode == set_address && length == 9) state_.address = take<uint64_t>();
        if (opcode == end_sequence) {
            append(true);
            state_ = {};
        }
        at_ = end;
    }

    void append(bool ends_sequence) {
        const uint64_t file = first_file_ + state_.file;
        if (file >= table_.files_.size()) damaged("a file that is not listed");
        table_.rows_.push_back({state_.address, static_cast<uint32_t>(file), state_.line, ends_sequence});
    }

    struct State {
        uint64_t address = 0, file = 1;
        uint32_t line = 1;
    };

    const Sections& sections_;
    LineTable& table_;
    uint64_t at_ = 0, first_file_ = 0;
    uint8_t minimum_instruction_bytes_ = 1, line_range_ = 1, opcode_base_ = 1;
    int8_t line_base_ = 0;
    std::vector<uint8_t> operand_counts_;
    State state_;
};

LineTable::LineTable(std::span<const uint8_t> file) {
    const Sections sections = find_sections(file);
    LineProgramReader(sections, *this).read_all();
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.address < b.address; });
}

std::string LineTable::source_line(uint64_t address) const {
    auto after = std::upper_bound(rows_.begin(), rows_.end(), address,
                                  [](uint64_t value, const Row& row) { return value < row.address; });
    // Line 0 marks code that belongs to no line; the one before it is the closest there is.
    while (after != rows_.begin()) {
        const Row& row = *--after;
        if (row.ends_sequence) return "";
        if (row.line != 0) return files_[row.file] + ":" + std::to_string(row.line);
    }
    return "";
}

}  // namespace hipkittens::code_object
