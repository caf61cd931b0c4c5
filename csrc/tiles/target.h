// tiles/target.h: everything in which gfx942 and gfx950 differ, as data.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

struct Target {
    int number;               // 942, 950
    int lds_bytes;            // of one compute unit (CDNA3/CDNA4 white papers)
    int direct_to_lds_bytes;  // per lane and instruction worth using; 4 exists on gfx942 but is slower than
                              // registers
    int matrix_k_16bit;       // K of the 16x16 MFMA on 16-bit elements; the 32x32 one has half of it
    int matrix_k_8bit;        // the same on 8-bit floats
    int read_b128_window_bytes;  // banks x 4 bytes that one phase of ds_read_b128 spreads over
    bool transposed_lds_read;    // ds_read_b64_tr_b16
    bool lane_swaps;             // v_permlane16_swap, v_permlane32_swap
    bool converts_to_bf16;       // v_cvt_pk_bf16_f32
    bool scaled_conversions;     // v_cvt_scalef32_*
    bool ocp_float8;             // 8-bit floats are OCP's (e4m3fn, e5m2), not e4m3fnuz and e5m2fnuz
};

// Bank windows: 64 banks serve 64- and 128-bit reads on gfx950 (measured by HipKittens with
// SQ_LDS_BANK_CONFLICT), 32 banks everything on gfx942 (rocm-blogs, LDS bank conflicts).
inline constexpr Target gfx942{942, 65536, 0, 16, 32, 128, false, false, false, false, false};
inline constexpr Target gfx950{950, 163840, 16, 32, 128, 256, true, true, true, true, true};

#if defined(__gfx942__)
inline constexpr Target target = gfx942;
#define KITTENS_TARGET_NAME gfx942
#elif defined(__gfx950__)
inline constexpr Target target = gfx950;
#define KITTENS_TARGET_NAME gfx950
#elif defined(__AMDGCN__)
#error "tiles are written for gfx942 and gfx950"
#endif

}  // namespace kittens
