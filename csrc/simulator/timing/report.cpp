// simulator/timing/report.cpp: the report of a modelled launch, as JSON.
// SPDX-License-Identifier: MIT
#include "simulator/timing/report.h"

#include <algorithm>
#include <optional>

#include "code_object/line_table.h"
#include "simulator/json_text.h"
#include "simulator/machine/fault_report.h"
#include "simulator/machine/program.h"
#include "simulator/timing/clock.h"

namespace hipkittens::simulator::timing {
namespace {

constexpr const char* matrix_type_names[] = {"none", "f16", "bf16", "f8", "f4", "other"};
constexpr const char* unit_names[] = {"salu",          "smem", "valu",   "transcendental", "matrix",  "lds",
                                      "vector_memory", "flat", "branch", "message",        "internal"};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::optional<code_object::LineTable> line_table_of(const Program& program) {
    try {
        return code_object::LineTable(*program.file);
    } catch (const code_object::Error&) {
        return std::nullopt;  // results without source lines are better than none
    }
}

SourcePlace source_of(const std::optional<code_object::LineTable>& lines, const Program& program,
                      const isa::Instruction& instruction) {
    const uint64_t address = program.text_address + instruction.address - program.load_offset;
    return lines ? SourcePlace{lines->source_line(address), lines->called_from(address)} : SourcePlace{};
}

}  // namespace

double Chip::matrix_load() const {
    double busy = 0;
    for (const Xcd& xcd : xcds_) {
        for (const auto& unit : xcd.units) busy += unit->matrix_busy();
    }
    return ratio(busy,
                 end_ * static_cast<double>(xcds_.size()) * parameters_.compute_units_per_xcd * simd_count);
}

void Chip::describe(JsonText& json) const {
    const double units_in_detail = static_cast<double>(xcds_.size()) * parameters_.compute_units_per_xcd;
    double flops = 0, vector_busy = 0, lds_busy = 0, conflicts = 0, memory_busy = 0, wave_clocks = 0;
    uint64_t lines = 0, hits = 0, lookups = 0;
    for (const Xcd& xcd : xcds_) {
        for (const auto& unit : xcd.units) {
            for (int type = 0; type < 6; ++type) flops += unit->flops()[type];
            vector_busy += unit->vector_busy();
            lds_busy += unit->lds().busy();
            conflicts += unit->lds().conflict_clocks();
            memory_busy += unit->cache().busy();
            wave_clocks += unit->wave_clocks();
            lines += unit->cache().lines();
            hits += unit->cache().hits();
            lookups += unit->cache().lookups();
        }
    }
    // Extrapolates from the workgroups in detail to all workgroups.
    const double share = ratio(workgroup_count_, static_cast<double>(durations_.size()));
    const double clocks = std::max(end_, 1.0), simd_clocks = clocks * units_in_detail * simd_count;
    const MemoryCounts memory = memory_.total();
    const double chip_slots =
        parameters_.xcds * parameters_.compute_units_per_xcd * occupancy_.workgroups_per_compute_unit;
    std::vector<double> durations = durations_;
    std::sort(durations.begin(), durations.end());

    json.member("kernel", kernel_.name)
        .member("target", target_of(options_.device) == isa::Target::gfx942 ? "gfx942" : "gfx950")
        .member("device", device_name(options_.device))
        .member("modelled", true)
        .member("sampling",
                options_.full ? std::string("all XCDs in detail")
                              : "XCD " + std::to_string(xcds_[0].index) + " in detail, the others as echoes")
        .member("values", options_.values)
        .member("workgroups", workgroup_count_)
        .member("waves_per_workgroup", occupancy_.waves_per_workgroup)
        .member("workgroups_per_compute_unit", occupancy_.workgroups_per_compute_unit)
        .member("occupancy_limited_by", occupancy_.limited_by)
        .member("rounds", workgroup_count_ / chip_slots)
        .member("execution_cycles", execution_end_)
        .member("launch_overhead_microseconds", parameters_.launch_overhead)
        .member("matrix_flops", flops * share)
        .member("matrix_type", matrix_type_names[static_cast<int>(matrix_type_)])
        .member("median_workgroup_cycles", durations.empty() ? 0 : durations[durations.size() / 2]);
    json.key("busy")
        .open('{')
        .member("matrix", matrix_load())
        .member("vector", vector_busy / simd_clocks)
        .member("lds", lds_busy / (clocks * units_in_detail))
        .member("vector_memory", memory_busy / (clocks * units_in_detail))
        .close('}');
    json.member("waves_per_simd", wave_clocks / simd_clocks);
    json.member("lds_conflict_cycles", conflicts * share);
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
    json.key("stall_names").open('[');
    for (const char* name : stall_names) json.value(name);
    json.close(']');
    json.member("timeline_is_full", events_.is_full());
    const Program& program = *dispatch_.program;
    const std::optional<code_object::LineTable> line_table = line_table_of(program);
    json.key("instructions").open('[');
    for (size_t i = 0; i < counts_.size(); ++i) {
        const InstructionCounts& counts = counts_[i];
        if (counts.issues == 0) continue;
        const SourcePlace source = source_of(line_table, program, program.instructions[i]);
        json.open('{')
            .member("address", costs_[i].address)
            .member("text", instruction_text(program, program.instructions[i]))
            .member("source", source.line)
            .member("called_from", source.called_from)
            .member("unit", unit_names[static_cast<int>(costs_[i].unit)])
            .member("issues", counts.issues)
            .key("stalls")
            .open('{');
        for (int why = 1; why < stall_count; ++why) {
            if (counts.stalls[why] > 0) json.member(stall_names[why], counts.stalls[why]);
        }
        json.close('}').close('}');
    }
    json.close(']');
}

Report report_of(const Chip& chip, const Chip* fast) {
    const Parameters& parameters = chip.options().parameters;
    const double slow_clock = chip.clock_mhz(), slow_time = chip.cycles() / slow_clock;
    double clock = slow_clock, cycles = chip.cycles(), microseconds = slow_time;
    if (fast) {
        const double fast_clock = fast->clock_mhz(), fast_time = fast->cycles() / fast_clock;
        const double work = chip.matrix_load() * chip.cycles();
        const auto time_at = [&](double mhz) {
            const double share = (1 / mhz - 1 / fast_clock) / (1 / slow_clock - 1 / fast_clock);
            return fast_time + share * (slow_time - fast_time);
        };
        // The higher the clock, the lower the load if memory is the limit: there is one clock at which both agree.
        double low = slow_clock, high = fast_clock;
        for (int i = 0; i < 40; ++i) {
            clock = (low + high) / 2;
            const double load = ratio(work, time_at(clock) * clock);
            (sustained_clock(parameters, chip.matrix_type(), load) > clock ? low : high) = clock;
        }
        microseconds = time_at(clock);
        cycles = microseconds * clock;
    }
    JsonText json;
    json.open('{').member("cycles", cycles).member("microseconds", microseconds).member("clock_mhz", clock);
    json.key("at_clocks").open('[');
    for (const Chip* at : {&chip, fast}) {
        if (!at) continue;
        json.open('{')
            .member("clock_mhz", at->clock_mhz())
            .member("cycles", at->cycles())
            .member("matrix_busy", at->matrix_load())
            .close('}');
    }
    json.close(']');
    Report report;
    report.fast_is_nearer = fast && fast->clock_mhz() - clock < clock - slow_clock;
    const Chip& nearer = report.fast_is_nearer ? *fast : chip;
    json.member("details_at_clock_mhz", nearer.clock_mhz());
    nearer.describe(json);
    report.text = json.close('}').text();
    return report;
}

}  // namespace hipkittens::simulator::timing
