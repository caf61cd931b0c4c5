// code_object/file_view.h: bounds-checked little-endian reads from a file's bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "code_object/error.h"

namespace hipkittens::code_object {

class FileView {
  public:
    explicit FileView(std::span<const uint8_t> bytes) : bytes_(bytes) {}

    uint64_t size() const { return bytes_.size(); }

    // `what` names the item being read, for the message.
    std::span<const uint8_t> range(uint64_t offset, uint64_t count, const char* what) const {
        if (offset > bytes_.size() || count > bytes_.size() - offset) {
            throw Error(std::string(what) + " of " + std::to_string(count) +
                            " bytes reaches beyond the file's " + std::to_string(bytes_.size()) + " bytes",
                        offset, "the file is cut off or damaged");
        }
        return bytes_.subspan(offset, count);
    }

    template <class T>
    T read(uint64_t offset, const char* what) const {
        static_assert(std::is_trivially_copyable_v<T>);
        T value;
        std::memcpy(&value, range(offset, sizeof(T), what).data(), sizeof(T));
        return value;
    }

    // The zero-terminated string at `offset` of a table; the zero must be inside the table.
    static std::string_view text(std::span<const uint8_t> table, uint64_t offset,
                                 uint64_t table_file_offset) {
        if (offset >= table.size()) {
            throw Error("a name starts beyond its string table of " + std::to_string(table.size()) + " bytes",
                        table_file_offset, "the file is damaged");
        }
        const char* begin = reinterpret_cast<const char*>(table.data()) + offset;
        const void* end = std::memchr(begin, 0, table.size() - offset);
        if (!end)
            throw Error("a string table does not end with a zero", table_file_offset, "the file is damaged");
        return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
    }

  private:
    std::span<const uint8_t> bytes_;
};

}  // namespace hipkittens::code_object
