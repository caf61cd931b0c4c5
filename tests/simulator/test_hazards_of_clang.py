# SPDX-License-Identifier: MIT
"""clang's wait states are those that synccheck requires: clang's code has no finding, and the same code with one state less has one.

LLVM's GCNHazardRecognizer is independent of this project; it inserts an s_nop where it counts too few instructions.
"""

import re

import numpy as np
import pytest

from tests.device_compiler import assemble, assembly_of
from tests.simulated_device import TARGETS, Module, SimulatorError, pointers, take_findings

PREAMBLE = """
#define VECTOR(name, type, count) typedef type name __attribute__((ext_vector_type(count)))
VECTOR(half2, _Float16, 2); VECTOR(half4, _Float16, 4); VECTOR(half8, _Float16, 8);
VECTOR(float2, float, 2); VECTOR(float4, float, 4); VECTOR(float16, float, 16);
VECTOR(double4, double, 4); VECTOR(int8, int, 8); VECTOR(uint2, unsigned, 2); VECTOR(long2, long, 2);
#define KERNEL(name, in, out, ...) extern "C" __global__ void name(const in* a, out* o) { __VA_ARGS__ }
#define THEN __builtin_amdgcn_sched_barrier(0)
#define BITS(type, value) __builtin_bit_cast(type, value)
#define MFMA(shape) __builtin_amdgcn_mfma_##shape
"""
BOTH = """
KERNEL(dot_valu, half2, float, float x = __builtin_amdgcn_fdot2(a[0], a[1], o[0], false); THEN; o[0] = x * 3;)
KERNEL(dot_store, half2, float, o[0] = __builtin_amdgcn_fdot2(a[0], a[1], o[0], false);)
KERNEL(matrix_valu_2, half4, float4, float4 x = MFMA(f32_4x4x4f16)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x * 2;)
KERNEL(matrix_valu_4, half4, float4, float4 x = MFMA(f32_16x16x16f16)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x * 2;)
KERNEL(matrix_valu_8, half4, float16, float16 x = MFMA(f32_32x32x8f16)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x * 2;)
KERNEL(matrix_store_2, half4, float4, o[0] = MFMA(f32_4x4x4f16)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(matrix_store_4, half4, float4, o[0] = MFMA(f32_16x16x16f16)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(matrix_store_8, half4, float16, o[0] = MFMA(f32_32x32x8f16)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(f32_valu, float, float4, float4 x = MFMA(f32_4x4x1f32)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x * 2;)
KERNEL(f32_store, float, float4, o[0] = MFMA(f32_16x16x4f32)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(bytes_store, long, float4, o[0] = MFMA(f32_16x16x32_fp8_fp8)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(integers_store, long, float4, o[0] = BITS(float4, MFMA(i32_16x16x32_i8)(a[0], a[1], BITS(__attribute__((ext_vector_type(4))) int, o[0]), 0, 0, 0));)
KERNEL(sum_in_place_2, half4, float4, half4 p = a[0], q = a[1]; float4 x = MFMA(f32_4x4x4f16)(p, q, o[0], 0, 0, 0); THEN; o[0] = MFMA(f32_4x4x4f16)(q, p, x, 0, 0, 0);)
KERNEL(sum_in_place_4, half4, float4, half4 p = a[0], q = a[1]; float4 x = MFMA(f32_16x16x16f16)(p, q, o[0], 0, 0, 0); THEN; o[0] = MFMA(f32_16x16x16f16)(q, p, x, 0, 0, 0);)
KERNEL(matrix_as_a, half4, float4, half4 p = a[0], q = a[1]; float4 c = o[1]; float4 x = MFMA(f32_16x16x16f16)(p, q, o[0], 0, 0, 0); THEN; o[0] = MFMA(f32_16x16x16f16)(BITS(half8, x).lo, p, c, 0, 0, 0);)
KERNEL(f64_store, double, double, o[0] = MFMA(f64_4x4x4f64)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(f64_valu, double, double, double x = MFMA(f64_4x4x4f64)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x + x;)
KERNEL(f64_fma, double, double, double p = a[0], q = a[1], r = a[2], x = MFMA(f64_4x4x4f64)(p, q, r, 0, 0, 0); THEN; o[1] = __builtin_fma(p, q, r); o[0] = x;)
KERNEL(f64_sum_in_place, double, double, double p = a[0], q = a[1], x = MFMA(f64_4x4x4f64)(p, q, o[0], 0, 0, 0); THEN; o[0] = MFMA(f64_4x4x4f64)(q, p, x, 0, 0, 0);)
KERNEL(f64_wide_store, double, double4, o[0] = MFMA(f64_16x16x4f64)(a[0], a[1], o[0], 0, 0, 0);)
KERNEL(f64_wide_valu, double, double4, double4 x = MFMA(f64_16x16x4f64)(a[0], a[1], o[0], 0, 0, 0); THEN; o[0] = x * 2;)
KERNEL(valu_matrix, half4, float4, half4 p = a[threadIdx], q = p + p; THEN; o[threadIdx] = MFMA(f32_16x16x16f16)(q, p, o[threadIdx], 0, 0, 0);)
KERNEL(exp_valu, float, float, float x = __builtin_amdgcn_exp2f(a[threadIdx]); THEN; o[threadIdx] = x + 1;)
KERNEL(valu_readlane, int, int, int x = a[threadIdx] + 1; THEN; o[threadIdx] = __builtin_amdgcn_readfirstlane(x);)
KERNEL(lane_select, int, int, int x = a[threadIdx], l = __builtin_amdgcn_readfirstlane(x); THEN; o[threadIdx] = __builtin_amdgcn_readlane(x, l & 63);)
KERNEL(compare_select, int, int, int x = a[threadIdx], y = o[threadIdx]; o[threadIdx] = x < y ? x + 3 : y;)
KERNEL(dpp, int, int, int x = a[threadIdx] + 1; THEN; o[threadIdx] = __builtin_amdgcn_update_dpp(0, x, 0xb1, 15, 15, true);)
KERNEL(divide, float, float, o[threadIdx] = a[threadIdx] / o[threadIdx];)
KERNEL(message, int, int, __builtin_amdgcn_s_sendmsg(1, a[0]);)
KERNEL(mode, int, int, __builtin_amdgcn_s_setreg(6145, a[0] & 3); o[0] = __builtin_amdgcn_s_getreg(6145);)
"""
ONLY_GFX950 = """
KERNEL(fp4_byte, float, uint, uint x = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(o[0], a[0], a[1], a[2], 1); THEN; o[0] = x + 1;)
KERNEL(fp4_first_byte, float, uint, uint x = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(o[0], a[0], a[1], a[2], 0); THEN; o[0] = x + 1;)
KERNEL(fp4_at_random, float2, uint, uint x = __builtin_amdgcn_cvt_scalef32_sr_pk_fp4_f32(o[0], a[0], o[2], 3.0f, 0); THEN; o[0] = x + 1;)
KERNEL(fp8_byte, float, uint, uint x = __builtin_amdgcn_cvt_scalef32_sr_fp8_f32(o[0], a[0], o[2], a[1], 1); THEN; o[0] = x + 1;)
KERNEL(swap, uint, uint, uint p = o[threadIdx], q = p + 3; THEN; uint2 r = __builtin_amdgcn_permlane32_swap(p, q, false, false); o[threadIdx] = r[0] + r[1];)
KERNEL(scaled_8_valu, int8, float4, float4 x = MFMA(scale_f32_16x16x128_f8f6f4)(a[0], a[1], o[0], 0, 0, 0, a[2][0], 0, a[2][1]); THEN; o[0] = x * 2;)
KERNEL(scaled_4_valu, int8, float4, float4 x = MFMA(scale_f32_16x16x128_f8f6f4)(a[0], a[1], o[0], 4, 4, 0, a[2][0], 0, a[2][1]); THEN; o[0] = x * 2;)
KERNEL(scaled_8_wide, int8, float16, float16 x = MFMA(scale_f32_32x32x64_f8f6f4)(a[0], a[1], o[0], 0, 0, 0, a[2][0], 0, a[2][1]); THEN; o[0] = x * 2;)
KERNEL(scaled_mixed, int8, float4, float4 x = MFMA(scale_f32_16x16x128_f8f6f4)(a[0], a[1], o[0], 4, 0, 0, a[2][0], 0, a[2][1]); THEN; o[0] = x * 2;)
KERNEL(deep_store, half8, float4, o[0] = MFMA(f32_16x16x32_f16)(a[0], a[1], o[0], 0, 0, 0);)
"""
# LLVM interprets the OP_SEL_HI of packed arithmetic as the bit that selects the half to be written.
NOT_NEEDED = "v_pk_"


