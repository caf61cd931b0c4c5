// simulator/debug/debug_session.cpp: a launch that another program can stop, inspect and resume.
// SPDX-License-Identifier: MIT
#include "simulator/debug/debug_session.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "simulator/checks/shadow.h"
#include "simulator/debug/code_addresses.h"
#include "simulator/debug/wave_registers.h"
#include "simulator/json_text.h"
#include "simulator/machine/fault_report.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator::debug {

namespace {

// Interval between checks for an incoming line: some thousand checks a second.
constexpr uint32_t instructions_between_polls = 4096;

std::vector<std::string> words_of(const std::string& line) {
    std::vector<std::string> words;
    for (size_t at = 0; at < line.size();) {
        const size_t end = std::min(line.find(' ', at), line.size());
        if (end > at) words.push_back(line.substr(at, end - at));
        at = end + 1;
    }
    return words;
}

uint64_t number_at(const std::vector<std::string>& words, size_t index) {
    if (index >= words.size()) throw std::invalid_argument("`" + words[0] + "` lacks a word");
    const std::string& word = words[index];
    uint64_t value = 0;
    const char* end = word.data() + word.size();
    if (word.empty() || std::from_chars(word.data(), end, value).ptr != end)
        throw std::invalid_argument("'" + word + "' is no decimal number");
    return value;
}

uint32_t small_number_at(const std::vector<std::string>& words, size_t index) {
    return static_cast<uint32_t>(std::min<uint64_t>(number_at(words, index), UINT32_MAX));
}

const std::string& word_at(const std::vector<std::string>& words, size_t index) {
    if (index >= words.size()) throw std::invalid_argument("`" + words[0] + "` lacks a word");
    return words[index];
}

Wave& wave_at(const Workgroup& workgroup, const std::vector<std::string>& words, size_t index) {
    const uint64_t wave = number_at(words, index);
    if (wave >= workgroup.waves.size()) {
        throw std::out_of_range("wave " + std::to_string(wave) + "; the workgroup has " +
                                std::to_string(workgroup.waves.size()));
    }
    return *workgroup.waves[wave];
}

const char* status_name(WaveStatus status) {
    switch (status) {
        case WaveStatus::ready:
            return "ready";
        case WaveStatus::at_barrier:
            return "at a barrier";
        case WaveStatus::yielded:
            return "yielded";
        case WaveStatus::ended:
            return "ended";
        default:
            return "faulted";
    }
}

void write_numbers(JsonText& json, const char* name, std::span<const uint32_t> values) {
    json.key(name).open('[');
    for (const uint32_t value : values) json.value(value);
    json.close(']');
}

std::string json_member(const char* name, std::string_view text) {
    JsonText json;
    json.open('{').member(name, text).close('}');
    return json.text();
}

// FNV-1a: distinguishes code objects that were seen before.
uint64_t digest_of(std::span<const uint8_t> bytes) {
    uint64_t digest = 0xcbf29ce484222325u;
    for (const uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001b3u;
    return digest;
}

std::string launch_event(uint64_t number, const Dispatch& dispatch, const code_object::Kernel& kernel) {
    const Program& program = *dispatch.program;
    JsonText json;
    json.open('{').member("event", "launch").member("launch", number).member("kernel", kernel.name);
    json.member("target", program.target == isa::Target::gfx942 ? "gfx942" : "gfx950");
    write_numbers(json, "grid", dispatch.grid_workgroups);
    write_numbers(json, "block", dispatch.workgroup_size);
    json.member("lds_bytes", dispatch.lds_bytes).member("vector_registers", program.vgprs);
    json.member("accum_offset", program.accum_offset);
    json.member("code", digest_of(*program.file));
    json.member("entry", program.address_of(dispatch.entry) - program.load_offset);
    json.member("load_offset", program.load_offset);
    json.member("arguments_address", reinterpret_cast<uint64_t>(dispatch.kernel_arguments));
    json.key("arguments").open('[');
    for (const code_object::Argument& argument : kernel.arguments) {
        if (argument.is_hidden()) continue;
        json.open('{').member("name", argument.name).member("type", argument.type_name);
        json.member("kind", argument.kind_text).member("offset", argument.offset);
        json.member("bytes", argument.bytes).close('}');
    }
    json.close(']').key("regions").open('[');
    for (const Region& region : dispatch.regions) {
        json.open('{').member("name", region.name).member("begin", region.begin);
        json.member("bytes", region.end - region.begin).member("writable", region.writable);
        json.member("is_own", region.is_own).close('}');
    }
    json.close(']').close('}');
    return json.text();
}

}  // namespace

uint64_t DebugSession::address_of(const Wave& wave) const {
    if (wave.status == WaveStatus::faulted && wave.fault_step)
        return file_address(*dispatch_->program, wave.fault_step->instruction);
    return file_address(*dispatch_->program,
                        wave.next ? wave.next->instruction : issues_.at(&wave).last_instruction());
}

void DebugSession::launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                                 const Replay& replay) {
    ++launches_;
    dispatch_ = &dispatch;
    replay_ = replay;
    comparison_.reset();
    breaks_.assign(dispatch.program->instructions.size(), false);
    step_.reset();
    last_finding_ = nullptr;
    issues_.clear();
    // The watched addresses may belong to other memory by now.
    watches_.clear();
    if (is_detached_) return;
    channel_.send(launch_event(launches_, dispatch, kernel));
    serve(nullptr);
}

