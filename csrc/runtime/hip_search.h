// runtime/hip_search.h: searches for shared libraries.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace hipkittens::runtime {

// Paths of libraries in this process whose file name begins with `prefix`.
std::vector<std::string> mapped_libraries(const std::string& prefix);

// libhipkittens_simulator.so next to this library, or in lib/ next to it. Empty if there is none.
std::string simulator_path();

// HIPKITTENS_LIBHIP_PATH, empty if it is not set. Throws Error for a path that is not absolute or that is
// world-writable.
std::string override_path();

// Files named libamdhip64.so* in the directories searched, in the order in which to try them.
std::vector<std::string> hip_files();

}  // namespace hipkittens::runtime
