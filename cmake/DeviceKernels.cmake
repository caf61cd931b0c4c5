# hipkittens_add_device_kernels(): one ninja edge per variant and target, then one pack per target.
# tools/build_kernels.py reads csrc/kernels/*/variants.def and does the work of each edge. Without a device compiler,
# and when HIPKITTENS_KERNELS is PREBUILT, the packs that an sdist carries take their place.
# SPDX-License-Identifier: MIT

set(HIPKITTENS_DEVICE_COMPILER "$ENV{HIPKITTENS_DEVICE_COMPILER}" CACHE STRING "clang with the amdgcn target; empty: the one inside the ziglang wheel")

# Sets `variable` to the packs that are there already, or to nothing when they are to be compiled.
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
    # The tile primitives, for kernels that users write.
    install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/csrc/tiles DESTINATION hipkittens/include FILES_MATCHING PATTERN "*.h")
  endif()
endfunction()

function(hipkittens_compile_device_kernels variable)
  set(tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/build_kernels.py)
  set(flags ${CMAKE_CURRENT_SOURCE_DIR}/hipkittens/_device_compiler.py)
  set(pack_tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/pack_kernels.py)
  set(layouts_tool ${CMAKE_CURRENT_SOURCE_DIR}/tools/kernel_layouts.py)
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

  set(packs)
  foreach(target gfx942 gfx950)
    set(objects)
    foreach(row IN LISTS rows)
      string(REPLACE " " ";" row "${row}")
      list(GET row 0 row_target)
      list(GET row 1 operation)
      list(GET row 2 variant)
      if(NOT row_target STREQUAL target)
        continue()
      endif()
      set(object ${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}/${operation}.${variant}.co)
      add_custom_command(
        OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E env "HIPKITTENS_DEVICE_COMPILER=${HIPKITTENS_DEVICE_COMPILER}"
                ${Python_EXECUTABLE} ${tool} --target ${target} --operation ${operation} --variant ${variant}
                --output ${object} --depfile ${object}.d
        DEPENDS ${tool} ${flags} ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/device.cpp
        DEPFILE ${object}.d
        COMMENT "Kernel ${operation}.${variant} for ${target}"
        VERBATIM)
      list(APPEND objects ${object})
    endforeach()
    set(pack ${HIPKITTENS_PACKAGE_DIR}/_kernels/${target}.hkpack)
    set(object_list ${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}.list)
    string(REPLACE ";" "\n" lines "${objects}")
    file(CONFIGURE OUTPUT ${object_list} CONTENT "${lines}\n")
    add_custom_command(
      OUTPUT ${pack}
      COMMAND ${CMAKE_COMMAND} -E env "HIPKITTENS_DEVICE_COMPILER=${HIPKITTENS_DEVICE_COMPILER}"
              ${Python_EXECUTABLE} ${pack_tool} --target ${target} --objects ${object_list} --output ${pack}
      DEPENDS ${pack_tool} ${layouts_tool} ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels/layouts.cpp ${object_list} ${objects}
      COMMENT "Pack ${target}"
      VERBATIM)
    list(APPEND packs ${pack})
  endforeach()
  add_custom_target(hipkittens_kernels ALL DEPENDS ${packs})
  set(${variable} ${packs} PARENT_SCOPE)
endfunction()