void DebugSession::before_instruction(Wave* wave) {
    if (is_detached_) return;
    issues_[wave].follow(*wave);
    if (comparison_) difference_ = comparison_->before_instruction(*wave);
    const std::string reason = reason_to_stop(*wave);
    if (reason.empty()) return;
    std::string text = reason == "watch" ? changes_ : reason == "difference" ? difference_ : "";
    if (reason == "finding") text = checks::to_json(*wave->workgroup->shadow->findings.latest(), *dispatch_);
    stop(wave, reason, text);
}

std::string DebugSession::reason_to_stop(const Wave& wave) {
    if (!difference_.empty()) return "difference";
    if (instructions_until_poll_-- == 0) {
        instructions_until_poll_ = instructions_between_polls;
        if (channel_.has_input()) {
            const auto line = channel_.receive();
            is_detached_ = !line;
            if (line) return "pause";
        }
    }
    if (const auto* shadow = wave.workgroup->shadow) {
        const void* latest = shadow->findings.latest();
        if (latest && latest != last_finding_) {
            last_finding_ = latest;
            return "finding";
        }
    }
    if (watched_bytes_changed(*wave.workgroup)) return "watch";
    const uint32_t instruction = wave.next->instruction;
    if (step_ && step_->workgroup == wave.workgroup->linear_id && step_->wave == wave.index_in_workgroup) {
        const uint64_t address = file_address(*dispatch_->program, instruction);
        const auto holds = [&](const AddressRange& range) {
            return address >= range.begin && address < range.end;
        };
        if (std::none_of(step_->inside.begin(), step_->inside.end(), holds)) return "step";
    }
    return breaks_[instruction] ? "breakpoint" : "";
}

bool DebugSession::watched_bytes_changed(const Workgroup& workgroup) {
    JsonText json;
    json.open('[');
    bool any = false;
    for (Watch& watch : watches_) {
        if (!watch.is_global && watch.workgroup != workgroup.linear_id) continue;
        const auto [changed, before] =
            std::mismatch(watch.bytes.begin(), watch.bytes.end(), watch.before.begin());
        if (changed == watch.bytes.end()) continue;
        any = true;
        const size_t offset = static_cast<size_t>(before - watch.before.begin()) / 4 * 4;
        const size_t bytes = std::min<size_t>(4, watch.before.size() - offset);
        json.open('{').member("watch", watch.number).member("offset", offset);
        json.member("before", hexadecimal(std::span(watch.before).subspan(offset, bytes)));
        json.member("after", hexadecimal(watch.bytes.subspan(offset, bytes))).close('}');
        watch.before.assign(watch.bytes.begin(), watch.bytes.end());
    }
    if (any) changes_ = json.close(']').text();
    return any;
}

