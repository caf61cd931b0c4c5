// code_object/line_table.cpp: maps an address in a code object to the source line it was compiled from.
// SPDX-License-Identifier: MIT
#include "code_object/line_table.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "code_object/dwarf_reader.h"
#include "code_object/inlined_calls.h"

namespace hipkittens::code_object {

namespace {

// DWARF 5, tables 7.27 (content types), 7.22 (opcodes).
enum ContentType : uint64_t { content_path = 1, content_directory_index = 2 };
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

}  // namespace

// Reads the units of .debug_line in order.
class LineProgramReader {
  public:
    LineProgramReader(const DebugSections& sections, LineTable& table)
        : sections_(sections), in_(sections.line), table_(table) {}

    void read_all() {
        while (in_.left() > 0) read_unit();
    }

    // The index of a file in the table, by its number in the unit that begins at `unit`; nothing if there is none.
    std::optional<uint32_t> file_of(uint64_t unit, uint64_t number) const {
        const auto found = units_.find(unit);
        if (found == units_.end() || number >= found->second.count) return std::nullopt;
        return static_cast<uint32_t>(found->second.first + number);
    }

  private:
    struct Entry {
        std::string path;
        uint64_t directory = 0;
    };

    std::vector<Entry> take_entries() {
        std::vector<std::pair<uint64_t, uint64_t>> format(in_.take<uint8_t>());
        for (auto& [content, form] : format) {
            content = in_.take_unsigned();
            form = in_.take_unsigned();
        }
        std::vector<Entry> entries;
        const uint64_t count = in_.take_unsigned();
        if (count > sections_.line.bytes.size()) in_.damaged("more names than bytes");
        for (uint64_t i = 0; i < count; ++i) {
            Entry& entry = entries.emplace_back();
            for (const auto& [content, form] : format) {
                const DwarfReader::Value value = in_.take_form(form, sections_);
                if (content == content_path) entry.path = value.text;
                if (content == content_directory_index) entry.directory = value.number;
            }
        }
        return entries;
    }

    // DWARF 4, 6.2.4: names until an empty one. Both lists count from 1; index 0 is named elsewhere.
    std::string take_text() { return std::string(in_.take_form(form_string, sections_).text); }

    std::vector<Entry> take_directories() {
        std::vector<Entry> entries(1);
        for (std::string path = take_text(); !path.empty(); path = take_text()) entries.push_back({path});
        return entries;
    }

    std::vector<Entry> take_files() {
        std::vector<Entry> entries(1);
        for (std::string path = take_text(); !path.empty(); path = take_text()) {
            entries.push_back({path, in_.take_unsigned()});
            in_.take_unsigned();  // modification time
            in_.take_unsigned();  // length
        }
        return entries;
    }

    void read_unit() {
        const uint64_t begin = in_.at();
        const uint32_t length = in_.take<uint32_t>();
        if (length > in_.left()) in_.damaged("a unit reaches beyond its section");
        const uint64_t end = in_.at() + length;
        const uint16_t version = in_.take<uint16_t>();
        if (version != 4 && version != 5) in_.damaged("a version other than DWARF 4 and 5");
        if (version == 5) in_.skip(2);  // address and selector sizes
        const uint32_t header_length = in_.take<uint32_t>();
        if (header_length > end - in_.at()) in_.damaged("a header reaches beyond its unit");
        const uint64_t program = in_.at() + header_length;
        minimum_instruction_bytes_ = in_.take<uint8_t>();
        in_.skip(2);  // operations per instruction (no VLIW here), default_is_stmt
        line_base_ = in_.take<int8_t>();
        line_range_ = in_.take<uint8_t>();
        opcode_base_ = in_.take<uint8_t>();
        if (line_range_ == 0 || opcode_base_ == 0) in_.damaged("a header without opcodes");
        operand_counts_.assign(opcode_base_, 0);
        for (unsigned opcode = 1; opcode < opcode_base_; ++opcode)
            operand_counts_[opcode] = in_.take<uint8_t>();

        const std::vector<Entry> directories = version == 5 ? take_entries() : take_directories();
        first_file_ = table_.files_.size();
        for (const Entry& entry : version == 5 ? take_entries() : take_files()) {
            std::filesystem::path path = entry.path;
            if (entry.directory < directories.size()) path = directories[entry.directory].path / path;
            table_.files_.push_back(path.lexically_normal().string());
        }
        units_[begin] = {first_file_, table_.files_.size() - first_file_};
        in_.seek(program);
        run(end);
        in_.seek(end);
    }

