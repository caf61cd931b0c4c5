// simulator/hip_call.h: the common wrapper of every exported function.
// SPDX-License-Identifier: MIT
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "code_object/error.h"
#include "hip/hip_abi.h"
#include "simulator/checks/finding.h"
#include "simulator/machine/launch.h"
#include "simulator/simulator.h"

// Exported, but bound inside this library: in a process that also has a real libamdhip64, calls and addresses
// taken here must not resolve to that one.
#define HIPKITTENS_EXPORT extern "C" __attribute__((visibility("protected")))

namespace hipkittens::simulator {

struct HipError : std::runtime_error {
    HipError(hip::hipError_t which, const std::string& text) : std::runtime_error(text), code(which) {}
    hip::hipError_t code;
};

// Under HIPKITTENS_CHECKS checking is enabled from the start in every thread.
inline HipkittensSettings first_settings() {
    const uint32_t checks = checks::checkers_of_environment();
    HipkittensSettings settings{};
    settings.host_level = -1;
    settings.checks = checks;
    settings.poison = checks != 0;
    return settings;
}

struct ThreadState {
    int device = 0;
    hip::hipError_t last_error = hip::hipSuccess;  // until hipGetLastError reads it
    std::string last_text;
    HipkittensSettings settings = first_settings();
    HipkittensReport report{};
    uint64_t instructions_so_far = 0;
};
ThreadState& thread_state();

// Runs `body`, converts exceptions into an error code, and keeps the text for hipkittens_last_error.
template <class Body>
hip::hipError_t call(const char* function, Body body) {
    const auto fail = [&](hip::hipError_t code, const std::string& text) {
        ThreadState& state = thread_state();
        state.last_error = code;
        state.last_text = std::string(function) + ": " + text;
        return code;
    };
    try {
        body();
        return hip::hipSuccess;
    } catch (const HipError& error) {
        return fail(error.code, error.what());
    } catch (const code_object::Error& error) {
        return fail(hip::hipErrorInvalidImage, error.what());
    } catch (const std::bad_alloc&) {
        return fail(hip::hipErrorOutOfMemory, "the host is out of memory");
    } catch (const std::exception& error) {
        return fail(hip::hipErrorUnknown, error.what());
    }
}

// Copies a text to the caller, truncated and terminated with 0 if it does not fit. Returns the full length.
inline size_t hand_out(const std::string& whole, char* text, size_t size) {
    if (text && size) text[whole.copy(text, size - 1)] = 0;
    return whole.size();
}

inline void require(bool condition, hip::hipError_t code, const char* text) {
    if (!condition) throw HipError(code, text);
}
inline void require_pointer(const void* pointer, const char* name) {
    if (!pointer) throw HipError(hip::hipErrorInvalidValue, std::string(name) + " is a null pointer");
}

}  // namespace hipkittens::simulator
