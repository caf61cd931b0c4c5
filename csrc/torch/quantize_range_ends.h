// torch/quantize_range_ends.h: the ends of row ranges, which stay on the device.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "kernels/quantize/plan.h"
#include "runtime/launch.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// ends: those of ranges of rows of x. where: the prefix of messages, such as "quantize: ".
void check_ends(const std::string& where, const Tensor& ends, const Tensor& x);
quantize::RangeEnds ranges_of(const Tensor& ends);
void add_region(const Tensor& ends, std::vector<runtime::Region>& regions);

}  // namespace hipkittens::torch_binding
