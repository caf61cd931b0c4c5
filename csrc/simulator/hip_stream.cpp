// simulator/hip_stream.cpp: HIP's functions for streams, events and the capture of streams into graphs.
// SPDX-License-Identifier: MIT
//
// Work runs when it is queued, in the thread that queues it: what a stream or an event waits for has already finished. Work on
// a stream being captured is added to a graph.
#include <algorithm>
#include <atomic>
#include <utility>

#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"

namespace hipkittens::simulator {

using namespace hip;

void check_stream(hipStream_t stream) {
    if (!is_default_stream(stream)) objects().streams.get(stream);
}

void check_stream(hipStream_t stream, int device) {
    if (is_default_stream(stream)) return;
    const int other = objects().streams.get(stream)->device;
    if (other != device) {
        throw HipError(hipErrorInvalidHandle, "the stream belongs to device " + std::to_string(other) +
                                                  ", the kernel to device " + std::to_string(device));
    }
}

namespace {

constexpr int least_priority = 1, greatest_priority = -1;

void create(hipStream_t* stream, unsigned int flags, int priority) {
    require_pointer(stream, "stream");
    require(flags <= 1, hipErrorInvalidValue, "flags has unknown bits");  // hipStreamNonBlocking
    auto object = std::make_shared<Stream>();
    object->device = checked_device(thread_state().device);
    object->flags = flags;
    object->priority = std::clamp(priority, greatest_priority, least_priority);
    *stream = objects().streams.add(std::move(object));
}

// A capture's graph gets its handle when one is requested. The mutex of one of its streams is held.
hipGraph_t handle_of(Capture& capture) {
    std::lock_guard lock(capture.mutex);
    if (!capture.handle) capture.handle = objects().graphs.add(capture.graph);
    return capture.handle;
}

std::shared_ptr<Stream> capturable(hipStream_t stream) {
    require(!is_default_stream(stream), hipErrorStreamCaptureUnsupported,
            "a default stream cannot be captured; create one");
    return objects().streams.get(stream);
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipStreamCreate(hipStream_t* stream) {
    return call("hipStreamCreate", [&] { create(stream, 0, 0); });
}
HIPKITTENS_EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
    return call("hipStreamCreateWithFlags", [&] { create(stream, flags, 0); });
}
HIPKITTENS_EXPORT hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags,
                                                         int priority) {
    return call("hipStreamCreateWithPriority", [&] { create(stream, flags, priority); });
}
HIPKITTENS_EXPORT hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call("hipDeviceGetStreamPriorityRange", [&] {
        if (least) *least = least_priority;
        if (greatest) *greatest = greatest_priority;
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamGetFlags(hipStream_t stream, unsigned int* flags) {
    return call("hipStreamGetFlags", [&] {
        require_pointer(flags, "flags");
        *flags = is_default_stream(stream) ? 0 : objects().streams.get(stream)->flags;
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
    return call("hipStreamGetPriority", [&] {
        require_pointer(priority, "priority");
        *priority = is_default_stream(stream) ? 0 : objects().streams.get(stream)->priority;
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamGetDevice(hipStream_t stream, int* device) {
    return call("hipStreamGetDevice", [&] {
        require_pointer(device, "device");
        *device = is_default_stream(stream) ? thread_state().device : objects().streams.get(stream)->device;
    });
}
HIPKITTENS_EXPORT int hipGetStreamDeviceId(hipStream_t stream) {
    int device = -1;
    hipStreamGetDevice(stream, &device);
    return device;
}
HIPKITTENS_EXPORT hipError_t hipStreamDestroy(hipStream_t stream) {
    return call("hipStreamDestroy", [&] { objects().streams.remove(stream); });
}
HIPKITTENS_EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) {
    return call("hipStreamSynchronize", [&] {
        require(!is_captured(stream), hipErrorStreamCaptureUnsupported,
                "the stream is captured, and nothing of it runs");
        check_stream(stream);
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamQuery(hipStream_t stream) {
    return call("hipStreamQuery", [&] { check_stream(stream); });
}
HIPKITTENS_EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
    return call("hipStreamWaitEvent", [&] {
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        check_stream(stream);
        const auto object = objects().events.get(event);
        std::shared_ptr<Capture> capture;
        std::vector<std::shared_ptr<GraphNode>> after;
        {
            std::lock_guard lock(object->mutex);
            capture = object->capture;
            after = object->captured_after;
        }
        if (!capture) return;
        const auto waiting = capturable(stream);
        std::lock_guard lock(waiting->mutex);
        if (!waiting->capture) {
            waiting->capture = capture;
            waiting->last.clear();
        }
        require(waiting->capture == capture, hipErrorStreamCaptureInvalidated,
                "the event belongs to another capture than the stream");
        waiting->last.insert(waiting->last.end(), after.begin(), after.end());
    });
}
HIPKITTENS_EXPORT hipError_t hipLaunchHostFunc(hipStream_t stream, void (*function)(void*), void* data) {
    return call("hipLaunchHostFunc", [&] {
        require(function, hipErrorInvalidValue, "the function is a null pointer");
        check_stream(stream);
        submit(stream, NodeType::host, [=] { function(data); });
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamAddCallback(hipStream_t stream,
                                                  void (*callback)(hipStream_t, hipError_t, void*),
                                                  void* data, unsigned int flags) {
    return call("hipStreamAddCallback", [&] {
        require(callback, hipErrorInvalidValue, "the callback is a null pointer");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        check_stream(stream);
        submit(stream, NodeType::host, [=] { callback(stream, hipSuccess, data); });
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamBeginCapture(hipStream_t stream, int mode) {
    return call("hipStreamBeginCapture", [&] {
        require(mode >= 0 && mode <= 2, hipErrorInvalidValue, "mode is none of 0, 1 and 2");
        const auto object = capturable(stream);
        std::lock_guard lock(object->mutex);
        require(!object->capture, hipErrorIllegalState, "the stream is captured already");
        static std::atomic<uint64_t> captures{0};
        object->capture = std::make_shared<Capture>();
        object->capture->origin = stream;
        object->capture->id = ++captures;
        object->last.clear();
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
    return call("hipStreamEndCapture", [&] {
        require_pointer(graph, "pGraph");
        *graph = nullptr;
        std::shared_ptr<Capture> capture;
        std::vector<std::shared_ptr<GraphNode>> last;
        {
            const auto object = capturable(stream);
            std::lock_guard lock(object->mutex);
            require(object->capture != nullptr, hipErrorIllegalState, "the stream is not captured");
            require(object->capture->origin == stream, hipErrorStreamCaptureUnmatched,
                    "the capture began on another stream");
            capture = std::exchange(object->capture, nullptr);
            last = std::exchange(object->last, {});
            object->last_handles.clear();
        }
        // Streams that joined the capture and were not joined back would be left behind.
        bool is_joined = true;
        objects().streams.visit([&](Stream& other) {
            std::lock_guard lock(other.mutex);
            if (other.capture != capture) return;
            for (const auto& node : other.last) is_joined &= comes_before(node, last);
            other.capture = nullptr;
            other.last.clear();
        });
        if (!is_joined && capture->handle) objects().graphs.remove(capture->handle);
        require(is_joined, hipErrorStreamCaptureUnjoined,
                "another stream has joined the capture, and this one does not wait for it");
        *graph = capture->handle ? capture->handle : objects().graphs.add(capture->graph);
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, int* status,
                                                        unsigned long long* id, hipGraph_t* graph,
                                                        const hipGraphNode_t** after, size_t* count) {
    return call("hipStreamGetCaptureInfo_v2", [&] {
        require_pointer(status, "captureStatus_out");
        *status = hipStreamCaptureStatusNone;
        if (is_default_stream(stream)) return;
        const auto object = objects().streams.get(stream);
        std::lock_guard lock(object->mutex);
        if (!object->capture) return;
        *status = hipStreamCaptureStatusActive;
        if (id) *id = object->capture->id;
        if (graph) *graph = handle_of(*object->capture);
        if (count) *count = object->last.size();
        if (!after) return;
        object->last_handles.clear();
        for (const auto& node : object->last) object->last_handles.push_back(node->handle);
        *after = object->last_handles.data();
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamUpdateCaptureDependencies(hipStream_t stream, hipGraphNode_t* nodes,
                                                                size_t count, unsigned int flags) {
    return call("hipStreamUpdateCaptureDependencies", [&] {
        require(flags <= 1, hipErrorInvalidValue, "flags must be 0 (add) or 1 (set)");
        require(nodes || count == 0, hipErrorInvalidValue, "dependencies is a null pointer");
        const auto object = capturable(stream);
        std::lock_guard lock(object->mutex);
        require(object->capture != nullptr, hipErrorIllegalState, "the stream is not captured");
        std::vector<std::shared_ptr<GraphNode>> given;
        for (size_t i = 0; i < count; ++i) {
            given.push_back(objects().nodes.get(nodes[i]));
            require(object->capture->graph->has(given.back()), hipErrorInvalidValue,
                    "a node is none of the graph that the stream is captured into");
        }
        if (flags == 1) object->last.clear();
        object->last.insert(object->last.end(), given.begin(), given.end());
    });
}
HIPKITTENS_EXPORT hipError_t hipStreamGetCaptureInfo(hipStream_t stream, int* status,
                                                     unsigned long long* id) {
    return hipStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}
HIPKITTENS_EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
    return call("hipStreamIsCapturing", [&] {
        require(status, hipErrorInvalidValue, "a null pointer was passed");
        check_stream(stream);
        *status = is_captured(stream) ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    });
}
HIPKITTENS_EXPORT hipError_t hipThreadExchangeStreamCaptureMode(int* mode) {
    return call("hipThreadExchangeStreamCaptureMode", [&] {
        require_pointer(mode, "mode");
        thread_local int held = 0;
        std::swap(held, *mode);  // no call is forbidden while a stream is captured
    });
}

HIPKITTENS_EXPORT hipError_t hipEventCreate(hipEvent_t* event) {
    return call("hipEventCreate", [&] {
        require_pointer(event, "event");
        *event = objects().events.add(std::make_shared<Event>());
    });
}
HIPKITTENS_EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int) {
    return hipEventCreate(event);  // flags select how the host waits and whether times are kept
}
HIPKITTENS_EXPORT hipError_t hipEventDestroy(hipEvent_t event) {
    return call("hipEventDestroy", [&] { objects().events.remove(event); });
}

void record(hipEvent_t event) {
    const auto object = objects().events.get(event);
    std::lock_guard lock(object->mutex);
    object->is_recorded = true;
    object->time = std::chrono::steady_clock::now();
    object->capture = nullptr;
    object->captured_after.clear();
}

HIPKITTENS_EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return call("hipEventRecord", [&] {
        check_stream(stream);
        if (!is_captured(stream)) return record(event);
        const auto object = objects().events.get(event);
        const auto captured = objects().streams.get(stream);
        std::scoped_lock lock(object->mutex, captured->mutex);
        object->capture = captured->capture;
        object->captured_after = captured->last;
    });
}
HIPKITTENS_EXPORT hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned int) {
    return hipEventRecord(event, stream);
}
HIPKITTENS_EXPORT hipError_t hipEventSynchronize(hipEvent_t event) {
    return call("hipEventSynchronize", [&] { objects().events.get(event); });
}
HIPKITTENS_EXPORT hipError_t hipEventQuery(hipEvent_t event) {
    return call("hipEventQuery", [&] { objects().events.get(event); });
}
// The host's wall clock: the duration of the simulation, not the time a device would have taken.
HIPKITTENS_EXPORT hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    return call("hipEventElapsedTime", [&] {
        require_pointer(milliseconds, "milliseconds");
        const auto time_of = [](hipEvent_t event) {
            const auto object = objects().events.get(event);
            std::lock_guard lock(object->mutex);
            require(object->is_recorded, hipErrorInvalidHandle, "the event was not recorded");
            return object->time;
        };
        const auto begin = time_of(start), end = time_of(stop);
        *milliseconds = std::chrono::duration<float, std::milli>(end - begin).count();
    });
}

}  // namespace hipkittens::simulator
