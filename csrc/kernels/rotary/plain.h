// kernels/rotary/plain.h: the rotation in the common case: all features, one stride per dimension, no gathered positions.
// SPDX-License-Identifier: MIT
#pragma once
#include "rotary.h"

namespace hipkittens::rotary {

// One or several waves of a workgroup process a token, with as many of its heads at a time as fit in a wave. A lane has the
// same 8 pairs of each, so that cosines and sines are loaded once.
template <class T, class Table>
KITTENS_DEVICE void rotate_plain(const PlainArguments& arguments) {
    using Raw = kittens::raw_eight<T>;
    using kittens::buffer;
    const uint32_t wave = kittens::wave_id(), share_count = 1u << arguments.share_shift;
    const uint32_t share = wave & (share_count - 1);
    const uint32_t token =
        kittens::workgroup_id_x() * (waves >> arguments.share_shift) + (wave >> arguments.share_shift);
    const uint32_t batch = kittens::workgroup_id_y();
    if (token >= arguments.tokens) return;
    // Arguments that are not in registers from the start, see device.cpp: their latency is that of loading the token.
    const PlainArguments rest = kittens::reload_arguments<PlainArguments>();
    kittens::schedule_fence();
    const uint32_t lane = kittens::thread_id() % kittens::wave_lanes,
                   unit = lane & ((1u << arguments.unit_shift) - 1);
    const uint32_t first_head = lane >> arguments.unit_shift;
    const uint32_t heads_at_a_time = kittens::wave_lanes >> arguments.unit_shift;
    const uint32_t half = sizeof(T) * pairs_per_lane << arguments.unit_shift;  // bytes from a to b

    const auto of_token = [&](const PlainTensor& tensor, uint32_t extent) {
        return buffer{static_cast<const char*>(tensor.data) + batch * tensor.batch +
                          static_cast<uint64_t>(token) * tensor.token,
                      extent};
    };
    // Past the last head nothing is in range: loads return zeros and stores are dropped.
    const auto place = [&](const PlainTensor& tensor, uint32_t pass) {
        return (first_head + pass * heads_at_a_time) * tensor.head +
               unit * static_cast<uint32_t>(pairs_per_lane * sizeof(T));
    };
    Raw a, b;
    const auto load = [&](const PlainTensor& tensor, uint32_t extent, uint32_t pass) {
        const buffer source = of_token(tensor, extent);
        const uint32_t at = place(tensor, pass);
        a = kittens::load_raw_at<T>(source, at);
        b = kittens::load_raw_at<T>(source, at + half);
    };
    const auto angles = [&](const void* table) {
        const buffer row = {
            static_cast<const char*>(table) + static_cast<uint64_t>(token) * arguments.table_stride,
            static_cast<uint32_t>(sizeof(Table) * pairs_per_lane) << arguments.unit_shift};
        return kittens::load_raw<Table>(row, unit * pairs_per_lane);
    };
    const auto raw_cos = angles(arguments.cos), raw_sin = angles(arguments.sin);
    load(arguments.in, arguments.extent, share);
    kittens::schedule_fence();
    // Computed here instead of after the wait for the token.
    buffer out = of_token(rest.out, rest.out_extent);
    out.base = reinterpret_cast<const char*>(kittens::opaque_scalar(reinterpret_cast<int64_t>(out.base)));
    kittens::schedule_fence();
    const eight cos = kittens::widened(raw_cos),
                sin = kittens::widened(raw_sin) * (rest.inverse ? -1.0f : 1.0f);

    const auto rotate_and_store = [&](const PlainTensor& tensor, buffer destination, uint32_t pass) {
        eight first = kittens::widened(a), second = kittens::widened(b);
        rotate_pairs(first, second, cos, sin);
        const uint32_t at = place(tensor, pass);
        kittens::store_eight_at<T>(first, destination, at);
        kittens::store_eight_at<T>(second, destination, at + half);
    };
    rotate_and_store(rest.out, out, share);
    uint32_t pass = share + share_count;
    const uint32_t all = rest.passes + rest.second_passes;
    if (__builtin_expect(pass >= all, true)) return;
    for (; pass < rest.passes; pass += share_count) {
        load(rest.in, rest.extent, pass);
        rotate_and_store(rest.out, out, pass);
    }
    for (pass -= rest.passes; pass < rest.second_passes; pass += share_count) {
        load(rest.second_in, rest.second_extent, pass);
        rotate_and_store(rest.second_out, of_token(rest.second_out, rest.second_out_extent), pass);
    }
}

}  // namespace hipkittens::rotary
