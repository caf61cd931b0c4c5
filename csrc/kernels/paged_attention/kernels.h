// kernels/paged_attention/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "combine.h"
#include "forward.h"
#include "kinds.h"
#include "latent.h"
#include "latent_shared.h"
#include "merge.h"
