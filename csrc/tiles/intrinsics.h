// tiles/intrinsics.h: all files with compiler builtins and inline assembly.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"
#include "matrix_intrinsics.h"
#include "memory_intrinsics.h"
#include "wave_intrinsics.h"
