// tiles/target.h: all differences between gfx942 and gfx950, as data.
// SPDX-License-Identifier: MIT
#pragma once

namespace kittens {

struct Target {
    int number;     // 942, 950
    int lds_bytes;  // per compute unit (CDNA3/CDNA4 white papers)
    int direct_to_lds_bytes;  // bytes per lane of the widest instruction worth using; gfx942 has 4, which is slower than
                              // loading through registers
    int matrix_k_16bit;          // K of the 16x16 MFMA on 16-bit elements; the 32x32 one has half of it
    int matrix_k_8bit;           // the same for 8-bit floats
    int read_b128_window_bytes;  // banks x 4 bytes over which one phase of ds_read_b128 is spread
    bool transposed_lds_read;    // ds_read_b64_tr_b16
    bool lane_swaps;             // v_permlane16_swap, v_permlane32_swap
    bool converts_to_bf16;       // v_cvt_pk_bf16_f32
    bool scaled_conversions;     // v_cvt_scalef32_*
    bool ocp_float8;             // 8-bit floats are OCP's (e4m3fn, e5m2), not e4m3fnuz and e5m2fnuz
};

// Bank windows: on gfx950, 64 banks serve 64- and 128-bit reads (measured by HipKittens with
// SQ_LDS_BANK_CONFLICT); on gfx942, 32 banks serve everything (rocm-blogs, LDS bank conflicts).
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
