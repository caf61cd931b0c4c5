// code_object/code_object.cpp: reads the ELF file of a code object.
// SPDX-License-Identifier: MIT
#include "code_object/code_object.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "code_object/elf.h"
#include "code_object/file_view.h"
#include "code_object/metadata.h"

namespace hipkittens::code_object {
namespace {

constexpr const char* damaged = "the file is damaged, build it again";
// Far above any real code object; prevents a damaged size from requesting terabytes.
constexpr uint64_t max_image_bytes = uint64_t{1} << 30;

std::string hexadecimal(uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

class Parser {
  public:
    explicit Parser(std::span<const uint8_t> file) : file_(file) {}

    CodeObject parse() {
        read_header();
        read_segments();
        read_sections();
        read_kernels();
        return std::move(object_);
    }

  private:
    void read_header() {
        if (file_.size() < 4 || std::memcmp(file_.range(0, 4, "").data(), elf::magic, 4) != 0) {
            throw Error("this is no ELF file", 0, "pass the raw code object, not a bundle or an archive");
        }
        header_ = file_.read<elf::Header>(0, "the ELF header");
        const auto refuse = [](const std::string& what, uint64_t offset) {
            throw Error(what, offset, "pass a code object for gfx942 or gfx950 of the amdhsa system");
        };
        if (header_.ident[4] != elf::class_64 || header_.ident[5] != elf::data_little_endian) {
            refuse("this is no 64-bit little-endian ELF file", 4);
        }
        if (header_.machine != elf::machine_amdgpu) {
            refuse("this ELF file is for machine " + std::to_string(header_.machine) + ", not AMDGPU (224)",
                   18);
        }
        if (header_.ident[7] != elf::osabi_amdgpu_hsa) {
            refuse("this ELF file has OS ABI " + std::to_string(header_.ident[7]) + ", not AMDGPU_HSA (64)",
                   7);
        }
        if (header_.type == elf::type_relocatable) {
            throw Error("this is an object file that was not linked", 16, "link it with `ld.lld -shared`");
        }
        if (header_.type != elf::type_shared) refuse("this ELF file is no shared object", 16);
        object_.abi_version = header_.ident[8];
        if (object_.abi_version < 1 || object_.abi_version > 4) {
            throw Error("ABI version " + std::to_string(object_.abi_version) + " is unknown", 8,
                        "compile for code object version 3 to 6 (ABI versions 1 to 4)");
        }
        object_.elf_flags = header_.flags;
        switch (header_.flags & elf::mach_mask) {
            case elf::mach_gfx942:
                object_.target = Target::gfx942;
                break;
            case elf::mach_gfx950:
                object_.target = Target::gfx950;
                break;
            default:
                refuse("ELF flags " + hexadecimal(header_.flags) + " name another processor", 48);
        }
    }

    void read_segments() {
        if (header_.program_header_bytes != sizeof(elf::ProgramHeader)) {
            throw Error(
                "a program header has " + std::to_string(header_.program_header_bytes) + " bytes, not 56", 54,
                damaged);
        }
        uint64_t low = std::numeric_limits<uint64_t>::max(), high = 0;
        for (uint64_t i = 0; i < header_.program_headers; ++i) {
            const auto [place, record] =
                table_entry<elf::ProgramHeader>(header_.program_header_offset, i, "a program header");
            file_.range(record.offset, record.file_bytes, "a segment");
            if (record.type == elf::segment_note) notes_.push_back({record.offset, record.file_bytes});
            if (record.type != elf::segment_load || record.memory_bytes == 0) continue;
            if (record.file_bytes > record.memory_bytes || record.address > max_image_bytes ||
                record.memory_bytes > max_image_bytes) {
                throw Error("a segment at address " + hexadecimal(record.address) + " of " +
                                std::to_string(record.memory_bytes) + " bytes is impossible",
                            place, damaged);
            }
            object_.segments.push_back({record.address, record.offset, record.file_bytes, record.memory_bytes,
                                        (record.flags & elf::flag_readable) != 0,
                                        (record.flags & elf::flag_writable) != 0,
                                        (record.flags & elf::flag_executable) != 0});
            low = std::min(low, record.address);
            high = std::max(high, record.address + record.memory_bytes);
        }
        if (object_.segments.empty()) throw Error("no segment is to be loaded", 0, damaged);
        std::sort(object_.segments.begin(), object_.segments.end(),
                  [](const Segment& a, const Segment& b) { return a.address < b.address; });
        for (size_t i = 1; i < object_.segments.size(); ++i) {
            const Segment& before = object_.segments[i - 1];
            if (before.address + before.memory_bytes > object_.segments[i].address) {
                throw Error("two segments overlap at address " + hexadecimal(object_.segments[i].address),
                            object_.segments[i].file_offset, damaged);
            }
        }
        object_.image_address = low;
        object_.image_bytes = high - low;
    }

    template <class Record>
    std::pair<uint64_t, Record> table_entry(uint64_t table, uint64_t index, const char* what) const {
        const uint64_t place = table + index * sizeof(Record);
        if (table > file_.size()) file_.range(table, sizeof(Record), what);
        return {place, file_.read<Record>(place, what)};
    }

    // Symbols and relocations are read from the section table, which HIP's own loader needs too.
    void read_sections() {
        if (header_.section_headers && header_.section_header_bytes != sizeof(elf::SectionHeader)) {
            throw Error(
                "a section header has " + std::to_string(header_.section_header_bytes) + " bytes, not 64", 58,
                damaged);
        }
        std::vector<elf::SectionHeader> sections;
        for (uint64_t i = 0; i < header_.section_headers; ++i) {
            sections.push_back(
                table_entry<elf::SectionHeader>(header_.section_header_offset, i, "a section header").second);
        }
        // extent() counts every part named by the headers, so a file that lacks one is incomplete.
        for (const elf::SectionHeader& section : sections) {
            if (section.type != elf::section_without_bytes)
                file_.range(section.offset, section.bytes, "a section");
        }
        for (const elf::SectionHeader& section : sections) {
            if (section.type == elf::section_note && notes_.empty())
                notes_.push_back({section.offset, section.bytes});
            if (section.type == elf::section_dynamic_symbols) read_symbols(sections, section, true);
        }
        for (const elf::SectionHeader& section : sections) {
            if (section.type == elf::section_symbols) read_symbols(sections, section, false);
        }
        for (const elf::SectionHeader& section : sections) {
            if (section.type == elf::section_rela) read_relocations(sections, section);
        }
    }

    void read_symbols(const std::vector<elf::SectionHeader>& sections, const elf::SectionHeader& section,
                      bool is_dynamic) {
        file_.range(section.offset, section.bytes, "a symbol table");
        if (section.link >= sections.size())
            throw Error("a symbol table has no string table", section.offset, damaged);
        const elf::SectionHeader& names = sections[section.link];
        const auto strings = file_.range(names.offset, names.bytes, "a string table");
        for (uint64_t i = 0; i < section.bytes / sizeof(elf::Symbol); ++i) {
            const auto record = file_.read<elf::Symbol>(section.offset + i * sizeof(elf::Symbol), "a symbol");
            Symbol symbol;
            symbol.name = std::string(FileView::text(strings, record.name, names.offset));
            symbol.is_dynamic = is_dynamic;
            symbol.is_defined =
                record.section != elf::section_undefined && record.section < elf::section_first_reserved;
            const int type = record.info & 0xf;
            symbol.type = type == 0   ? SymbolType::none
                          : type == 1 ? SymbolType::object
                          : type == 2 ? SymbolType::function
                                      : SymbolType::other;
            symbol.address = record.value;
            symbol.bytes = record.bytes;
            if (symbol.is_defined && !holds(symbol.address, symbol.bytes)) symbol.is_defined = false;
            if (is_dynamic) {
                object_.symbols.push_back(std::move(symbol));  // index 0 included: relocations count it
            } else if (symbol.is_defined && !symbol.name.empty() && !object_.find_symbol(symbol.name)) {
                local_symbols_.push_back(std::move(symbol));
            }
        }
        if (is_dynamic) dynamic_symbols_ = object_.symbols;
    }

    // Whether [address, address + bytes) is within one segment.
    bool holds(uint64_t address, uint64_t bytes) const {
        return std::any_of(object_.segments.begin(), object_.segments.end(), [&](const Segment& segment) {
            return address >= segment.address && address - segment.address <= segment.memory_bytes &&
                   bytes <= segment.memory_bytes - (address - segment.address);
        });
    }

    void read_relocations(const std::vector<elf::SectionHeader>& sections,
                          const elf::SectionHeader& section) {
        file_.range(section.offset, section.bytes, "a relocation table");
        if (section.link >= sections.size() || sections[section.link].type != elf::section_dynamic_symbols)
            return;
        for (uint64_t i = 0; i < section.bytes / sizeof(elf::Rela); ++i) {
            const uint64_t place = section.offset + i * sizeof(elf::Rela);
            read_relocation(file_.read<elf::Rela>(place, "a relocation"), place);
        }
    }

    void read_relocation(const elf::Rela& record, uint64_t place) {
        const uint32_t number = static_cast<uint32_t>(record.info),
                       index = static_cast<uint32_t>(record.info >> 32);
        Relocation relocation;
        relocation.address = record.offset;
        relocation.addend = record.addend;
        uint64_t bytes = 4;
        switch (number) {
            case 0:
                return;
            case elf::abs32_lo:
                relocation.type = RelocationType::absolute32_low;
                break;
            case elf::abs32_hi:
                relocation.type = RelocationType::absolute32_high;
                break;
            case elf::abs32:
                relocation.type = RelocationType::absolute32;
                break;
            case elf::rel32:
                relocation.type = RelocationType::relative32;
                break;
            case elf::rel32_lo:
                relocation.type = RelocationType::relative32_low;
                break;
            case elf::rel32_hi:
                relocation.type = RelocationType::relative32_high;
                break;
            case elf::abs64:
                relocation.type = RelocationType::absolute64, bytes = 8;
                break;
            case elf::rel64:
                relocation.type = RelocationType::relative64, bytes = 8;
                break;
            case elf::relative64:
                relocation.type = RelocationType::base_relative64, bytes = 8;
                break;
            default:
                throw Error("relocation type " + std::to_string(number) + " is unknown", place,
                            "link without references to other modules");
        }
        if (!holds(relocation.address, bytes)) {
            throw Error("a relocation at address " + hexadecimal(relocation.address) + " lies in no segment",
                        place, damaged);
        }
        relocation.has_symbol = index != 0;
        if (index) {
            if (index >= dynamic_symbols_.size()) {
                throw Error("a relocation names symbol " + std::to_string(index) + " of " +
                                std::to_string(dynamic_symbols_.size()),
                            place, damaged);
            }
            const Symbol& symbol = dynamic_symbols_[index];
            if (!symbol.is_defined) {
                throw Error("symbol " + symbol.name + " is used but not defined", place,
                            "link every function and variable into the code object");
            }
            relocation.symbol_address = symbol.address;
        }
        object_.relocations.push_back(relocation);
    }

    void read_kernels() {
        for (Symbol& symbol : local_symbols_) object_.symbols.push_back(std::move(symbol));
        std::erase_if(object_.symbols, [](const Symbol& symbol) { return symbol.name.empty(); });
        for (const auto& [offset, bytes] : notes_) {
            file_.range(offset, bytes, "a note");
            read_notes(offset, offset + bytes);
        }
        if (!has_metadata_) {
            throw Error("there is no metadata note", 0,
                        "compile the kernel again for code object version 3 or later");
        }
    }

    void read_notes(uint64_t position, uint64_t end) {
        const auto padded = [](uint64_t bytes) { return (bytes + 3) / 4 * 4; };
        while (end - position >= sizeof(elf::NoteHeader)) {
            const auto note = file_.read<elf::NoteHeader>(position, "a note");
            const uint64_t name = position + sizeof note, description = name + padded(note.name_bytes);
            if (description > end || note.description_bytes > end - description) {
                throw Error("a note is longer than its segment", position, damaged);
            }
            const auto vendor = file_.range(name, note.name_bytes, "a note's name");
            if (note.type == elf::note_amdgpu_metadata && note.name_bytes == 7 &&
                std::memcmp(vendor.data(), "AMDGPU", 7) == 0) {
                has_metadata_ = true;
                const auto bytes = file_.range(description, note.description_bytes, "a note's description");
                for (KernelMetadata& metadata : read_metadata(bytes, description))
                    add_kernel(std::move(metadata));
            }
            position = std::min(description + padded(note.description_bytes), end);
        }
    }

    void add_kernel(KernelMetadata metadata) {
        Kernel& kernel = metadata.kernel;
        const Symbol* symbol = object_.find_symbol(metadata.descriptor_symbol);
        if (!symbol) {
            throw Error("kernel " + kernel.name + " has no descriptor symbol " + metadata.descriptor_symbol,
                        metadata.file_offset, damaged);
        }
        const uint64_t place = file_offset_of(symbol->address, 64, "the descriptor of kernel " + kernel.name);
        read_descriptor(file_.range(place, 64, "a kernel descriptor"), symbol->address, place, kernel);
        const bool is_code =
            std::any_of(object_.segments.begin(), object_.segments.end(), [&](const Segment& segment) {
                return segment.is_executable && kernel.start_address >= segment.address &&
                       kernel.start_address - segment.address < segment.file_bytes;
            });
        if (!is_code || kernel.entry_address % 4 != 0) {
            throw Error("the entry of kernel " + kernel.name + ", " + hexadecimal(kernel.entry_address) +
                            ", lies in no executable segment or is not a multiple of 4",
                        place, damaged);
        }
        if (kernel.kernarg_align == 0 || (kernel.kernarg_align & (kernel.kernarg_align - 1)) ||
            kernel.kernarg_align > 4096) {
            throw Error("the argument segment of kernel " + kernel.name + " is aligned to " +
                            std::to_string(kernel.kernarg_align) + " bytes",
                        metadata.file_offset, damaged);
        }
        if (object_.find_kernel(kernel.name)) {
            throw Error("there are two kernels named " + kernel.name, metadata.file_offset, damaged);
        }
        for (const Symbol& other : object_.symbols) {
            if (other.is_defined && other.address == kernel.entry_address &&
                other.type == SymbolType::function) {
                kernel.code_bytes = other.bytes;
            }
        }
        object_.kernels.push_back(std::move(kernel));
    }

    uint64_t file_offset_of(uint64_t address, uint64_t bytes, const std::string& what) const {
        for (const Segment& segment : object_.segments) {
            if (address < segment.address) continue;
            const uint64_t within = address - segment.address;
            if (within <= segment.file_bytes && bytes <= segment.file_bytes - within)
                return segment.file_offset + within;
        }
        throw Error(what + " at address " + hexadecimal(address) + " lies in no segment", 0, damaged);
    }

    struct Note {
        uint64_t offset, bytes;
    };
    FileView file_;
    elf::Header header_{};
    CodeObject object_;
    std::vector<Note> notes_;
    std::vector<Symbol> dynamic_symbols_, local_symbols_;
    bool has_metadata_ = false;
};

constexpr uint64_t max_file_bytes = uint64_t{1} << 30;

}  // namespace

uint64_t extent(const uint8_t* file) {
    if (std::memcmp(file, elf::magic, 4) != 0) {
        const bool is_bundle = std::memcmp(file, "__CL", 4) == 0 || std::memcmp(file, "CCOB", 4) == 0;
        throw Error(is_bundle ? "this is an offload bundle" : "this is no ELF file", 0,
                    "pass the raw code object (clang-offload-bundler --unbundle extracts it)");
    }
    elf::Header header;
    std::memcpy(&header, file, sizeof header);
    uint64_t end = sizeof header;
    const auto include = [&](uint64_t offset, uint64_t bytes) {
        if (bytes == 0) return;  // at any address: an empty table may be outside the file
        if (offset > max_file_bytes || bytes > max_file_bytes) {
            throw Error("the headers name a part at " + hexadecimal(offset) + " of " + std::to_string(bytes) +
                            " bytes",
                        offset, damaged);
        }
        end = std::max(end, offset + bytes);
    };
    include(header.program_header_offset, uint64_t{header.program_headers} * sizeof(elf::ProgramHeader));
    include(header.section_header_offset, uint64_t{header.section_headers} * sizeof(elf::SectionHeader));
    for (uint64_t i = 0; i < header.program_headers; ++i) {
        elf::ProgramHeader record;
        std::memcpy(&record, file + header.program_header_offset + i * sizeof record, sizeof record);
        include(record.offset, record.file_bytes);
    }
    for (uint64_t i = 0; i < header.section_headers; ++i) {
        elf::SectionHeader record;
        std::memcpy(&record, file + header.section_header_offset + i * sizeof record, sizeof record);
        if (record.type != elf::section_without_bytes) include(record.offset, record.bytes);
    }
    return end;
}

const char* target_name(Target target) { return target == Target::gfx942 ? "gfx942" : "gfx950"; }

const Kernel* CodeObject::find_kernel(std::string_view name) const {
    const auto found =
        std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return k.name == name; });
    return found == kernels.end() ? nullptr : &*found;
}

const Symbol* CodeObject::find_symbol(std::string_view name) const {
    const auto found = std::find_if(symbols.begin(), symbols.end(),
                                    [&](const Symbol& s) { return s.is_defined && s.name == name; });
    return found == symbols.end() ? nullptr : &*found;
}

CodeObject parse(std::span<const uint8_t> file) { return Parser(file).parse(); }

}  // namespace hipkittens::code_object
