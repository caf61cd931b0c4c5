// kernels/logits/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "score.h"
