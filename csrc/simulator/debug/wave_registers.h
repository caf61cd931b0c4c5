// simulator/debug/wave_registers.h: registers and memory of a stopped launch, for external access.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator::debug {

// `count` vector registers from `first` on, in the unified file (AGPR 0 is register accum_offset): 64 dwords
// each, one per lane. Throws std::out_of_range for registers that the kernel does not have.
std::span<uint8_t> vector_registers(Wave& wave, uint32_t first, uint32_t count);

// An SGPR or special register by its operand code (isa/instruction.h), up to m0 and EXEC. Throws std::out_of_range.
uint32_t scalar_register(const Wave& wave, uint32_t code);
void set_scalar_register(Wave& wave, uint32_t code, uint32_t value);

// Both throw std::out_of_range for bytes that the launch may not touch.
std::span<uint8_t> lds_bytes(const Workgroup& workgroup, uint64_t offset, uint64_t bytes);
std::span<uint8_t> memory_bytes(const Dispatch& dispatch, uint64_t address, uint64_t bytes);

std::string hexadecimal(std::span<const uint8_t> bytes);  // two digits per byte, in memory order
// Throws std::invalid_argument unless the digits represent as many bytes as `bytes` has.
void set_bytes(std::span<uint8_t> bytes, const std::string& digits);

}  // namespace hipkittens::simulator::debug
