// code_object/inlined_calls.h: which calls the compiler inlined, and where their code is.
// SPDX-License-Identifier: MIT
//
// Facts: DWARF 5, sections 3.3.8.2 "Concrete Inlined Instances", 2.17 (addresses), 7.25 (range lists); DWARF 4, 2.17.3. With
// -gline-tables-only clang writes few other entries.
#pragma once

#include <vector>

#include "code_object/dwarf_reader.h"

namespace hipkittens::code_object {

// Code of one inlined call: addresses in the file, and file and line of the call. `file` counts from the
// first file of the unit of .debug_line at `line_unit`.
struct InlinedCall {
    uint64_t begin, end;
    uint64_t line_unit, file, line;
};

// All inlined calls of a file, an outer call before the calls inside it; units of versions other than 4 and 5
// have none. Throws Error if .debug_info is damaged.
std::vector<InlinedCall> read_inlined_calls(const DebugSections& sections);

}  // namespace hipkittens::code_object
