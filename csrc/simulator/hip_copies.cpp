// simulator/hip_copies.cpp: HIP's functions that copy and fill memory.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"

namespace hipkittens::simulator {

using namespace hip;

void copy(void* destination, const void* source, size_t bytes, int kind) {
    if (bytes == 0) return;
    require_pointer(destination, "destination");
    require_pointer(source, "source");
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) {
        throw HipError(hipErrorInvalidMemcpyDirection, "kind " + std::to_string(kind) + " is none of 0 to 4");
    }
    DeviceMemory& memory = device_memory();
    const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
    const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
    const auto check = [&](const void* pointer, bool is_device, const char* what) {
        is_device ? memory.check_device_range(pointer, bytes, what)
                  : memory.check_any_range(pointer, bytes, what);
    };
    check(destination, to_device, "destination");
    check(source, from_device, "source");
    std::memmove(destination, source, bytes);
}

void fill_with(void* destination, unsigned int value, size_t element_bytes, size_t count) {
    if (count == 0) return;
    require_pointer(destination, "destination");
    require(element_bytes == 1 || element_bytes == 2 || element_bytes == 4, hipErrorInvalidValue,
            "elements have 1, 2 or 4 bytes");
    require(reinterpret_cast<uintptr_t>(destination) % element_bytes == 0, hipErrorInvalidValue,
            "the destination does not begin on an element");
    require(count <= SIZE_MAX / element_bytes, hipErrorInvalidValue, "the destination wraps around");
    device_memory().check_device_range(destination, count * element_bytes, "destination");
    if (element_bytes == 1) std::memset(destination, static_cast<int>(value), count);
    if (element_bytes == 2)
        std::fill_n(static_cast<uint16_t*>(destination), count, static_cast<uint16_t>(value));
    if (element_bytes == 4) std::fill_n(static_cast<uint32_t*>(destination), count, value);
}

namespace {

void copy_on(hipStream_t stream, void* destination, const void* source, size_t bytes, int kind) {
    check_stream(stream);
    submit(stream, NodeType::copy, [=] { copy(destination, source, bytes, kind); });
}

void fill_on(hipStream_t stream, void* destination, unsigned int value, size_t element_bytes, size_t count) {
    check_stream(stream);
    submit(stream, NodeType::fill, [=] { fill_with(destination, value, element_bytes, count); });
}

// A rectangle of `height` rows of `width` bytes.
struct Rectangle {
    void* destination;
    size_t destination_pitch;
    const void* source;
    size_t source_pitch, width, height;
    int kind;

