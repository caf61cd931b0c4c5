// simulator/machine/launch.cpp: runs a grid of workgroups and reports the result.
// SPDX-License-Identifier: MIT
#include "simulator/machine/launch.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "isa/effects.h"
#include "simulator/checks/shadow.h"
#include "simulator/machine/debugger.h"
#include "simulator/machine/host_float_mode.h"
#include "simulator/machine/launch_replay.h"
#include "simulator/machine/launch_trace.h"
#include "simulator/machine/stop_request.h"
#include "simulator/machine/worker.h"
#include "simulator/tile_unit/tile_unit.h"

namespace hipkittens::simulator {

namespace {

// hsa_kernel_dispatch_packet_t (HSA runtime specification 1.2, section 2.9.6).
struct alignas(64) DispatchPacket {
    uint16_t header = 0, setup = 3;
    uint16_t workgroup_size[3] = {};
    uint16_t reserved0 = 0;
    uint32_t grid_size[3] = {};
    uint32_t private_segment_bytes = 0, group_segment_bytes = 0;
    uint64_t kernel_object = 0, kernel_arguments = 0, reserved1 = 0, completion_signal = 0;
};
static_assert(sizeof(DispatchPacket) == 64);

std::string check(const code_object::Kernel& kernel, const LaunchRequest& request) {
    const uint32_t* size = request.workgroup_size;
    const uint64_t items = uint64_t{size[0]} * size[1] * size[2];
    const auto text = [&](const std::string& what) { return "kernel " + kernel.name + ": " + what; };
    if (items == 0) return text("a workgroup of 0 work-items");
    if (items > kernel.max_flat_workgroup_size) {
        return text("workgroup of " + std::to_string(items) + " work-items, compiled for at most " +
                    std::to_string(kernel.max_flat_workgroup_size));
    }
    if (!kernel.reqd_workgroup_size.empty() &&
        !std::equal(size, size + 3, kernel.reqd_workgroup_size.begin())) {
        return text("compiled for one workgroup size only, launched with another");
    }
    const uint64_t lds = uint64_t{kernel.lds_bytes} + request.dynamic_lds_bytes;
    if (lds > request.lds_bytes_per_compute_unit) {
        return text(std::to_string(lds) + " bytes of LDS, this device has " +
                    std::to_string(request.lds_bytes_per_compute_unit));
    }
    if (request.argument_bytes < kernel.explicit_kernarg_bytes) {
        return text(std::to_string(request.argument_bytes) + " bytes of arguments, the kernel reads " +
                    std::to_string(kernel.explicit_kernarg_bytes));
    }
    const uint64_t workgroups =
        uint64_t{request.grid_workgroups[0]} * request.grid_workgroups[1] * request.grid_workgroups[2];
    if (workgroups > UINT32_MAX / 2)
        return text(std::to_string(workgroups) + " workgroups in one launch, at most 2^31 - 1 are simulated");
    return "";
}

// Sorts the regions, and merges those that overlap: two arguments may be views of one tensor.
void merge_overlaps(std::vector<Region>& regions) {
    std::erase_if(regions, [](const Region& region) { return region.begin >= region.end; });
    std::sort(regions.begin(), regions.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    size_t kept = 0;
    for (size_t index = 1; index < regions.size(); ++index) {
        if (regions[index].begin < regions[kept].end) {
            regions[kept].end = std::max(regions[kept].end, regions[index].end);
            regions[kept].writable |= regions[index].writable;
            regions[kept].unwritten = 0;
        } else {
            regions[++kept] = regions[index];
        }
    }
    if (!regions.empty()) regions.resize(kept + 1);
}

// Readable bytes of the argument segment. A scalar load has 1, 2, 4, 8 or 16 dwords: LLVM loads a tail of 7
// as 8, since the segment's alignment keeps such a load within one page.
size_t readable_bytes(size_t argument_bytes) {
    const size_t tail = argument_bytes % 64;
    return argument_bytes - tail + (tail ? std::max<size_t>(4, std::bit_ceil(tail)) : 0);
}

// The number of workgroups of this kernel that the chip holds, limited by registers, LDS and wave slots.
uint32_t resident_limit(const code_object::Kernel& kernel, const LaunchRequest& request, uint32_t lds_bytes) {
    const uint32_t* size = request.workgroup_size;
    const uint32_t waves = (size[0] * size[1] * size[2] + 63) / 64;
    const uint32_t waves_by_registers =
        4 * std::min<uint32_t>(8, 512 / std::max<uint32_t>(kernel.allocated_vgprs, 8));
    uint32_t per_unit = std::max<uint32_t>(1, waves_by_registers / waves);
    if (lds_bytes)
        per_unit = std::min(per_unit, std::max<uint32_t>(1, request.lds_bytes_per_compute_unit / lds_bytes));
    return per_unit * request.compute_units;
}

void fill_report(const Grid& grid, Report& report) {
    const Program& program = *grid.dispatch.program;
    for (size_t index = 0; index < program.blocks.size(); ++index) {
        const Block& block = program.blocks[index];
        const uint64_t times = grid.block_counts[index];
        if (times == 0) continue;
        for (uint32_t i = block.first; i < block.first + block.count; ++i) {
            if (!program.instructions[i].row) continue;
            report.instructions += times;
            switch (isa::effects(program.instructions[i]).unit) {
                case isa::Unit::matrix:
                    report.mfma += times;
                    break;
                case isa::Unit::valu:
                case isa::Unit::transcendental:
                    report.valu += times;
                    break;
                case isa::Unit::salu:
                case isa::Unit::branch:
                    report.salu += times;
                    break;
                case isa::Unit::lds:
                    report.lds += times;
                    break;
                case isa::Unit::vector_memory:
                case isa::Unit::flat:
                    report.vector_memory += times;
                    break;
                default:
                    report.other += times;
            }
        }
    }
    report.counters = grid.counters;
}

}  // namespace

LaunchResult launch(LoadedCode& code, const code_object::Kernel& kernel, const LaunchRequest& request) {
    LaunchResult result;
    result.error = check(kernel, request);
    if (!result.error.empty()) return result;
    const auto start = std::chrono::steady_clock::now();

    const std::shared_ptr<const Program> program = code.program(kernel, request.settings);
    Dispatch dispatch;
    dispatch.program = program.get();
    dispatch.kernel_name = kernel.name.c_str();
    dispatch.entry = dispatch.program->step_for_address(code.run_address(kernel.start_address));
    dispatch.settings = request.settings;
    dispatch.freed_at = request.freed_at;
    dispatch.trace = request.launch_trace;
    dispatch.debugger = request.debugger;
    std::copy_n(request.grid_workgroups, 3, dispatch.grid_workgroups);
    std::copy_n(request.workgroup_size, 3, dispatch.workgroup_size);
    dispatch.xccs = request.xccs;
    dispatch.lds_bytes = kernel.lds_bytes + request.dynamic_lds_bytes;
    if (!dispatch.entry) {
        result.error = "kernel " + kernel.name + ": its entry point holds no instruction";
        return result;
    }

    const size_t argument_bytes =
        readable_bytes(std::max<size_t>(request.argument_bytes, kernel.kernarg_bytes));
    std::vector<uint64_t> arguments((argument_bytes + 71) / 8);
    uint8_t* aligned =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(arguments.data()) + 63) / 64 * 64);
    if (request.argument_bytes) std::memcpy(aligned, request.arguments, request.argument_bytes);
    dispatch.kernel_arguments = aligned;

