// code_object/compressed_bundle.h: clang's offload bundles compressed with --offload-compress.
// SPDX-License-Identifier: MIT
//
// Facts: clang's CompressedOffloadBundle. "CCOB", then little-endian: version (16 bits), method (16 bits: 0 zlib, 1 zstd), from version 2
// on the bytes of the whole file, the bytes of the bundle in it (both 32 bits, from version 3 on 64), 64 bits of an MD5 hash, the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hipkittens::code_object {

// A bundle that was compressed, or nothing.
struct UncompressedBundle {
    std::unique_ptr<uint8_t[]> data;
    size_t bytes = 0;

    explicit operator bool() const { return data != nullptr; }
};

// Returns nothing if `file` does not begin with a compressed bundle. `bytes` is UINT64_MAX for an image that
// HIP receives without its length; bundles of version 1, whose headers do not contain it either, are then
// rejected. Throws Error; the two libraries are the system's libz.so.1 and libzstd.so.1, loaded when they are
// needed. The hash, which names a bundle in caches, is not checked.
UncompressedBundle uncompressed_bundle(const uint8_t* file, uint64_t bytes = UINT64_MAX);

}  // namespace hipkittens::code_object