def sources(target: str) -> str:
    source = PREAMBLE + BOTH + (ONLY_GFX950 if target == "gfx950" else "")
    return source.replace("threadIdx", "thread_id()")


def kernels_of(assembly: str) -> list[str]:
    return re.findall(r"^\t\.amdhsa_kernel (\w+)", assembly, re.MULTILINE)


def findings(module: Module, kernel: str) -> list[dict]:
    a, o = np.ones(16384, np.uint32), np.ones(16384, np.uint32)
    take_findings()
    try:
        module.kernel(kernel).launch(pointers(a, o), {"a": a, "o": o}, checks=8, threads=1)
    except SimulatorError as error:
        raise AssertionError(f"{kernel}: {error}") from error
    return [finding for finding in take_findings() if finding["kernel"].startswith(kernel)]


def nops_of(assembly: str) -> dict[str, list[tuple[int, str]]]:
    """For each kernel, its s_nop instructions: line, and the instructions before and after."""
    found: dict[str, list[tuple[int, str]]] = {}
    lines, kernel = assembly.split("\n"), ""
    for number, line in enumerate(lines):
        if label := re.match(r"^(\w+):", line):
            kernel = label[1]
        if line.startswith("\ts_nop "):
            found.setdefault(kernel, []).append(
                (number, f"{lines[number - 1].strip()} | {lines[number + 1].strip()}")
            )
        if "s_endpgm" in line:
            kernel = ""
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_clang_leaves_enough_and_no_more(target):
    assembly = assembly_of(sources(target), target)
    module = Module(assemble(assembly, target), target)
    for kernel in kernels_of(assembly):
        assert not findings(module, kernel), (kernel, findings(module, kernel))
    nops = nops_of(assembly)
    assert len(nops) >= 25
    lines = assembly.split("\n")
    for turn in range(max(map(len, nops.values()))):
        changed = list(lines)
        for places in nops.values():
            if turn < len(places):
                number, _ = places[turn]
                states = int(lines[number].split()[1])
                changed[number] = f"\ts_nop {states - 1}" if states else ""
        weaker = Module(assemble("\n".join(changed), target), target)
        for kernel, places in nops.items():
            if turn < len(places) and NOT_NEEDED not in places[turn][1]:
                assert findings(weaker, kernel), (kernel, places[turn][1])
