// fuzz/property.h: what a fuzz target demands of the code it runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the process, which libFuzzer and the replay both take for a crash of this input.
#define HIPKITTENS_PROPERTY(condition, ...)                                      \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                   \
            std::fprintf(stderr, "\n");                                          \
            std::abort();                                                        \
        }                                                                        \
    } while (false)
