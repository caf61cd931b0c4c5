// simulator/execute/vector_memory_issue.cpp: issue of vector memory instructions.
// SPDX-License-Identifier: MIT
#include "simulator/execute/atomics.h"
#include "simulator/execute/vector_memory.h"
#include "simulator/machine/recording.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

template <AddressForm form>
HIPKITTENS_INLINE bool record_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    if constexpr (form == AddressForm::vector) return record_vector_addresses(wave, step, operation);
    if constexpr (form == AddressForm::scalar) return record_scalar_addresses(wave, step, operation);
    if constexpr (form == AddressForm::flat) return record_flat_addresses(wave, step, operation);
    if constexpr (form == AddressForm::scratch) return record_scratch_addresses(wave, step, operation);
    if constexpr (form == AddressForm::buffer) return record_buffer_addresses(wave, step, operation);
}

// Scratch is private to each lane: no ordering with other waves is needed.
template <AddressForm form>
HIPKITTENS_INLINE void queue(Wave* wave, PendingOperation* operation, bool writes) {
    if constexpr (form == AddressForm::flat) {
        queue_flat(wave, operation, writes);
    } else {
        queue_vector_memory(wave, operation, writes && form != AddressForm::scratch);
    }
}

template <AddressForm form, bool store>
HIPKITTENS_INLINE void count_bytes(Wave* wave, const Step* step, const PendingOperation* operation) {
    Counters& counters = wave->workgroup->counters;
    (store ? counters.global_bytes_stored : counters.global_bytes_loaded) +=
        static_cast<uint64_t>(__builtin_popcountll(operation->valid)) * step->extra[0];
    if (form != AddressForm::scratch && __builtin_expect(wave->workgroup->dispatch->recording != nullptr, 0))
        record_access(wave, step, operation, store);
}

// The data is needed when the load completes; the host can fetch it meanwhile. Neighboring lanes mostly share
// cache lines.
HIPKITTENS_INLINE void prefetch(const PendingOperation* operation, uint32_t bytes) {
    constexpr uint32_t line_bytes = 64;
    if (bytes < 8 || !operation->valid) return;
    for (uint32_t lane = 0; lane < 64; lane += line_bytes / 16) {
        __builtin_prefetch(reinterpret_cast<const void*>(operation->address[lane]));
    }
}

template <AddressForm form>
const Step* issue_load(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    begin_results(wave, step, operation);
    if constexpr (form == AddressForm::flat) {
        operation->rows = reinterpret_cast<uint8_t*>(operation->data);
        operation->write_mask = step->extra[1];
    }
    count_bytes<form, false>(wave, step, operation);
    prefetch(operation, step->extra[0]);
    poison_results(wave, step);
    queue<form>(wave, operation, false);
    return step + 1;
}

// LDS address = the workgroup's base + M0[17:0] + instruction offset + lane * size; masked lanes keep their
// bytes (CDNA3 ISA manual, "Memory buffer load to LDS"; the offset applies to both addresses).
template <AddressForm form>
const Step* issue_load_to_lds(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    const uint32_t size = step->dwords * 4;
    const uint32_t start = (read_scalar(wave, layout::m0) & 0x3ffff) + static_cast<uint32_t>(step->immediate);
    const uint32_t top = operation->lanes ? 63 - static_cast<uint32_t>(__builtin_clzll(operation->lanes)) : 0;
    if (__builtin_expect(operation->lanes && uint64_t{start} + (top + 1) * size > wave->lds_bytes, 0)) {
        return fault(wave, step, "direct-to-LDS load outside the workgroup's LDS allocation",
                     start + top * size, top);
    }
    operation->complete = completion_of(step);
    operation->bytes = static_cast<uint8_t>(step->extra[0]);
    operation->lds_offset = start;
    count_bytes<form, false>(wave, step, operation);
    prefetch(operation, size);
    if (__builtin_expect(step->extra[2] & memory_flag::poison, 0)) {
        const auto poison = [&](uint32_t first_lane, uint32_t lanes) {
            uint8_t* target = wave->lds + start + first_lane * size;
            for (uint32_t byte = 0; byte < lanes * size; byte += 4)
                store_unaligned<uint32_t>(target + byte, poison_pattern);
        };
        if (operation->lanes == all_lanes) {
            poison(0, 64);
        } else {
            for (uint64_t left = operation->lanes; left; left &= left - 1)
                poison(static_cast<uint32_t>(__builtin_ctzll(left)), 1);
        }
    }
    queue_vector_memory(wave, operation);
    operation->to_lds = true;
    return step + 1;
}

template <AddressForm form, int dwords>
const Step* issue_store(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    if (__builtin_expect(operation->partial, 0)) {
        for (uint64_t left = operation->valid; left; left &= left - 1) {
            const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
            if (operation->valid_bytes[lane] % 4 == 0) continue;
            return fault(wave, step, "buffer store across the end of its range within a dword",
                         operation->address[lane], lane);
        }
    }
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    operation->complete = completion_of(step);
    operation->dwords = 0;
    operation->bytes = static_cast<uint8_t>(step->extra[0]);
    count_bytes<form, true>(wave, step, operation);
    queue<form>(wave, operation, true);
    return step + 1;
}

template <AddressForm form, int dwords>
const Step* issue_atomic(Wave* wave, const Step* step) {
    PendingOperation* operation = peek_operation(wave);
    if (__builtin_expect(!record_addresses<form>(wave, step, operation), 0)) return nullptr;
    // An atomic is either fully in range or not performed.
    if (operation->partial) {
        for (uint64_t left = operation->valid; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            if (operation->valid_bytes[lane] < 4 * dwords) operation->valid &= ~(uint64_t{1} << lane);
        }
        operation->partial = false;
    }
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(left));
        if (operation->address[lane] % (4 * dwords) == 0) continue;
        return fault(wave, step, "an atomic needs an address aligned to its size", operation->address[lane],
                     lane);
    }
    count_bytes<form, false>(wave, step, operation);
    count_bytes<form, true>(wave, step, operation);
    capture_rows<dwords>(at(wave, step->source[1]), operation->data);
    if (step->stride[2]) {
        capture_rows<dwords>(at(wave, step->source[1] + dwords * layout::vector_row_bytes),
                             operation->data + second_operand);
    }
    begin_results(wave, step, operation);
    if constexpr (form == AddressForm::flat) {
        operation->rows = reinterpret_cast<uint8_t*>(operation->result);
        operation->write_mask = 0xffffffff;
    }
    poison_results(wave, step);
    queue<form>(wave, operation, true);
    return step + 1;
}

template <AddressForm form>
constexpr Handlers handlers_of_form = {
    issue_load<form>,
    issue_load_to_lds<form>,
    {issue_store<form, 1>, issue_store<form, 2>, issue_store<form, 3>, issue_store<form, 4>},
    {issue_atomic<form, 1>, issue_atomic<form, 2>}};

}  // namespace

const Handlers& handlers_of(AddressForm form) {
    switch (form) {
        case AddressForm::vector:
            return handlers_of_form<AddressForm::vector>;
        case AddressForm::scalar:
            return handlers_of_form<AddressForm::scalar>;
        case AddressForm::flat:
            return handlers_of_form<AddressForm::flat>;
        case AddressForm::scratch:
            return handlers_of_form<AddressForm::scratch>;
        default:
            return handlers_of_form<AddressForm::buffer>;
    }
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
