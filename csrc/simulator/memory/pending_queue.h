// simulator/memory/pending_queue.h: one operation in flight, and the queues of a wave.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "simulator/memory/pending.h"

namespace hipkittens::simulator {

// The data an operation needs when it completes. Only the parts an instruction uses are touched, so that a
// load costs the header and its addresses. Lanes that are not in `valid` carry the address of one that is
// (gathers stay unmasked).
struct alignas(64) PendingOperation {
    using Complete = void (*)(Wave*, PendingOperation*);

    Complete complete;
    PendingOperation* next;  // in the free list
    uint64_t lanes;          // EXEC at issue: the lanes that get a result
    uint64_t valid;          // of these, the lanes that touch memory; the others read 0 and store nothing
    uint8_t* rows;         // where results go: the destination registers, or staging rows of a flat operation
    uint32_t destination;  // byte offset of the first destination register in the wave block
    uint32_t lds_offset;   // direct to LDS: where lane 0 writes. read2/write2: distance of the second access
    uint32_t sequence;     // issue order across all queues
    uint32_t write_mask;   // flat: bits of the destination that are written (d16)
    uint8_t dwords;        // destination rows
    uint8_t bytes;         // memory bytes per lane
    uint8_t weight;        // its contribution to lgkmcnt
    bool partial;          // valid_bytes[] gives the in-range bytes of each lane
    bool to_lds;           // a direct-to-LDS load
    bool is_flat, performed, vm_passed, lgkm_passed;
    bool writes;        // memory: a store or an atomic
    bool is_early;      // its effect on memory came before its completion (workgroup_order.h)
    uint32_t barriers;  // the number its wave had passed when it was issued

    union alignas(64) {
        uint64_t address[64];      // host addresses
        uint32_t lds_address[64];  // byte offsets in LDS
    };
    alignas(
        64) uint32_t data[256];  // a store's or an atomic's operands lane by lane; results computed at issue
    alignas(64) uint32_t result[128];  // staging for a returning flat atomic
    uint8_t valid_bytes[64];

    // Under checks `complete` is the checkers' function, which then calls the operation's own.
    Complete checked_complete;
    const void* checked;  // null without checks
    uint32_t issue_epoch, issue_clock;
};

struct PendingOperations {
    static constexpr uint32_t vm_limit = 63, lgkm_limit = 15;

    PendingOperation* free = nullptr;
    void* chunks = nullptr;
    uint32_t sequence = 0;
    uint32_t vm_head = 0, vm_tail = 0;  // ring of vector memory and flat operations in issue order
    uint32_t vm_flats = 0;              // how many of them are flat
    uint32_t vm_writes = 0;             // and how many write memory
    uint32_t lds_head = 0, lds_tail = 0;
    uint32_t scalar_count = 0, scalar_weight = 0;
    uint32_t half_done_count = 0;  // flat operations that left the ring and wait for the other counter
    uint32_t half_done_vm = 0;     // of these, those that vmcnt still counts
    uint32_t flats_in_lgkm = 0;    // flat operations that lgkmcnt still counts
    uint64_t clock = 0;            // s_memtime
    uint32_t steps_since_mark = 0;
    uint32_t vm_marks[8] = {};  // vm_tail every 16 steps, oldest first
    PendingOperation* vm[64];
    PendingOperation* lds[16];
    PendingOperation* scalar[16];
    PendingOperation* half_done[80];

    uint32_t vm_count() const { return vm_tail - vm_head + half_done_vm; }
    uint32_t lgkm_count() const { return lds_tail - lds_head + scalar_weight + flats_in_lgkm; }
};

// Slow paths, pending.cpp.
void refill_free_operations(PendingOperations* pending);
void make_room_in_vm(Wave* wave);
void make_room_in_lgkm(Wave* wave, uint32_t weight);

// The next free operation, still in the free list: a handler that faults has nothing to release.
static inline PendingOperation* peek_operation(Wave* wave) {
    if (__builtin_expect(!wave->pending->free, 0)) refill_free_operations(wave->pending);
    return wave->pending->free;
}
static inline void take_operation(PendingOperations* pending, PendingOperation* operation) {
    pending->free = operation->next;
    operation->sequence = pending->sequence++;
    operation->is_flat = operation->to_lds = operation->writes = operation->is_early = false;
}

static inline void note_order(const Wave* wave, PendingOperation* operation, bool writes) {
    operation->barriers = wave->barriers;
    operation->writes = writes;
    wave->pending->vm_writes += writes;
}

static inline void queue_vector_memory(Wave* wave, PendingOperation* operation, bool writes = false) {
    PendingOperations* pending = wave->pending;
    take_operation(pending, operation);
    note_order(wave, operation, writes);
    if (__builtin_expect(pending->vm_count() >= PendingOperations::vm_limit, 0)) make_room_in_vm(wave);
    pending->vm[pending->vm_tail++ % 64] = operation;
}
static inline void queue_lds(Wave* wave, PendingOperation* operation) {
    PendingOperations* pending = wave->pending;
    take_operation(pending, operation);
    if (__builtin_expect(pending->lgkm_count() >= PendingOperations::lgkm_limit, 0))
        make_room_in_lgkm(wave, 1);
    pending->lds[pending->lds_tail++ % 16] = operation;
}
static inline void queue_scalar(Wave* wave, PendingOperation* operation, uint32_t weight) {
    PendingOperations* pending = wave->pending;
    take_operation(pending, operation);
    operation->weight = static_cast<uint8_t>(weight);
    if (pending->lgkm_count() + weight > PendingOperations::lgkm_limit) make_room_in_lgkm(wave, weight);
    pending->scalar[pending->scalar_count++] = operation;
    pending->scalar_weight += weight;
}
static inline void queue_flat(Wave* wave, PendingOperation* operation, bool writes) {
    PendingOperations* pending = wave->pending;
    take_operation(pending, operation);
    note_order(wave, operation, writes);
    operation->is_flat = true;
    operation->performed = operation->vm_passed = operation->lgkm_passed = false;
    if (pending->vm_count() >= PendingOperations::vm_limit) make_room_in_vm(wave);
    if (pending->lgkm_count() >= PendingOperations::lgkm_limit) make_room_in_lgkm(wave, 1);
    pending->vm[pending->vm_tail++ % 64] = operation;
    ++pending->vm_flats;
    ++pending->flats_in_lgkm;
}

}  // namespace hipkittens::simulator