    DispatchPacket packet;
    for (int axis = 0; axis < 3; ++axis) {
        packet.workgroup_size[axis] = static_cast<uint16_t>(request.workgroup_size[axis]);
        packet.grid_size[axis] = request.workgroup_size[axis] * request.grid_workgroups[axis];
    }
    packet.private_segment_bytes = kernel.private_bytes;
    packet.group_segment_bytes = dispatch.lds_bytes;
    packet.kernel_arguments = reinterpret_cast<uint64_t>(aligned);

    dispatch.regions = request.regions;
    const auto image = code.image();
    const auto region = [](const void* begin, size_t bytes, const char* name, bool writable) {
        return Region{reinterpret_cast<uint64_t>(begin), reinterpret_cast<uint64_t>(begin) + bytes, name,
                      writable, true};
    };
    dispatch.regions.push_back(region(image.data(), image.size(), "code object", true));
    dispatch.regions.push_back(region(aligned, argument_bytes, "kernel arguments", false));
    dispatch.regions.push_back(region(&packet, sizeof packet, "dispatch packet", false));
    merge_overlaps(dispatch.regions);
    std::optional<Recording> recording;
    if (request.record)
        dispatch.recording = &recording.emplace(*dispatch.program, dispatch.regions, request.trace);

    checks::LaunchShadow shadow;
    dispatch.shadow = &shadow;

