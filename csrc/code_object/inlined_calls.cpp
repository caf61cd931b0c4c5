// code_object/inlined_calls.cpp: which calls the compiler inlined, and where their code is.
// SPDX-License-Identifier: MIT
#include "code_object/inlined_calls.h"

#include <map>
#include <optional>

namespace hipkittens::code_object {

namespace {

constexpr uint64_t largest_count = 1u << 20;  // of ranges in a file: far more than any kernel has

// DWARF 5, tables 7.3 (tags), 7.5 (attributes), 7.30 (range list entries).
enum Tag : uint64_t { tag_compile_unit = 0x11, tag_inlined_subroutine = 0x1d };
enum Attribute : uint64_t {
    at_stmt_list = 0x10,
    at_low_pc = 0x11,
    at_high_pc = 0x12,
    at_ranges = 0x55,
    at_call_file = 0x58,
    at_call_line = 0x59,
    at_addr_base = 0x73,
    at_rnglists_base = 0x74,
};
enum RangeEntry : uint8_t {
    end_of_list = 0,
    base_addressx = 1,
    startx_endx = 2,
    startx_length = 3,
    offset_pair = 4,
    base_address = 5,
    start_end = 6,
    start_length = 7,
};

struct Abbreviation {
    struct Field {
        uint64_t attribute, form;
        int64_t constant;
    };
    uint64_t tag = 0;
    bool has_children = false;
    std::vector<Field> fields;
};

struct Attributes {
    struct Value {
        uint64_t number, form;
    };
    std::map<uint64_t, Value> values;

    const Value* find(uint64_t attribute) const {
        const auto found = values.find(attribute);
        return found == values.end() ? nullptr : &found->second;
    }
    uint64_t number(uint64_t attribute) const {
        const Value* value = find(attribute);
        return value ? value->number : 0;
    }
};

class UnitReader {
  public:
    UnitReader(const DebugSections& sections, std::vector<InlinedCall>& calls)
        : sections_(sections), in_(sections.info), calls_(calls) {}

    void read_all() {
        while (in_.left() > 0) read_unit();
    }

  private:
    void read_unit() {
        const uint32_t length = in_.take<uint32_t>();
        if (length > in_.left()) in_.damaged("a unit reaches beyond its section");
        const uint64_t end = in_.at() + length;
        constexpr uint8_t compile_unit = 1;
        version_ = in_.take<uint16_t>();
        if (version_ == 5 && in_.take<uint8_t>() == compile_unit && in_.take<uint8_t>() == 8) {
            read_entries(in_.take<uint32_t>(), end);
        } else if (version_ == 4) {
            const uint32_t abbreviations = in_.take<uint32_t>();
            if (in_.take<uint8_t>() == 8) read_entries(abbreviations, end);
        }
        in_.seek(end);
    }

    void read_entries(uint64_t abbreviations, uint64_t end) {
        read_abbreviations(abbreviations);
        unit_ = {};
        while (in_.at() < end) read_entry();
    }

    void read_abbreviations(uint64_t offset) {
        abbreviations_.clear();
        DwarfReader in(sections_.abbreviations, offset);
        while (const uint64_t code = in.take_unsigned()) {
            Abbreviation& abbreviation = abbreviations_[code];
            abbreviation = {.tag = in.take_unsigned(), .has_children = in.take<uint8_t>() != 0, .fields = {}};
            for (;;) {
                const uint64_t attribute = in.take_unsigned(), form = in.take_unsigned();
                const int64_t constant = form == form_implicit_const ? in.take_signed() : 0;
                if (attribute == 0 && form == 0) break;
                abbreviation.fields.push_back({attribute, form, constant});
            }
        }
    }

    void read_entry() {
        const uint64_t code = in_.take_unsigned();
        if (code == 0) return;  // the end of an entry's children
        const auto found = abbreviations_.find(code);
        if (found == abbreviations_.end()) in_.damaged("an entry without an abbreviation");
        Attributes attributes;
        for (const auto& [attribute, form, constant] : found->second.fields) {
            const uint64_t number = in_.take_form(form, sections_).number;
            attributes.values[attribute] = {
                form == form_implicit_const ? static_cast<uint64_t>(constant) : number, form};
        }
        if (found->second.tag == tag_compile_unit) unit_ = attributes;
        if (found->second.tag == tag_inlined_subroutine) add(attributes);
    }

