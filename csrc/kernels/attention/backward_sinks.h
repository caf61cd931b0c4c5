// kernels/attention/backward_sinks.h: the gradients of sinks from the contributions of the blocks of queries.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_config.h"
#include "dq_accumulator.h"

namespace hipkittens::attention {

// With P_s = exp(sink - LSE), dsink = sum over all queries of -P_s sum(dO O). A workgroup processes one head; the order of its
// sum is always the same.
template <SinksConfig config>
struct SinksKernel {
    static constexpr int threads = config.threads, waves_per_simd = 1, lds_bytes = 0;

    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        const auto head = static_cast<int>(workgroup_id_x());
        const WorkgroupOrder& order = arguments.order;
        float sum = 0;
        for (int batch = 0; batch < order.batch; ++batch) {
            const Sequence sequence = sequence_of(batch, arguments.mask, arguments.packed);
            const float* partials = arguments.sink_partials +
                                    first_statistics_row(arguments, sequence, batch, head) / statistics_block;
            const int blocks = (sequence.mask.n_q + statistics_block - 1) / statistics_block;
            for (int block = thread_id(); block < blocks; block += threads) sum += partials[block];
        }
        static __attribute__((shared)) float of_waves[threads / wave_lanes];
        sum = sum_of_lanes(sum);
        if (lane_id() == 0) of_waves[wave_id()] = sum;
        barrier();
        if (thread_id() != 0) return;
        float all = 0;
        for (const float of_wave : of_waves) all += of_wave;
        arguments.grad_sinks[head] = all;
    }
};

}  // namespace hipkittens::attention
