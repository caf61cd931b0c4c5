// simulator/machine/loaded_code.h: a code object in the machine's memory, and its kernels as programs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "code_object/code_object.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator {

// Guest addresses are host addresses: the code runs at the image's own addresses, so that s_getpc and rodata
// loads work unchanged.
class LoadedCode {
  public:
    // Parses, copies and relocates. Throws code_object::Error.
    explicit LoadedCode(std::span<const uint8_t> file);
    ~LoadedCode();
    LoadedCode(const LoadedCode&) = delete;

    const code_object::CodeObject& object() const { return object_; }
    std::span<const uint8_t> image() const { return {image_, object_.image_bytes}; }
    std::span<uint8_t> image() { return {image_, object_.image_bytes}; }
    uint64_t run_address(uint64_t file_address) const {
        return reinterpret_cast<uint64_t>(image_) + file_address - object_.image_address;
    }

    // The kernel's section translated for these settings, for all its kernels with the same registers: kept while it
    // is among the most recently used programs (program_cache.h). Settings that do not affect the steps are ignored.
    std::shared_ptr<const Program> program(const code_object::Kernel& kernel, const Settings& settings);

    // Called in a forked child: no thread holds the lock. Programs that other threads were working with are
    // left to them.
    void start_again_after_fork(bool others_were_launching);

  private:
    code_object::CodeObject object_;
    std::shared_ptr<const std::vector<uint8_t>> file_;
    uint8_t* image_ = nullptr;
    size_t mapped_bytes_ = 0;
    std::mutex mutex_;
    std::vector<std::weak_ptr<const Program>> programs_;
};

}  // namespace hipkittens::simulator
