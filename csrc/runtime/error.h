// runtime/error.h: the exception of runtime/.
// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>

namespace hipkittens::runtime {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace hipkittens::runtime
