// simulator/bundled_code_objects.cpp: the code objects of an offload bundle, as found by hipModuleLoadData.
// SPDX-License-Identifier: MIT
#include <string>

#include "code_object/compressed_bundle.h"
#include "code_object/offload_bundle.h"
#include "simulator/hip_call.h"

using namespace hipkittens;
using namespace hipkittens::simulator;

HIPKITTENS_EXPORT int hipkittens_bundled_code_objects(const uint8_t* file, size_t size,
                                                      HipkittensVisitCodeObject visit, void* context) {
    return call("hipkittens_bundled_code_objects", [&] {
        require_pointer(file, "file");
        require(visit != nullptr, hip::hipErrorInvalidValue, "visit is a null pointer");
        const code_object::UncompressedBundle uncompressed = code_object::uncompressed_bundle(file, size);
        const auto entries = uncompressed
                                 ? code_object::bundle_entries(uncompressed.data.get(), uncompressed.bytes)
                                 : code_object::bundle_entries(file, size);
        require(entries.has_value(), hip::hipErrorInvalidImage, "this is no offload bundle");
        for (const code_object::BundleEntry& entry : *entries) {
            if (entry.processor.empty()) continue;
            visit(context, std::string(entry.name).c_str(), entry.code.data(), entry.code.size());
        }
    });
}
