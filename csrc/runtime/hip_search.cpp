// runtime/hip_search.cpp: searches for shared libraries.
// SPDX-License-Identifier: MIT
#include "runtime/hip_search.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "runtime/error.h"

namespace hipkittens::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* library_name = "libamdhip64.so";

// The directory of the name this library was opened with, where a file cache may have linked the simulator's
// library too, and the directory of the file itself.
std::vector<fs::path> own_directories() {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<void*>(&simulator_path), &info) || !info.dli_fname) return {};
    std::vector<fs::path> found;
    std::error_code error;
    for (const fs::path& path : {fs::absolute(info.dli_fname, error), fs::canonical(info.dli_fname, error)})
        if (!path.empty()) found.push_back(path.parent_path());
    return found;
}

// A ROCm folder holds libamdhip64.so, .so.7, .so.7.1.0, all the same file: the shortest name comes first.
void add_files(const fs::path& directory, std::vector<std::string>& found) {
    std::error_code error;
    std::vector<std::string> here;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
        if (entry.path().filename().string().starts_with(library_name)) here.push_back(entry.path());
    }
    std::sort(here.begin(), here.end(), [](const std::string& a, const std::string& b) {
        return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    for (std::string& file : here) {
        const auto same = [&](const std::string& other) {
            std::error_code ignored;
            return fs::equivalent(file, other, ignored);
        };
        if (std::none_of(found.begin(), found.end(), same)) found.push_back(std::move(file));
    }
}

void add_environment(const char* variable, std::vector<fs::path>& directories) {
    const char* value = std::getenv(variable);
    if (value && *value) directories.push_back(fs::path(value) / "lib");
}

// Each entry of a list such as LD_LIBRARY_PATH.
void add_list(const char* variable, std::vector<fs::path>& directories) {
    const char* value = std::getenv(variable);
    if (!value) return;
    const std::string list = value;
    for (size_t begin = 0; begin <= list.size();) {
        const size_t end = std::min(list.find(':', begin), list.size());
        if (end > begin) directories.emplace_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
}

}  // namespace

std::vector<std::string> mapped_libraries(const std::string& prefix) {
    struct Search {
        const std::string& prefix;
        std::vector<std::string> found;
    } search{prefix, {}};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            auto& search = *static_cast<Search*>(data);
            const std::string path = info->dlpi_name ? info->dlpi_name : "";
            if (path.substr(path.rfind('/') + 1).starts_with(search.prefix)) search.found.push_back(path);
            return 0;
        },
        &search);
    return search.found;
}

std::string simulator_path() {
    for (const fs::path& directory : own_directories()) {
        for (const fs::path& candidate :
             {directory / "libhipkittens_simulator.so", directory / "lib" / "libhipkittens_simulator.so"}) {
            std::error_code error;
            if (fs::is_regular_file(candidate, error)) return candidate;
        }
    }
    return {};
}

std::string override_path() {
    const char* value = std::getenv("HIPKITTENS_LIBHIP_PATH");
    if (!value || !*value) return {};
    const std::string path = value;
    if (path[0] != '/') {
        throw Error("HIPKITTENS_LIBHIP_PATH is " + path +
                    ", which is not an absolute path; name the file libamdhip64.so");
    }
    struct stat status{};
    if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
        throw Error("HIPKITTENS_LIBHIP_PATH is " + path +
                    ", which is no file; name the file libamdhip64.so or unset it");
    }
    if (status.st_mode & S_IWOTH) {
        throw Error("HIPKITTENS_LIBHIP_PATH is " + path +
                    ", which every user may write; use a file that is safe to load");
    }
    return path;
}

std::vector<std::string> hip_files() {
    std::vector<fs::path> directories;
    // torch/lib, then ROCm's Python packages next to torch, then next to this library.
    std::vector<fs::path> packages;
    for (const std::string& torch : mapped_libraries("libtorch")) {
        const fs::path library = fs::path(torch).parent_path();
        directories.push_back(library);
        packages.push_back(library.parent_path().parent_path());
    }
    for (const fs::path& own : own_directories()) {
        packages.push_back(own.parent_path());                // site-packages/hipkittens/_ops.so
        packages.push_back(own.parent_path().parent_path());  // site-packages/hipkittens/lib/_ops.so
    }
    for (const fs::path& package : packages) directories.push_back(package / "_rocm_sdk_core" / "lib");
    add_environment("HIP_PATH", directories);
    add_environment("ROCM_PATH", directories);
    add_list("LD_LIBRARY_PATH", directories);
    std::vector<std::string> found;
    for (const fs::path& directory : directories) add_files(directory, found);
    return found;
}

}  // namespace hipkittens::runtime
