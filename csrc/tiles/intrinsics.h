// tiles/intrinsics.h: named wrappers of the compiler builtins and inline assembly that the primitives use.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"
#include "matrix_intrinsics.h"
#include "memory_intrinsics.h"
#include "scan_intrinsics.h"
#include "wave_intrinsics.h"
