// torch/quantization.h: quantization options, as passed to the operators that produce quantized values and scales.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/quantization/plan.h"
#include "runtime/launch.h"
#include "torch/placement.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// The arguments that end the schemas of these operators:
//   int code, int group, int layout, float floor, float bound, float zero_scale, int power_exponent,
//   int power_threshold, bool other_rounding
// code: 0 fp8, 1 bf8, 2 int8, 3 e2m1, 4 e2m3, 5 e3m2. group: 0 per tensor, -1 per row, -2 blocks of 128x128, else
// that many columns. layout: 0 rows, 1 columns, 2 shuffled. bound below 0: none. power_exponent: -1 for float32
// scales; power_threshold in mantissa bits.
struct Quantization {
    std::string where;
    int64_t group;
    quantize::Granularity granularity;
    quantize::QuantizeArguments arguments{};  // without tensors

    Quantization(std::string where, Arguments& given);

    // Quantized values are bytes of the shape of x, with rows half as long for e2m1 and three quarters as long for 6-bit
    // formats. Scales are float32, or bytes of powers of two (e8m0); empty if the scale is passed in, or there are no rows.
    struct Results {
        Tensor codes, scales;
        Dtype scale_dtype;
    };
    // Sets the fields of arguments that describe the quantized values and scales of a tensor of these sizes,
    // and a scale that is passed in. ranges: the number of row ranges whose scales begin with a new band.
    Results results(const Placement& placement, std::vector<int64_t> sizes,
                    const std::optional<Tensor>& scale, Device device,
                    const std::optional<int64_t>& ranges = {}, const std::optional<int64_t>& code_rows = {});
    void add_regions(const Results& results, const std::optional<Tensor>& scale,
                     std::vector<runtime::Region>& regions) const;
};

}  // namespace hipkittens::torch_binding
