// simulator/machine/loaded_code.cpp: a code object in the machine's memory, and its kernels as programs.
// SPDX-License-Identifier: MIT
#include "simulator/machine/loaded_code.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>

#include "simulator/machine/program_cache.h"

namespace hipkittens::simulator {
namespace {

bool lies_in(const code_object::Kernel& kernel, const code_object::Segment& segment) {
    return kernel.start_address >= segment.address &&
           kernel.start_address < segment.address + segment.memory_bytes;
}

}  // namespace

LoadedCode::LoadedCode(std::span<const uint8_t> file)
    : object_(code_object::parse(file)),
      file_(std::make_shared<const std::vector<uint8_t>>(file.begin(), file.end())) {
    mapped_bytes_ = (object_.image_bytes + 4095) / 4096 * 4096;
    void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    image_ = static_cast<uint8_t*>(memory);
    code_object::load_image(object_, file, image(), reinterpret_cast<uint64_t>(image_));
}

LoadedCode::~LoadedCode() {
    for (const auto& each : programs_) {
        if (const auto program = each.lock()) program_cache().forget(program.get());
    }
    munmap(image_, mapped_bytes_);
}

void LoadedCode::start_again_after_fork(bool others_were_launching) {
    new (&mutex_) std::mutex;
    if (others_were_launching) new (&programs_) std::vector<std::weak_ptr<const Program>>;
}

std::shared_ptr<const Program> LoadedCode::program(const code_object::Kernel& kernel,
                                                   const Settings& settings) {
    const code_object::Segment* text = nullptr;
    for (const auto& segment : object_.segments) {
        if (segment.is_executable && lies_in(kernel, segment)) text = &segment;
    }
    if (!text)
        throw std::runtime_error("kernel " + kernel.name + ": its entry lies in no executable segment");

    const uint64_t text_address = run_address(text->address);
    std::lock_guard lock(mutex_);
    std::erase_if(programs_, [](const auto& each) { return each.expired(); });
    for (const auto& each : programs_) {
        const std::shared_ptr<const Program> program = each.lock();
        if (!program) continue;  // it was released at this moment
        const Settings& have = program->settings;
        if (program->text_address == text_address && program->vgprs == kernel.allocated_vgprs &&
            program->accum_offset == kernel.accum_offset && have.arithmetic == settings.arithmetic &&
            have.host_level == settings.host_level && have.poison == settings.poison &&
            have.checks == settings.checks && have.trace == settings.trace &&
            have.count_lds_conflicts == settings.count_lds_conflicts &&
            !have.wave_turn == !settings.wave_turn) {
            program_cache().use(program);
            return program;
        }
    }
    TranslateRequest request;
    request.target =
        object_.target == code_object::Target::gfx942 ? isa::Target::gfx942 : isa::Target::gfx950;
    request.text = image().subspan(text->address - object_.image_address, text->memory_bytes);
    request.text_address = text_address;
    request.file = file_;
    request.load_offset = run_address(0);
    for (const code_object::Kernel& other : object_.kernels) {
        if (lies_in(other, *text)) request.entry_addresses.push_back(run_address(other.start_address));
    }
    request.vgprs = kernel.allocated_vgprs;
    request.accum_offset = kernel.accum_offset;
    request.settings = settings;
    std::shared_ptr<const Program> program = translate(request);
    programs_.push_back(program);
    program_cache().use(program);
    return program;
}

}  // namespace hipkittens::simulator
