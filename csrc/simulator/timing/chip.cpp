// simulator/timing/chip.cpp: the compute units of a chip, and the dispatcher that assigns workgroups to them.
// SPDX-License-Identifier: MIT
#include "simulator/timing/chip.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "simulator/timing/clock.h"

namespace hipkittens::simulator::timing {
namespace {

// Compute units are simulated one after another in steps of this many clocks, far below the latency of the
// memory they share.
constexpr double quantum = 32;

uint64_t text_address_of(const Dispatch& dispatch) {
    const uint64_t address = dispatch.program->text_address;
    for (const Region& region : dispatch.regions) {
        if (region.begin <= address && address < region.end)
            return address + AddressMap(dispatch).displacement(&region);
    }
    return address;
}

}  // namespace

Occupancy occupancy_of(const Parameters& parameters, const code_object::Kernel& kernel, uint32_t waves,
                       uint32_t lds_bytes) {
    const uint32_t slots = static_cast<uint32_t>(parameters.waves_per_simd);
    const uint32_t by_registers = 512 / std::max<uint32_t>(kernel.allocated_vgprs, 8);
    // A workgroup's waves are assigned to the SIMDs round-robin.
    const auto workgroups = [&](uint32_t per_simd) {
        const uint32_t needed = (waves + simd_count - 1) / simd_count;
        return waves >= simd_count ? per_simd / needed : per_simd * simd_count / waves;
    };
    Occupancy result;
    result.waves_per_workgroup = waves;
    result.workgroups_per_compute_unit = workgroups(slots);
    const auto limit = [&](uint32_t to, const char* by) {
        if (to >= result.workgroups_per_compute_unit) return;
        result.workgroups_per_compute_unit = std::max(to, 1u);
        result.limited_by = by;
    };
    limit(workgroups(by_registers), "registers");
    if (lds_bytes) {
        const uint32_t granule = static_cast<uint32_t>(parameters.lds_granule);
        const uint32_t taken = (lds_bytes + granule - 1) / granule * granule;
        limit(static_cast<uint32_t>(parameters.lds_bytes) / taken, "lds");
    }
    if (waves > 1) limit(static_cast<uint32_t>(parameters.workgroups_per_compute_unit), "workgroups");
    return result;
}

Chip::Chip(const Options& options, double clock_mhz, uint32_t detailed_xcd, const Dispatch& dispatch,
           const code_object::Kernel& kernel)
    : options_(options),
      parameters_(options_.parameters),
      dispatch_(dispatch),
      kernel_(kernel),
      workgroup_count_(dispatch.grid_workgroups[0] * dispatch.grid_workgroups[1] *
                       dispatch.grid_workgroups[2]),
      occupancy_(occupancy_of(
          parameters_, kernel,
          (dispatch.workgroup_size[0] * dispatch.workgroup_size[1] * dispatch.workgroup_size[2] + 63) / 64,
          dispatch.lds_bytes)),
      costs_(static_costs(*dispatch.program, parameters_)),
      counts_(costs_.size()),
      matrix_type_(matrix_type_of(costs_)),
      clock_mhz_(clock_mhz),
      memory_(parameters_, clock_mhz_),
      events_(options.full ? 0 : detailed_xcd, options.timeline_units),
      replay_{parameters_,
              *dispatch.program,
              costs_,
              memory_,
              counts_,
              text_address_of(dispatch),
              options.timeline_units ? &events_ : nullptr} {
    const uint32_t xcds = static_cast<uint32_t>(parameters_.xcds);
    const uint32_t units = static_cast<uint32_t>(parameters_.compute_units_per_xcd);
    const uint32_t engines = static_cast<uint32_t>(parameters_.shader_engines_per_xcd);
    if (!options_.full && xcds > 1 && workgroup_count_ > 1)
        echo_ = std::make_unique<Echo>(parameters_, memory_);
    for (uint32_t index = 0; index < (options_.full ? xcds : 1); ++index) {
        Xcd& xcd = xcds_.emplace_back();
        xcd.index = xcd.next_workgroup = options_.full ? index : detailed_xcd;
        xcd.dispatcher = parameters_.packet_processing * clock_mhz_ / 1000;
        for (uint32_t unit = 0; unit < units; ++unit) {
            if (unit % 2 == 0)
                xcd.front.push_back(std::make_unique<FrontCaches>(parameters_, memory_, xcd.index));
            xcd.units.push_back(
                std::make_unique<ComputeUnit>(replay_, *xcd.front.back(), echo_.get(), xcd.index, unit));
        }
        xcd.room_since.resize(units);
        // Round-robin over the SEs: their first compute units, then their second ones.
        for (uint32_t turn = 0; xcd.order.size() < units; ++turn) {
            for (uint32_t engine = 0; engine < engines; ++engine) {
                const uint32_t first = units * engine / engines, end = units * (engine + 1) / engines;
                if (first + turn < end) xcd.order.push_back(first + turn);
            }
        }
    }
}

Chip::~Chip() = default;

std::unique_ptr<ResidentWorkgroup> Chip::resident(Xcd& xcd, TraceStore& store) {
    const uint32_t xcds = static_cast<uint32_t>(parameters_.xcds);
    const uint32_t first = xcd.next_workgroup;
    store.want_until(reader_, first);
    auto workgroup = std::make_unique<ResidentWorkgroup>();
    workgroup->trace = store.take(first);
    if (!workgroup->trace) return nullptr;
    if (echo_) {
        const uint32_t row = first / xcds * xcds;
        for (uint32_t other = row; other < std::min(row + xcds, workgroup_count_); ++other) {
            if (other == first) continue;
            workgroup->echoes.push_back(store.take(other));
            if (!workgroup->echoes.back()) return nullptr;
            workgroup->echoed.emplace_back(workgroup->echoes.back()->waves.size());
        }
    }
    return workgroup;
}

// Assigns the next workgroup of this XCD to the next compute unit with room for it.
bool Chip::place(Xcd& xcd, TraceStore& store, bool* failed) {
    if (xcd.next_workgroup >= workgroup_count_) return false;
    for (size_t tried = 0; tried < xcd.order.size(); ++tried) {
        const uint32_t unit = xcd.order[(xcd.turn + tried) % xcd.order.size()];
        if (xcd.units[unit]->resident_workgroups() >= occupancy_.workgroups_per_compute_unit) continue;
        auto workgroup = resident(xcd, store);
        if (!workgroup) {
            *failed = true;
            return false;
        }
        xcd.turn = static_cast<uint32_t>((xcd.turn + tried + 1) % xcd.order.size());
        const double start = std::max(xcd.dispatcher, xcd.room_since[unit]);
        xcd.dispatcher = start + parameters_.dispatch_interval;
        last_start_ = std::max(last_start_, start);
        xcd.units[unit]->start(std::move(workgroup), start);
        xcd.next_workgroup += static_cast<uint32_t>(parameters_.xcds);
        return true;
    }
    return false;
}

bool Chip::run(TraceStore& store, int reader) {
    reader_ = reader;
    double now = 0;
    for (;;) {
        bool failed = false;
        double next = std::numeric_limits<double>::infinity();
        for (Xcd& xcd : xcds_) {
            while (place(xcd, store, &failed)) {
            }
            if (failed) return false;
            for (const auto& unit : xcd.units) next = std::min(next, unit->next_time());
        }
        if (next == std::numeric_limits<double>::infinity()) {
            for (const Xcd& xcd : xcds_) {
                for (const auto& unit : xcd.units) {
                    if (!unit->idle())
                        throw std::logic_error("waves wait for each other, which they did not when they ran");
                }
            }
            break;
        }
        now = std::max(now, next) + quantum;
        for (Xcd& xcd : xcds_) {
            for (size_t unit = 0; unit < xcd.units.size(); ++unit) {
                xcd.units[unit]->advance(now);
                for (const ComputeUnit::Ended& ended : xcd.units[unit]->take_ended()) {
                    xcd.room_since[unit] = ended.time;
                    execution_end_ = std::max(execution_end_, ended.time);
                    durations_.push_back(ended.time - ended.begin);
                }
            }
        }
    }
    end_ = execution_end_;
    for (const Xcd& xcd : xcds_) {
        for (const auto& unit : xcd.units) end_ = std::max(end_, unit->last_store());
    }
    if (parameters_.l2_writes_back_at_end != 0) end_ = memory_.write_back(end_);
    return true;
}

}  // namespace hipkittens::simulator::timing
