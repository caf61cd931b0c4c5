// kernels/launch.h: a kernel, its grid and the bytes of its arguments: the result of every plan.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace hipkittens {

struct Launch {
    std::string kernel;             // symbol
    std::string variant;            // row of variants.def
    std::array<uint32_t, 3> grid;   // workgroups
    std::array<uint32_t, 3> block;  // threads
    std::vector<unsigned char> arguments;
};

// For the row `variant` of `operation`, as built for target 942 or 950.
template <class Arguments>
Launch launch_of(const std::string& operation, const std::string& variant, int target,
                 std::array<uint32_t, 3> grid, int threads, const Arguments& arguments) {
    std::string kernel;
    kernel.reserve(operation.size() + variant.size() + std::strlen("hipkittens___gfx942"));
    kernel.append("hipkittens_").append(operation).append("_").append(variant).append("_gfx");
    kernel.append(std::to_string(target));
    Launch launch{std::move(kernel),
                  variant,
                  grid,
                  {static_cast<uint32_t>(threads), 1, 1},
                  std::vector<unsigned char>(sizeof(Arguments))};
    std::memcpy(launch.arguments.data(), &arguments, sizeof(Arguments));
    return launch;
}

}  // namespace hipkittens