    const uint32_t* counts = request.grid_workgroups;
    StopRequest stop(request.should_stop, uses_tile_unit(request.settings));
    dispatch.stop = &stop;
    Grid grid(dispatch, kernel, &packet, counts[0] * counts[1] * counts[2],
              resident_limit(kernel, request, dispatch.lds_bytes), stop);

    uint32_t threads = request.settings.threads ? request.settings.threads
                                                : std::max(1u, std::thread::hardware_concurrency());
    threads = request.debugger ? 1 : std::max(1u, std::min(threads, grid.workgroup_count));
    std::vector<std::exception_ptr> failures(threads);
    const auto work = [&](uint32_t index) {
        HostFloatMode float_mode(kernel.float_mode);
        tile_unit::ThreadTiles tiles(uses_tile_unit(request.settings));
        try {
            run_worker(grid);
        } catch (...) {
            failures[index] = std::current_exception();
            stop.stop();
        }
    };
    // They run alongside the launching thread, which polls whether to stop while it waits for them.
    std::mutex ending;
    std::condition_variable one_ended;
    const auto start_thread = [&](size_t& ended, auto body) {
        return std::thread([&ending, &one_ended, &ended, body] {
            body();
            const std::lock_guard lock(ending);
            ++ended;
            one_ended.notify_one();
        });
    };
    const auto wait_for = [&](const size_t& ended, size_t count, auto ask) {
        std::unique_lock lock(ending);
        while (!one_ended.wait_for(lock, StopRequest::patience, [&] { return ended == count; })) {
            lock.unlock();
            ask();
            lock.lock();
        }
    };

    LaunchTrace* const trace = request.launch_trace;
    std::vector<std::thread> others;
    others.reserve(threads);
    std::thread follower;
    size_t others_ended = 0, followers_ended = 0;
    if (trace) follower = start_thread(followers_ended, [&] { trace->consume(dispatch, kernel); });
    try {
        for (uint32_t index = 1; index < threads; ++index)
            others.push_back(start_thread(others_ended, [&work, index] { work(index); }));
    } catch (const std::exception&) {
        // The host cannot create more threads: the existing ones process all workgroups.
    }
    LaunchReplay replay(code, grid, request.should_stop);
    if (request.debugger) {
        request.debugger->launch_begins(dispatch, kernel, [&replay](Debugger& follower, uint64_t seed) {
            return replay.run(follower, seed);
        });
    }
    work(0);
    wait_for(others_ended, others.size(), [&] { stop.is_stopping(); });
    for (std::thread& thread : others) thread.join();
    if (trace) {
        trace->finish();
        wait_for(followers_ended, 1, [&] {
            if (stop.is_stopping()) trace->give_up();
        });
        follower.join();
    }
    for (const auto& failure : failures) {
        if (failure) std::rethrow_exception(failure);
    }

    result.error = grid.error;
    if (result.error.empty() && stop.was_interrupted()) {
        result.error = "kernel " + kernel.name + ": interrupted by a signal before workgroup " +
                       std::to_string(std::min(grid.next_workgroup.load(), grid.workgroup_count)) + " of " +
                       std::to_string(grid.workgroup_count) +
                       " had begun; what the others have written stays written";
    }
    if (request.debugger) request.debugger->launch_ends(result.error);
    if (dispatch.program->plan) checks::finish_launch(shadow, dispatch, grid.block_counts);
    result.report.workgroups = grid.workgroup_count;
    const uint32_t* size = request.workgroup_size;
    result.report.waves = uint64_t{grid.workgroup_count} * ((size[0] * size[1] * size[2] + 63) / 64);
    fill_report(grid, result.report);
    if (recording) result.record = recording->finish(grid.block_counts);
    result.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

}  // namespace hipkittens::simulator
