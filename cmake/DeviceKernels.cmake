# hipkittens_add_device_kernels(): one ninja edge per target and operation for its headers, one per target and variant, then one
# pack per target. In a checkout the target hipkittens_demo_kernels packs the kernels that `hipkittens demo` launches, a tenth of all,
# before the rest is built (./run demo). tools/build_kernels.py reads csrc/kernels/*/variants.def and does the work of each edge.
# Without a device compiler, and when HIPKITTENS_KERNELS is PREBUILT, the packs contained in an sdist are used instead.
# SPDX-License-Identifier: MIT

set(HIPKITTENS_DEVICE_COMPILER "$ENV{HIPKITTENS_DEVICE_COMPILER}" CACHE STRING "clang with the amdgcn target; empty: the one inside the ziglang wheel")

# Sets `variable` to the existing packs, or to nothing if they are to be compiled.
function(hipkittens_find_prebuilt_packs variable)
  set(${variable} "" PARENT_SCOPE)
  if(NOT HIPKITTENS_KERNELS STREQUAL "PREBUILT")
    if(HIPKITTENS_DEVICE_COMPILER)
      return()
    endif()
    execute_process(COMMAND ${Python_EXECUTABLE} -c "import ziglang" RESULT_VARIABLE no_zig ERROR_QUIET)
    if(NOT no_zig)
      return()
    endif()
  endif()
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/prebuilt_packs.py
                  RESULT_VARIABLE status ERROR_VARIABLE reason ERROR_STRIP_TRAILING_WHITESPACE)
  if(status)
    message(FATAL_ERROR "The kernels cannot be compiled: no device compiler (pip install ziglang==0.17.0, or name a ROCm "
                        "clang or hipcc in HIPKITTENS_DEVICE_COMPILER). Prebuilt ones cannot be used: ${reason}")
  endif()
  message(STATUS "Kernels: the prebuilt packs, whose sources are those here")
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/hipkittens/_kernels)
  set(${variable} ${folder}/gfx942.hkpack ${folder}/gfx950.hkpack PARENT_SCOPE)
endfunction()

function(hipkittens_add_device_kernels)
  hipkittens_find_prebuilt_packs(packs)
  if(NOT packs)
    hipkittens_compile_device_kernels(packs)
  endif()
  if(HIPKITTENS_INSTALL)
    install(FILES ${packs} DESTINATION hipkittens/_kernels)
    # The tile primitives, for user-written kernels.
    install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/csrc/tiles DESTINATION hipkittens/include FILES_MATCHING PATTERN "*.h")
  endif()
endfunction()

# hipkittens_pack_kernels(<target> <pack> <object>...)
function(hipkittens_pack_kernels target pack)
  set(pack_tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/pack_kernels.py)
  set(layouts_tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/kernel_layouts.py)
  cmake_path(RELATIVE_PATH pack BASE_DIRECTORY ${HIPKITTENS_PACKAGE_DIR}/_kernels OUTPUT_VARIABLE name)
  set(object_list ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.list)
  string(REPLACE ";" "\n" lines "${ARGN}")
  file(CONFIGURE OUTPUT ${object_list} CONTENT "${lines}\n")
  add_custom_command(
    OUTPUT ${pack}
    COMMAND ${CMAKE_COMMAND} -E env "HIPKITTENS_DEVICE_COMPILER=${HIPKITTENS_DEVICE_COMPILER}"
            ${Python_EXECUTABLE} ${pack_tool} --target ${target} --objects ${object_list} --output ${pack}
    DEPENDS ${pack_tool} ${layouts_tool} ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/layouts.cpp ${object_list} ${ARGN}
    COMMENT "Pack ${name}"
    VERBATIM)
endfunction()

function(hipkittens_compile_device_kernels variable)
  set(tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/build_kernels.py)
  set(flags ${CMAKE_CURRENT_SOURCE_DIR}/hipkittens/_device_compiler.py)
  set(variants_tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/kernel_variants.py)
  file(GLOB variant_lists CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/*/variants.def)
  if(NOT variant_lists)
    message(FATAL_ERROR "no csrc/kernels/*/variants.def")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${variant_lists} ${variants_tool})
  execute_process(COMMAND ${Python_EXECUTABLE} ${variants_tool} RESULT_VARIABLE status OUTPUT_VARIABLE rows
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "kernel variants cannot be listed")
  endif()
  string(REPLACE "\n" ";" rows "${rows}")

  set(demo_list ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/demo_kernels.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${demo_list})
  file(STRINGS ${demo_list} demo_rows REGEX "^gfx")
  set(packs)
  set(demo_packs)
  set(compile ${CMAKE_COMMAND} -E env "HIPKITTENS_DEVICE_COMPILER=${HIPKITTENS_DEVICE_COMPILER}" ${Python_EXECUTABLE} ${tool})
  foreach(target gfx942 gfx950)
    set(operations)
    set(objects)
    set(demo_objects)
    foreach(line IN LISTS rows)
      string(REPLACE " " ";" row "${line}")
      list(GET row 0 row_target)
      list(GET row 1 operation)
      list(GET row 2 variant)
      if(NOT row_target STREQUAL target)
        continue()
      endif()
      set(headers ${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}/${operation}.pch)
      if(NOT operation IN_LIST operations)
        list(APPEND operations ${operation})
        add_custom_command(
          OUTPUT ${headers}
          COMMAND ${compile} --target ${target} --operation ${operation} --output ${headers} --depfile ${headers}.d
          DEPENDS ${tool} ${flags}
          DEPFILE ${headers}.d
          COMMENT "Headers of ${operation} for ${target}"
          VERBATIM)
      endif()
      set(object ${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}/${operation}.${variant}.co)
      add_custom_command(
        OUTPUT ${object}
        COMMAND ${compile} --target ${target} --operation ${operation} --variant ${variant} --headers ${headers}
                --output ${object} --depfile ${object}.d
        DEPENDS ${tool} ${flags} ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/device.cpp ${headers}
        DEPFILE ${object}.d
        COMMENT "Kernel ${operation}.${variant} for ${target}"
        VERBATIM)
      list(APPEND objects ${object})
      if(line IN_LIST demo_rows)
        list(APPEND demo_objects ${object})
      endif()
    endforeach()
    hipkittens_pack_kernels(${target} ${HIPKITTENS_PACKAGE_DIR}/_kernels/${target}.hkpack ${objects})
    hipkittens_pack_kernels(${target} ${HIPKITTENS_PACKAGE_DIR}/_kernels/demo/${target}.hkpack ${demo_objects})
    list(APPEND packs ${HIPKITTENS_PACKAGE_DIR}/_kernels/${target}.hkpack)
    list(APPEND demo_packs ${HIPKITTENS_PACKAGE_DIR}/_kernels/demo/${target}.hkpack)
  endforeach()
  add_custom_target(hipkittens_kernels ALL DEPENDS ${packs})
  if(NOT HIPKITTENS_INSTALL)
    add_custom_target(hipkittens_demo_kernels DEPENDS ${demo_packs})
  endif()
  set(${variable} ${packs} PARENT_SCOPE)
endfunction()
