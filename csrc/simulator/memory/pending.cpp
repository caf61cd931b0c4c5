// simulator/memory/pending.cpp: completion of operations in flight.
// SPDX-License-Identifier: MIT
#include "simulator/memory/pending.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending_queue.h"
#include "simulator/memory/workgroup_order.h"

namespace hipkittens::simulator {

namespace {

constexpr size_t operations_per_chunk = 8;

struct Chunk {
    Chunk* next;
    alignas(64) PendingOperation operations[operations_per_chunk];
};

// Last in, first out: the operation that completed last is in the host's nearest cache.
void release(PendingOperations* pending, PendingOperation* operation) {
    operation->next = pending->free;
    pending->free = operation;
}

void complete_and_release(Wave* wave, PendingOperation* operation) {
    operation->complete(wave, operation);
    release(wave->pending, operation);
}

// Completes the oldest operation of the ring, while it is still in it: what has to take effect first may
// examine it.
void complete_vector_operation(Wave* wave, PendingOperation* operation) {
    PendingOperations* pending = wave->pending;
    if (__builtin_expect(operation->is_early, 0)) {
        finish_early(wave, operation);
    } else {
        if (operation->barriers) order_before_completion(wave, operation);
        operation->complete(wave, operation);
    }
    ++pending->vm_head;
    pending->vm_writes -= operation->writes;
    release(pending, operation);
}

// A flat operation may go to LDS or to memory, which answer in any order. Its memory effect keeps its place
// among the wave's other accesses; its registers are written when both counters have passed it.
void perform_flat(Wave* wave, PendingOperation* operation) {
    if (operation->performed) return;
    if (operation->barriers) order_before_completion(wave, operation);
    operation->performed = true;
    operation->complete(wave, operation);
}

void finish_flat(Wave* wave, PendingOperation* operation) {
    if (__builtin_expect(wave->shadow != nullptr, 0)) checks::registers_changed(wave, operation);
    for (uint32_t row = 0; row < operation->dwords; ++row) {
        uint32_t* target =
            reinterpret_cast<uint32_t*>(at(wave, operation->destination + row * layout::vector_row_bytes));
        const uint32_t* staged = reinterpret_cast<const uint32_t*>(operation->rows) + row * 64;
        for (uint64_t left = operation->lanes; left; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            target[lane] = (target[lane] & ~operation->write_mask) | (staged[lane] & operation->write_mask);
        }
    }
    release(wave->pending, operation);
}

void forget_half_done(PendingOperations* pending, uint32_t index) {
    for (uint32_t i = index + 1; i < pending->half_done_count; ++i)
        pending->half_done[i - 1] = pending->half_done[i];
    --pending->half_done_count;
}

// Removes the oldest operation from the vector memory ring.
void pop_vector_memory(Wave* wave, bool counter_passed) {
    PendingOperations* pending = wave->pending;
    PendingOperation* operation = pending->vm[pending->vm_head % 64];
    if (!operation->is_flat) return complete_vector_operation(wave, operation);
    perform_flat(wave, operation);
    ++pending->vm_head;
    --pending->vm_flats;
    pending->vm_writes -= operation->writes;
    operation->vm_passed = counter_passed;
    if (operation->vm_passed && operation->lgkm_passed) return finish_flat(wave, operation);
    pending->half_done[pending->half_done_count++] = operation;
    if (!operation->vm_passed) ++pending->half_done_vm;
}

void pass_half_done_vm(Wave* wave, uint32_t index) {
    PendingOperations* pending = wave->pending;
    PendingOperation* operation = pending->half_done[index];
    operation->vm_passed = true;
    --pending->half_done_vm;
    if (!operation->lgkm_passed) return;
    forget_half_done(pending, index);
    finish_flat(wave, operation);
}

void pass_flat_lgkm(Wave* wave, PendingOperation* operation) {
    PendingOperations* pending = wave->pending;
    if (operation->lgkm_passed) return;
    operation->lgkm_passed = true;
    --pending->flats_in_lgkm;
    if (!operation->vm_passed) return;
    for (uint32_t i = 0; i < pending->half_done_count; ++i) {
        if (pending->half_done[i] != operation) continue;
        forget_half_done(pending, i);
        finish_flat(wave, operation);
        return;
    }
}

void complete_oldest_lds(Wave* wave) {
    PendingOperations* pending = wave->pending;
    complete_and_release(wave, pending->lds[pending->lds_head++ % 16]);
}

void complete_oldest_scalar(Wave* wave) {
    PendingOperations* pending = wave->pending;
    PendingOperation* operation = pending->scalar[0];
    for (uint32_t i = 1; i < pending->scalar_count; ++i) pending->scalar[i - 1] = pending->scalar[i];
    --pending->scalar_count;
    pending->scalar_weight -= operation->weight;
    complete_and_release(wave, operation);
}

PendingOperation* oldest_flat_in_lgkm(PendingOperations* pending) {
    if (!pending->flats_in_lgkm) return nullptr;
    for (uint32_t i = 0; i < pending->half_done_count; ++i) {
        if (!pending->half_done[i]->lgkm_passed) return pending->half_done[i];
    }
    for (uint32_t i = pending->vm_head; i != pending->vm_tail; ++i) {
        PendingOperation* operation = pending->vm[i % 64];
        if (operation->is_flat && !operation->lgkm_passed) return operation;
    }
    return nullptr;
}

bool is_older(const PendingOperation* a, const PendingOperation* b) {
    return !b || (a && static_cast<int32_t>(a->sequence - b->sequence) < 0);
}

}  // namespace

PendingOperations* create_pending_operations() { return new PendingOperations; }

void destroy_pending_operations(PendingOperations* pending) {
    if (!pending) return;
    for (Chunk* chunk = static_cast<Chunk*>(pending->chunks); chunk;) {
        Chunk* next = chunk->next;
        std::free(chunk);
        chunk = next;
    }
    delete pending;
}

void refill_free_operations(PendingOperations* pending) {
    Chunk* chunk = static_cast<Chunk*>(std::aligned_alloc(64, sizeof(Chunk)));
    if (!chunk) throw std::bad_alloc();
    chunk->next = static_cast<Chunk*>(pending->chunks);
    pending->chunks = chunk;
    for (size_t i = operations_per_chunk; i-- > 0;) release(pending, &chunk->operations[i]);
}

// A full counter stalls the issue until an operation returns: the oldest.
void make_room_in_vm(Wave* wave) {
    PendingOperations* pending = wave->pending;
    if (pending->half_done_vm) {
        for (uint32_t i = 0; i < pending->half_done_count; ++i) {
            if (!pending->half_done[i]->vm_passed) return pass_half_done_vm(wave, i);
        }
    }
    pop_vector_memory(wave, true);
}

void make_room_in_lgkm(Wave* wave, uint32_t weight) {
    PendingOperations* pending = wave->pending;
    while (pending->lgkm_count() + weight > PendingOperations::lgkm_limit) {
        PendingOperation* lds =
            pending->lds_head != pending->lds_tail ? pending->lds[pending->lds_head % 16] : nullptr;
        PendingOperation* scalar = pending->scalar_count ? pending->scalar[0] : nullptr;
        PendingOperation* flat = oldest_flat_in_lgkm(pending);
        if (lds && is_older(lds, scalar) && is_older(lds, flat)) {
            complete_oldest_lds(wave);
        } else if (scalar && is_older(scalar, flat)) {
            complete_oldest_scalar(wave);
        } else {
            pass_flat_lgkm(wave, flat);
        }
    }
}

// Flat operations return out of order, so with vmcnt(n > 0) they may be the ones that returned, and do not
// count.
void complete_vector_memory(Wave* wave, uint32_t keep) {
    PendingOperations* pending = wave->pending;
    if (__builtin_expect(pending->vm_flats == 0, 1)) {
        while (pending->vm_tail - pending->vm_head > keep) {
            complete_vector_operation(wave, pending->vm[pending->vm_head % 64]);
        }
    } else {
        while (pending->vm_tail - pending->vm_head - pending->vm_flats > keep) pop_vector_memory(wave, false);
    }
    if (keep) return;
    while (pending->vm_head != pending->vm_tail) pop_vector_memory(wave, true);
    for (uint32_t i = pending->half_done_count; i-- > 0 && pending->half_done_vm;) {
        if (!pending->half_done[i]->vm_passed) pass_half_done_vm(wave, i);
    }
}

// Scalar loads and flat operations may be the ones that returned first: for n > 0 only LDS operations count.
void complete_lgkm(Wave* wave, uint32_t keep) {
    PendingOperations* pending = wave->pending;
    while (pending->lds_tail - pending->lds_head > keep) complete_oldest_lds(wave);
    if (keep) return;
    while (pending->scalar_count) complete_oldest_scalar(wave);
    while (PendingOperation* flat = oldest_flat_in_lgkm(pending)) pass_flat_lgkm(wave, flat);
}

void answer_in_time(Wave* wave, uint32_t turn) {
    PendingOperations* pending = wave->pending;
    while (pending->lds_tail != pending->lds_head) complete_oldest_lds(wave);
    for (pending->steps_since_mark += turn; pending->steps_since_mark >= 32;
         pending->steps_since_mark -= 32) {
        const uint32_t due = pending->vm_marks[0];
        while (pending->vm_flats == 0 && static_cast<int32_t>(due - pending->vm_head) > 0 &&
               !pending->vm[pending->vm_head % 64]->to_lds) {
            pop_vector_memory(wave, true);
        }
        std::copy(pending->vm_marks + 1, std::end(pending->vm_marks), pending->vm_marks);
        pending->vm_marks[7] = pending->vm_tail;
    }
}

void complete_all(Wave* wave) {
    complete_vector_memory(wave, 0);
    complete_lgkm(wave, 0);
}

bool has_pending(const Wave* wave) {
    const PendingOperations* pending = wave->pending;
    return pending->vm_count() || pending->lgkm_count() || pending->half_done_count;
}

void drop_pending(Wave* wave) {
    PendingOperations* pending = wave->pending;
    while (pending->vm_head != pending->vm_tail) release(pending, pending->vm[pending->vm_head++ % 64]);
    while (pending->lds_head != pending->lds_tail) release(pending, pending->lds[pending->lds_head++ % 16]);
    while (pending->scalar_count) release(pending, pending->scalar[--pending->scalar_count]);
    while (pending->half_done_count) release(pending, pending->half_done[--pending->half_done_count]);
    pending->vm_writes = 0;
    pending->vm_flats = pending->scalar_weight = pending->half_done_vm = pending->flats_in_lgkm = 0;
}

}  // namespace hipkittens::simulator
