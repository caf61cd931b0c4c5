// torch/registration.cpp: an operator's schema and its function for each dispatch key.
// SPDX-License-Identifier: MIT
#include "torch/registration.h"

#include <cstdio>
#include <exception>
#include <string>

#include "torch/tensor.h"

extern "C" {

// torch.ops.<this> holds the operators. tools/hub_kernels.py writes another name into copies of this library that are loaded into
// one process. Not const, so that no compiler folds the characters written here; protected, so that each copy reads its own.
__attribute__((visibility("protected"))) char hipkittens_torch_namespace[64] = "hipkittens";

// The reason operators are not registered, or "". An exception must not leave a static constructor.
__attribute__((visibility("protected"))) char hipkittens_torch_registration_error[256] = "";
}

namespace hipkittens::torch_binding {
namespace {

// CPU tensors go to the simulator; tensors on an AMD GPU have the CUDA key.
constexpr const char* dispatch_keys[] = {"CPU", "CUDA"};

std::string qualified_name(const std::string& schema) {
    return std::string(hipkittens_torch_namespace) + "::" + schema.substr(0, schema.find('('));
}

void register_operators(std::initializer_list<Operator> operators) {
    TorchLibraryHandle library = nullptr;
    check(aoti_torch_library_init_fragment(hipkittens_torch_namespace, __FILE__, __LINE__, &library),
          hipkittens_torch_namespace);
    for (const Operator& entry : operators)
        check(aoti_torch_library_def(library, entry.schema), entry.schema);
    for (const char* key : dispatch_keys) {
        check(aoti_torch_library_init_impl(hipkittens_torch_namespace, key, __FILE__, __LINE__, &library),
              key);
        for (const Operator& entry : operators)
            check(torch_library_impl(library, qualified_name(entry.schema).c_str(), entry.function,
                                     stable_abi_version),
                  entry.schema);
    }
}

}  // namespace

// The library handles stay registered for the life of the process, so they are never deleted.
Registration::Registration(std::initializer_list<Operator> operators) {
    try {
        register_operators(operators);
    } catch (const std::exception& error) {
        if (!*hipkittens_torch_registration_error)
            std::snprintf(hipkittens_torch_registration_error, sizeof(hipkittens_torch_registration_error),
                          "%s", error.what());
    }
}

}  // namespace hipkittens::torch_binding
