// simulator/machine/workgroup_slot.cpp: the registers, LDS and scratch in which one workgroup at a time runs.
// SPDX-License-Identifier: MIT
#include "simulator/machine/workgroup_slot.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "simulator/checks/shadow.h"
#include "simulator/memory/pending.h"

namespace hipkittens::simulator {

namespace {

constexpr size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void fill(void* begin, size_t bytes, uint32_t pattern) {
    uint32_t* dwords = static_cast<uint32_t*>(begin);
    for (size_t i = 0; i < bytes / 4; ++i) dwords[i] = pattern;
}

}  // namespace

WorkgroupSlot::WorkgroupSlot(const Dispatch& dispatch, const code_object::Kernel& kernel,
                             const void* dispatch_packet)
    : block_counts(dispatch.program->blocks.size()),
      dispatch_(dispatch),
      kernel_(kernel),
      dispatch_packet_(dispatch_packet) {
    const uint32_t* size = dispatch.workgroup_size;
    work_items_ = size[0] * size[1] * size[2];
    const uint32_t waves = (work_items_ + 63) / 64;
    // The stride is an odd number of cache lines, so that the same register of different waves maps to
    // different sets.
    wave_stride_ = round_up(dispatch.program->wave_bytes, 128) + 64 * 9;
    wave_stride_ = round_up(wave_stride_, 64);
    scratch_stride_ = round_up(size_t{kernel.private_bytes} * 64, 64);
    const size_t lds_bytes = round_up(dispatch.lds_bytes, 4096);
    memory_bytes_ = round_up(lds_bytes + waves * (wave_stride_ + scratch_stride_), 4096);
    void* memory = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<uint8_t*>(memory);

    workgroup.dispatch = &dispatch;
    workgroup.lds = memory_;
    workgroup.shares_l1 = !kernel.tg_split;
    workgroup.block_counts = block_counts.data();
    uint8_t* place = memory_ + lds_bytes;
    for (uint32_t index = 0; index < waves; ++index, place += wave_stride_) {
        Wave* wave = new (place) Wave;
        wave->index_in_workgroup = static_cast<uint8_t>(index);
        wave->workgroup = &workgroup;
        wave->lds = workgroup.lds;
        wave->lds_bytes = dispatch.lds_bytes;
        wave->pending = create_pending_operations();
        wave->private_bytes = kernel.private_bytes;
        const auto& constants = dispatch.program->constant_values;
        for (size_t row = 0; row < constants.size(); ++row) {
            const uint32_t first = layout::constants(dispatch.program->vgprs);
            write_scalar(wave, first + static_cast<uint32_t>(row) * layout::scalar_row_bytes, constants[row]);
        }
        workgroup.waves.push_back(wave);
    }
    for (Wave* wave : workgroup.waves) {
        wave->scratch_memory = place;
        place += scratch_stride_;
    }
    checks::create_shadows(workgroup);
}

WorkgroupSlot::~WorkgroupSlot() {
    checks::destroy_shadows(workgroup);
    for (Wave* wave : workgroup.waves) destroy_pending_operations(wave->pending);
    munmap(memory_, memory_bytes_);
}

void WorkgroupSlot::begin(uint32_t linear_id) {
    const uint32_t* grid = dispatch_.grid_workgroups;
    workgroup.linear_id = linear_id;
    workgroup.id[0] = linear_id % grid[0];
    workgroup.id[1] = linear_id / grid[0] % grid[1];
    workgroup.id[2] = linear_id / grid[0] / grid[1];
    std::memset(block_counts.data(), 0, block_counts.size() * sizeof(uint64_t));
    workgroup.counters = Counters{};
    order_state = dispatch_.settings.wave_order_seed * 0x9e3779b97f4a7c15u + linear_id;
    if (dispatch_.settings.poison) fill(workgroup.lds, round_up(dispatch_.lds_bytes, 4), poison_pattern);
    checks::begin_workgroup(workgroup);
    for (uint32_t index = 0; index < workgroup.waves.size(); ++index)
        initialise_registers(workgroup.waves[index], index * 64);
}

void WorkgroupSlot::initialise_registers(Wave* wave, uint32_t first_work_item) {
    drop_pending(wave);
    if (dispatch_.settings.poison) {
        fill(at(wave, layout::scalars), 104 * layout::scalar_row_bytes, poison_pattern);
        fill(at(wave, layout::vectors), dispatch_.program->vgprs * layout::vector_row_bytes, poison_pattern);
        if (kernel_.private_bytes)
            fill(wave->scratch_memory, size_t{kernel_.private_bytes} * 64, poison_pattern);
    }
    const uint32_t active = work_items_ - first_work_item < 64 ? work_items_ - first_work_item : 64;
    write_exec(wave, active == 64 ? ~uint64_t{0} : (uint64_t{1} << active) - 1);
    wave->scc = 0;
    wave->barriers = 0;
    wave->mode = kernel_.float_mode | (kernel_.dx10_clamp ? 1u << 8 : 0) | (kernel_.ieee_mode ? 1u << 9 : 0) |
                 (kernel_.fp16_overflow ? 1u << 23 : 0);
    wave->status = WaveStatus::ready;
    wave->next = dispatch_.entry;
    wave->last_region = nullptr;
    wave->fault_step = nullptr;
    wave->fault_reason = nullptr;

    const auto scalar = [&](uint32_t index, uint32_t value) {
        write_scalar(wave, layout::scalar(index), value);
    };
    const auto scalar64 = [&](uint32_t index, uint64_t value) {
        write_scalar64(wave, layout::scalar(index), value);
    };
    scalar64(isa::code::vcc_lo, 0);
    scalar64(isa::code::flat_scratch_lo, 0);
    scalar(isa::code::m0, 0);
    for (const auto& range : kernel_.user_sgprs) {
        using Kind = code_object::UserSgpr;
        switch (range.kind) {
            case Kind::kernarg_segment_ptr:
                scalar64(range.first, reinterpret_cast<uint64_t>(dispatch_.kernel_arguments));
                break;
            case Kind::dispatch_ptr:
                scalar64(range.first, reinterpret_cast<uint64_t>(dispatch_packet_));
                break;
            case Kind::kernarg_preload:
                for (uint32_t dword = 0; dword < range.count; ++dword) {
                    uint32_t value;
                    std::memcpy(&value, dispatch_.kernel_arguments + 4 * (kernel_.preload_offset + dword), 4);
                    scalar(range.first + dword, value);
                }
                break;
            case Kind::private_segment_size:
                scalar(range.first, kernel_.private_bytes);
                break;
            default:
                for (uint32_t dword = 0; dword < range.count; ++dword) scalar(range.first + dword, 0);
        }
    }
    uint32_t next = kernel_.user_sgpr_count;
    if (kernel_.workgroup_id_x) scalar(next++, workgroup.id[0]);
    if (kernel_.workgroup_id_y) scalar(next++, workgroup.id[1]);
    if (kernel_.workgroup_id_z) scalar(next++, workgroup.id[2]);
    if (kernel_.workgroup_info) scalar(next++, 0);
    if (kernel_.private_segment) scalar(next++, 0);

    checks::begin_wave(wave, next);

    // v0 holds the work-item ids packed in ten bits each (gfx90a and later).
    uint32_t* v0 = reinterpret_cast<uint32_t*>(at(wave, layout::vectors));
    const uint32_t* size = dispatch_.workgroup_size;
    for (uint32_t lane = 0; lane < 64; ++lane) {
        const uint32_t item = first_work_item + lane;
        v0[lane] = item % size[0] | item / size[0] % size[1] << 10 | item / size[0] / size[1] << 20;
    }
}

}  // namespace hipkittens::simulator
