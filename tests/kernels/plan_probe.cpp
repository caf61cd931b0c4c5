// tests/kernels/plan_probe.cpp: the GEMM plan and the workgroup order as a C library for ctypes.
// SPDX-License-Identifier: MIT
#include <cstring>
#include <sstream>
#include <string>

#include "kernels/gemm/plan.h"
#include "kernels/workgroup_order.h"

using namespace hipkittens;

namespace {

thread_local std::string answer;

const char* hexadecimal = "0123456789abcdef";

std::string describe(const gemm::Plan& plan) {
    std::ostringstream text;
    text << "{\"variant\": \"" << plan.variant << "\", \"splits\": " << plan.splits
         << ", \"workspace_bytes\": " << plan.workspace_bytes << ", \"launches\": [";
    for (size_t i = 0; i < plan.launches.size(); ++i) {
        const gemm::Launch& launch = plan.launches[i];
        text << (i ? ", " : "") << "{\"kernel\": \"" << launch.kernel << "\", \"variant\": \""
             << launch.variant << "\", \"grid\": [" << launch.grid[0] << ", " << launch.grid[1] << ", "
             << launch.grid[2] << "], \"block\": [" << launch.block[0] << ", " << launch.block[1] << ", "
             << launch.block[2] << "], \"workspace_at\": " << launch.workspace_at << ", \"arguments\": \"";
        for (const unsigned char byte : launch.arguments)
            text << hexadecimal[byte >> 4] << hexadecimal[byte & 15];
        text << "\"}";
    }
    text << "]}";
    return text.str();
}

}  // namespace

extern "C" {

// The plan as JSON, or "error: ...". variant: a row's name, or empty for the plan's own choice. workspace:
// bound when not null.
const char* probe_plan(const gemm::Problem* problem, const char* variant, int splits, void* workspace) {
    try {
        gemm::Plan plan;
        if (*variant) {
            const gemm::GemmVariant* chosen = nullptr;
            for (const gemm::GemmVariant& row : gemm::gemm_variants())
                if (!std::strcmp(row.name, variant)) chosen = &row;
            if (!chosen) return "error: no such variant";
            plan = gemm::plan_variant(*problem, *chosen, splits);
        } else {
            plan = gemm::plan(*problem);
        }
        if (workspace) gemm::bind_workspace(plan, workspace);
        answer = describe(plan);
    } catch (const std::exception& error) {
        answer = std::string("error: ") + error.what();
    }
    return answer.c_str();
}

// Names of the rows that may run the problem, one per line.
const char* probe_suitable(const gemm::Problem* problem) {
    answer.clear();
    for (const gemm::GemmVariant& row : gemm::gemm_variants())
        if (gemm::suits(row, *problem)) answer += std::string(row.name) + "\n";
    return answer.c_str();
}

// m and n of every workgroup's tile, interleaved.
void probe_order(const TileOrder* order, uint32_t* positions) {
    for (uint32_t i = 0; i < order->tiles_m * order->tiles_n; ++i) {
        const TilePosition position = tile_of_workgroup(i, *order);
        positions[2 * i] = position.m;
        positions[2 * i + 1] = position.n;
    }
}
}
