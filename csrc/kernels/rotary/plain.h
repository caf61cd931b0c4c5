// kernels/rotary/plain.h: the rotation of most calls, which has nothing in it but what they need.
// SPDX-License-Identifier: MIT
#pragma once
#include "rotary.h"

namespace hipkittens::rotary {

// A wave takes a token, a lane the same 8 pairs of some of its heads: cosines and sines are loaded once for all of them.
template <class T, class Table>
KITTENS_DEVICE void rotate_plain(const PlainArguments& arguments) {
    using Raw = kittens::raw_eight<T>;
    using kittens::buffer;
    constexpr int together = 2;  // passes over the heads whose loads are under way at a time
    const uint32_t token = kittens::workgroup_id_x() * waves + kittens::wave_id();
    const uint32_t batch = kittens::workgroup_id_y();
    if (token >= arguments.tokens) return;
    const uint32_t lane = kittens::lane_id(), unit = lane & ((1u << arguments.unit_shift) - 1);
    const uint32_t first_head = lane >> arguments.unit_shift;
    const uint32_t heads_at_a_time = kittens::wave_lanes >> arguments.unit_shift;
    const uint32_t half = sizeof(T) * pairs_per_lane << arguments.unit_shift;  // bytes from a to b

    const auto of_token = [&](const PlainTensor& tensor, uint32_t extent) {
        return buffer{static_cast<const char*>(tensor.data) + batch * tensor.batch +
                          static_cast<uint64_t>(token) * tensor.token,
                      extent};
    };
    // Behind the last head nothing is in range: loads give zeros and stores vanish.
    const auto place = [&](const PlainTensor& tensor, uint32_t pass) {
        return (first_head + pass * heads_at_a_time) * tensor.head +
               unit * static_cast<uint32_t>(pairs_per_lane * sizeof(T));
    };
    const auto load = [&](const PlainTensor& tensor, uint32_t extent, uint32_t pass, Raw(&a)[together],
                          Raw(&b)[together]) {
        const buffer source = of_token(tensor, extent);
#pragma unroll
        for (int i = 0; i < together; ++i) {
            const uint32_t at = place(tensor, pass + i) / sizeof(T);
            a[i] = kittens::load_raw<T>(source, at);
            b[i] = kittens::load_raw<T>(source, at + half / sizeof(T));
        }
    };
    Raw a[together], b[together];
    load(arguments.in, arguments.extent, 0, a, b);
    const auto angles = [&](const void* table) {
        const buffer row = {
            static_cast<const char*>(table) + static_cast<uint64_t>(token) * arguments.table_stride,
            static_cast<uint32_t>(sizeof(Table) * pairs_per_lane) << arguments.unit_shift};
        return kittens::load_raw<Table>(row, unit * pairs_per_lane);
    };
    const auto raw_cos = angles(arguments.cos), raw_sin = angles(arguments.sin);
    kittens::schedule_fence();
    // What is not in registers from the start, see device.cpp.
    const PlainArguments rest = kittens::arguments_again<PlainArguments>();
    const eight cos = kittens::widened(raw_cos),
                sin = kittens::widened(raw_sin) * (rest.inverse ? -1.0f : 1.0f);

    const auto turn_and_store = [&](const PlainTensor& out, uint32_t extent, uint32_t pass) {
        const buffer destination = of_token(out, extent);
#pragma unroll
        for (int i = 0; i < together; ++i) {
            eight first = kittens::widened(a[i]), second = kittens::widened(b[i]);
            turn(first, second, cos, sin);
            const uint32_t at = place(out, pass + i) / sizeof(T);
            kittens::store_eight<T>(first, destination, at, true);
            kittens::store_eight<T>(second, destination, at + half / sizeof(T), true);
        }
    };
    turn_and_store(rest.out, rest.out_extent, 0);
    for (uint32_t pass = together; pass < rest.passes; pass += together) {
        load(rest.in, rest.extent, pass, a, b);
        turn_and_store(rest.out, rest.out_extent, pass);
    }
    for (uint32_t pass = 0; pass < rest.second_passes; pass += together) {
        load(rest.second_in, rest.second_extent, pass, a, b);
        turn_and_store(rest.second_out, rest.second_out_extent, pass);
    }
}

}  // namespace hipkittens::rotary
