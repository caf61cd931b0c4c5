// torch/python_module.cpp: hipkittens._C, the simulator's controls and the disassembler for Python.
// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "simulator/simulator.h"

namespace py = pybind11;

namespace hipkittens::torch_door {
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
    return result;
}

HipkittensSettings settings_from_dict(const py::dict& values) {
    HipkittensSettings settings;
    hipkittens_get_settings(&settings);
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
        } else {
            throw py::key_error("no simulator setting is called " + name);
        }
    }
    return settings;
}

py::dict last_report() {
    HipkittensReport report;
    hipkittens_last_report(&report);
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

py::tuple disassemble(int target, const py::bytes& code) {
    const std::string bytes = code;
    char text[512];
    const int length = hipkittens_disassemble(target, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                                              text, sizeof text);
    if (length == 0) return py::make_tuple(0, py::none());
    return py::make_tuple(length, std::string(text));
}

}  // namespace
}  // namespace hipkittens::torch_door

PYBIND11_MODULE(_C, module) {
    namespace door = hipkittens::torch_door;
    module.doc() = "Controls of the simulator that libhipkittens_simulator.so holds.";
    module.def(
        "get_settings",
        [] {
            HipkittensSettings settings;
            hipkittens_get_settings(&settings);
            return door::settings_to_dict(settings);
        },
        "Settings of this thread's later launches.");
    module.def(
        "set_settings",
        [](const py::dict& values) {
            const HipkittensSettings settings = door::settings_from_dict(values);
            if (hipkittens_set_settings(&settings) != 0) throw py::value_error(hipkittens_last_error());
        },
        py::arg("values"), "Changes the named settings of this thread's later launches.");
    module.def("best_host_level", &hipkittens_best_host_level, "0 portable, 1 avx2, 2 avx512, 3 avx512_bf16.");
    module.def("last_error", [] { return std::string(hipkittens_last_error()); });
    module.def("last_report", &door::last_report, "Counters of this thread's last launch.");
    module.def("disassemble", &door::disassemble, py::arg("target"), py::arg("code"),
               "(bytes used, text) of the instruction at the start of code; (0, None) if it is none. target: 942 or 950.");
}
