// simulator/execute/buffer.cpp: buffer addresses: descriptor, index, offsets and the range check.
// SPDX-License-Identifier: MIT
#include "simulator/memory/buffer_descriptor.h"

#include "simulator/execute/vector_memory.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

memory::BufferDescriptor read_descriptor(const Wave* wave, uint32_t row) {
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = read_scalar(wave, row + i * layout::scalar_row_bytes);
    return memory::decode_buffer_descriptor(word[0], word[1], word[2], word[3]);
}

// The lanes with `offset + constant <= limit`, as a 64-bit mask, and the addresses of all lanes.
HIPKITTENS_INLINE uint64_t add_offsets(const uint32_t* __restrict offset, uint64_t constant, uint64_t base,
                                       uint64_t limit, uint64_t* __restrict address) {
#if defined(__AVX512F__)
    i64x8 beyond = {};
    for (int i = 0; i < 8; ++i) {
        const u64x8 place =
            __builtin_convertvector(*reinterpret_cast<const u32x8*>(offset + 8 * i), u64x8) + constant;
        reinterpret_cast<u64x8*>(address)[i] = place + base;
        beyond |= (i64x8)(place > limit);
    }
    if (__builtin_expect(!is_any(beyond), 1)) return all_lanes;
#else
    // Offsets and limits have 33 bits: the sign of their difference decides.
    int64_t beyond = 0;
    for (int lane = 0; lane < 64; ++lane) {
        const uint64_t place = offset[lane] + constant;
        address[lane] = place + base;
        beyond |= static_cast<int64_t>(limit - place);
    }
    if (__builtin_expect(beyond >= 0, 1)) return all_lanes;
#endif
    uint64_t good = 0;
    for (int lane = 0; lane < 64; ++lane) {
        good |= static_cast<uint64_t>(offset[lane] + constant <= limit) << lane;
    }
    return good;
}

// Lanes that begin in range and end out of range.
void cut_partial_lanes(PendingOperation* operation, uint64_t begins, uint64_t base, uint64_t limit,
                       uint32_t bytes) {
    for (uint64_t left = begins; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint64_t room = limit - (operation->address[lane] - base);
        operation->valid_bytes[lane] = static_cast<uint8_t>(room < bytes ? room : bytes);
    }
}

}  // namespace

// The range check of gfx9: without an index, or with stride 0, `records` counts bytes and every dword is
// checked by its own offset, soffset included; with an index and a stride it counts elements and only the
// index is checked (CDNA3 ISA manual, "Range checking"; Mesa documents the two units for GFX9). Out-of-range
// loads return 0 and out-of-range stores are dropped.
bool record_buffer_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const memory::BufferDescriptor descriptor = read_descriptor(wave, step->source[2]);
    const uint32_t bytes = step->extra[0];
    const uint64_t scalar_offset = read_scalar(wave, step->extra[1]);
    const bool offen = step->stride[0], idxen = step->stride[1];
    if (descriptor.swizzle) {
        fault(wave, step, "swizzled buffers are not simulated (bit 63 of the descriptor)");
        return false;
    }
    const uint64_t exec = wave->exec;
    operation->lanes = exec;
    operation->partial = false;
    // With both, the index comes first.
    const uint32_t* first = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    const uint32_t* offset = idxen && offen ? first + 64 : first;
    const uint64_t base = descriptor.base + scalar_offset;
    const uint64_t immediate = static_cast<uint32_t>(step->immediate);
    const uint64_t limit = descriptor.records > scalar_offset ? descriptor.records - scalar_offset : 0;

    if (__builtin_expect(offen && !idxen && !descriptor.add_thread_id, 1)) {
        operation->valid =
            limit < bytes ? 0 : add_offsets(first, immediate, base, limit - bytes, operation->address) & exec;
        if (limit < bytes && limit > 0) add_offsets(first, immediate, base, 0, operation->address);
        if (__builtin_expect(operation->valid == exec, 1)) {
            fill_idle_lanes(operation->address, exec);
            return check_regions(wave, step, operation);
        }
    } else {
        operation->valid = 0;
        const bool by_index = idxen && descriptor.stride;
        for (uint64_t left = exec; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            const uint64_t index =
                (idxen ? first[lane] : 0) + (descriptor.add_thread_id ? uint64_t(lane) : 0);
            const uint64_t place = index * descriptor.stride + (offen ? offset[lane] : 0) + immediate;
            operation->address[lane] = base + place;
            const bool good = by_index ? index < descriptor.records : place + bytes <= limit;
            if (good) operation->valid |= uint64_t{1} << lane;
        }
        if (by_index) {
            fill_idle_lanes(operation->address, operation->valid);
            return check_regions(wave, step, operation);
        }
    }

    // Some lanes are out of range. Those that begin in range keep their in-range bytes.
    uint64_t begins = 0;
    if (limit) {
        for (uint64_t left = exec & ~operation->valid; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            if (operation->address[lane] - base < limit) begins |= uint64_t{1} << lane;
        }
    }
    // A byte or short is either fully in range or fully out of range.
    if (begins && bytes >= 4) {
        operation->valid |= begins;
        operation->partial = true;
        cut_partial_lanes(operation, operation->valid, base, limit, bytes);
    }
    fill_idle_lanes(operation->address, operation->valid);
    return check_regions(wave, step, operation);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
