// kernels/device_shape.h: properties of the target device that a plan needs, and requirements on all plans.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens {

// The device as reported by HIP: in the partition modes DPX, QPX and CPX, a part of the chip.
struct DeviceShape {
    int target = 0;  // 942 or 950
    int compute_units = 0;
    int xcds = 0;  // workgroup i runs on XCD i % xcds
    // No result may depend on what else the launch computes: the order of its sums is chosen by its own lengths alone.
    bool batch_invariant = false;
};

}  // namespace hipkittens
