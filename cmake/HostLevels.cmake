# hipkittens_add_host_levels(<target> <source>...): compiles the sources once per host instruction set, so that one
# library contains all of them and selects by CPUID. No -march: the flags name exactly what each level may use.
# SPDX-License-Identifier: MIT

# A wheel must run on any machine, a checkout only on this one: there the best level of the processor suffices, and the tests, which
# compare levels, request all (./run).
set(HIPKITTENS_HOST_LEVELS "" CACHE STRING
    "Host levels to build: all, native (the best of this machine), or a list of portable, avx2, avx512, avx512_bf16; empty: all in a wheel, native in a checkout")

# Sets `variable` to the best levels for the processor, or to all if /proc does not list its features.
function(hipkittens_native_levels variable)
  set(${variable} portable avx2 avx512 avx512_bf16 PARENT_SCOPE)
  if(NOT EXISTS /proc/cpuinfo)
    return()
  endif()
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  string(REGEX REPLACE "^flags[^:]*: *" "" flags "${flags}")
  string(REPLACE " " ";" flags "${flags}")
  set(${variable} portable PARENT_SCOPE)
  set(needed_avx2 avx2 fma f16c bmi1 bmi2)
  set(needed_avx512 avx512f avx512bw avx512dq avx512vl)
  set(needed_avx512_bf16 avx512_bf16)
  set(found)
  foreach(level avx2 avx512 avx512_bf16)
    foreach(flag IN LISTS needed_${level})
      if(NOT flag IN_LIST flags)
        return()
      endif()
    endforeach()
    if(level STREQUAL "avx512_bf16")  # uses avx512 for everything but matrix products
      list(APPEND found ${level})
    else()
      set(found ${level})
    endif()
    set(${variable} ${found} PARENT_SCOPE)
  endforeach()
endfunction()

# Not a cache variable: a checkout and the wheel made from it share the cache.
set(host_levels ${HIPKITTENS_HOST_LEVELS})
if(NOT host_levels)
  if(HIPKITTENS_INSTALL)
    set(host_levels all)
  else()
    set(host_levels native)
  endif()
endif()
if(host_levels STREQUAL "native")
  hipkittens_native_levels(host_levels)
elseif(host_levels STREQUAL "all")
  set(host_levels portable avx2 avx512 avx512_bf16)
endif()
message(STATUS "Host levels: ${host_levels}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # Emulating 64-byte vectors with SSE2 generates much code of little use: optimizing it further only costs build time.
  set(HIPKITTENS_FLAGS_portable -O1)
  set(HIPKITTENS_FLAGS_avx2 -O2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
  # GCC 12 warns that its own _mm512_undefined_* use uninitialized values.
  set(HIPKITTENS_FLAGS_avx512 ${HIPKITTENS_FLAGS_avx2} -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl
      -Wno-uninitialized -Wno-maybe-uninitialized)
  set(HIPKITTENS_FLAGS_avx512_bf16 ${HIPKITTENS_FLAGS_avx512} -mavx512bf16)
endif()

function(hipkittens_add_host_levels target)
  foreach(level IN LISTS host_levels)
    set(sources ${ARGN})
    if(level STREQUAL "avx512_bf16")
      # It differs from avx512 only in its matrix products; host_level.cpp uses avx512 for the other families.
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
