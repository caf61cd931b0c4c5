// runtime/hip_search.h: where shared libraries are looked for.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace hipkittens::runtime {

// Paths of libraries in this process whose file name begins with `prefix`.
std::vector<std::string> mapped_libraries(const std::string& prefix);

// libhipkittens_simulator.so beside this code's own library, or in lib/ beside it. Empty if there is none.
std::string simulator_path();

// HIPKITTENS_LIBHIP_PATH, empty if it is not set. Throws Error for a path that is not absolute or that
// anybody may write.
std::string override_path();

// Files named libamdhip64.so* below the directories worth looking at, in the order in which to try them.
std::vector<std::string> hip_files();

}  // namespace hipkittens::runtime