    uint64_t address_at(uint64_t index) const {
        if (index > sections_.addresses.bytes.size() / 8) in_.damaged("an address that is not listed");
        return DwarfReader(sections_.addresses, unit_.number(at_addr_base) + 8 * index).take<uint64_t>();
    }

    uint64_t address_of(const Attributes::Value& value) const {
        return value.form == form_addr ? value.number : address_at(value.number);
    }

    void add(const Attributes& call) {
        const Attributes::Value *low = call.find(at_low_pc), *high = call.find(at_high_pc);
        if (low && high) {
            const uint64_t begin = address_of(*low);
            const bool is_address = high->form == form_addr || high->form == form_addrx ||
                                    (high->form >= form_addrx1 && high->form <= form_addrx4);
            add(call, begin, is_address ? address_of(*high) : begin + high->number);
        }
        if (const Attributes::Value* ranges = call.find(at_ranges)) add_ranges(call, *ranges);
    }

    void add(const Attributes& call, uint64_t begin, uint64_t end) {
        if (calls_.size() >= largest_count) in_.damaged("more inlined calls than a kernel has");
        calls_.push_back(
            {begin, end, unit_.number(at_stmt_list), call.number(at_call_file), call.number(at_call_line)});
    }

    void add_ranges(const Attributes& call, const Attributes::Value& ranges) {
        const Attributes::Value* low = unit_.find(at_low_pc);
        uint64_t base = low ? address_of(*low) : 0;
        if (version_ == 4) {
            DwarfReader in(sections_.ranges, ranges.number);
            for (;;) {
                const uint64_t begin = in.take<uint64_t>(), end = in.take<uint64_t>();
                if (begin == 0 && end == 0) return;
                if (begin == UINT64_MAX) {
                    base = end;
                } else {
                    add(call, base + begin, base + end);
                }
            }
        }
        uint64_t offset = ranges.number;
        if (ranges.form == form_rnglistx) {
            const uint64_t base = unit_.number(at_rnglists_base);
            if (offset > sections_.range_lists.bytes.size() / 4)
                in_.damaged("a range list that is not listed");
            offset = base + DwarfReader(sections_.range_lists, base + 4 * offset).take<uint32_t>();
        }
        DwarfReader in(sections_.range_lists, offset);
        for (;;) {
            switch (in.take<uint8_t>()) {
                case end_of_list:
                    return;
                case base_addressx:
                    base = address_at(in.take_unsigned());
                    break;
                case base_address:
                    base = in.take<uint64_t>();
                    break;
                case startx_endx: {
                    const uint64_t begin = address_at(in.take_unsigned());
                    add(call, begin, address_at(in.take_unsigned()));
                    break;
                }
                case startx_length: {
                    const uint64_t begin = address_at(in.take_unsigned());
                    add(call, begin, begin + in.take_unsigned());
                    break;
                }
                case offset_pair: {
                    const uint64_t begin = in.take_unsigned();
                    add(call, base + begin, base + in.take_unsigned());
                    break;
                }
                case start_end: {
                    const uint64_t begin = in.take<uint64_t>();
                    add(call, begin, in.take<uint64_t>());
                    break;
                }
                case start_length: {
                    const uint64_t begin = in.take<uint64_t>();
                    add(call, begin, begin + in.take_unsigned());
                    break;
                }
                default:
                    in.damaged("a range that is not handled");
            }
        }
    }

    const DebugSections& sections_;
    DwarfReader in_;
    std::vector<InlinedCall>& calls_;
    std::map<uint64_t, Abbreviation> abbreviations_;
    Attributes unit_;
    uint16_t version_ = 0;
};

}  // namespace

std::vector<InlinedCall> read_inlined_calls(const DebugSections& sections) {
    std::vector<InlinedCall> calls;
    UnitReader(sections, calls).read_all();
    return calls;
}

}  // namespace hipkittens::code_object
