// tiles/intrinsics.h: the compiler builtins and inline assembly of the primitives, under names of their own.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"
#include "matrix_intrinsics.h"
#include "memory_intrinsics.h"
#include "scan_intrinsics.h"
#include "wave_intrinsics.h"
