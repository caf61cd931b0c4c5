// code_object/msgpack.h: the part of MessagePack that code-object metadata uses.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hipkittens::code_object::msgpack {

enum class Type : uint8_t {
    nil,
    boolean,
    unsigned_integer,
    signed_integer,
    floating,
    string,
    binary,
    array,
    map,
    extension
};

// A decoded value. `text` points into the decoded bytes.
struct Value {
    Type type = Type::nil;
    uint64_t number = 0;  // boolean, unsigned_integer, bits of a signed_integer
    double real = 0;
    std::string_view text;                         // string, binary, extension
    std::vector<Value> items;                      // array
    std::vector<std::pair<Value, Value>> entries;  // map
    uint64_t file_offset = 0;                      // its position, for messages

    const Value* find(std::string_view key) const;  // in a map; nullptr if it is absent or this is not a map
};

// Decodes the first value of `bytes`, which begin at `file_offset` of the file. Throws Error.
Value decode(std::span<const uint8_t> bytes, uint64_t file_offset);

}  // namespace hipkittens::code_object::msgpack
