// simulator/graph.h: work submitted to a stream: run immediately, or recorded in a graph while the stream is captured.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/hip_call.h"

namespace hipkittens::simulator {

enum class NodeType : int {  // hipGraphNodeType
    kernel = 0,
    copy = 1,
    fill = 2,
    host = 3,
    graph = 4,
    empty = 5,
    wait_event = 6,
    record_event = 7,
    allocate = 10,
    free = 11,
    batch_memory = 14,
};

using Work = std::function<void()>;

struct GraphNode {
    NodeType type = NodeType::empty;
    Work work;  // null if there is nothing to do
    std::vector<std::shared_ptr<GraphNode>> after;
    hip::hipGraphNode_t handle = nullptr;
    void lock() {}
    void unlock() {}
};

struct Graph {
    std::mutex mutex;
    std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order in which they were added
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }

    std::shared_ptr<GraphNode> add(NodeType type, Work work, std::vector<std::shared_ptr<GraphNode>> after);
    // Every node after those that it depends on. Throws if the dependencies form a cycle.
    std::vector<std::shared_ptr<GraphNode>> in_order();
    bool has(const std::shared_ptr<GraphNode>& node);
};

// A graph in the state in which it was instantiated. Its nodes' work can be replaced without changing that of
// the graph.
struct GraphExecutable {
    struct Step {
        std::shared_ptr<GraphNode> node;
        Work work;
    };
    std::mutex mutex;
    std::vector<Step> steps;
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }
};

// The state shared by streams that are captured together.
struct Capture {
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    hip::hipStream_t origin = nullptr;
    uint64_t id = 0;
    std::mutex mutex;
    hip::hipGraph_t handle = nullptr;  // null until a program requests it
};

// Whether the node is one of `last`, or a predecessor of one of them.
bool comes_before(const std::shared_ptr<GraphNode>& node,
                  const std::vector<std::shared_ptr<GraphNode>>& last);

// Runs `work` on the stream, or adds it to the graph that the stream is being captured into.
void submit(hip::hipStream_t stream, NodeType type, Work work);

// Adds a node to a program's own graph, depending on `count` others; its handle goes to `result`.
void add_node(hip::hipGraphNode_t* result, hip::hipGraph_t graph, const hip::hipGraphNode_t* after,
              size_t count, NodeType type, Work work);

// Whether the stream is being captured.
bool is_captured(hip::hipStream_t stream);

}  // namespace hipkittens::simulator
