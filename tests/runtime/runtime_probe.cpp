// tests/runtime/runtime_probe.cpp: a program that uses runtime/ as the torch operators do, told what to do by
// its arguments.
// SPDX-License-Identifier: MIT
//
//   status                         hipkittens_runtime_hip_status
//   map LIBRARY                    opens LIBRARY, then status
//   device ORDINAL                 hip_device
//   add TARGET KERNEL FILE         add_code_object
//   launch WHERE FILE KERNEL MODE  WHERE is hip:ORDINAL, gfx942 or gfx950; FILE - refuses, FILE + says yes
//   without adding
//        MODE once     one launch, grid 3 x 2 x 1, block 64 x 2 x 1, 256 bytes of LDS, stream 0x77,
//        arguments 1..16
//             threads  eight threads each double the same input twice with `scale(float* out, const float*
//             in, int n)` short    the output region is too small by a float; then a good launch
// Prints the result or "error: ...".
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/hip_status.h"
#include "runtime/kernel_library.h"
#include "runtime/launch.h"

using namespace hipkittens::runtime;

static std::string file_name;

static std::vector<uint8_t> read(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

static int source(const char* target, const char* kernel) {
    std::printf("source asked for %s %s\n", target, kernel);
    if (file_name == "-") {
        hipkittens_runtime_refuse("this test has no pack");
        return 1;
    }
    if (file_name == "+") return 0;
    const auto bytes = read(file_name);
    return hipkittens_runtime_add_code_object(target, kernel, bytes.data(), bytes.size());
}

struct ScaleArguments {
    float* out;
    const float* in;
    int n;
};

static void scale(const Device& device, const std::string& kernel, int output_floats) {
    const int n = 1000;
    std::vector<float> in(n), out(n, NAN);
    for (int i = 0; i < n; ++i) in[i] = static_cast<float>(i);
    const ScaleArguments arguments{out.data(), in.data(), n};
    LaunchShape shape;
    shape.grid[0] = 4;
    shape.block[0] = 256;
    const Region regions[] = {{out.data(), output_floats * sizeof(float), "out", true},
                              {in.data(), n * sizeof(float), "in", false}};
    launch(device, kernel, shape, nullptr, &arguments, sizeof arguments, regions);
    for (int i = 0; i < n; ++i) {
        if (out[i] != 2.0f * in[i])
            throw Error("element " + std::to_string(i) + " is " + std::to_string(out[i]));
    }
}

static void run(const std::string& where, const std::string& kernel, const std::string& mode) {
    hipkittens_runtime_set_code_object_source(source);
    const Device& device =
        where.starts_with("hip:") ? hip_device(std::atoi(where.c_str() + 4)) : simulated_device(where);
    if (mode == "once") {
        uint8_t arguments[16];
        for (int i = 0; i < 16; ++i) arguments[i] = static_cast<uint8_t>(i + 1);
        const LaunchShape shape{{3, 2, 1}, {64, 2, 1}, 256};
        launch(device, kernel, shape, reinterpret_cast<void*>(0x77), arguments, sizeof arguments, {});
        launch(device, kernel, shape, reinterpret_cast<void*>(0x77), arguments, sizeof arguments, {});
        std::printf("launched\n");
    } else if (mode == "threads") {
        std::vector<std::string> errors(8);
        std::vector<std::thread> threads;
        for (std::string& error : errors) {
            threads.emplace_back([&] {
                try {
                    scale(device, kernel, 1000);
                    scale(device, kernel, 1000);
                } catch (const std::exception& caught) {
                    error = caught.what();
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        for (const std::string& error : errors) std::printf("%s\n", error.empty() ? "right" : error.c_str());
    } else if (mode == "short") {
        try {
            scale(device, kernel, 999);
            std::printf("not noticed\n");
        } catch (const Error& error) {
            std::printf("error: %s\n", error.what());
        }
        scale(device, kernel, 1000);
        std::printf("right\n");
    }
}

int main(int count, char** words) {
    const std::string command = count > 1 ? words[1] : "";
    try {
        if (command == "status" && count == 2) {
            std::printf("%s\n", hipkittens_runtime_hip_status());
        } else if (command == "map" && count == 3) {
            if (!dlopen(words[2], RTLD_NOW | RTLD_LOCAL)) throw Error(dlerror());
            std::printf("%s\n", hipkittens_runtime_hip_status());
        } else if (command == "device" && count == 3) {
            const Device& device = hip_device(std::atoi(words[2]));
            std::printf("%s | %s | %d CUs | %d XCDs | %d bytes of LDS | %s\n", device.arch.c_str(),
                        device.name.c_str(), device.processors.compute_units, device.processors.xcds,
                        device.lds_bytes, device.library->is_simulator() ? "simulator" : "hip");
        } else if (command == "add" && count == 5) {
            add_code_object(words[2], words[3], read(words[4]));
            add_code_object(words[2], words[3], read(words[4]));
            std::printf("added\n");
        } else if (command == "launch" && count == 6) {
            file_name = words[3];
            run(words[2], words[4], words[5]);
        } else {
            return 2;
        }
    } catch (const Error& error) {
        std::printf("error: %s\n", error.what());
        return 1;
    }
    return 0;
}