void DebugSession::wave_stopped(Wave* wave) {
    if (is_detached_) return;
    if (wave->status == WaveStatus::faulted) {
        stop(wave, "fault", describe_fault(*wave));
    } else if (watched_bytes_changed(*wave->workgroup)) {
        stop(wave, "watch", changes_);
    } else if (step_ && step_->workgroup == wave->workgroup->linear_id &&
               step_->wave == wave->index_in_workgroup) {
        stop(wave, "ended", "");
    }
}

void DebugSession::launch_ends(const std::string& error) {
    if (is_detached_) return;
    JsonText json;
    json.open('{').member("event", "launch_end").member("launch", launches_).member("error", error);
    json.key("differences").open('[');
    if (comparison_) comparison_->write_memory_differences(json);
    json.close(']').close('}');
    comparison_.reset();
    difference_.clear();
    replay_ = nullptr;
    channel_.send(json.text());
    serve(nullptr);
}

void DebugSession::stop(Wave* wave, const std::string& reason, const std::string& text) {
    const Workgroup& workgroup = *wave->workgroup;
    step_.reset();
    JsonText json;
    json.open('{').member("event", "stop").member("reason", reason).member("text", text);
    write_numbers(json, "workgroup", workgroup.id);
    json.member("linear_workgroup", workgroup.linear_id).member("wave", wave->index_in_workgroup);
    json.member("address", address_of(*wave)).close('}');
    channel_.send(json.text());
    serve(wave);
}

void DebugSession::serve(Wave* wave) {
    for (;;) {
        const auto line = channel_.receive();
        is_detached_ = !line;
        if (!line) return;
        if (*line == "pause") continue;  // it arrived after the launch had stopped by itself
        std::optional<std::string> text;
        try {
            text = answer(wave, *line);
        } catch (const std::exception& error) {
            text = json_member("error", error.what());
        }
        if (!text) return;
        channel_.send(*text);
    }
}

std::span<uint8_t> DebugSession::named_bytes(Wave* wave, const std::vector<std::string>& words,
                                             size_t first) {
    const std::string& kind = word_at(words, first);
    if (kind == "memory")
        return memory_bytes(*dispatch_, number_at(words, first + 1), number_at(words, first + 2));
    if (!wave) throw std::invalid_argument("no wave has stopped; before a launch there is `memory` alone");
    if (kind == "lds")
        return lds_bytes(*wave->workgroup, number_at(words, first + 1), number_at(words, first + 2));
    if (kind == "vector") {
        return vector_registers(wave_at(*wave->workgroup, words, first + 1),
                                small_number_at(words, first + 2), small_number_at(words, first + 3));
    }
    if (kind == "lane") {
        const uint32_t lane = small_number_at(words, first + 3);
        if (lane >= 64) throw std::out_of_range("lane " + std::to_string(lane) + "; a wave has 0 to 63");
        return vector_registers(wave_at(*wave->workgroup, words, first + 1),
                                small_number_at(words, first + 2), 1)
            .subspan(size_t{lane} * 4, 4);
    }
    throw std::invalid_argument("'" + kind + "' names no bytes; allowed: vector, lane, lds, memory");
}

void DebugSession::set_breakpoints(const std::vector<std::string>& words) {
    const Program& program = *dispatch_->program;
    std::vector<bool> wanted(breaks_.size(), false);
    for (size_t i = 1; i < words.size(); ++i) {
        const uint64_t address = number_at(words, i);
        const Step* step = program.step_for_address(address + program.load_offset);
        if (!step) throw std::out_of_range("no instruction begins at address " + words[i]);
        wanted[step->instruction] = true;
    }
    breaks_ = std::move(wanted);
}

void DebugSession::set_watch(Wave* wave, const std::vector<std::string>& words) {
    const uint32_t number = small_number_at(words, 1);
    std::erase_if(watches_, [&](const Watch& watch) { return watch.number == number; });
    if (words.size() == 2) return;
    const std::span<uint8_t> bytes = named_bytes(wave, words, 2);
    watches_.push_back({number,
                        wave ? wave->workgroup->linear_id : 0,
                        bytes,
                        {bytes.begin(), bytes.end()},
                        words[2] == "memory"});
}

