// simulator/hip_boxes.cpp: HIP's functions that copy boxes of three dimensions.
// SPDX-License-Identifier: MIT
#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

// The first byte of a box, and the strides of its rows and planes.
template <class Byte>
struct Corner {
    Byte* first;
    size_t row, plane;
};

template <class Byte>
Corner<Byte> corner_of(void* pointer, size_t x, size_t y, size_t z, size_t pitch, size_t rows) {
    require_pointer(pointer, "a pointer of the copy");
    return {static_cast<Byte*>(pointer) + (z * rows + y) * pitch + x, pitch, pitch * rows};
}

template <class Byte>
Corner<Byte> corner_of(const DriverBox& box) {
    require(!box.array, hipErrorNotSupported, "there are no arrays (textures) on these devices");
    return corner_of<Byte>(box.type == hipMemoryTypeHost ? box.host : box.device, box.x, box.y, box.z,
                           box.pitch, box.height);
}
template <class Byte>
Corner<Byte> corner_of(const BoxPart& part) {
    require(!part.array, hipErrorNotSupported, "there are no arrays (textures) on these devices");
    return corner_of<Byte>(part.pointer, part.x, part.y, part.z, part.pitch, part.height);
}

Work copying(Corner<uint8_t> to, Corner<const uint8_t> from, size_t width, size_t height, size_t depth,
             int kind) {
    const auto fits = [&](size_t row, size_t plane) {
        return (height < 2 || row >= width) && (depth < 2 || plane >= height * row);
    };
    require(fits(to.row, to.plane) && fits(from.row, from.plane), hipErrorInvalidPitchValue,
            "a pitch is less than the width, or a height less than the rows of the copy");
    return [=] {
        for (size_t z = 0; z < depth; ++z)
            for (size_t y = 0; y < height; ++y)
                copy(to.first + z * to.plane + y * to.row, from.first + z * from.plane + y * from.row, width,
                     kind);
    };
}

Work work_of(const DriverCopy3D* given) {
    require_pointer(given, "the parameters of the copy");
    return copying(corner_of<uint8_t>(given->destination), corner_of<const uint8_t>(given->source),
                   given->width, given->height, given->depth, hipMemcpyDefault);
}
Work work_of(const Copy3D* given) {
    require_pointer(given, "the parameters of the copy");
    return copying(corner_of<uint8_t>(given->destination), corner_of<const uint8_t>(given->source),
                   given->width, given->height, given->depth, given->kind);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipMemcpy3D(const Copy3D* parameters) {
    return call("hipMemcpy3D", [&] { work_of(parameters)(); });
}
HIPKITTENS_EXPORT hipError_t hipMemcpy3DAsync(const Copy3D* parameters, hipStream_t stream) {
    return call("hipMemcpy3DAsync", [&] {
        check_stream(stream);
        submit(stream, NodeType::copy, work_of(parameters));
    });
}
HIPKITTENS_EXPORT hipError_t hipDrvMemcpy3D(const DriverCopy3D* parameters) {
    return call("hipDrvMemcpy3D", [&] { work_of(parameters)(); });
}
HIPKITTENS_EXPORT hipError_t hipDrvMemcpy3DAsync(const DriverCopy3D* parameters, hipStream_t stream) {
    return call("hipDrvMemcpy3DAsync", [&] {
        check_stream(stream);
        submit(stream, NodeType::copy, work_of(parameters));
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddMemcpyNode(hipGraphNode_t* node, hipGraph_t graph,
                                                   const hipGraphNode_t* after, size_t count,
                                                   const Copy3D* parameters) {
    return call("hipGraphAddMemcpyNode",
                [&] { add_node(node, graph, after, count, NodeType::copy, work_of(parameters)); });
}
HIPKITTENS_EXPORT hipError_t hipDrvGraphAddMemcpyNode(hipGraphNode_t* node, hipGraph_t graph,
                                                      const hipGraphNode_t* after, size_t count,
                                                      const DriverCopy3D* parameters, hipCtx_t) {
    return call("hipDrvGraphAddMemcpyNode",
                [&] { add_node(node, graph, after, count, NodeType::copy, work_of(parameters)); });
}

}  // namespace hipkittens::simulator
