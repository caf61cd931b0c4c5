// kernels/rotary/rotary.h: rotates pairs of features by an angle that depends on the token.
// SPDX-License-Identifier: MIT
#pragma once
#include "angles.h"

namespace hipkittens::rotary {

// A lane processes 8 pairs of a head, or 16 of its other features; the lanes of a wave share a token.
template <class T>
KITTENS_DEVICE void rotate(const RotaryArguments& arguments) {
    const uint32_t index = kittens::workgroup_id_x() * waves + kittens::wave_id();
    const uint32_t batch = index / arguments.tokens, token = index - batch * arguments.tokens;
    if (batch >= arguments.batch) return;
    const Angles angles(arguments.rotation, batch, token);
    const Units of_head(arguments.rotation);
    const uint32_t units = arguments.copies_rest ? of_head.all() : of_head.turned();

    for (const Rotated& part : arguments.parts) {
        const int64_t in = batch * part.in.batch + token * part.in.token;
        const int64_t out = batch * part.out.batch + token * part.out.token;
        for (uint32_t item = kittens::lane_id(); item < part.heads * units; item += kittens::wave_lanes) {
            const uint32_t head = item / units;
            const Unit unit = of_head[item - head * units];
            const T* source = static_cast<const T*>(part.in.data) + in + head * part.in.head;
            T* destination = static_cast<T*>(const_cast<void*>(part.out.data)) + out + head * part.out.head;
            Loaded<T> x = load_unit(source, unit, arguments.wide);
            if (unit.turned) {
                Pairs turned = widened(x);
                angles.load(unit, arguments.wide)(turned);
                x = rounded<T>(turned);
            }
            store_unit(x, destination, unit, arguments.wide);
        }
    }
}

}  // namespace hipkittens::rotary
