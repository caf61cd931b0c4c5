// simulator/machine/recording.cpp: records every instruction of a launch and every byte it touches.
// SPDX-License-Identifier: MIT
#include "simulator/machine/recording.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <string_view>

#include "isa/table.h"
#include "simulator/memory/pending_queue.h"

namespace hipkittens::simulator {

void Recording::Free::operator()(Word* words) const { std::free(words); }

Recording::Recording(const Program& program, const std::vector<Region>& regions, bool traces)
    : program_(program),
      regions_(regions),
      touched_(regions.size()),
      instructions_(program.instructions.size()),
      traces_(traces) {
    static_assert(sizeof(Word) == 8 && Word::is_always_lock_free);
    for (size_t index = 0; index < regions.size(); ++index) {
        if (regions[index].is_own) continue;
        Touched& touched = touched_[index];
        touched.words = (regions[index].end - regions[index].begin + 63) / 64;
        for (auto* bits : {&touched.loaded, &touched.stored}) {
            bits->reset(static_cast<Word*>(std::calloc(touched.words, sizeof(Word))));
            if (!*bits) throw std::bad_alloc();
        }
    }
}

void Recording::add_bytes(const Region* region, uint64_t bytes, const Step* step, bool store) {
    if (region->is_own) return;
    Touched& touched = touched_[static_cast<size_t>(region - regions_.data())];
    instructions_[step->instruction].bytes.fetch_add(bytes, std::memory_order_relaxed);
    (store ? touched.bytes_stored : touched.bytes_loaded).fetch_add(bytes, std::memory_order_relaxed);
}

void Recording::touch(const Region* region, uint64_t begin, uint64_t end, bool store) {
    if (region->is_own) return;
    Touched& touched = touched_[static_cast<size_t>(region - regions_.data())];
    Word* const words = (store ? touched.stored : touched.loaded).get();
    end -= region->begin;
    for (uint64_t at = begin - region->begin; at < end;) {
        const uint64_t here = std::min<uint64_t>(end - at, 64 - at % 64);
        const uint64_t mask = (here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << at % 64;
        Word& word = words[at / 64];
        if ((word.load(std::memory_order_relaxed) & mask) != mask)
            word.fetch_or(mask, std::memory_order_relaxed);
        at += here;
    }
}

void Recording::add_lds_conflicts(const Step* step, uint64_t cycles) {
    instructions_[step->instruction].lds_conflict_cycles.fetch_add(cycles, std::memory_order_relaxed);
}

void Recording::add_wait(const Step* step, uint32_t vm_in_flight, uint32_t lgkm_in_flight) {
    const auto raise = [](Word& word, uint64_t value) {
        for (uint64_t known = word.load(std::memory_order_relaxed);
             known < value && !word.compare_exchange_weak(known, value, std::memory_order_relaxed);) {
        }
    };
    raise(instructions_[step->instruction].vm_in_flight, vm_in_flight);
    raise(instructions_[step->instruction].lgkm_in_flight, lgkm_in_flight);
}

void Recording::add_event(const Wave* wave, const Step* step, Event event, uint32_t bytes, uint64_t lanes,
                          const uint32_t* addresses) {
    if (!traces_) return;
    std::lock_guard lock(trace_mutex_);
    trace_.insert(trace_.end(),
                  {wave->workgroup->linear_id << 8 | wave->index_in_workgroup,
                   program_.instructions[step->instruction].address,
                   static_cast<uint32_t>(event) << 16 | static_cast<uint32_t>(std::popcount(lanes)), bytes});
    for (; lanes; lanes &= lanes - 1) trace_.push_back(addresses[std::countr_zero(lanes)]);
}

bool Recording::goes_to_lds(const Step* step) const {
    const isa::Instruction& instruction = program_.instructions[step->instruction];
    return instruction.lds ||
           std::string_view(instruction.row->mnemonic).find("load_lds") != std::string_view::npos;
}

LaunchRecord Recording::finish(const std::vector<uint64_t>& block_counts) const {
    LaunchRecord record;
    for (size_t index = 0; index < program_.blocks.size(); ++index) {
        if (block_counts[index] == 0) continue;
        const Block& block = program_.blocks[index];
        for (uint32_t i = block.first; i < block.first + block.count; ++i) {
            const isa::Instruction& instruction = program_.instructions[i];
            if (!instruction.row) continue;
            const Sums& sums = instructions_[i];
            record.instructions.push_back({block_counts[index], sums.bytes, sums.lds_conflict_cycles,
                                           instruction.address, isa::effects(instruction).unit,
                                           static_cast<uint32_t>(sums.vm_in_flight.load()),
                                           static_cast<uint32_t>(sums.lgkm_in_flight.load())});
        }
    }
    std::sort(record.instructions.begin(), record.instructions.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    record.trace = trace_;
    const auto count = [](const Word* words, size_t number) {
        uint64_t sum = 0;
        for (size_t i = 0; i < number; ++i) sum += static_cast<uint64_t>(std::popcount(words[i].load()));
        return sum;
    };
    for (size_t index = 0; index < regions_.size(); ++index) {
        if (regions_[index].is_own) continue;
        const Touched& touched = touched_[index];
        record.regions.push_back({regions_[index].name, touched.bytes_loaded, touched.bytes_stored,
                                  count(touched.loaded.get(), touched.words),
                                  count(touched.stored.get(), touched.words)});
    }
    return record;
}

void record_access(Wave* wave, const Step* step, const PendingOperation* operation, bool store) {
    Recording& recording = *wave->workgroup->dispatch->recording;
    if (recording.goes_to_lds(step)) {
        uint32_t addresses[64];
        const uint32_t bytes = step->dwords * 4;
        for (uint32_t lane = 0; lane < 64; ++lane) addresses[lane] = operation->lds_offset + lane * bytes;
        recording.add_event(wave, step, Recording::Event::to_lds, bytes, operation->lanes, addresses);
    } else {
        recording.add_event(wave, step, Recording::Event::vector_memory);
    }
    // Lanes mostly access a tensor consecutively: the bytes they move form one run, and are added once.
    const Region* run_region = nullptr;
    uint64_t run_begin = 0, run_end = 0, moved = 0;
    for (uint64_t left = operation->valid; left; left &= left - 1) {
        const int lane = std::countr_zero(left);
        const uint64_t address = operation->address[lane];
        const uint64_t bytes = operation->partial ? operation->valid_bytes[lane] : step->extra[0];
        const Region* region = wave->last_region;
        if (!region || address < region->begin || address + bytes > region->end)
            region = find_region(wave, address, bytes);
        if (region != run_region || address < run_begin || address > run_end) {
            if (run_region) recording.touch(run_region, run_begin, run_end, store);
            if (region != run_region) {
                if (run_region) recording.add_bytes(run_region, moved, step, store);
                moved = 0;
            }
            run_region = region;
            run_begin = run_end = address;
        }
        run_end = std::max(run_end, address + bytes);
        moved += bytes;
    }
    // A flat access may go to LDS or scratch, which are in no region.
    if (run_region) {
        recording.touch(run_region, run_begin, run_end, store);
        recording.add_bytes(run_region, moved, step, store);
    }
}

void record_lds_access(const Wave* wave, const Step* step, uint64_t cycles, const uint32_t* addresses) {
    Recording& recording = *wave->workgroup->dispatch->recording;
    recording.add_lds_conflicts(step, cycles);
    recording.add_event(wave, step, Recording::Event::lds, step->extra[0], wave->exec, addresses);
}

void record_barrier(const Wave* wave, const Step* step) {
    wave->workgroup->dispatch->recording->add_event(wave, step, Recording::Event::barrier);
}

void record_wait(const Wave* wave, const Step* step) {
    wave->workgroup->dispatch->recording->add_event(wave, step, Recording::Event::wait);
    wave->workgroup->dispatch->recording->add_wait(step, wave->pending->vm_count(),
                                                   wave->pending->lgkm_count());
}

}  // namespace hipkittens::simulator
