// code_object/line_table.h: from an address in a code object to the source line it was compiled from.
// SPDX-License-Identifier: MIT
//
// Facts: DWARF 5, section 6.2 "Line Number Information"; clang writes it with -gline-tables-only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "code_object/error.h"

namespace hipkittens::code_object {

class LineTable {
  public:
    // Reads .debug_line of an ELF file; empty if there is none. Throws Error if it is damaged or of a version
    // other than 5.
    explicit LineTable(std::span<const uint8_t> file);

    // "csrc/kernels/gemm/gemm.h:36" for an address of the file (not of where it was loaded), or "" if none is
    // known.
    std::string source_line(uint64_t address) const;

  private:
    struct Row {
        uint64_t address;
        uint32_t file, line;
        bool ends_sequence;
    };
    friend class LineProgramReader;

    std::vector<Row> rows_;  // sorted by address
    std::vector<std::string> files_;
};

}  // namespace hipkittens::code_object
