// simulator/checks/finding.cpp: lists of findings, and a finding as JSON.
// SPDX-License-Identifier: MIT
#include "simulator/checks/finding.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "simulator/json_text.h"
#include "simulator/machine/fault_report.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator::checks {

Finding* FindingList::count_known(const char* kind, uint32_t first, uint32_t second) {
    const auto found = findings_.find({first, second, kind});
    if (found == findings_.end()) return nullptr;
    ++found->second.count;
    return &found->second;
}

void FindingList::add(Finding finding) {
    const auto key = std::make_tuple(finding.first, finding.second, finding.kind);
    latest_ = &findings_.emplace(key, std::move(finding)).first->second;
}

void FindingList::drop(std::string_view kind_prefix) {
    latest_ = nullptr;
    std::erase_if(findings_, [&](const auto& entry) {
        return std::string_view(entry.second.kind).starts_with(kind_prefix);
    });
}

void FindingList::merge(const FindingList& other) {
    for (const auto& [key, finding] : other.findings_) {
        const auto [place, is_new] = findings_.emplace(key, finding);
        if (is_new) continue;
        // The lowest workgroup is reported for all: which one a host thread encountered first is random.
        const uint64_t count = place->second.count + finding.count;
        if (finding.workgroup < place->second.workgroup) place->second = finding;
        place->second.count = count;
    }
}

std::vector<const Finding*> FindingList::ordered() const {
    std::vector<const Finding*> result;
    for (const auto& [key, finding] : findings_) result.push_back(&finding);
    std::stable_sort(result.begin(), result.end(), [](const Finding* a, const Finding* b) {
        return std::make_tuple(a->second, a->first, std::string(a->kind)) <
               std::make_tuple(b->second, b->first, std::string(b->kind));
    });
    return result;
}

namespace {

const char* name_of(Checker checker) {
    switch (checker) {
        case memcheck:
            return "memcheck";
        case racecheck:
            return "racecheck";
        case initcheck:
            return "initcheck";
        case synccheck:
            return "synccheck";
        default:
            return "notes";
    }
}

struct Place {
    std::string text;
    SourcePlace source;
    uint64_t offset = 0;
};

Place place_of(const Dispatch& dispatch, uint32_t instruction) {
    const Program& program = *dispatch.program;
    Place place;
    place.text = instruction_text(program, program.instructions[instruction]);
    place.source = source_of(program, instruction);
    place.offset =
        program.instructions[instruction].address - program.instructions[dispatch.entry->instruction].address;
    return place;
}

void add_party(JsonText& json, const char* name, const Dispatch& dispatch, uint32_t instruction,
               uint8_t wave) {
    json.key(name);
    if (instruction == no_instruction) {
        json.value(nullptr);
        return;
    }
    const Place place = place_of(dispatch, instruction);
    json.open('{')
        .member("text", place.text)
        .member("offset", place.offset)
        .member("source", place.source.line)
        .member("called_from", place.source.called_from);
    json.key("wave");
    if (wave == no_wave) {
        json.value(nullptr);
    } else {
        json.value(wave);
    }
    json.close('}');
}

// For example `s_barrier` at entry+0x40 (gemm.h:36)
std::string named(const Dispatch& dispatch, uint32_t instruction) {
    if (instruction == no_instruction) return "";
    const Place place = place_of(dispatch, instruction);
    char offset[32];
    std::snprintf(offset, sizeof offset, "entry+0x%llx", static_cast<unsigned long long>(place.offset));
    const std::string source = place.source.text();
    return "`" + place.text + "` at " + offset + (source.empty() ? "" : " (" + source + ")");
}

void replace(std::string& text, const std::string& what, const std::string& by) {
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
        text.replace(at, what.size(), by);
}

}  // namespace

std::string to_json(const Finding& finding, const Dispatch& dispatch) {
    const uint32_t* grid = dispatch.grid_workgroups;
    std::string message = finding.message;
    replace(message, "{1}", named(dispatch, finding.first));
    replace(message, "{2}", named(dispatch, finding.second));
    char lanes[32];
    std::snprintf(lanes, sizeof lanes, "0x%016llx", static_cast<unsigned long long>(finding.lanes));
    const uint32_t id = finding.workgroup;
    JsonText json;
    json.open('{')
        .member("checker", name_of(finding.checker))
        .member("kind", finding.kind)
        .member("kernel", dispatch.kernel_name)
        .member("target", dispatch.program->target == isa::Target::gfx942 ? "gfx942" : "gfx950")
        .member("message", message);
    add_party(json, "first", dispatch, finding.first, finding.first_wave);
    add_party(json, "second", dispatch, finding.second, finding.second_wave);
    json.key("workgroup")
        .open('[')
        .value(id % grid[0])
        .value(id / grid[0] % grid[1])
        .value(id / grid[0] / grid[1])
        .close(']');
    json.member("lanes", lanes)
        .member("place", finding.place)
        .member("fix", finding.fix)
        .member("count", finding.count);
    return json.close('}').text();
}

void FindingLog::append(std::vector<std::string> launch) {
    constexpr size_t limit = 10000;  // a faulty kernel in a training loop must not exhaust the host's memory
    static const char* const file = std::getenv("HIPKITTENS_CHECKS_FILE");
    static const int registered = file ? std::atexit([] { finding_log().write_file(); }) : 0;
    static const bool keeps = file || std::getenv("HIPKITTENS_CHECKS");
    (void)registered;
    std::lock_guard lock(mutex_);
    for (std::string& entry : launch) {
        if (keeps && kept_.size() < limit) kept_.push_back(entry);
        if (entries_.size() < limit) entries_.push_back(std::move(entry));
    }
}

void FindingLog::write_file() {
    std::lock_guard lock(mutex_);
    std::FILE* file = std::fopen(std::getenv("HIPKITTENS_CHECKS_FILE"), "w");
    if (!file) return std::perror("hipkittens: HIPKITTENS_CHECKS_FILE");
    const std::string json = json_array(kept_);
    std::fwrite(json.data(), 1, json.size(), file);
    std::fclose(file);
}

std::string FindingLog::json() {
    std::lock_guard lock(mutex_);
    return json_array(entries_);
}

std::string FindingLog::kept_json() {
    std::lock_guard lock(mutex_);
    return json_array(kept_);
}

void FindingLog::clear() {
    std::lock_guard lock(mutex_);
    entries_.clear();
}

uint32_t checkers_of_environment() {
    const char* text = std::getenv("HIPKITTENS_CHECKS");
    if (!text || !*text) return 0;
    uint32_t result = 0;
    std::string_view left = text;
    while (!left.empty()) {
        const std::string_view name = left.substr(0, left.find(','));
        left.remove_prefix(std::min(left.size(), name.size() + 1));
        uint32_t found = name == "all" ? all_checkers : 0;
        for (const Checker checker : {memcheck, racecheck, initcheck, synccheck, notes}) {
            if (name == name_of(checker)) found = checker;
        }
        if (!found) {
            std::fprintf(stderr, "hipkittens: HIPKITTENS_CHECKS names '%.*s', which is no checker\n",
                         static_cast<int>(name.size()), name.data());
        }
        result |= found;
    }
    return result;
}

// Never destroyed: threads may still launch while the process exits.
FindingLog& finding_log() {
    static FindingLog& log = *new FindingLog;
    return log;
}

}  // namespace hipkittens::simulator::checks
