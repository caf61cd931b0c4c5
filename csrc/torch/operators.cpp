// torch/operators.cpp: the operators' schemas and their entries for each dispatch key, a line per operator and key.
// SPDX-License-Identifier: MIT
#include "torch/attention.h"
#include "torch/gemm.h"
#include "torch/norm.h"
#include "torch/rotary.h"
#include "torch/stable_abi.h"
#include "torch/tensor.h"

namespace hipkittens::torch_door {
namespace {

struct Operator {
    const char* schema;
    const char* name;
    void (*function)(StableIValue*, uint64_t, uint64_t);
};
constexpr Operator operators[] = {
    {gemm_schema, "hipkittens::gemm", &gemm},
    {layer_norm_schema, "hipkittens::layer_norm", &layer_norm},
    {rms_norm_schema, "hipkittens::rms_norm", &rms_norm},
    {norm_backward_schema, "hipkittens::norm_backward", &norm_backward},
    {rotary_schema, "hipkittens::rotary", &rotary},
    {rotary_qk_schema, "hipkittens::rotary_qk", &rotary_qk},
    {rotary_in_place_schema, "hipkittens::rotary_", &rotary_in_place},
    {rotary_qk_in_place_schema, "hipkittens::rotary_qk_", &rotary_qk_in_place},
    {attention_forward_schema, "hipkittens::attention_forward", &attention_forward},
    {attention_backward_schema, "hipkittens::attention_backward", &attention_backward},
    {attention_varlen_forward_schema, "hipkittens::attention_varlen_forward", &attention_varlen_forward},
    {attention_varlen_backward_schema, "hipkittens::attention_varlen_backward", &attention_varlen_backward},
};

// CPU tensors go to the simulator; tensors on an AMD GPU have the CUDA key.
constexpr const char* dispatch_keys[] = {"CPU", "CUDA"};

struct Registration {
    Registration() {
        TorchLibraryHandle library = nullptr;
        check(aoti_torch_library_init_def("hipkittens", __FILE__, __LINE__, &library),
              "the library hipkittens");
        for (const Operator& entry : operators)
            check(aoti_torch_library_def(library, entry.schema), entry.schema);
        for (const char* key : dispatch_keys) {
            check(aoti_torch_library_init_impl("hipkittens", key, __FILE__, __LINE__, &library), key);
            for (const Operator& entry : operators) {
                check(torch_library_impl(library, entry.name, entry.function, stable_abi_version),
                      entry.name);
            }
        }
    }
};
// The libraries stay registered for the life of the process, and are therefore not deleted.
const Registration registration;

}  // namespace
}  // namespace hipkittens::torch_door
