// simulator/execute/vector_memory.h: address forms of vector memory, and the handling of the addresses.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/memory_step.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

enum class AddressForm : uint8_t {
    vector,   // global: 64 bits per lane
    scalar,   // global: 64-bit SGPR base, 32 bits per lane
    flat,     // like vector, with the LDS and scratch apertures
    scratch,  // 32 bits per lane and/or an SGPR, from the lane's private segment
    buffer,   // descriptor
};

// Fills operation->address, lanes, valid (and partial) and checks every lane; false after reporting a fault.
using RecordAddresses = bool (*)(Wave* wave, const Step* step, PendingOperation* operation);

bool record_vector_addresses(Wave* wave, const Step* step, PendingOperation* operation);
bool record_scalar_addresses(Wave* wave, const Step* step, PendingOperation* operation);
bool record_flat_addresses(Wave* wave, const Step* step, PendingOperation* operation);
bool record_scratch_addresses(Wave* wave, const Step* step, PendingOperation* operation);
bool record_buffer_addresses(Wave* wave, const Step* step, PendingOperation* operation);

// Common final step of the forms: operation->address holds host addresses of the lanes in operation->valid.
// Checks that each access of step->extra[0] bytes (or valid_bytes, if partial) stays in one region of the
// launch.
bool check_regions(Wave* wave, const Step* step, PendingOperation* operation);

struct Load {
    Complete complete, in_lds;  // in_lds: direct to LDS, nullptr if there is no such form
    uint8_t bytes, dwords;
    uint32_t write_mask;  // bits of the register that are written
};
struct Store {
    Complete complete;
    uint8_t bytes, dwords;
};
const Load* load_of(isa::Opcode opcode);  // nullptr if it is not a load
const Store* store_of(isa::Opcode opcode);

// Store and atomic handlers by number of data dwords, starting with one.
struct Handlers {
    Handler load, load_to_lds, store[4], atomic[2];
};
const Handlers& handlers_of(AddressForm form);

// An SGPR, constant or absent operand as a row: 0 if absent.
uint32_t scalar_row_or_zero(const isa::Instruction& instruction, const isa::Operand& operand,
                            StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
