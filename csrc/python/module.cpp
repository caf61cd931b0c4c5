// python/module.cpp: hipkittens._C, the simulator's controls and the disassembler for Python.
// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "simulator/simulator.h"

namespace py = pybind11;

namespace hipkittens::python {
namespace {

py::dict settings_to_dict(const HipkittensSettings& settings) {
    py::dict result;
    result["arithmetic"] = settings.arithmetic;
    result["host_level"] = settings.host_level;
    result["threads"] = settings.threads;
    result["wave_order_seed"] = settings.wave_order_seed;
    result["poison"] = settings.poison != 0;
    result["count_lds_conflicts"] = settings.count_lds_conflicts != 0;
    result["instruction_limit"] = settings.instruction_limit;
    result["wave_turn"] = settings.wave_turn;
    result["workgroups_side_by_side"] = settings.workgroups_side_by_side;
    result["checks"] = settings.checks;
    return result;
}

HipkittensSettings settings_from_dict(const py::dict& values, HipkittensSettings settings) {
    for (const auto& [key, value] : values) {
        const auto name = key.cast<std::string>();
        if (name == "arithmetic") {
            settings.arithmetic = value.cast<int>();
        } else if (name == "host_level") {
            settings.host_level = value.cast<int>();
        } else if (name == "threads") {
            settings.threads = value.cast<uint32_t>();
        } else if (name == "wave_order_seed") {
            settings.wave_order_seed = value.cast<uint64_t>();
        } else if (name == "poison") {
            settings.poison = value.cast<bool>();
        } else if (name == "count_lds_conflicts") {
            settings.count_lds_conflicts = value.cast<bool>();
        } else if (name == "instruction_limit") {
            settings.instruction_limit = value.cast<uint64_t>();
        } else if (name == "wave_turn") {
            settings.wave_turn = value.cast<uint32_t>();
        } else if (name == "workgroups_side_by_side") {
            settings.workgroups_side_by_side = value.cast<uint32_t>();
        } else if (name == "checks") {
            settings.checks = value.cast<uint32_t>();
        } else {
            throw py::key_error("no simulator setting is called " + name);
        }
    }
    return settings;
}

// The simulator keeps settings per thread, and autograd may launch from threads of its own: these hold for
// the process, and apply_settings, which the operators call before a simulated launch, hands them to the
// launching thread.
std::mutex settings_mutex;
HipkittensSettings process_settings;

void apply_settings() {
    const std::lock_guard lock(settings_mutex);
    hipkittens_set_settings(&process_settings);
}

void set_settings(const py::dict& values) {
    const std::lock_guard lock(settings_mutex);
    const HipkittensSettings settings = settings_from_dict(values, process_settings);
    if (hipkittens_set_settings(&settings) != 0) throw py::value_error(hipkittens_last_error());
    process_settings = settings;
}

py::dict report_to_dict(const HipkittensReport& report) {
    py::dict result;
    result["instructions"] = report.instructions;
    result["workgroups"] = report.workgroups;
    result["waves"] = report.waves;
    result["mfma_instructions"] = report.mfma_instructions;
    result["valu_instructions"] = report.valu_instructions;
    result["salu_instructions"] = report.salu_instructions;
    result["lds_instructions"] = report.lds_instructions;
    result["vector_memory_instructions"] = report.vector_memory_instructions;
    result["other_instructions"] = report.other_instructions;
    result["lds_conflict_cycles"] = report.lds_conflict_cycles;
    result["seconds"] = report.seconds;
    return result;
}

py::dict last_report() {
    HipkittensReport report;
    hipkittens_last_report(&report);
    return report_to_dict(report);
}

// isa::Unit, in its order.
constexpr const char* units[] = {"salu",          "smem", "valu",   "transcendental", "matrix",  "lds",
                                 "vector_memory", "flat", "branch", "message",        "internal"};

py::list recorded_launches() {
    py::list result;
    for (size_t index = 0; index < hipkittens_recorded_launches(); ++index) {
        HipkittensLaunchRecord record;
        if (hipkittens_recorded_launch(index, &record) != 0)
            throw std::runtime_error(hipkittens_last_error());
        py::list instructions, waits;
        for (size_t i = 0; i < record.instruction_count; ++i) {
            const HipkittensInstructionRecord& from = record.instructions[i];
            instructions.append(py::make_tuple(from.address, units[from.unit], from.executions, from.bytes,
                                               from.lds_conflict_cycles));
            if (from.vm_in_flight || from.lgkm_in_flight)
                waits.append(py::make_tuple(from.address, from.vm_in_flight, from.lgkm_in_flight));
        }
        py::dict entry;
        entry["kernel"] = record.kernel;
        entry["target"] = "gfx" + std::to_string(record.target);
        entry["report"] = report_to_dict(record.report);
        py::list regions;
        for (size_t i = 0; i < record.region_count; ++i) {
            const HipkittensRegionRecord& from = record.regions[i];
            regions.append(py::make_tuple(from.name, from.bytes_loaded, from.bytes_stored,
                                          from.distinct_bytes_loaded, from.distinct_bytes_stored));
        }
        entry["regions"] = regions;
        entry["instructions"] = instructions;
        entry["trace"] = py::bytes(reinterpret_cast<const char*>(record.trace), record.trace_words * 4);
        entry["waits"] = waits;  // those that something was in flight at
        result.append(entry);
    }
    return result;
}

std::string findings() {
    std::string text(hipkittens_findings(nullptr, 0) + 1, '\0');
    text.resize(std::min(hipkittens_findings(text.data(), text.size()), text.size() - 1));
    return text;
}

py::tuple disassemble(int target, const py::bytes& code) {
    const std::string bytes = code;
    char text[512];
    const int length = hipkittens_disassemble(target, reinterpret_cast<const uint8_t*>(bytes.data()),
                                              bytes.size(), text, sizeof text);
    if (length == 0) return py::make_tuple(0, py::none());
    return py::make_tuple(length, std::string(text));
}

py::dict survey(int target, const py::bytes& code) {
    const std::string bytes = code;
    py::dict result;
    const auto visit = [](void* context, const char* mnemonic, const char* row, uint64_t count,
                          uint64_t implemented) {
        (*static_cast<py::dict*>(context))[mnemonic] = py::make_tuple(row, count, implemented);
    };
    if (hipkittens_survey(target, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), visit,
                          &result) != 0)
        throw py::value_error(hipkittens_last_error());
    return result;
}

}  // namespace
}  // namespace hipkittens::python

