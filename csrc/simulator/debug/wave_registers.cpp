// simulator/debug/wave_registers.cpp: registers and memory of a stopped launch, for external access.
// SPDX-License-Identifier: MIT
#include "simulator/debug/wave_registers.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <vector>

#include "simulator/machine/program.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::debug {

namespace {

void check_scalar(uint32_t code) {
    if (code <= isa::code::exec_hi) return;
    throw std::out_of_range("scalar register " + std::to_string(code) + "; allowed: 0 to " +
                            std::to_string(isa::code::exec_hi));
}

}  // namespace

std::span<uint8_t> vector_registers(Wave& wave, uint32_t first, uint32_t count) {
    const uint32_t all = wave.workgroup->dispatch->program->vgprs;
    if (first > all || count > all - first) {
        throw std::out_of_range("vector registers " + std::to_string(first) + " to " +
                                std::to_string(uint64_t{first} + count - 1) + "; the kernel has " +
                                std::to_string(all));
    }
    return {at(&wave, layout::vectors + first * layout::vector_row_bytes),
            size_t{count} * layout::vector_row_bytes};
}

uint32_t scalar_register(const Wave& wave, uint32_t code) {
    check_scalar(code);
    return read_scalar(&wave, layout::scalar(code));
}

void set_scalar_register(Wave& wave, uint32_t code, uint32_t value) {
    check_scalar(code);
    write_scalar(&wave, layout::scalar(code), value);
    write_exec(&wave, read_scalar64(&wave, layout::exec));
}

std::span<uint8_t> lds_bytes(const Workgroup& workgroup, uint64_t offset, uint64_t bytes) {
    const uint64_t all = workgroup.dispatch->lds_bytes;
    if (offset > all || bytes > all - offset) {
        throw std::out_of_range(std::to_string(bytes) + " bytes of LDS at " + std::to_string(offset) +
                                "; the workgroup has " + std::to_string(all));
    }
    return {workgroup.lds + offset, bytes};
}

std::span<uint8_t> memory_bytes(const Dispatch& dispatch, uint64_t address, uint64_t bytes) {
    for (const Region& region : dispatch.regions) {
        if (address >= region.begin && address <= region.end && bytes <= region.end - address)
            return {reinterpret_cast<uint8_t*>(address), bytes};
    }
    throw std::out_of_range(std::to_string(bytes) + " bytes at that address are in no memory of the launch");
}

std::string hexadecimal(std::span<const uint8_t> bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const uint8_t byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

void set_bytes(std::span<uint8_t> bytes, const std::string& digits) {
    std::vector<uint8_t> values(bytes.size());
    bool is_right = digits.size() == 2 * bytes.size();
    for (size_t i = 0; i < values.size() && is_right; ++i) {
        const char* two = digits.data() + 2 * i;
        is_right = std::from_chars(two, two + 2, values[i], 16).ptr == two + 2;
    }
    if (!is_right) {
        throw std::invalid_argument("a value of other than " + std::to_string(2 * bytes.size()) +
                                    " hexadecimal digits");
    }
    std::copy(values.begin(), values.end(), bytes.begin());
}

}  // namespace hipkittens::simulator::debug
