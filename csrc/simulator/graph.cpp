// simulator/graph.cpp: implements simulator/graph.h, and the capture of streams.
// SPDX-License-Identifier: MIT
#include "simulator/graph.h"

#include <algorithm>
#include <map>
#include <set>

#include "simulator/hip_objects.h"

namespace hipkittens::simulator {

using namespace hip;

std::shared_ptr<GraphNode> Graph::add(NodeType type, Work work,
                                      std::vector<std::shared_ptr<GraphNode>> after) {
    auto node = std::make_shared<GraphNode>();
    node->type = type;
    node->work = std::move(work);
    node->after = std::move(after);
    node->handle = objects().nodes.add(node);
    std::lock_guard lock(mutex);
    nodes.push_back(node);
    return node;
}

std::vector<std::shared_ptr<GraphNode>> Graph::in_order() {
    std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<GraphNode>> ordered;
    enum class Mark { none, open, done };
    std::map<GraphNode*, Mark> marks;
    // The recursion is as deep as the longest chain whose nodes were added last to first; other nodes have
    // been visited by the time they are needed.
    const std::function<void(const std::shared_ptr<GraphNode>&)> visit = [&](const auto& node) {
        Mark& mark = marks[node.get()];
        if (mark == Mark::done) return;
        require(mark == Mark::none, hipErrorInvalidValue, "nodes of the graph come after each other");
        mark = Mark::open;
        for (const auto& before : node->after) visit(before);
        marks[node.get()] = Mark::done;
        ordered.push_back(node);
    };
    for (const auto& node : nodes) visit(node);
    return ordered;
}

bool Graph::has(const std::shared_ptr<GraphNode>& node) {
    std::lock_guard lock(mutex);
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

bool comes_before(const std::shared_ptr<GraphNode>& node,
                  const std::vector<std::shared_ptr<GraphNode>>& last) {
    std::vector<GraphNode*> to_do;
    std::set<GraphNode*> seen;
    for (const auto& each : last) to_do.push_back(each.get());
    while (!to_do.empty()) {
        GraphNode* const each = to_do.back();
        to_do.pop_back();
        if (each == node.get()) return true;
        if (!seen.insert(each).second) continue;
        for (const auto& before : each->after) to_do.push_back(before.get());
    }
    return false;
}

bool is_default_stream(hipStream_t stream) {
    return !stream || stream == stream_legacy || stream == stream_per_thread;
}

bool is_captured(hipStream_t stream) {
    if (is_default_stream(stream)) return false;
    const auto object = objects().streams.get(stream);
    std::lock_guard lock(object->mutex);
    return object->capture != nullptr;
}

void submit(hipStream_t stream, NodeType type, Work work) {
    if (!is_default_stream(stream)) {
        const auto object = objects().streams.get(stream);
        std::lock_guard lock(object->mutex);
        if (object->capture) {
            object->last = {object->capture->graph->add(type, std::move(work), object->last)};
            return;
        }
    }
    work();
}

}  // namespace hipkittens::simulator
