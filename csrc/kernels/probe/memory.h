// kernels/probe/memory.h: buffers, their path to LDS, and the order in which operations decrement wait counters.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "kinds.h"

namespace hipkittens::probe {

template <class V>
using global = __attribute__((address_space(1))) V*;

// LDS and results hold this value until they are written.
inline constexpr uint32_t untouched = 0xa5a5a5a5;

KITTENS_DEVICE void store(const ProbeArguments& arguments, uint32_t index, uint32_t value) {
    ((global<uint32_t>)arguments.output)[index] = value;
}
KITTENS_DEVICE uint32_t load(const ProbeArguments& arguments, uint32_t index) {
    return ((global<const uint32_t>)arguments.input)[index];
}

struct OneWave {
    static constexpr int threads = 64, waves_per_simd = 1;
};

// 16 bytes per lane. Loads: the loaded data, at 16 bytes x lane of the results. Stores: dword i gets the
// number i.
template <NoConfig config>
struct BufferRange : OneWave {
    static constexpr int lds_bytes = 0;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments) {
        const uint32_t lane = kittens::lane_id();
        if (arguments.which == static_cast<uint32_t>(BufferAccess::load_b128)) {
            const kittens::buffer source = {reinterpret_cast<const char*>(arguments.input),
                                            arguments.input_bytes, arguments.scalar_offset};
            const kittens::b128 found = kittens::buffer_load<kittens::b128>(source, lane * 16);
            for (int i = 0; i < 4; ++i) store(arguments, lane * 4 + i, found[i]);
        } else {
            const kittens::buffer destination = {reinterpret_cast<const char*>(arguments.output),
                                                 arguments.output_bytes, arguments.scalar_offset};
            const uint32_t first = lane * 4;
            kittens::buffer_store(kittens::b128{first, first + 1, first + 2, first + 3}, destination,
                                  lane * 16);
        }
    }
};

template <int bytes, int offset>
KITTENS_DEVICE void load_to_lds(kittens::buffer source, uint32_t lane_offset,
                                kittens::shared_byte* destination) {
#define PROBE_LOAD(dwords)                                                                            \
    asm volatile("s_nop 0\n\tbuffer_load_" dwords                                                     \
                 " %1, %2, %3 offen offset:%4 lds" ::"{m0}"(reinterpret_cast<uint32_t>(destination)), \
                 "v"(lane_offset), "s"(source.words()), "s"(source.scalar_offset), "n"(offset)        \
                 : "memory")
    if constexpr (bytes == 16)
        PROBE_LOAD("dwordx4");
    else
        PROBE_LOAD("dword");
#undef PROBE_LOAD
}

// Two loads, one with its own offset that leaves a gap in LDS. The results are the contents of LDS
// afterwards.
template <DirectToLdsConfig config>
struct DirectToLds : OneWave {
    static constexpr int wave_bytes = 64 * config.bytes, lds_bytes = 4 * wave_bytes;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t lane = kittens::lane_id();
        for (uint32_t at = lane * 4; at < lds_bytes; at += 256) kittens::lds_write(untouched, lds + at);
        kittens::wait<0, 0>();
        const kittens::buffer source = {reinterpret_cast<const char*>(arguments.input), arguments.input_bytes,
                                        arguments.scalar_offset};
        load_to_lds<config.bytes, 0>(source, lane * config.bytes, lds);
        load_to_lds<config.bytes, 2 * wave_bytes>(source, lane * config.bytes, lds);
        kittens::wait<0, 0>();
        for (uint32_t at = lane * 4; at < lds_bytes; at += 256)
            store(arguments, at / 4, kittens::lds_read<uint32_t>(lds + at));
    }
};

// In each step: a long operation, a shorter younger one, and a wait for all but one. The results count how
// often a lane did not see the older one's value; the input holds i at i.
template <NoConfig config>
struct WaitForOlder : OneWave {
    static constexpr int lds_bytes = 16384;

    KITTENS_DEVICE static void run(const ProbeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t lane = kittens::lane_id(), thread = kittens::workgroup_id_x() * 64 + lane;
        const uint32_t threads = arguments.output_bytes / 8;  // a count and a place to store to for each
        const auto order = static_cast<WaitOrder>(arguments.which);
        for (uint32_t at = lane * 4; at < lds_bytes; at += 256) kittens::lds_write(at / 4, lds + at);
        kittens::wait<0, 0>();
        const kittens::buffer source = {reinterpret_cast<const char*>(arguments.input),
                                        arguments.input_bytes};
        const auto* near = (global<const uint32_t>)arguments.input + lane;
        auto* place = (global<uint32_t>)arguments.output + threads + thread;
        uint32_t missed = 0;
        for (uint32_t step = 0; step < arguments.steps; ++step) {
            // Lines that no earlier step has touched.
            const uint32_t wanted = (step + 1) * threads + thread;
            const auto* far = (global<const uint32_t>)arguments.input + wanted;
            uint32_t older, younger, seen;
            if (order == WaitOrder::loads) {
                asm volatile(
                    "v_mov_b32 %0, -1\n\tglobal_load_dword %0, %3, off\n\tglobal_load_dword %1, %4, off\n\t"
                    "s_waitcnt vmcnt(1)\n\tv_mov_b32 %2, %0\n\ts_waitcnt vmcnt(0)"
                    : "=&v"(older), "=&v"(younger), "=&v"(seen)
                    : "v"(far), "v"(near)
                    : "memory");
                missed += seen != wanted;
            } else if (order == WaitOrder::load_then_store) {
                asm volatile(
                    "v_mov_b32 %0, -1\n\tglobal_load_dword %0, %2, off\n\tglobal_store_dword %3, %4, off\n\t"
                    "s_waitcnt vmcnt(1)\n\tv_mov_b32 %1, %0\n\ts_waitcnt vmcnt(0)"
                    : "=&v"(older), "=&v"(seen)
                    : "v"(far), "v"(place), "v"(step)
                    : "memory");
                missed += seen != wanted;
            } else if (order == WaitOrder::lds_reads) {
                // 256 bytes apart: every lane accesses the same bank.
                asm volatile(
                    "v_mov_b32 %0, -1\n\tds_read_b32 %0, %3\n\tds_read_b32 %1, %4\n\ts_waitcnt lgkmcnt(1)\n\t"
                    "v_mov_b32 %2, %0\n\ts_waitcnt lgkmcnt(0)"
                    : "=&v"(older), "=&v"(younger), "=&v"(seen)
                    : "v"(lds + lane * 256), "v"(lds)
                    : "memory");
                missed += seen != lane * 64;
            } else {
                kittens::lds_write(untouched, lds + lane * 4);
                kittens::wait<0, 0>();
                load_to_lds<4, 0>(source, wanted * 4, lds);
                asm volatile(
                    "global_load_dword %0, %2, off\n\ts_waitcnt vmcnt(1)\n\tds_read_b32 %1, %3\n\t"
                    "s_waitcnt vmcnt(0) lgkmcnt(0)"
                    : "=&v"(younger), "=&v"(seen)
                    : "v"(near), "v"(lds + lane * 4)
                    : "memory");
                missed += seen != wanted;
            }
        }
        store(arguments, thread, missed);
    }
};

}  // namespace hipkittens::probe
