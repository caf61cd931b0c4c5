// fuzz/replay.cpp: runs the inputs that are named, or are in the folders that are named, through a fuzz target.
// SPDX-License-Identifier: MIT
//
// In the place of libFuzzer, so that the corpus can be run with any compiler. Prints how many inputs ran; a crash has the
// name of its input on the last line of stderr.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static bool run(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) {
        std::fprintf(stderr, "%s cannot be read\n", path.c_str());
        return false;
    }
    const std::vector<uint8_t> input{std::istreambuf_iterator<char>(stream), {}};
    std::fprintf(stderr, "%s\n", path.c_str());
    LLVMFuzzerTestOneInput(input.data(), input.size());
    return true;
}

int main(int argc, char** argv) {
    size_t count = 0;
    for (int i = 1; i < argc; ++i) {
        if (std::filesystem::is_directory(argv[i])) {
            for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
                if (entry.is_regular_file() && !run(entry.path())) return 2;
                count += entry.is_regular_file();
            }
        } else {
            if (!run(argv[i])) return 2;
            ++count;
        }
    }
    std::printf("%zu\n", count);
    return 0;
}
