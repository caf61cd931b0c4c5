// simulator/execute/vector_memory_address.cpp: global and scratch addresses, and their check.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_memory.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

HIPKITTENS_INLINE const uint32_t* lanes_of(Wave* wave, uint32_t row) {
    return reinterpret_cast<const uint32_t*>(at(wave, row));
}

// A row widened to 64 bits, plus base; with the next row as upper halves if `pairs`.
template <bool pairs>
HIPKITTENS_INLINE void add_base(const uint32_t* __restrict row, uint64_t base, uint64_t* __restrict address) {
#if defined(__AVX512F__)
    for (int i = 0; i < 8; ++i) {
        u64x8 value = __builtin_convertvector(reinterpret_cast<const u32x8*>(row)[i], u64x8);
        if (pairs) value |= __builtin_convertvector(reinterpret_cast<const u32x8*>(row + 64)[i], u64x8) << 32;
        reinterpret_cast<u64x8*>(address)[i] = value + base;
    }
#else
    for (int lane = 0; lane < 64; ++lane) {
        address[lane] = (pairs ? row[lane] | uint64_t{row[64 + lane]} << 32 : row[lane]) + base;
    }
#endif
}

// Lowest and highest of 64 addresses, as signed numbers: host addresses are positive, and a negative one
// makes a span that no region contains.
HIPKITTENS_INLINE void span_of(const uint64_t* address, uint64_t* lowest, uint64_t* highest) {
#if defined(__AVX512F__)
    __m512i low = _mm512_load_si512(address), high = low;
    for (int i = 1; i < 8; ++i) {
        const __m512i next = _mm512_load_si512(address + 8 * i);
        low = _mm512_min_epi64(low, next);
        high = _mm512_max_epi64(high, next);
    }
    *lowest = static_cast<uint64_t>(_mm512_reduce_min_epi64(low));
    *highest = static_cast<uint64_t>(_mm512_reduce_max_epi64(high));
#else
    int64_t least = static_cast<int64_t>(address[0]), most = least;
    for (int lane = 1; lane < 64; ++lane) {
        const int64_t next = static_cast<int64_t>(address[lane]);
        least = next < least ? next : least;
        most = next > most ? next : most;
    }
    *lowest = static_cast<uint64_t>(least);
    *highest = static_cast<uint64_t>(most);
#endif
}

HIPKITTENS_INLINE bool allows(const Region* region, uint64_t first, uint64_t end, bool store) {
    return region && region->begin <= first && end <= region->end && first <= end &&
           (!store || region->writable);
}

// Lanes of a load that reach past the memory of the launch keep the bytes that are inside.
void cut_overreads(Wave* wave, uint64_t lanes, uint32_t bytes, PendingOperation* operation) {
    if (!operation->partial) {
        for (uint64_t left = operation->valid; left; left &= left - 1)
            operation->valid_bytes[__builtin_ctzll(left)] = static_cast<uint8_t>(bytes);
    }
    for (uint64_t left = lanes; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const Region* region = bytes < 4 ? nullptr : find_region(wave, operation->address[lane], 1);
        if (region) {
            operation->valid_bytes[lane] = static_cast<uint8_t>(region->end - operation->address[lane]);
            operation->partial = true;
        } else {
            operation->valid &= ~(uint64_t{1} << lane);
        }
    }
    fill_idle_lanes(operation->address, operation->valid);
}

bool check_each_lane(Wave* wave, const Step* step, PendingOperation* operation) {
    const bool store = step->extra[2] & memory_flag::is_store;
    uint64_t beyond = 0;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        const uint64_t address = operation->address[lane];
        const uint64_t bytes = operation->partial ? operation->valid_bytes[lane] : step->extra[0];
        const Region* region = find_region(wave, address, bytes);
        if (!region) {
            if (!store && tolerates_overread(wave, step, address, uint64_t{1} << lane)) {
                beyond |= uint64_t{1} << lane;
                continue;
            }
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
    if (beyond) cut_overreads(wave, beyond, step->extra[0], operation);
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
    add_base<true>(lanes_of(wave, step->source[0]), static_cast<uint64_t>(int64_t{step->immediate}),
                   operation->address);
    operation->lanes = operation->valid = wave->exec;
    operation->partial = false;
    fill_idle_lanes(operation->address, wave->exec);
    return check_regions(wave, step, operation);
}

bool record_scalar_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const uint64_t base =
        read_scalar64(wave, step->source[2]) + static_cast<uint64_t>(int64_t{step->immediate});
    add_base<false>(lanes_of(wave, step->source[0]), base, operation->address);
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