PYBIND11_MODULE(_C, module) {
    namespace door = hipkittens::python;
    module.doc() = "Controls of the simulator that libhipkittens_simulator.so holds.";
    hipkittens_get_settings(&door::process_settings);
    module.def(
        "get_settings", [] { return door::settings_to_dict(door::process_settings); },
        "Settings of this process's later launches.");
    module.def("set_settings", &door::set_settings, py::arg("values"),
               "Changes the named settings of this process's later launches.");
    module.attr("apply_settings_address") = reinterpret_cast<uintptr_t>(&door::apply_settings);
    module.def("best_host_level", &hipkittens_best_host_level,
               "0 portable, 1 avx2, 2 avx512, 3 avx512_bf16, 4 amx.");
    module.def("last_error", [] { return std::string(hipkittens_last_error()); });
    module.def("last_report", &door::last_report, "Counters of this thread's last launch.");
    module.def(
        "record_launches", [](bool on, bool trace) { hipkittens_record_launches(on ? trace ? 2 : 1 : 0); },
        py::arg("on"), py::arg("trace") = false,
        "Starts to keep every launch of this process, forgetting those kept before; or stops.");
    module.def(
        "recorded_launches", &door::recorded_launches,
        "The launches kept: kernel, target, report, regions of (name, bytes loaded, bytes stored, distinct "
        "bytes loaded, distinct bytes stored), and of each instruction that was executed (address, unit, "
        "executions, bytes, LDS conflict cycles).");
    module.def("findings", &door::findings, "JSON array of what the checkers found since clear_findings.");
    module.def("clear_findings", &hipkittens_clear_findings);
    module.def("disassemble", &door::disassemble, py::arg("target"), py::arg("code"),
               "(bytes used, text) of the instruction at the start of code; (0, None) if it is none. target: "
               "942 or 950.");
    module.def("survey", &door::survey, py::arg("target"), py::arg("code"),
               "{mnemonic: (row, count, implemented)} of the instructions in code.");
}
