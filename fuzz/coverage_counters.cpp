// fuzz/coverage_counters.cpp: GCC's coverage calls as the counters that libFuzzer reads.
// SPDX-License-Identifier: MIT
//
// GCC calls __sanitizer_cov_trace_pc in every basic block (-fsanitize-coverage=trace-pc) and knows nothing else;
// libFuzzer wants a byte that counts for every block, and a table with the blocks' addresses. A block gets its number
// when it is first seen, so no two share a counter. This file is compiled without instrumentation, and linked in front of
// libFuzzer, which has an empty function of the same name.
#include <link.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr uint32_t most_blocks = HIPKITTENS_MOST_BLOCKS;

struct Module {
    uintptr_t begin = 0, end = 0, load_address = 0;
    std::atomic<uint32_t>* numbers = nullptr;  // by address; 0: not seen yet
    char path[4096] = "";
};
struct BlockAddress {
    uintptr_t address, flags;
};

Module modules[4];
std::atomic<int> module_count{0};
uint8_t counters[most_blocks];
BlockAddress addresses[most_blocks];
std::atomic<uint32_t> next_number{1};

int add_module(dl_phdr_info* info, size_t, void*) {
    const bool is_program = info->dlpi_name[0] == 0;
    if (!is_program && !std::strstr(info->dlpi_name, "libhipkittens_simulator")) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
        Module& module = modules[module_count];
        module.load_address = info->dlpi_addr;
        module.begin = info->dlpi_addr + segment.p_vaddr;
        module.end = module.begin + segment.p_memsz;
        std::snprintf(module.path, sizeof module.path, "%s", is_program ? "/proc/self/exe" : info->dlpi_name);
        void* numbers = mmap(nullptr, segment.p_memsz * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (numbers == MAP_FAILED) std::abort();
        module.numbers = static_cast<std::atomic<uint32_t>*>(numbers);
        ++module_count;
    }
    return 0;
}

// One line a block: the file it is in, and its address there.
void write_blocks() {
    const char* path = std::getenv("HIPKITTENS_FUZZ_BLOCKS");
    std::FILE* file = path ? std::fopen(path, "w") : nullptr;
    if (!file) return;
    for (uint32_t number = 1; number < next_number && number < most_blocks; ++number) {
        for (int i = 0; i < module_count; ++i) {
            const Module& module = modules[i];
            if (addresses[number].address < module.begin || addresses[number].address >= module.end) continue;
            std::fprintf(file, "%d %lx\n", i, addresses[number].address - module.load_address);
        }
    }
    std::fclose(file);
}

}  // namespace

extern "C" {

void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);
void __sanitizer_cov_pcs_init(const uintptr_t* begin, const uintptr_t* end);

__attribute__((visibility("default"))) void __sanitizer_cov_trace_pc() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    for (int i = 0; i < module_count.load(std::memory_order_relaxed); ++i) {
        const Module& module = modules[i];
        if (address < module.begin || address >= module.end) continue;
        std::atomic<uint32_t>& place = module.numbers[address - module.begin];
        uint32_t number = place.load(std::memory_order_relaxed);
        if (number == 0) {
            number = next_number.fetch_add(1, std::memory_order_relaxed);
            if (number >= most_blocks) {
                std::fprintf(stderr, "more than %u basic blocks: raise HIPKITTENS_MOST_BLOCKS\n",
                             most_blocks);
                std::abort();
            }
            addresses[number] = {address, 0};
            place.store(number, std::memory_order_relaxed);
        }
        ++counters[number];
        return;
    }
}

// libFuzzer has the integers' of these; floating-point comparisons are the guest's arithmetic.
__attribute__((visibility("default"))) void __sanitizer_cov_trace_cmpf(float, float) {}
__attribute__((visibility("default"))) void __sanitizer_cov_trace_cmpd(double, double) {}

__attribute__((constructor)) static void begin_counting() {
    dl_iterate_phdr(add_module, nullptr);
    __sanitizer_cov_8bit_counters_init(counters, counters + most_blocks);
    __sanitizer_cov_pcs_init(reinterpret_cast<const uintptr_t*>(addresses),
                             reinterpret_cast<const uintptr_t*>(addresses + most_blocks));
    std::atexit(write_blocks);
}
}
