// tests/kernels/attention_probe.cpp: the attention plan as a C library for ctypes.
// SPDX-License-Identifier: MIT
#include <sstream>
#include <stdexcept>
#include <string>

#include "kernels/attention/plan.h"

using namespace hipkittens;

namespace {

thread_local std::string answer;

std::string describe(const attention::Plan& plan) {
    constexpr const char* hexadecimal = "0123456789abcdef";
    std::ostringstream text;
    text << "[";
    for (size_t i = 0; i < plan.launches.size(); ++i) {
        const Launch& launch = plan.launches[i];
        text << (i ? ", " : "") << "{\"kernel\": \"" << launch.kernel << "\", \"variant\": \""
             << launch.variant << "\", \"grid\": [" << launch.grid[0] << ", " << launch.grid[1] << ", "
             << launch.grid[2] << "], \"block\": [" << launch.block[0] << ", " << launch.block[1] << ", "
             << launch.block[2] << "], \"arguments\": \"";
        for (const unsigned char byte : launch.arguments)
            text << hexadecimal[byte >> 4] << hexadecimal[byte & 15];
        text << "\"}";
    }
    text << "]";
    return text.str();
}

// A row that is named runs in one split unless told otherwise.
attention::ForwardChoice choose(const attention::ForwardProblem& problem, const std::string& variant,
                                int64_t splits) {
    if (variant.empty()) {
        attention::ForwardChoice choice = choose_forward(problem);
        if (splits) choice.splits = splits;
        return choice;
    }
    for (const attention::ForwardVariant& row : attention::variants<attention::kinds::forward>)
        if (row.name == variant) return {&row, splits ? splits : 1};
    throw std::invalid_argument("no variant " + variant);
}

}  // namespace

extern "C" {

// The launches as JSON, or "error: ...". variant: a row's name, or empty for the plan's own choice; splits likewise, or 0.
const char* probe_forward(const attention::ForwardProblem* problem, const char* variant, int64_t splits) {
    try {
        answer = describe(plan_forward(*problem, choose(*problem, variant, splits)));
    } catch (const std::exception& error) {
        answer = "error: " + std::string(error.what());
    }
    return answer.c_str();
}

// Also -1 for what probe_forward refuses.
int64_t probe_forward_workspace_floats(const attention::ForwardProblem* problem, const char* variant,
                                       int64_t splits) {
    try {
        return forward_workspace_floats(problem->shared, choose(*problem, variant, splits));
    } catch (const std::exception&) {
        return -1;
    }
}

const char* probe_backward(const attention::BackwardProblem* problem) {
    try {
        answer = describe(plan_backward(*problem, choose_backward(problem->shared)));
    } catch (const std::exception& error) {
        answer = "error: " + std::string(error.what());
    }
    return answer.c_str();
}

int64_t probe_backward_workspace_floats(const attention::Problem* problem) {
    return backward_workspace_floats(*problem, choose_backward(*problem));
}

// Tile, head, batch and split of every workgroup, for `count` workgroups.
void probe_places(const attention::ForwardArguments* arguments, uint32_t count, int32_t* places) {
    for (uint32_t i = 0; i < count; ++i) {
        const attention::TileCoordinate place = coordinate_of_workgroup(i, arguments->order);
        places[4 * i] = place.tile;
        places[4 * i + 1] = place.head;
        places[4 * i + 2] = place.batch;
        places[4 * i + 3] = place.split;
    }
}
}
