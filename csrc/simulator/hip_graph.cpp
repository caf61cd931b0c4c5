// simulator/hip_graph.cpp: HIP's functions for graphs that a program builds, and for running graphs.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <fstream>

#include "simulator/hip_objects.h"
#include "simulator/memory_operations.h"

namespace hipkittens::simulator {

using namespace hip;

static std::vector<std::shared_ptr<GraphNode>> nodes_of(const hipGraphNode_t* handles, size_t count) {
    require(handles || count == 0, hipErrorInvalidValue, "the dependencies are a null pointer");
    std::vector<std::shared_ptr<GraphNode>> nodes;
    for (size_t i = 0; i < count; ++i) nodes.push_back(objects().nodes.get(handles[i]));
    return nodes;
}

void add_node(hipGraphNode_t* result, hipGraph_t graph, const hipGraphNode_t* after, size_t count,
              NodeType type, Work work) {
    require_pointer(result, "pGraphNode");
    *result = objects().graphs.get(graph)->add(type, std::move(work), nodes_of(after, count))->handle;
}

namespace {

Work launch_of(const hipKernelNodeParams* parameters) {
    require_pointer(parameters, "pNodeParams");
    return prepared_launch(function_of(parameters->function), parameters->grid, parameters->block,
                           parameters->shared_bytes, nullptr, parameters->arguments, parameters->extra);
}

Work fill_of(const hipMemsetParams* parameters) {
    require_pointer(parameters, "pMemsetParams");
    return [p = *parameters] {
        for (size_t row = 0; row < std::max<size_t>(p.height, 1); ++row)
            fill_with(static_cast<uint8_t*>(p.destination) + row * p.pitch, p.value, p.element_bytes,
                      p.width);
    };
}

// Fills `handles` up to *count, and sets *count to the number of nodes.
void hand_out_nodes(const std::vector<std::shared_ptr<GraphNode>>& nodes, hipGraphNode_t* handles,
                    size_t* count) {
    require_pointer(count, "the number of nodes");
    if (handles)
        for (size_t i = 0; i < *count; ++i) handles[i] = i < nodes.size() ? nodes[i]->handle : nullptr;
    *count = handles ? std::min(*count, nodes.size()) : nodes.size();
}

void instantiate(hipGraphExec_t* result, hipGraph_t graph) {
    require_pointer(result, "pGraphExec");
    auto executable = std::make_shared<GraphExecutable>();
    for (const auto& node : objects().graphs.get(graph)->in_order())
        executable->steps.push_back({node, node->work});
    *result = objects().executables.add(std::move(executable));
}

void replace(hipGraphExec_t executable, hipGraphNode_t node, NodeType type, Work work) {
    const auto object = objects().executables.get(executable);
    std::lock_guard lock(object->mutex);
    const auto found = std::find_if(object->steps.begin(), object->steps.end(),
                                    [&](const auto& step) { return step.node->handle == node; });
    require(found != object->steps.end(), hipErrorInvalidValue, "the node is none of the graph's");
    require(found->node->type == type, hipErrorInvalidValue, "the node is of another type");
    found->work = std::move(work);
}

// HIP copies the child graph in its current state.
Work work_of_child(hipGraph_t child) {
    std::vector<Work> all;
    for (const auto& each : objects().graphs.get(child)->in_order())
        if (each->work) all.push_back(each->work);
    return [all] {
        for (const Work& work : all) work();
    };
}

std::vector<Work> work_of(GraphExecutable& executable) {
    std::lock_guard lock(executable.mutex);
    std::vector<Work> all;
    for (const auto& step : executable.steps)
        if (step.work) all.push_back(step.work);
    return all;
}

}  // namespace

HIPKITTENS_EXPORT hipError_t hipGraphCreate(hipGraph_t* graph, unsigned int flags) {
    return call("hipGraphCreate", [&] {
        require_pointer(graph, "pGraph");
        require(flags == 0, hipErrorInvalidValue, "flags must be 0");
        *graph = objects().graphs.add(std::make_shared<Graph>());
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphDestroy(hipGraph_t graph) {
    return call("hipGraphDestroy", [&] {
        const auto object = objects().graphs.get(graph);
        objects().graphs.remove(graph);
        std::lock_guard lock(object->mutex);
        for (const auto& node : object->nodes) objects().nodes.remove(node->handle);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddEmptyNode(hipGraphNode_t* node, hipGraph_t graph,
                                                  const hipGraphNode_t* after, size_t count) {
    return call("hipGraphAddEmptyNode",
                [&] { add_node(node, graph, after, count, NodeType::empty, nullptr); });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph,
                                                   const hipGraphNode_t* after, size_t count,
                                                   const hipKernelNodeParams* parameters) {
    return call("hipGraphAddKernelNode",
                [&] { add_node(node, graph, after, count, NodeType::kernel, launch_of(parameters)); });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph,
                                                   const hipGraphNode_t* after, size_t count,
                                                   const hipMemsetParams* parameters) {
    return call("hipGraphAddMemsetNode",
                [&] { add_node(node, graph, after, count, NodeType::fill, fill_of(parameters)); });
}
HIPKITTENS_EXPORT hipError_t hipDrvGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph,
                                                      const hipGraphNode_t* after, size_t count,
                                                      const hipMemsetParams* parameters, hipCtx_t) {
    return hipGraphAddMemsetNode(node, graph, after, count, parameters);
}
HIPKITTENS_EXPORT hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t* node, hipGraph_t graph,
                                                     const hipGraphNode_t* after, size_t count,
                                                     void* destination, const void* source, size_t bytes,
                                                     int kind) {
    return call("hipGraphAddMemcpyNode1D", [&] {
        add_node(node, graph, after, count, NodeType::copy, [=] { copy(destination, source, bytes, kind); });
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddHostNode(hipGraphNode_t* node, hipGraph_t graph,
                                                 const hipGraphNode_t* after, size_t count,
                                                 const hipHostNodeParams* parameters) {
    return call("hipGraphAddHostNode", [&] {
        require_pointer(parameters, "pNodeParams");
        require(parameters->function, hipErrorInvalidValue, "the function is a null pointer");
        add_node(node, graph, after, count, NodeType::host, [p = *parameters] { p.function(p.data); });
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddEventRecordNode(hipGraphNode_t* node, hipGraph_t graph,
                                                        const hipGraphNode_t* after, size_t count,
                                                        hipEvent_t event) {
    return call("hipGraphAddEventRecordNode", [&] {
        objects().events.get(event);
        add_node(node, graph, after, count, NodeType::record_event, [event] { record(event); });
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddEventWaitNode(hipGraphNode_t* node, hipGraph_t graph,
                                                      const hipGraphNode_t* after, size_t count,
                                                      hipEvent_t event) {
    return call("hipGraphAddEventWaitNode", [&] {
        objects().events.get(event);
        add_node(node, graph, after, count, NodeType::wait_event, nullptr);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddChildGraphNode(hipGraphNode_t* node, hipGraph_t graph,
                                                       const hipGraphNode_t* after, size_t count,
                                                       hipGraph_t child) {
    return call("hipGraphAddChildGraphNode", [&] {
        require(child != graph, hipErrorInvalidValue, "a graph cannot be its own child");
        add_node(node, graph, after, count, NodeType::graph, work_of_child(child));
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphAddDependencies(hipGraph_t graph, const hipGraphNode_t* from,
                                                     const hipGraphNode_t* to, size_t count) {
    return call("hipGraphAddDependencies", [&] {
        const auto first = nodes_of(from, count), second = nodes_of(to, count);
        const auto object = objects().graphs.get(graph);
        std::lock_guard lock(object->mutex);
        for (size_t i = 0; i < count; ++i) second[i]->after.push_back(first[i]);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
    return call("hipGraphGetNodes", [&] {
        const auto object = objects().graphs.get(graph);
        std::lock_guard lock(object->mutex);
        hand_out_nodes(object->nodes, nodes, count);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphGetRootNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
    return call("hipGraphGetRootNodes", [&] {
        const auto object = objects().graphs.get(graph);
        std::lock_guard lock(object->mutex);
        std::vector<std::shared_ptr<GraphNode>> roots;
        for (const auto& node : object->nodes)
            if (node->after.empty()) roots.push_back(node);
        hand_out_nodes(roots, nodes, count);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphNodeGetType(hipGraphNode_t node, int* type) {
    return call("hipGraphNodeGetType", [&] {
        require_pointer(type, "pType");
        *type = static_cast<int>(objects().nodes.get(node)->type);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphDebugDotPrint(hipGraph_t graph, const char* path, unsigned int) {
    return call("hipGraphDebugDotPrint", [&] {
        require_pointer(path, "path");
        const auto nodes = objects().graphs.get(graph)->in_order();
        std::ofstream file(path);
        file << "digraph graph {\n";
        const auto name = [](const GraphNode& node) { return reinterpret_cast<uintptr_t>(node.handle); };
        for (const auto& node : nodes) {
            file << "  n" << name(*node) << " [label=\"type " << static_cast<int>(node->type) << "\"];\n";
            for (const auto& before : node->after)
                file << "  n" << name(*before) << " -> n" << name(*node) << ";\n";
        }
        file << "}\n";
        if (!file.flush()) throw HipError(hipErrorOperatingSystem, std::string(path) + " cannot be written");
    });
}

HIPKITTENS_EXPORT hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                                                 hipGraphNode_t* error_node, char* log, size_t log_bytes) {
    return call("hipGraphInstantiate", [&] {
        if (error_node) *error_node = nullptr;
        if (log && log_bytes) *log = 0;
        instantiate(executable, graph);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph,
                                                          unsigned long long) {
    return call("hipGraphInstantiateWithFlags", [&] { instantiate(executable, graph); });
}
HIPKITTENS_EXPORT hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
    return call("hipGraphExecDestroy", [&] { objects().executables.remove(executable); });
}
HIPKITTENS_EXPORT hipError_t hipGraphUpload(hipGraphExec_t executable, hipStream_t stream) {
    return call("hipGraphUpload", [&] {
        check_stream(stream);
        objects().executables.get(executable);
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream) {
    return call("hipGraphLaunch", [&] {
        check_stream(stream);
        submit(stream, NodeType::graph, [all = work_of(*objects().executables.get(executable))] {
            for (const Work& work : all) work();
        });
    });
}
HIPKITTENS_EXPORT hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                                             const hipKernelNodeParams* parameters) {
    return call("hipGraphExecKernelNodeSetParams",
                [&] { replace(executable, node, NodeType::kernel, launch_of(parameters)); });
}
HIPKITTENS_EXPORT hipError_t hipGraphExecMemsetNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                                             const hipMemsetParams* parameters) {
    return call("hipGraphExecMemsetNodeSetParams",
                [&] { replace(executable, node, NodeType::fill, fill_of(parameters)); });
}
HIPKITTENS_EXPORT hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t executable, hipGraphNode_t node,
                                                               void* destination, const void* source,
                                                               size_t bytes, int kind) {
    return call("hipGraphExecMemcpyNodeSetParams1D", [&] {
        replace(executable, node, NodeType::copy, [=] { copy(destination, source, bytes, kind); });
    });
}

HIPKITTENS_EXPORT hipError_t hipGraphExecChildGraphNodeSetParams(hipGraphExec_t executable,
                                                                 hipGraphNode_t node, hipGraph_t child) {
    return call("hipGraphExecChildGraphNodeSetParams",
                [&] { replace(executable, node, NodeType::graph, work_of_child(child)); });
}

}  // namespace hipkittens::simulator