    void run(uint64_t end) {
        state_ = {};
        while (in_.at() < end) {
            const uint8_t opcode = in_.take<uint8_t>();
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
                    state_.address += in_.take_unsigned() * minimum_instruction_bytes_;
                    break;
                case advance_line:
                    state_.line += static_cast<uint32_t>(in_.take_signed());
                    break;
                case set_file:
                    state_.file = in_.take_unsigned();
                    break;
                case const_add_pc:
                    state_.address +=
                        uint64_t{(255u - opcode_base_) / line_range_} * minimum_instruction_bytes_;
                    break;
                case fixed_advance_pc:
                    state_.address += in_.take<uint16_t>();
                    break;
                default:
                    for (unsigned i = 0; i < operand_counts_[opcode]; ++i) in_.take_unsigned();
            }
        }
    }

    void run_extended() {
        const uint64_t length = in_.take_unsigned();
        if (length == 0 || length > in_.left()) in_.damaged("an extended opcode without room");
        const uint64_t end = in_.at() + length;
        const uint8_t opcode = in_.take<uint8_t>();
        if (opcode == set_address && length == 9) state_.address = in_.take<uint64_t>();
        if (opcode == end_sequence) {
            append(true);
            state_ = {};
        }
        in_.seek(end);
    }

    void append(bool ends_sequence) {
        const uint64_t file = first_file_ + state_.file;
        if (file >= table_.files_.size()) in_.damaged("a file that is not listed");
        table_.rows_.push_back({state_.address, static_cast<uint32_t>(file), state_.line, ends_sequence});
    }

    struct State {
        uint64_t address = 0, file = 1;
        uint32_t line = 1;
    };

    struct UnitFiles {
        uint64_t first, count;
    };

    const DebugSections& sections_;
    DwarfReader in_;
    LineTable& table_;
    uint64_t first_file_ = 0;
    std::map<uint64_t, UnitFiles> units_;
    uint8_t minimum_instruction_bytes_ = 1, line_range_ = 1, opcode_base_ = 1;
    int8_t line_base_ = 0;
    std::vector<uint8_t> operand_counts_;
    State state_;
};

LineTable::LineTable(std::span<const uint8_t> file) {
    const DebugSections sections(file);
    LineProgramReader reader(sections, *this);
    reader.read_all();
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.address < b.address; });
    for (const std::string& path : files_)
        folders_.push_back(std::filesystem::path(path).parent_path().string());
    try {
        for (const InlinedCall& call : read_inlined_calls(sections)) {
            const auto place = reader.file_of(call.line_unit, call.file);
            if (place && call.line != 0)
                calls_.push_back({call.begin, call.end, *place, static_cast<uint32_t>(call.line)});
        }
    } catch (const Error&) {
        calls_.clear();  // lines without the surrounding calls are better than none
    }
}

const LineTable::Row* LineTable::row_of(uint64_t address) const {
    auto after = std::upper_bound(rows_.begin(), rows_.end(), address,
                                  [](uint64_t value, const Row& row) { return value < row.address; });
    // Line 0 marks code that belongs to no line; the preceding one is the closest available.
    while (after != rows_.begin()) {
        const Row& row = *--after;
        if (row.ends_sequence) return nullptr;
        if (row.line != 0) return &row;
    }
    return nullptr;
}

std::string LineTable::source_line(uint64_t address) const {
    const Row* row = row_of(address);
    return row ? files_[row->file] + ":" + std::to_string(row->line) : "";
}

std::string LineTable::called_from(uint64_t address) const {
    const Row* row = row_of(address);
    if (!row) return "";
    const std::string& own = folders_[row->file];
    for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
        if (call->begin <= address && address < call->end && folders_[call->file] != own)
            return files_[call->file] + ":" + std::to_string(call->line);
    }
    return "";
}

}  // namespace hipkittens::code_object
