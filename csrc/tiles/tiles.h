// tiles/tiles.h: the whole vocabulary; its list of includes is the table of contents.
// SPDX-License-Identifier: MIT
#pragma once
// Facts and words.
#include "element.h"
#include "intrinsics.h"
#include "lane_layout.h"
#include "swizzle.h"
#include "target.h"
#include "unroll.h"
#include "wait_counts.h"
// Places.
#include "global_layout.h"
#include "register_tile.h"
#include "register_vector.h"
#include "shared_tile.h"
#include "shared_vector.h"
#include "tile_source.h"
// Movements.
#include "load_global_to_shared.h"
#include "load_shared_to_register.h"
#include "move_global_register.h"
#include "output_stager.h"
#include "store_register_to_shared.h"
#include "store_shared_to_global.h"
// Time.
#include "interleave.h"
#include "ping_pong.h"
// Verbs.
#include "convert.h"
#include "elementwise.h"
#include "mask.h"
#include "multiply_accumulate.h"
#include "operations.h"
#include "reduce.h"
