// simulator/hip_stream_values.cpp: HIP's functions by which streams and graphs wait for values in memory and write them.
// SPDX-License-Identifier: MIT
#include <type_traits>

#include "simulator/device_memory.h"
#include "simulator/hip_objects.h"

namespace hipkittens::simulator {

using namespace hip;

namespace {

template <class Value>
void check_place(const void* pointer) {
    require_pointer(pointer, "the address");
    require(reinterpret_cast<uintptr_t>(pointer) % sizeof(Value) == 0, hipErrorInvalidValue,
            "the address is no multiple of the value's size");
    device_memory().check_device_range(pointer, sizeof(Value), "the value");
}

template <class Value>
Work waiting(const void* pointer, Value value, unsigned int flags, Value mask) {
    check_place<Value>(pointer);
    require(flags <= 3, hipErrorInvalidValue, "flags is none of hipStreamWaitValueGte, Eq, And and Nor");
    return [=] {
        const Value found = *static_cast<const volatile Value*>(pointer) & mask;
        const bool is_there = flags == 0   ? static_cast<std::make_signed_t<Value>>(found - value) >= 0
                              : flags == 1 ? found == value
                              : flags == 2 ? (found & value) != 0
                                           : (~(found | value)) != 0;
        // No previously queued work is outstanding, and another thread may not write the value a device waits for.
        require(is_there, hipErrorNotSupported,
                "the value is not there, and streams run when they are queued: it would never come");
    };
}

template <class Value>
Work writing(void* pointer, Value value) {
    check_place<Value>(pointer);
    return [=] { *static_cast<volatile Value*>(pointer) = value; };
}

Work work_of(const MemoryOperation& operation) {
    const auto narrow = static_cast<uint32_t>(operation.value);
    switch (operation.type) {
        case memory_operation_wait_32:
            return waiting(operation.address, narrow, operation.flags, ~uint32_t{0});
        case memory_operation_wait_64:
            return waiting(operation.address, operation.value, operation.flags, ~uint64_t{0});
        case memory_operation_write_32:
            return writing(operation.address, narrow);
        case memory_operation_write_64:
            return writing(operation.address, operation.value);
        default:
            throw HipError(hipErrorNotSupported,
                           "operation " + std::to_string(operation.type) +
                               "; HIP does waits (1, 4) and writes (2, 5) of values alone");
    }
}

Work work_of(const MemoryOperation* operations, unsigned int count, unsigned int flags) {
    require(flags == 0, hipErrorInvalidValue, "flags must be 0");
    require(count >= 1 && count <= 256, hipErrorInvalidValue, "count is not in 1 to 256");
    require_pointer(operations, "paramArray");
    std::vector<Work> all;
    for (unsigned int i = 0; i < count; ++i) all.push_back(work_of(operations[i]));
    return [all] {
        for (const Work& work : all) work();
    };
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipStreamWaitValue32(hipStream_t stream, void* pointer, uint32_t value,
                                                  unsigned int flags, uint32_t mask) {
    return call("hipStreamWaitValue32",
                [&] { submit(stream, NodeType::batch_memory, waiting(pointer, value, flags, mask)); });
}
HIPKITTENS_EXPORT hipError_t hipStreamWaitValue64(hipStream_t stream, void* pointer, uint64_t value,
                                                  unsigned int flags, uint64_t mask) {
    return call("hipStreamWaitValue64",
                [&] { submit(stream, NodeType::batch_memory, waiting(pointer, value, flags, mask)); });
}
HIPKITTENS_EXPORT hipError_t hipStreamWriteValue32(hipStream_t stream, void* pointer, uint32_t value,
                                                   unsigned int) {
    return call("hipStreamWriteValue32",
                [&] { submit(stream, NodeType::batch_memory, writing(pointer, value)); });
}
HIPKITTENS_EXPORT hipError_t hipStreamWriteValue64(hipStream_t stream, void* pointer, uint64_t value,
                                                   unsigned int) {
    return call("hipStreamWriteValue64",
                [&] { submit(stream, NodeType::batch_memory, writing(pointer, value)); });
}
HIPKITTENS_EXPORT hipError_t hipStreamBatchMemOp(hipStream_t stream, unsigned int count,
                                                 const MemoryOperation* operations, unsigned int flags) {
    return call("hipStreamBatchMemOp", [&] {
        check_stream(stream);
        submit(stream, NodeType::batch_memory, work_of(operations, count, flags));
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddBatchMemOpNode(hipGraphNode_t* node, hipGraph_t graph,
                                                       const hipGraphNode_t* after, size_t count,
                                                       const MemoryOperationsOfNode* parameters) {
    return call("hipGraphAddBatchMemOpNode", [&] {
        require_pointer(parameters, "nodeParams");
        add_node(node, graph, after, count, NodeType::batch_memory,
                 work_of(parameters->operations, parameters->count, parameters->flags));
    });
}

}  // namespace hipkittens::simulator
