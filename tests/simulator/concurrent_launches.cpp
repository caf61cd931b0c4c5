// tests/simulator/concurrent_launches.cpp: many host threads in the simulator's HIP library at once.
// SPDX-License-Identifier: MIT
//
//   concurrent_launches CODE_OBJECT_GFX942 CODE_OBJECT_GFX950 THREADS ROUNDS
//
// Each thread loads modules of its own and launches them, launches a module that all threads share with settings of its
// own, and allocates, copies, records events and asks for findings in between. A launch itself has several host threads.
// The results are checked; ThreadSanitizer, where the library is built with it, checks the rest. Exit 0 and the number of
// launches; 1 and a text for a wrong result.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "hip/hip_abi.h"
#include "simulator/simulator.h"

namespace hipkittens::hip {
extern "C" {
#define HIP_FUNCTION(result, name, parameters) result name parameters;
#include "hip/hip_functions.def"
#undef HIP_FUNCTION
}
}  // namespace hipkittens::hip

using namespace hipkittens::hip;

namespace {

constexpr unsigned workgroups = 12, items = 128;
constexpr uint32_t elements = workgroups * items;

std::vector<uint8_t> code_objects[2];
hipFunction_t shared_functions[2];
std::atomic<int> launches{0};

void check(int code, const char* what) {
    if (code == 0) return;
    std::fprintf(stderr, "%s: error %d: %s\n", what, code, hipkittens_last_error());
    std::exit(1);
}

void expect(bool condition, const char* what, uint64_t have, uint64_t want) {
    if (condition) return;
    std::fprintf(stderr, "%s: %llu, not %llu\n", what, static_cast<unsigned long long>(have),
                 static_cast<unsigned long long>(want));
    std::exit(1);
}

struct Arguments {
    const uint32_t* in;
    uint32_t* out;
    uint32_t* count;
    uint32_t add, padding;
};

void choose_settings(unsigned number) {
    HipkittensSettings settings;
    hipkittens_get_settings(&settings);
    settings.threads = 1 + number % 3;
    settings.arithmetic = static_cast<int>(number % 3);
    settings.poison = number % 2;
    settings.checks = number % 4 == 3 ? 31 : 0;
    settings.wave_order_seed = number % 5;
    settings.count_lds_conflicts = number / 2 % 2;
    check(hipkittens_set_settings(&settings), "hipkittens_set_settings");
}

void launch_once(hipFunction_t function, unsigned number) {
    std::vector<uint32_t> in(elements), out(elements, 0);
    uint32_t count = 0;
    for (uint32_t i = 0; i < elements; ++i) in[i] = i * 3 + number;
    const Arguments arguments{in.data(), out.data(), &count, number, 0};
    const HipkittensRegion regions[] = {{in.data(), elements * 4, "in", 0, 0},
                                        {out.data(), elements * 4, "out", 1, 0},
                                        {&count, 4, "count", 1, 0}};
    const unsigned grid[3] = {workgroups, 1, 1}, block[3] = {items, 1, 1};
    check(hipkittens_launch_bounded(function, grid, block, 0, nullptr, &arguments, 28, regions, 3), "launch");
    for (uint32_t i = 0; i < elements; ++i) expect(out[i] == in[i] + number, "out", out[i], in[i] + number);
    expect(count == elements, "atomic additions", count, elements);
    HipkittensReport report;
    hipkittens_last_report(&report);
    expect(report.workgroups == workgroups, "workgroups reported", report.workgroups, workgroups);
    ++launches;
}

void use_memory(unsigned number) {
    void* memory = nullptr;
    check(hipMalloc(&memory, 4096 + number), "hipMalloc");
    const std::vector<uint8_t> host(4096, static_cast<uint8_t>(number));
    std::vector<uint8_t> back(4096);
    hipStream_t stream;
    hipEvent_t begin, end;
    check(hipStreamCreate(&stream), "hipStreamCreate");
    check(hipEventCreate(&begin), "hipEventCreate");
    check(hipEventCreate(&end), "hipEventCreate");
    check(hipEventRecord(begin, stream), "hipEventRecord");
    check(hipMemcpy(memory, host.data(), host.size(), hipMemcpyHostToDevice), "hipMemcpy");
    check(hipMemcpy(back.data(), memory, back.size(), hipMemcpyDeviceToHost), "hipMemcpy");
    check(hipEventRecord(end, stream), "hipEventRecord");
    float milliseconds = -1;
    check(hipEventElapsedTime(&milliseconds, begin, end), "hipEventElapsedTime");
    check(hipEventDestroy(begin), "hipEventDestroy");
    check(hipEventDestroy(end), "hipEventDestroy");
    check(hipStreamDestroy(stream), "hipStreamDestroy");
    expect(back == host, "a copied byte", back[0], host[0]);
    check(hipFree(memory), "hipFree");
}

void work(unsigned thread, unsigned rounds) {
    for (unsigned round = 0; round < rounds; ++round) {
        const unsigned number = thread * rounds + round;
        const int device = static_cast<int>(number % 2);
        check(hipSetDevice(device), "hipSetDevice");
        choose_settings(number);
        launch_once(shared_functions[device], number);
        hipModule_t module;
        hipFunction_t function;
        check(hipModuleLoadData(&module, code_objects[device].data()), "hipModuleLoadData");
        check(hipModuleGetFunction(&function, module, "kernel"), "hipModuleGetFunction");
        launch_once(function, number + 1);
        check(hipModuleUnload(module), "hipModuleUnload");
        use_memory(number);
        if (round % 4 == 0) hipkittens_record_launches(round % 8 == 0 ? 2 : 0);
        std::string findings(hipkittens_findings(nullptr, 0) + 1024, '\0');
        hipkittens_findings(findings.data(), findings.size());
        if (round % 3 == 0) hipkittens_clear_findings();
        // A failure's text is the thread's own.
        hipFunction_t none;
        const hipError_t refused = hipModuleGetFunction(&none, nullptr, "kernel");
        expect(refused == hipErrorInvalidHandle, "a stale handle's error", refused, hipErrorInvalidHandle);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    for (int device = 0; device < 2; ++device) {
        std::ifstream stream(argv[1 + device], std::ios::binary);
        code_objects[device].assign(std::istreambuf_iterator<char>(stream), {});
        hipModule_t module;
        check(hipSetDevice(device), "hipSetDevice");
        check(hipModuleLoadData(&module, code_objects[device].data()), "hipModuleLoadData");
        check(hipModuleGetFunction(&shared_functions[device], module, "kernel"), "hipModuleGetFunction");
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < std::atoi(argv[3]); ++i)
        threads.emplace_back(work, static_cast<unsigned>(i), static_cast<unsigned>(std::atoi(argv[4])));
    for (std::thread& thread : threads) thread.join();
    std::printf("%d\n", launches.load());
    return 0;
}