std::string DebugSession::compare_orders(Wave* wave, uint64_t wave_order_seed) {
    if (wave) throw std::invalid_argument("`replay` comes before a launch has begun");
    comparison_.reset();
    auto comparison = std::make_unique<OrderComparison>(*dispatch_, replay_, wave_order_seed);
    JsonText json;
    json.open('{').member("error_there", comparison->error());
    json.member("instructions", comparison->instructions()).close('}');
    comparison_ = std::move(comparison);
    return json.text();
}

std::string DebugSession::describe_waves(const Workgroup& workgroup) const {
    JsonText json;
    json.open('{').key("waves").open('[');
    for (const Wave* wave : workgroup.waves) {
        json.open('{').member("wave", wave->index_in_workgroup).member("status", status_name(wave->status));
        json.member("address", address_of(*wave)).member("exec", wave->exec);
        json.member("scc", wave->scc).member("mode", wave->mode).member("barriers", wave->barriers);
        json.key("in_flight").open('[');
        if (const auto log = issues_.find(wave); log != issues_.end()) {
            for (const IssueLog::Operation& operation : log->second.in_flight(*wave)) {
                json.open('{').member("queue", operation.queue);
                json.member("address", file_address(*dispatch_->program, operation.instruction)).close('}');
            }
        }
        json.close(']').close('}');
    }
    json.close(']').close('}');
    return json.text();
}

std::optional<std::string> DebugSession::answer(Wave* wave, const std::string& line) {
    const std::vector<std::string> words = words_of(line);
    const std::string& name = words.empty() ? line : words[0];
    const std::string done = json_member("done", name);
    if (name == "continue") return std::nullopt;
    if (name == "code") return json_member("bytes", hexadecimal(*dispatch_->program->file));
    if (name == "breakpoints") {
        set_breakpoints(words);
        return done;
    }
    if (name == "watch") {
        set_watch(wave, words);
        return done;
    }
    if (name == "replay") return compare_orders(wave, number_at(words, 1));
    if (name == "memory") return json_member("bytes", hexadecimal(named_bytes(wave, words, 0)));
    if (name == "set_memory") {
        const std::string& digits = word_at(words, 2);
        set_bytes(memory_bytes(*dispatch_, number_at(words, 1), digits.size() / 2), digits);
        return done;
    }
    if (!wave) throw std::invalid_argument("`" + name + "` wants a wave that has stopped");
    if (name == "waves") return describe_waves(*wave->workgroup);
    if (name == "vector" || name == "lds")
        return json_member("bytes", hexadecimal(named_bytes(wave, words, 0)));
    if (name == "scalar") {
        const Wave& of = wave_at(*wave->workgroup, words, 1);
        std::vector<uint32_t> values;
        const uint32_t first = small_number_at(words, 2), count = small_number_at(words, 3);
        for (uint32_t i = 0; i < count; ++i) values.push_back(scalar_register(of, first + i));
        JsonText json;
        write_numbers(json.open('{'), "values", values);
        return json.close('}').text();
    }
    if (name == "set_vector") {
        set_bytes(vector_registers(wave_at(*wave->workgroup, words, 1), small_number_at(words, 2), 1),
                  word_at(words, 3));
        return done;
    }
    if (name == "set_scalar") {
        set_scalar_register(wave_at(*wave->workgroup, words, 1), small_number_at(words, 2),
                            small_number_at(words, 3));
        return done;
    }
    if (name == "set_lds") {
        const std::string& digits = word_at(words, 2);
        set_bytes(lds_bytes(*wave->workgroup, number_at(words, 1), digits.size() / 2), digits);
        return done;
    }
    if (name == "step") {
        step_ = SingleStep{small_number_at(words, 1), small_number_at(words, 2), {}};
        for (size_t i = 3; i < words.size(); i += 2)
            step_->inside.push_back({number_at(words, i), number_at(words, i + 1)});
        return std::nullopt;
    }
    throw std::invalid_argument("'" + name + "' is no command");
}

}  // namespace hipkittens::simulator::debug
