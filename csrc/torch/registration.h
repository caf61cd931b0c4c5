// torch/registration.h: operators of torch.ops.hipkittens, registered where they are defined.
// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>

#include "torch/stable_abi.h"

namespace hipkittens::torch_binding {

struct Operator {
    const char* schema;  // begins with the operator's name
    void (*function)(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
};

// A static object in a source file; registers that file's operators when the library is loaded.
struct Registration {
    explicit Registration(std::initializer_list<Operator> operators);
};

}  // namespace hipkittens::torch_binding
