// kernels/probe/clocks.h: the number of clocks that instructions take.
// SPDX-License-Identifier: MIT
#pragma once
#include "memory.h"

namespace hipkittens::probe {

KITTENS_DEVICE uint64_t core_clock() {
    uint64_t time;
    asm volatile("s_memtime %0\n\ts_waitcnt lgkmcnt(0)" : "=s"(time)::"memory");
    return time;
}
// 100 MHz, independent of the core clock.
KITTENS_DEVICE uint64_t steady_clock() {
    uint64_t time;
    asm volatile("s_memrealtime %0\n\ts_waitcnt lgkmcnt(0)" : "=s"(time)::"memory");
    return time;
}

// The clocks that `steps` waves take for 16 accesses each to LDS, by the lanes that have an address: the input holds 64
// addresses per workgroup, ~0 for none. A conflict costs a clock of the banks, which an access does not wait for: addresses and
// data go through narrower ports. So two 12-byte reads follow each access, for which the banks serve fewer bytes per clock than
// any port, and all four SIMDs issue them. The workgroup allocates all of LDS, so that no other workgroup's accesses interleave.
template <NoConfig config>
struct LdsAccessTime {
    static constexpr int threads = 512, waves_per_simd = 2, lds_bytes = kittens::target.lds_bytes,
                         wave_bytes = 1024;

#define PROBE_TURN(access)                                                            \
    ".rept 16\n\ts_mov_b64 exec, %0\n\t" access                                       \
    "\n\ts_mov_b64 exec, -1\n\tds_read_b96 %1, %2\n\tds_read_b96 %1, %2\n\t.endr\n\t" \
    "s_waitcnt lgkmcnt(0)"
#define PROBE_READ(type, instruction)                                                 \
    {                                                                                 \
        type value;                                                                   \
        asm volatile(PROBE_TURN(instruction " %3, %4")                                \
                     : "+s"(lanes), "=&v"(beside), "+v"(beside_address), "=&v"(value) \
                     : "v"(address)                                                   \
                     : "memory");                                                     \
    }
#define PROBE_WRITE(type, instruction)                                  \
    {                                                                   \
        const type value = {};                                          \
        asm volatile(PROBE_TURN(instruction " %4, %3")                  \
                     : "+s"(lanes), "=&v"(beside), "+v"(beside_address) \
                     : "v"(value), "v"(address)                         \
                     : "memory");                                       \
    }
    // Called by all lanes of a wave; only `lanes` perform the access.
    KITTENS_DEVICE static void repeat(LdsAccess access, uint64_t lanes, uint32_t address,
                                      uint32_t beside_address) {
        kittens::vec<uint32_t, 3> beside;
        using Dwords2 = kittens::vec<uint32_t, 2>;
        using Dwords3 = kittens::vec<uint32_t, 3>;
        using Dwords4 = kittens::vec<uint32_t, 4>;
        if (access == LdsAccess::read_b32)
            PROBE_READ(uint32_t, "ds_read_b32")
        else if (access == LdsAccess::read_b64)
            PROBE_READ(Dwords2, "ds_read_b64")
        else if (access == LdsAccess::read_b96)
            PROBE_READ(Dwords3, "ds_read_b96")
        else if (access == LdsAccess::read_b128)
            PROBE_READ(Dwords4, "ds_read_b128")
        else if (access == LdsAccess::write_b32)
            PROBE_WRITE(uint32_t, "ds_write_b32")
        else if (access == LdsAccess::write_b64)
            PROBE_WRITE(Dwords2, "ds_write_b64")
        else if (access == LdsAccess::write_b96)
            PROBE_WRITE(Dwords3, "ds_write_b96")
        else if (access == LdsAccess::write_b128)
            PROBE_WRITE(Dwords4, "ds_write_b128")
        else if constexpr (kittens::target.transposed_lds_read)
            PROBE_READ(Dwords2, "ds_read_b64_tr_b16")
    }
#undef PROBE_TURN
#undef PROBE_READ
#undef PROBE_WRITE

