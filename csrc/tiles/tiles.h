// tiles/tiles.h: includes all primitives; its list of includes is the table of contents.
// SPDX-License-Identifier: MIT
#pragma once
// Elements, instructions, layouts.
#include "element.h"
#include "intrinsics.h"
#include "lane_layout.h"
#include "swizzle.h"
#include "target.h"
#include "unroll.h"
#include "wait_counts.h"
// Tiles and vectors.
#include "global_layout.h"
#include "register_tile.h"
#include "register_vector.h"
#include "shared_tile.h"
#include "shared_tile_of_6_bits.h"
#include "tile_source.h"
// Loads and stores.
#include "load_global_to_shared.h"
#include "load_global_to_shared_transposed.h"
#include "load_shared_to_register.h"
#include "move_global_register.h"
#include "output_stager.h"
// Schedules.
#include "interleave.h"
#include "ping_pong.h"
// Operations on register tiles.
#include "convert.h"
#include "elementwise.h"
#include "mask.h"
#include "multiply_accumulate.h"
#include "reduce.h"
