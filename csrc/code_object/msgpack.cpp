// code_object/msgpack.cpp: MessagePack, checked at every byte. Format: github.com/msgpack/msgpack, spec.md.
// SPDX-License-Identifier: MIT
#include "code_object/msgpack.h"

#include <bit>
#include <cstring>

#include "code_object/error.h"

namespace hipkittens::code_object::msgpack {
namespace {

// Metadata nests five deep; the limit only prevents hostile input from overflowing the stack.
constexpr int max_depth = 32;

class Reader {
  public:
    Reader(std::span<const uint8_t> bytes, uint64_t file_offset) : bytes_(bytes), file_offset_(file_offset) {}

    Value value(int depth) {
        if (depth > max_depth) refuse("metadata nests deeper than 32 levels");
        Value result;
        result.file_offset = file_offset_ + position_;
        const uint8_t tag = static_cast<uint8_t>(big_endian(1));
        if (tag <= 0x7f) {
            integer(result, Type::unsigned_integer, tag);
        } else if (tag <= 0x8f) {
            map(result, tag & 0x0f, depth);
        } else if (tag <= 0x9f) {
            array(result, tag & 0x0f, depth);
        } else if (tag <= 0xbf) {
            text(result, Type::string, tag & 0x1f);
        } else if (tag >= 0xe0) {
            integer(result, Type::signed_integer, static_cast<uint64_t>(int64_t{static_cast<int8_t>(tag)}));
        } else {
            tagged(result, tag, depth);
        }
        return result;
    }

  private:
    [[noreturn]] void refuse(const char* what) const {
        throw Error(what, file_offset_ + position_, "the metadata note is damaged, compile the kernel again");
    }

    void tagged(Value& result, uint8_t tag, int depth) {
        switch (tag) {
            case 0xc0:
                return;
            case 0xc2:
                return integer(result, Type::boolean, 0);
            case 0xc3:
                return integer(result, Type::boolean, 1);
            case 0xc4:
            case 0xc5:
            case 0xc6:
                return text(result, Type::binary, big_endian(1u << (tag - 0xc4)));
            case 0xc7:
            case 0xc8:
            case 0xc9:
                return text(result, Type::extension, big_endian(1u << (tag - 0xc7)) + 1);
            case 0xca:
                result.type = Type::floating;
                result.real = std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)));
                return;
            case 0xcb:
                result.type = Type::floating;
                result.real = std::bit_cast<double>(big_endian(8));
                return;
            case 0xcc:
            case 0xcd:
            case 0xce:
            case 0xcf:
                return integer(result, Type::unsigned_integer, big_endian(1u << (tag - 0xcc)));
            case 0xd0:
            case 0xd1:
            case 0xd2:
            case 0xd3: {
                const unsigned width = 1u << (tag - 0xd0);
                const int shift = 64 - 8 * static_cast<int>(width);
                const int64_t number = static_cast<int64_t>(big_endian(width) << shift) >> shift;
                return integer(result, Type::signed_integer, static_cast<uint64_t>(number));
            }
            case 0xd4:
            case 0xd5:
            case 0xd6:
            case 0xd7:
            case 0xd8:
                return text(result, Type::extension, (uint64_t{1} << (tag - 0xd4)) + 1);
            case 0xd9:
            case 0xda:
            case 0xdb:
                return text(result, Type::string, big_endian(1u << (tag - 0xd9)));
            case 0xdc:
            case 0xdd:
                return array(result, big_endian(tag == 0xdc ? 2 : 4), depth);
            case 0xde:
            case 0xdf:
                return map(result, big_endian(tag == 0xde ? 2 : 4), depth);
            default:
                refuse("metadata holds the byte 0xc1, which MessagePack never uses");
        }
    }

    uint64_t big_endian(unsigned width) {
        need(width);
        uint64_t number = 0;
        for (unsigned i = 0; i < width; ++i) number = number << 8 | bytes_[position_++];
        return number;
    }

    void need(uint64_t count) const {
        if (count > bytes_.size() - position_) refuse("metadata ends in the middle of a value");
    }

    static void integer(Value& result, Type type, uint64_t number) {
        result.type = type;
        result.number = number;
    }

    void text(Value& result, Type type, uint64_t count) {
        need(count);
        result.type = type;
        result.text = {reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<size_t>(count)};
        position_ += count;
    }

    // An element takes at least one byte, so `need` also prevents a damaged count from reserving memory.
    void array(Value& result, uint64_t count, int depth) {
        need(count);
        result.type = Type::array;
        for (uint64_t i = 0; i < count; ++i) result.items.push_back(value(depth + 1));
    }

    void map(Value& result, uint64_t count, int depth) {
        need(2 * count);
        result.type = Type::map;
        for (uint64_t i = 0; i < count; ++i) {
            Value key = value(depth + 1);
            if (key.type != Type::string) refuse("metadata has a map key that is no string");
            Value entry = value(depth + 1);
            result.entries.emplace_back(std::move(key), std::move(entry));
        }
    }

    std::span<const uint8_t> bytes_;
    uint64_t file_offset_;
    uint64_t position_ = 0;
};

}  // namespace

const Value* Value::find(std::string_view key) const {
    for (const auto& [name, value] : entries) {
        if (name.text == key) return &value;
    }
    return nullptr;
}

Value decode(std::span<const uint8_t> bytes, uint64_t file_offset) {
    return Reader(bytes, file_offset).value(0);
}

}  // namespace hipkittens::code_object::msgpack
