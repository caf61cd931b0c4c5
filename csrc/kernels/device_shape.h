// kernels/device_shape.h: what a plan has to know of the device it is for, and what is asked of all plans.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens {

// Of the device as HIP shows it: in the partition modes DPX, QPX and CPX, a part of the chip.
struct DeviceShape {
    int target = 0;  // 942 or 950
    int compute_units = 0;
    int xcds = 0;  // workgroup i runs on XCD i % xcds
    // No result may depend on what else the launch computes: what orders its sums is chosen by its own lengths alone.
    bool batch_invariant = false;
};

}  // namespace hipkittens
