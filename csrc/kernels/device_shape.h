// kernels/device_shape.h: what a plan has to know of the device it is for.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens {

// Of the device as HIP shows it: in the partition modes DPX, QPX and CPX, a part of the chip.
struct DeviceShape {
    int target = 0;  // 942 or 950
    int compute_units = 0;
    int xcds = 0;  // workgroup i runs on XCD i % xcds
};

}  // namespace hipkittens