    void check() const {
        require(height < 2 || (destination_pitch >= width && source_pitch >= width),
                hipErrorInvalidPitchValue, "a pitch is less than the width");
    }
    void operator()() const {
        for (size_t row = 0; row < height; ++row)
            copy(static_cast<uint8_t*>(destination) + row * destination_pitch,
                 static_cast<const uint8_t*>(source) + row * source_pitch, width, kind);
    }
};

void fill_rectangle(void* destination, size_t pitch, int value, size_t width, size_t height) {
    require(height < 2 || pitch >= width, hipErrorInvalidPitchValue, "the pitch is less than the width");
    for (size_t row = 0; row < height; ++row)
        fill_with(static_cast<uint8_t*>(destination) + row * pitch, static_cast<unsigned int>(value), 1,
                  width);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, int kind) {
    return call("hipMemcpy", [&] { copy(destination, source, bytes, kind); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, int kind,
                                            hipStream_t stream) {
    return call("hipMemcpyAsync", [&] { copy_on(stream, destination, source, bytes, kind); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyWithStream(void* destination, const void* source, size_t bytes,
                                                 int kind, hipStream_t stream) {
    return call("hipMemcpyWithStream", [&] { copy_on(stream, destination, source, bytes, kind); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyHtoD(void* destination, const void* source, size_t bytes) {
    return call("hipMemcpyHtoD", [&] { copy(destination, source, bytes, hipMemcpyHostToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyHtoDAsync(void* destination, const void* source, size_t bytes,
                                                hipStream_t stream) {
    return call("hipMemcpyHtoDAsync",
                [&] { copy_on(stream, destination, source, bytes, hipMemcpyHostToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoH(void* destination, const void* source, size_t bytes) {
    return call("hipMemcpyDtoH", [&] { copy(destination, source, bytes, hipMemcpyDeviceToHost); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoHAsync(void* destination, const void* source, size_t bytes,
                                                hipStream_t stream) {
    return call("hipMemcpyDtoHAsync",
                [&] { copy_on(stream, destination, source, bytes, hipMemcpyDeviceToHost); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoD(void* destination, const void* source, size_t bytes) {
    return call("hipMemcpyDtoD", [&] { copy(destination, source, bytes, hipMemcpyDeviceToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyDtoDAsync(void* destination, const void* source, size_t bytes,
                                                hipStream_t stream) {
    return call("hipMemcpyDtoDAsync",
                [&] { copy_on(stream, destination, source, bytes, hipMemcpyDeviceToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyPeer(void* destination, int, const void* source, int, size_t bytes) {
    return call("hipMemcpyPeer", [&] { copy(destination, source, bytes, hipMemcpyDeviceToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpyPeerAsync(void* destination, int, const void* source, int, size_t bytes,
                                                hipStream_t stream) {
    return call("hipMemcpyPeerAsync",
                [&] { copy_on(stream, destination, source, bytes, hipMemcpyDeviceToDevice); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpy2D(void* destination, size_t destination_pitch, const void* source,
                                         size_t source_pitch, size_t width, size_t height, int kind) {
    return call("hipMemcpy2D", [&] {
        const Rectangle all{destination, destination_pitch, source, source_pitch, width, height, kind};
        all.check();
        all();
    });
}
HIPKITTENS_EXPORT hipError_t hipMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                                              size_t source_pitch, size_t width, size_t height, int kind,
                                              hipStream_t stream) {
    return call("hipMemcpy2DAsync", [&] {
        const Rectangle all{destination, destination_pitch, source, source_pitch, width, height, kind};
        all.check();
        check_stream(stream);
        submit(stream, NodeType::copy, all);
    });
}
// Copies run one at a time, which any of their attributes permit. `failed` is the index of the copy that failed.
HIPKITTENS_EXPORT hipError_t hipMemcpyBatchAsync(void** destinations, void** sources, size_t* sizes,
                                                 size_t count, const CopyAttributes* attributes,
                                                 const size_t* attributes_from, size_t attributes_count,
                                                 size_t* failed, hipStream_t stream) {
    return call("hipMemcpyBatchAsync", [&] {
        if (failed) *failed = SIZE_MAX;  // the whole batch
        require(count > 0, hipErrorInvalidValue, "count is 0");
        require_pointer(destinations, "dsts");
        require_pointer(sources, "srcs");
        require_pointer(sizes, "sizes");
        require_pointer(attributes, "attrs");
        require_pointer(attributes_from, "attrsIdxs");
        require(attributes_count >= 1 && attributes_count <= count, hipErrorInvalidValue,
                "numAttrs is not in 1 to count");
        for (size_t i = 0; i < attributes_count; ++i) {
            require(attributes[i].source_order >= 1 && attributes[i].source_order <= 3, hipErrorInvalidValue,
                    "srcAccessOrder is none of hipMemcpySrcAccessOrderStream, DuringApiCall and Any");
            require(attributes[i].flags <= 1, hipErrorInvalidValue, "flags of attrs has unknown bits");
            require(i == 0 ? attributes_from[0] == 0
                           : attributes_from[i] > attributes_from[i - 1] && attributes_from[i] < count,
                    hipErrorInvalidValue, "attrsIdxs does not rise from 0 to below count");
        }
        check_stream(stream);
        for (size_t i = 0; i < count; ++i) {
            if (failed) *failed = i;
            copy_on(stream, destinations[i], sources[i], sizes[i], hipMemcpyDefault);
        }
        if (failed) *failed = SIZE_MAX;
    });
}
HIPKITTENS_EXPORT hipError_t hipMemset(void* destination, int value, size_t bytes) {
    return call("hipMemset", [&] { fill_with(destination, static_cast<unsigned int>(value), 1, bytes); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t stream) {
    return call("hipMemsetAsync",
                [&] { fill_on(stream, destination, static_cast<unsigned int>(value), 1, bytes); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD8(void* destination, unsigned char value, size_t count) {
    return call("hipMemsetD8", [&] { fill_with(destination, static_cast<unsigned int>(value), 1, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD8Async(void* destination, unsigned char value, size_t count,
                                              hipStream_t stream) {
    return call("hipMemsetD8Async",
                [&] { fill_on(stream, destination, static_cast<unsigned int>(value), 1, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD16(void* destination, unsigned short value, size_t count) {
    return call("hipMemsetD16", [&] { fill_with(destination, static_cast<unsigned int>(value), 2, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD16Async(void* destination, unsigned short value, size_t count,
                                               hipStream_t stream) {
    return call("hipMemsetD16Async",
                [&] { fill_on(stream, destination, static_cast<unsigned int>(value), 2, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD32(void* destination, int value, size_t count) {
    return call("hipMemsetD32", [&] { fill_with(destination, static_cast<unsigned int>(value), 4, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemsetD32Async(void* destination, int value, size_t count,
                                               hipStream_t stream) {
    return call("hipMemsetD32Async",
                [&] { fill_on(stream, destination, static_cast<unsigned int>(value), 4, count); });
}
HIPKITTENS_EXPORT hipError_t hipMemset2D(void* destination, size_t pitch, int value, size_t width,
                                         size_t height) {
    return call("hipMemset2D", [&] { fill_rectangle(destination, pitch, value, width, height); });
}
HIPKITTENS_EXPORT hipError_t hipMemset2DAsync(void* destination, size_t pitch, int value, size_t width,
                                              size_t height, hipStream_t stream) {
    return call("hipMemset2DAsync", [&] {
        check_stream(stream);
        submit(stream, NodeType::fill, [=] { fill_rectangle(destination, pitch, value, width, height); });
    });
}

}  // namespace hipkittens::simulator
