# hipkittens_add_host_levels(<target> <source>...): compiles the sources once per host instruction set, so that one
# library holds them all and picks by CPUID. No -march: the flags name exactly what each level may use.
# SPDX-License-Identifier: MIT

set(HIPKITTENS_HOST_LEVELS portable avx2 avx512 avx512_bf16 CACHE STRING
    "Host levels to build; fewer than all is for development: a level left out cannot be selected")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # Emulating 64-byte vectors with SSE2 makes much code of little use: optimising it further only costs build time.
  set(HIPKITTENS_FLAGS_portable -O1)
  set(HIPKITTENS_FLAGS_avx2 -O2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
  # GCC 12 takes its own _mm512_undefined_* for a use of something uninitialised.
  set(HIPKITTENS_FLAGS_avx512 ${HIPKITTENS_FLAGS_avx2} -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl
      -Wno-uninitialized -Wno-maybe-uninitialized)
  set(HIPKITTENS_FLAGS_avx512_bf16 ${HIPKITTENS_FLAGS_avx512} -mavx512bf16)
endif()

function(hipkittens_add_host_levels target)
  foreach(level IN LISTS HIPKITTENS_HOST_LEVELS)
    set(sources ${ARGN})
    if(level STREQUAL "avx512_bf16")
      # It differs from avx512 in its matrix products; host_level.cpp takes the other families from there.
      list(FILTER sources INCLUDE REGEX "/matrix[a-z0-9_]*\\.cpp$")
    endif()
    add_library(${target}_${level} OBJECT ${sources})
    target_compile_definitions(${target}_${level} PRIVATE HIPKITTENS_HOST_LEVEL=${level})
    target_compile_options(${target}_${level} PRIVATE ${HIPKITTENS_FLAGS_${level}})
    target_link_libraries(${target}_${level} PRIVATE hipkittens_host_options)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${level}>)
    target_compile_definitions(${target} PRIVATE HIPKITTENS_HAS_${level})
  endforeach()
endfunction()
