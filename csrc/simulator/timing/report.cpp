// simulator/timing/report.cpp: what a modelled launch says about itself, as JSON.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "simulator/timing/chip.h"
#include "simulator/timing/clock.h"
#include "simulator/timing/json_text.h"

namespace hipkittens::simulator::timing {
namespace {

constexpr const char* matrix_type_names[] = {"none", "f16", "bf16", "f8", "f4", "other"};
constexpr const char* unit_names[] = {"salu",          "smem", "valu",   "transcendental", "matrix",  "lds",
                                      "vector_memory", "flat", "branch", "message",        "internal"};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

std::string Chip::report() const {
    const double units_in_detail = static_cast<double>(xcds_.size()) * parameters_.compute_units_per_xcd;
    const uint32_t xcds = static_cast<uint32_t>(parameters_.xcds);
    double vector_busy = 0, matrix_busy = 0, lds_busy = 0, conflicts = 0, memory_busy = 0, wave_clocks = 0;
    uint64_t lines = 0, hits = 0, lookups = 0;
    for (const Xcd& xcd : xcds_) {
        for (const auto& unit : xcd.units) {
            vector_busy += unit->vector_busy();
            matrix_busy += unit->matrix_busy();
            lds_busy += unit->lds().busy();
            conflicts += unit->lds().conflict_clocks();
            memory_busy += unit->cache().busy();
            wave_clocks += unit->wave_clocks();
            lines += unit->cache().lines();
            hits += unit->cache().hits();
            lookups += unit->cache().lookups();
        }
    }
    const double clocks = std::max(end_, 1.0), simd_clocks = clocks * units_in_detail * simd_count;
    const double matrix_load = matrix_busy / simd_clocks;
    const double sustained = sustained_clock(parameters_, matrix_type_, matrix_load);
    const MemoryCounts memory = memory_.total();
    const double chip_slots =
        parameters_.xcds * parameters_.compute_units_per_xcd * occupancy_.workgroups_per_compute_unit;
    std::vector<double> durations = durations_;
    std::sort(durations.begin(), durations.end());

    JsonText json;
    json.open('{')
        .member("kernel", kernel_.name)
        .member("target", target_of(options_.device) == isa::Target::gfx942 ? "gfx942" : "gfx950")
        .member("device", device_name(options_.device))
        .member("modelled", true)
        .member("sampling", options_.full ? "all XCDs in detail" : "XCD 0 in detail, the others as echoes")
        .member("values", options_.values)
        .member("workgroups", workgroup_count_)
        .member("waves_per_workgroup", occupancy_.waves_per_workgroup)
        .member("workgroups_per_compute_unit", occupancy_.workgroups_per_compute_unit)
        .member("occupancy_limited_by", occupancy_.limited_by)
        .member("rounds", workgroup_count_ / chip_slots)
        .member("cycles", end_)
        .member("execution_cycles", execution_end_)
        .member("simulated_clock_mhz", clock_mhz_)
        .member("sustained_clock_mhz", sustained)
        .member("microseconds", end_ / sustained)
        .member("launch_overhead_microseconds", parameters_.launch_overhead)
        .member("matrix_type", matrix_type_names[static_cast<int>(matrix_type_)])
        .member("median_workgroup_cycles", durations.empty() ? 0 : durations[durations.size() / 2]);
    json.key("busy")
        .open('{')
        .member("matrix", matrix_load)
        .member("vector", vector_busy / simd_clocks)
        .member("lds", lds_busy / (clocks * units_in_detail))
        .member("vector_memory", memory_busy / (clocks * units_in_detail))
        .close('}');
    json.member("waves_per_simd", wave_clocks / simd_clocks);
    json.member("lds_conflict_cycles", conflicts * xcds / static_cast<double>(xcds_.size()));
    json.key("caches")
        .open('{')
        .member("vector_l1_lines", lines)
        .member("vector_l1_hit_rate", ratio(static_cast<double>(hits), static_cast<double>(lines)))
        .member("vector_l1_lookups", lookups)
        .member("l2_reads", memory.l2_reads)
        .member("l2_hit_rate",
                ratio(static_cast<double>(memory.l2_read_hits), static_cast<double>(memory.l2_reads)))
        .member("l2_writes", memory.l2_writes)
        .member("mall_reads", memory.mall_reads)
        .member("mall_hit_rate",
                ratio(static_cast<double>(memory.mall_read_hits), static_cast<double>(memory.mall_reads)))
        .member("hbm_bytes_read", memory.hbm_read_lines * line_bytes)
        .member("hbm_bytes_written", memory.hbm_write_lines * line_bytes)
        .close('}');
    json.key("instructions").open('[');
    for (size_t i = 0; i < counts_.size(); ++i) {
        const InstructionCounts& counts = counts_[i];
        if (counts.issues == 0) continue;
        json.open('{')
            .member("address", costs_[i].address)
            .member("unit", unit_names[static_cast<int>(costs_[i].unit)])
            .member("issues", counts.issues)
            .key("stalls")
            .open('{');
        for (int why = 1; why < stall_count; ++why) {
            if (counts.stalls[why] > 0) json.member(stall_names[why], counts.stalls[why]);
        }
        json.close('}').close('}');
    }
    return json.close(']').close('}').text();
}

}  // namespace hipkittens::simulator::timing