    KITTENS_DEVICE static void run(const ProbeArguments& arguments, kittens::shared_byte* lds) {
        const uint32_t lane = kittens::lane_id(), wave = kittens::wave_id();
        const uint32_t workgroup = kittens::workgroup_id_x();
        const uint32_t own = reinterpret_cast<uint32_t>(lds) + wave * wave_bytes;
        const bool takes_part = wave < arguments.steps;
        kittens::lds_write(kittens::b128{}, lds + wave * wave_bytes + lane * 16);
        const uint32_t place = load(arguments, workgroup * 64 + lane);
        const uint64_t lanes = kittens::lanes_where(place != ~0u);
        uint64_t clocks = 0;
        for (int turn = 0; turn < 2; ++turn) {  // in the second turn the instructions are cached
            kittens::wait<0, 0>();
            kittens::s_barrier();
            const uint64_t begin = core_clock();
            if (takes_part)
                repeat(static_cast<LdsAccess>(arguments.which), lanes, own + place, own + lane * 16);
            kittens::s_barrier();
            clocks = core_clock() - begin;
        }
        if (wave == 0) store(arguments, workgroup, static_cast<uint32_t>(clocks));
    }
};

// The clocks of a chain, and the elapsed steady clock, for each workgroup. `steps` is the number of turns of a loop with
// 512 of the measured instruction. Wave 0 runs them, and so does every wave if all four SIMDs are to be busy with them.
template <NoConfig config>
struct ChainTime {
    static constexpr int threads = 256, waves_per_simd = 1, lds_bytes = 4096;

#define PROBE_REPEAT(count, instructions) ".rept " #count "\n\t" instructions "\n\t.endr"
#define PROBE_MATRIX(instruction)                                                                          \
    if (chain == Chain::matrix)                                                                            \
        for (uint32_t step = 0; step < steps; ++step)                                                      \
            asm volatile("s_nop 4\n\t" PROBE_REPEAT(512, instruction " %0, %1, %1, %0") "\n\ts_nop 15"     \
                         : "+v"(sums[0])                                                                   \
                         : "v"(factor));                                                                   \
    else                                                                                                   \
        for (uint32_t step = 0; step < steps; ++step)                                                      \
        asm volatile(                                                                                      \
            "s_nop 4\n\t" PROBE_REPEAT(128, instruction                                                    \
                                       " %0, %4, %4, %0\n\t" instruction " %1, %4, %4, %1\n\t" instruction \
                                       " %2, %4, %4, %2\n\t" instruction " %3, %4, %4, %3") "\n\ts_nop 15" \
            : "+v"(sums[0]), "+v"(sums[1]), "+v"(sums[2]), "+v"(sums[3])                                   \
            : "v"(factor))
    KITTENS_DEVICE static void take(const ProbeArguments& arguments, Chain chain, uint32_t steps,
                                    kittens::shared_byte* lds) {
        using kittens::vec;
        float value = 1.0f;
        vec<float, 4> sums[4] = {};
        // Numbers between one half and one, so that the multipliers do work: products of zeros consume less
        // power.
        vec<uint32_t, kittens::target.matrix_k_16bit / 8> factor = {};
        for (int i = 0; i < kittens::target.matrix_k_16bit / 8; ++i)
            factor[i] = ((kittens::lane_id() + 64 * i) * 0x9e3779b9u & 0x807f807f) | 0x3f003f00;
        uint32_t place = chain == Chain::lds ? reinterpret_cast<uint32_t>(lds) : 0;
        // A separate loop for each chain: nothing but its own branch is between the instructions.
        if (chain == Chain::vector)
            for (uint32_t step = 0; step < steps; ++step)
                asm volatile(PROBE_REPEAT(512, "v_add_f32 %0, %0, %0") : "+v"(value));
        else if (chain == Chain::transcendental)
            for (uint32_t step = 0; step < steps; ++step)
                asm volatile(PROBE_REPEAT(512, "v_exp_f32 %0, %0") "\n\ts_nop 0" : "+v"(value));
        else if (chain == Chain::lds)
            for (uint32_t step = 0; step < steps; ++step)
                asm volatile(PROBE_REPEAT(512, "ds_read_b32 %0, %0\n\ts_waitcnt lgkmcnt(0)")
                             : "+v"(place)::"memory");
        else if (chain == Chain::memory)
            for (uint32_t step = 0; step < steps; ++step)
                asm volatile(PROBE_REPEAT(512, "global_load_dword %0, %0, %1\n\ts_waitcnt vmcnt(0)")
                             : "+v"(place)
                             : "s"(arguments.input)
                             : "memory");
        else if (chain == Chain::barrier)
            for (uint32_t step = 0; step < steps; ++step)
                asm volatile(PROBE_REPEAT(512, "s_barrier")::: "memory");
        else if constexpr (kittens::target.number == 942) {
            PROBE_MATRIX("v_mfma_f32_16x16x16_bf16");
        } else {
            PROBE_MATRIX("v_mfma_f32_16x16x32_bf16");
        }
    }
#undef PROBE_REPEAT
#undef PROBE_MATRIX

    KITTENS_DEVICE static void run(const ProbeArguments& arguments, kittens::shared_byte* lds) {
        const auto chain = static_cast<Chain>(arguments.which);
        const uint32_t thread = kittens::thread_id(), workgroup = kittens::workgroup_id_x();
        // Every dword points 68 bytes ahead.
        for (uint32_t at = thread * 4; at < lds_bytes; at += threads * 4)
            kittens::lds_write(reinterpret_cast<uint32_t>(lds) + (at + 68) % lds_bytes, lds + at);
        kittens::barrier();
        if (kittens::wave_id() != 0 && chain != Chain::matrix_independent && chain != Chain::barrier) return;
        take(arguments, chain, arguments.warm_steps, lds);
        const uint64_t begin = core_clock(), steady_begin = steady_clock();
        take(arguments, chain, arguments.steps, lds);
        const uint64_t clocks = core_clock() - begin, steady = steady_clock() - steady_begin;
        if (thread == 0) {
            store(arguments, workgroup * 2, static_cast<uint32_t>(clocks));
            store(arguments, workgroup * 2 + 1, static_cast<uint32_t>(steady));
        }
    }
};

}  // namespace hipkittens::probe
