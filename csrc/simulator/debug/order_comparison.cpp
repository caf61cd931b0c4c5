// simulator/debug/order_comparison.cpp: where a launch diverges from the same launch under another order of waves.
// SPDX-License-Identifier: MIT
#include "simulator/debug/order_comparison.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <stdexcept>

#include "simulator/debug/code_addresses.h"
#include "simulator/debug/wave_numbers.h"
#include "simulator/debug/wave_registers.h"

namespace hipkittens::simulator::debug {

namespace {

constexpr uint64_t max_recorded = uint64_t{1} << 28;  // 2 GiB

}  // namespace

class OrderComparison::Recorder : public Debugger {
  public:
    struct Executed {
        uint32_t address, digest;
    };

    void launch_begins(const Dispatch& dispatch, const code_object::Kernel&, const Replay&) override {
        dispatch_ = &dispatch;
        sources_.emplace(*dispatch.program);
        waves.resize(waves_of_launch(dispatch));
    }
    void before_instruction(Wave* wave) override {
        if (++instructions > max_recorded) {
            throw std::length_error(
                "more than " + std::to_string(max_recorded) +
                " wave instructions are not kept for a comparison; launch fewer workgroups");
        }
        const uint32_t address = dispatch_->program->instructions[wave->next->instruction].address;
        waves[number_of(*wave)].push_back({address, sources_->digest(*wave)});
    }
    void wave_stopped(Wave*) override {}
    void launch_ends(const std::string& why) override {
        error = why;
        memory.emplace(dispatch_->regions);
        sources_.reset();
        dispatch_ = nullptr;
    }

    std::vector<std::vector<Executed>> waves;
    std::optional<MemoryCopy> memory;  // as the run left it
    std::string error;
    uint64_t instructions = 0;

  private:
    const Dispatch* dispatch_ = nullptr;
    std::optional<SourceRegisters> sources_;
};

// The register contents that each instruction of one wave reads.
class OrderComparison::Capture : public Debugger {
  public:
    Capture(uint64_t wave, uint32_t position) : wave_(wave), position_(position) {}

    void launch_begins(const Dispatch& dispatch, const code_object::Kernel&, const Replay&) override {
        sources_.emplace(*dispatch.program);
    }
    void before_instruction(Wave* wave) override {
        if (number_of(*wave) == wave_ && executed_++ == position_) values = sources_->values(*wave);
    }
    void wave_stopped(Wave*) override {}
    void launch_ends(const std::string&) override { sources_.reset(); }

    std::vector<SourceRegisters::Value> values;

  private:
    uint64_t wave_;
    uint32_t position_, executed_ = 0;
    std::optional<SourceRegisters> sources_;
};

OrderComparison::OrderComparison(const Dispatch& dispatch, const Replay& replay, uint64_t wave_order_seed)
    : dispatch_(dispatch),
      replay_(replay),
      wave_order_seed_(wave_order_seed),
      sources_(*dispatch.program),
      recorded_(std::make_unique<Recorder>()),
      progress_(waves_of_launch(dispatch)) {
    replay_(*recorded_, wave_order_seed_);
}

OrderComparison::~OrderComparison() = default;

const std::string& OrderComparison::error() const { return recorded_->error; }

uint64_t OrderComparison::instructions() const { return recorded_->instructions; }

std::string OrderComparison::before_instruction(const Wave& wave) {
    const uint64_t number = number_of(wave);
    if (!progress_[number]) progress_[number] = std::make_unique<Progress>();
    Progress& progress = *progress_[number];
    const auto& recorded = recorded_->waves[number];
    // A wave that has diverged finds different values everywhere; one that faulted in the other run has
    // nothing further to compare with.
    if (progress.has_parted || progress.instructions >= recorded.size()) return "";

    const uint32_t instruction = wave.next->instruction, position = progress.instructions++;
    const Recorder::Executed& there = recorded[position];
    std::string text;
    if (there.address != dispatch_.program->instructions[instruction].address) {
        progress.has_parted = true;
        JsonText json;
        json.open('{').member("position", position).key("registers").open('[').close(']');
        const uint64_t elsewhere = dispatch_.program->text_address + there.address;
        text = json.member("other_address", elsewhere - dispatch_.program->load_offset).close('}').text();
    } else if (there.digest != sources_.digest(wave)) {
        progress.has_parted = true;
        text = describe_registers(wave, position);
    }
    const checks::RegisterSet& writes = sources_.effects(instruction).writes;
    for (uint32_t i = 0; i < writes.count; ++i) {
        for (uint64_t bits = writes.words[i].bits; bits; bits &= bits - 1)
            progress.written_by[writes.words[i].word * 64 + static_cast<uint32_t>(std::countr_zero(bits))] =
                instruction + 1;
    }
    return text;
}

std::string OrderComparison::describe_registers(const Wave& wave, uint32_t position) {
    Capture capture(number_of(wave), position);
    replay_(capture, wave_order_seed_);
    const Program& program = *dispatch_.program;
    const std::vector<SourceRegisters::Value> here = sources_.values(wave);
    JsonText json;
    json.open('{').member("position", position).key("registers").open('[');
    for (size_t i = 0; i < std::min(here.size(), capture.values.size()); ++i) {
        const auto &ours = here[i], &theirs = capture.values[i];
        uint64_t different = 0;
        for (size_t lane = 0; lane < ours.dwords.size(); ++lane)
            different |= uint64_t{ours.dwords[lane] != theirs.dwords[lane]} << lane;
        different &= ours.lanes & theirs.lanes;
        if (!different) continue;
        const auto lane = static_cast<uint32_t>(std::countr_zero(different));
        json.open('{').member("register", checks::register_name(ours.number, program.accum_offset));
        json.member("lanes", std::popcount(different)).member("lane", lane);
        json.member("here", ours.dwords[lane]).member("there", theirs.dwords[lane]);
        const uint32_t writer = progress_[number_of(wave)]->written_by[ours.number];
        if (writer) json.member("written_by", file_address(program, writer - 1));
        json.close('}');
    }
    return json.close(']').close('}').text();
}

void OrderComparison::write_memory_differences(JsonText& json) const {
    for (const MemoryCopy::Part& part : recorded_->memory->parts()) {
        const auto* here = reinterpret_cast<const uint8_t*>(part.region.begin);
        const auto& there = part.bytes;
        uint64_t count = 0, first = 0;
        for (size_t i = 0; i < there.size(); ++i) {
            if (here[i] == there[i]) continue;
            if (count++ == 0) first = i;
        }
        if (!count) continue;
        const uint64_t dword = first / 4 * 4, bytes = std::min<uint64_t>(4, there.size() - dword);
        json.open('{').member("name", part.region.name).member("bytes", count).member("offset", dword);
        json.member("here", hexadecimal({here + dword, bytes}));
        json.member("there", hexadecimal(std::span(there).subspan(dword, bytes))).close('}');
    }
}

}  // namespace hipkittens::simulator::debug
