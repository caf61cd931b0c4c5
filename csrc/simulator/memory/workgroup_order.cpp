// simulator/memory/workgroup_order.cpp: the order in which memory sees the accesses of one workgroup.
// SPDX-License-Identifier: MIT
#include "simulator/memory/workgroup_order.h"

#include <algorithm>
#include <cstring>

#include "simulator/checks/shadow.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

namespace {

constexpr int lanes_per_wave = 64;

struct Span {
    uint64_t begin = UINT64_MAX, end = 0;
};

uint32_t bytes_of(const PendingOperation* operation, int lane) {
    return operation->partial ? operation->valid_bytes[lane] : operation->bytes;
}

Span span_of(const PendingOperation* operation) {
    Span span;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        span.begin = std::min(span.begin, operation->address[lane]);
        span.end = std::max(span.end, operation->address[lane] + bytes_of(operation, lane));
    }
    return span;
}

bool overlap(const PendingOperation* one, const PendingOperation* other) {
    const Span a = span_of(one), b = span_of(other);
    if (a.end <= b.begin || b.end <= a.begin) return false;
    for (uint64_t left = one->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint64_t begin = one->address[lane], end = begin + bytes_of(one, lane);
        if (end <= b.begin || b.end <= begin) continue;
        for (uint64_t others = other->valid; others; others &= others - 1) {
            const int theirs = __builtin_ctzll(others);
            const uint64_t address = other->address[theirs];
            if (address < end && begin < address + bytes_of(other, theirs)) return true;
        }
    }
    return false;
}

// A load saves the current contents of memory, in the space that a store uses for its data.
void sample(Wave* wave, PendingOperation* operation) {
    if (wave->shadow) checks::memory_accessed(wave, operation);
    operation->is_early = true;
    if (!operation->valid) return;
    uint8_t* kept = reinterpret_cast<uint8_t*>(operation->data);
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        std::memcpy(kept + lane * operation->bytes,
                    reinterpret_cast<const uint8_t*>(operation->address[lane]), bytes_of(operation, lane));
    }
    if (wave->shadow) checks::memory_returned(wave, operation);
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        operation->address[lane] = reinterpret_cast<uint64_t>(kept + lane * operation->bytes);
    }
    const uint64_t good = operation->address[__builtin_ctzll(operation->valid)];
    for (int lane = 0; lane < lanes_per_wave; ++lane) {
        if (!(operation->valid >> lane & 1)) operation->address[lane] = good;
    }
}

// A store or an atomic writes memory; the value an atomic returns is staged until the registers are written.
void write(Wave* wave, PendingOperation* operation) {
    if (wave->shadow) checks::memory_accessed(wave, operation);
    operation->is_early = true;
    operation->rows = reinterpret_cast<uint8_t*>(operation->result);
    (wave->shadow ? operation->checked_complete : operation->complete)(wave, operation);
    if (wave->shadow) checks::memory_returned(wave, operation);
}

// Applies the effects on memory of the operations of `wave` up to number `last` of its ring, in their order.
void take_effect(Wave* wave, uint32_t last) {
    PendingOperations* pending = wave->pending;
    for (uint32_t i = pending->vm_head; i != last + 1; ++i) {
        PendingOperation* operation = pending->vm[i % 64];
        if (operation->is_early || (operation->is_flat && operation->performed)) continue;
        order_before_completion(wave, operation);
        if (operation->is_flat) {
            operation->performed = true;
            operation->complete(wave, operation);
        } else if (operation->writes) {
            write(wave, operation);
        } else {
            sample(wave, operation);
        }
    }
}

}  // namespace

void order_before_completion(Wave* wave, PendingOperation* operation) {
    for (Wave* other : wave->workgroup->waves) {
        PendingOperations* pending = other->pending;
        if (other == wave || (!operation->writes && !pending->vm_writes)) continue;
        // The youngest overlapping operation on the older side of a barrier takes all earlier ones with it.
        uint32_t past = pending->vm_head;
        for (uint32_t i = pending->vm_head; i != pending->vm_tail; ++i) {
            const PendingOperation* older = pending->vm[i % 64];
            if (static_cast<int32_t>(older->barriers - operation->barriers) >= 0) break;
            if (older->is_early || (older->is_flat && older->performed)) continue;
            if ((operation->writes || older->writes) && overlap(operation, older)) past = i + 1;
        }
        if (past != pending->vm_head) take_effect(other, past - 1);
    }
}

void order_before_write_back(Wave* wave) {
    for (Wave* other : wave->workgroup->waves) {
        if (other == wave || !other->pending->vm_writes) continue;
        PendingOperations* pending = other->pending;
        uint32_t past = pending->vm_head;
        for (uint32_t i = pending->vm_head; i != pending->vm_tail; ++i) {
            const PendingOperation* older = pending->vm[i % 64];
            if (static_cast<int32_t>(older->barriers - wave->barriers) >= 0) break;
            if (older->writes) past = i + 1;
        }
        if (past != pending->vm_head) take_effect(other, past - 1);
    }
}

void finish_early(Wave* wave, PendingOperation* operation) {
    if (!operation->writes) {
        operation->complete(wave, operation);
        return;
    }
    for (uint32_t row = 0; row < operation->dwords; ++row) {
        uint32_t* target =
            reinterpret_cast<uint32_t*>(at(wave, operation->destination + row * layout::vector_row_bytes));
        for (uint64_t left = operation->lanes; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            target[lane] = operation->result[row * lanes_per_wave + static_cast<uint32_t>(lane)];
        }
    }
    if (wave->shadow) checks::registers_changed(wave, operation);
}

}  // namespace hipkittens::simulator
