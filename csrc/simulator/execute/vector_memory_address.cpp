// simulator/execute/vector_memory_address.cpp: global and scratch addresses, and their check.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_memory.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

HIPKITTENS_INLINE u64x8 widen(u32x8 value) { return __builtin_convertvector(value, u64x8); }
HIPKITTENS_INLINE const u32x8* eighths(Wave* wave, uint32_t row) {
    return reinterpret_cast<const u32x8*>(at(wave, row));
}

// Lowest and highest of 64 addresses.
HIPKITTENS_INLINE void span_of(const uint64_t* address, uint64_t* lowest, uint64_t* highest) {
    const u64x8* eighth = reinterpret_cast<const u64x8*>(address);
    u64x8 low = eighth[0], high = eighth[0];
    for (int i = 1; i < 8; ++i) {
        low = low < eighth[i] ? low : eighth[i];
        high = high > eighth[i] ? high : eighth[i];
    }
#if defined(__AVX512F__)
    *lowest = _mm512_reduce_min_epu64((__m512i)low);
    *highest = _mm512_reduce_max_epu64((__m512i)high);
#else
    uint64_t least = low[0], most = high[0];
    for (int i = 1; i < 8; ++i) {
        if (low[i] < least) least = low[i];
        if (high[i] > most) most = high[i];
    }
    *lowest = least;
    *highest = most;
#endif
}

HIPKITTENS_INLINE bool allows(const Region* region, uint64_t first, uint64_t end, bool store) {
    return region && region->begin <= first && end <= region->end && first <= end &&
           (!store || region->writable);
}

bool check_each_lane(Wave* wave, const Step* step, PendingOperation* operation) {
    const bool store = step->extra[2] & memory_flag::is_store;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint64_t address = operation->address[lane];
        const uint64_t bytes = operation->partial ? operation->valid_bytes[lane] : step->extra[0];
        const Region* region = find_region(wave, address, bytes);
        if (!region) {
            fault(
                wave, step,
                store ? "store outside the memory of this launch" : "load outside the memory of this launch",
                address, lane);
            return false;
        }
        if (store && !region->writable) {
            fault(wave, step, "store to read-only memory of this launch", address, lane);
            return false;
        }
    }
    return true;
}

}  // namespace

bool check_regions(Wave* wave, const Step* step, PendingOperation* operation) {
    if (!operation->valid) return true;
    if (!operation->partial) {
        uint64_t first, last;
        span_of(operation->address, &first, &last);
        const uint64_t end = last + step->extra[0];
        const bool store = step->extra[2] & memory_flag::is_store;
        if (__builtin_expect(allows(wave->last_region, first, end, store), 1)) return true;
        if (first <= end && allows(find_region(wave, first, end - first), first, end, store)) return true;
    }
    return check_each_lane(wave, step, operation);
}

bool record_vector_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const u32x8* low = eighths(wave, step->source[0]);
    const u32x8* high = eighths(wave, step->source[0] + layout::vector_row_bytes);
    const uint64_t offset = static_cast<uint64_t>(int64_t{step->immediate});
    for (int i = 0; i < 8; ++i) {
        reinterpret_cast<u64x8*>(operation->address)[i] = (widen(low[i]) | widen(high[i]) << 32) + offset;
    }
    operation->lanes = operation->valid = wave->exec;
    operation->partial = false;
    fill_idle_lanes(operation->address, wave->exec);
    return check_regions(wave, step, operation);
}

bool record_scalar_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const u32x8* offset = eighths(wave, step->source[0]);
    const uint64_t base =
        read_scalar64(wave, step->source[2]) + static_cast<uint64_t>(int64_t{step->immediate});
    for (int i = 0; i < 8; ++i) reinterpret_cast<u64x8*>(operation->address)[i] = widen(offset[i]) + base;
    operation->lanes = operation->valid = wave->exec;
    operation->partial = false;
    fill_idle_lanes(operation->address, wave->exec);
    return check_regions(wave, step, operation);
}

// source[0] is 0 without a VGPR, source[2] is 0 without an SGPR: no register has offset 0.
bool record_scratch_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const uint32_t* offset =
        step->source[0] ? reinterpret_cast<const uint32_t*>(at(wave, step->source[0])) : nullptr;
    const uint32_t common =
        (step->source[2] ? read_scalar(wave, step->source[2]) : 0) + static_cast<uint32_t>(step->immediate);
    const uint64_t bytes = step->extra[0];
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint32_t place = common + (offset ? offset[lane] : 0);
        if (place + bytes > wave->private_bytes) {
            fault(wave, step, "scratch access outside the lane's private segment", place, lane);
            return false;
        }
        operation->address[lane] =
            reinterpret_cast<uint64_t>(wave->scratch_memory) + uint64_t{lane} * wave->private_bytes + place;
    }
    operation->lanes = operation->valid = wave->exec;
    operation->partial = false;
    fill_idle_lanes(operation->address, wave->exec);
    return true;
}

uint32_t scalar_row_or_zero(const isa::Instruction& instruction, const isa::Operand& operand,
                            StepBuilder& builder) {
    if (operand.code == isa::code::none) return builder.constant(0);
    return builder.source(instruction, operand).offset;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
