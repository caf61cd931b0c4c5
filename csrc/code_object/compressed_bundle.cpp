// code_object/compressed_bundle.cpp: implements code_object/compressed_bundle.h.
// SPDX-License-Identifier: MIT
#include "code_object/compressed_bundle.h"

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <string_view>

#include "code_object/error.h"

namespace hipkittens::code_object {
namespace {

constexpr std::string_view magic = "CCOB";
constexpr uint64_t most_bytes = uint64_t{1} << 30;
constexpr const char* damaged = "the file is damaged";
constexpr const char* without_compression = "compile without --offload-compress (--no-offload-compress)";

struct Header {
    uint16_t version, method;
    uint64_t header_bytes, file_bytes, bundle_bytes;
};

// The declarations of the two libraries' headers; their ABI is stable under these sonames.
using ZlibUncompress = int(uint8_t* bundle, unsigned long* bundle_bytes, const uint8_t* data,
                           unsigned long data_bytes);
using ZlibErrorText = const char*(int status);
using ZstdDecompress = size_t(void* bundle, size_t bundle_bytes, const void* data, size_t data_bytes);
using ZstdIsError = unsigned(size_t result);
using ZstdErrorName = const char*(size_t result);

template <typename Function>
Function* function_of(const char* library, const char* name) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // counted by the dynamic linker: it stays loaded
    void* address = handle ? dlsym(handle, name) : nullptr;
    if (address) return reinterpret_cast<Function*>(address);
    throw Error(std::string("a compressed offload bundle needs ") + library +
                    ", which cannot be loaded: " + dlerror(),
                0, std::string("install it, or ") + without_compression);
}

template <typename Number>
uint64_t number_at(const uint8_t* at) {
    Number value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

Header header_of(const uint8_t* file, uint64_t bytes) {
    constexpr uint64_t sizes_at = 8, hash_bytes = 8;
    const auto require_bytes = [&](uint64_t needed) {
        if (needed > bytes) throw Error("the compressed offload bundle is cut off", bytes, damaged);
    };
    require_bytes(sizes_at);
    Header header{};
    header.version = static_cast<uint16_t>(number_at<uint16_t>(file + 4));
    header.method = static_cast<uint16_t>(number_at<uint16_t>(file + 6));
    if (header.version < 1 || header.version > 3) {
        throw Error("the compressed offload bundle has version " + std::to_string(header.version), 4,
                    std::string("allowed: 1 to 3; ") + without_compression);
    }
    const uint64_t size_bytes = header.version == 3 ? 8 : 4;
    header.header_bytes = sizes_at + size_bytes * (header.version == 1 ? 1 : 2) + hash_bytes;
    require_bytes(header.header_bytes);
    const auto size_at = [&](uint64_t at) {
        const uint64_t size =
            size_bytes == 8 ? number_at<uint64_t>(file + at) : number_at<uint32_t>(file + at);
        if (size > most_bytes) {
            throw Error("the compressed offload bundle counts " + std::to_string(size) + " bytes", at,
                        "allowed: " + std::to_string(most_bytes));
        }
        return size;
    };
    header.file_bytes = header.version == 1 ? bytes : size_at(sizes_at);
    header.bundle_bytes = size_at(header.header_bytes - hash_bytes - size_bytes);
    if (header.file_bytes == UINT64_MAX) {
        throw Error("a compressed offload bundle of version 1 does not say how long it is", 4,
                    "load it by its file's name, or compile it with a newer clang");
    }
    require_bytes(header.file_bytes);
    if (header.file_bytes < header.header_bytes || header.bundle_bytes == 0)
        throw Error("the sizes in the header of the compressed offload bundle are wrong", sizes_at, damaged);
    return header;
}

// The number of bytes of `bundle` that were written. `failure` explains why not all of them were.
uint64_t uncompress_zlib(std::span<uint8_t> bundle, std::span<const uint8_t> data, std::string& failure) {
    unsigned long written = bundle.size();
    const int status = function_of<ZlibUncompress>("libz.so.1", "uncompress")(bundle.data(), &written,
                                                                              data.data(), data.size());
    if (status != 0) failure = function_of<ZlibErrorText>("libz.so.1", "zError")(status);
    return written;
}

uint64_t uncompress_zstd(std::span<uint8_t> bundle, std::span<const uint8_t> data, std::string& failure) {
    constexpr const char* library = "libzstd.so.1";
    const size_t result = function_of<ZstdDecompress>(library, "ZSTD_decompress")(
        bundle.data(), bundle.size(), data.data(), data.size());
    if (!function_of<ZstdIsError>(library, "ZSTD_isError")(result)) return result;
    failure = function_of<ZstdErrorName>(library, "ZSTD_getErrorName")(result);
    return 0;
}

}  // namespace

UncompressedBundle uncompressed_bundle(const uint8_t* file, uint64_t bytes) {
    if (bytes < magic.size() || std::memcmp(file, magic.data(), magic.size()) != 0) return {};
    const Header header = header_of(file, bytes);
    if (header.method > 1) {
        throw Error("the offload bundle is compressed by method " + std::to_string(header.method), 6,
                    std::string("allowed: 0 (zlib), 1 (zstd); ") + without_compression);
    }
    UncompressedBundle bundle{std::make_unique_for_overwrite<uint8_t[]>(header.bundle_bytes),
                              header.bundle_bytes};
    const std::span<uint8_t> into(bundle.data.get(), bundle.bytes);
    const std::span<const uint8_t> data(file + header.header_bytes, header.file_bytes - header.header_bytes);
    std::string failure;
    const uint64_t written =
        header.method == 0 ? uncompress_zlib(into, data, failure) : uncompress_zstd(into, data, failure);
    if (!failure.empty()) {
        throw Error(std::string("the offload bundle cannot be uncompressed: ") +
                        (header.method == 0 ? "zlib: " : "zstd: ") + failure,
                    header.header_bytes, damaged);
    }
    if (written != bundle.bytes) {
        throw Error("the offload bundle has " + std::to_string(written) + " bytes, its header says " +
                        std::to_string(bundle.bytes),
                    header.header_bytes, damaged);
    }
    return bundle;
}

}  // namespace hipkittens::code_object
