// torch/registration.cpp: an operator's schema and its function for each dispatch key.
// SPDX-License-Identifier: MIT
#include "torch/registration.h"

#include <string>

#include "torch/tensor.h"

namespace hipkittens::torch_binding {
namespace {

constexpr const char* library_name = "hipkittens";
// CPU tensors go to the simulator; tensors on an AMD GPU have the CUDA key.
constexpr const char* dispatch_keys[] = {"CPU", "CUDA"};

std::string qualified_name(const std::string& schema) {
    return std::string(library_name) + "::" + schema.substr(0, schema.find('('));
}

}  // namespace

// The library handles stay registered for the life of the process, and are therefore not deleted.
Registration::Registration(std::initializer_list<Operator> operators) {
    TorchLibraryHandle library = nullptr;
    check(aoti_torch_library_init_fragment(library_name, __FILE__, __LINE__, &library), library_name);
    for (const Operator& entry : operators)
        check(aoti_torch_library_def(library, entry.schema), entry.schema);
    for (const char* key : dispatch_keys) {
        check(aoti_torch_library_init_impl(library_name, key, __FILE__, __LINE__, &library), key);
        for (const Operator& entry : operators)
            check(torch_library_impl(library, qualified_name(entry.schema).c_str(), entry.function,
                                     stable_abi_version),
                  entry.schema);
    }
}

}  // namespace hipkittens::torch_binding
