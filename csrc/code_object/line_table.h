// code_object/line_table.h: maps an address in a code object to the source line it was compiled from.
// SPDX-License-Identifier: MIT
//
// Facts: DWARF 5 and 4, section 6.2 "Line Number Information"; clang writes 5 with -gline-tables-only, Triton writes 4.
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
    // other than 4 and 5.
    explicit LineTable(std::span<const uint8_t> file);

    // "csrc/kernels/gemm/gemm.h:36" for an address of the file (not of where it was loaded), or "" if none is
    // known.
    std::string source_line(uint64_t address) const;

    // Where the code at that address was called from, if the compiler inlined it: "csrc/kernels/gemm/gemm.h:210"
    // for a load in csrc/tiles/intrinsics.h. Among the surrounding calls it is the innermost in a folder other
    // than the code's own, so that calls between functions of one library are skipped; "" if there is none.
    std::string called_from(uint64_t address) const;

  private:
    struct Row {
        uint64_t address;
        uint32_t file, line;
        bool ends_sequence;
    };
    struct Call {
        uint64_t begin, end;
        uint32_t file, line;
    };
    friend class LineProgramReader;

    const Row* row_of(uint64_t address) const;

    std::vector<Row> rows_;    // sorted by address
    std::vector<Call> calls_;  // an outer call before those inside it
    std::vector<std::string> files_, folders_;
};

}  // namespace hipkittens::code_object
