// kernels/delta_rule/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "channel_prepare.h"
#include "gradient.h"
#include "prepare.h"
#include "reverse.h"
#include "scan.h"
#include "step.h"

#define PRELOADS_step 1
#define PRELOADS_channel_step 1
