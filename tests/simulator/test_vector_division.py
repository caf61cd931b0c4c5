"""Division as compilers expand it (v_div_scale, v_div_fmas, v_div_fixup) is IEEE division; denormal modes of f32 and f64."""

import numpy as np
import pytest

from tests.device_compiler import compile_hip
from tests.simulated_device import TARGETS, Module, pointers
from tests.simulator.number_formats import F16, F32, F64
from tests.simulator.vector_cases import samples
from tests.simulator.vector_kernels import HOST_LEVELS, load, run

SOURCE = """
template <class T> __device__ void divide(const T* a, const T* b, T* c) {
    uint i = workgroup_id() * 64 + thread_id();
    c[i] = a[i] / b[i];
}
extern "C" __global__ void divide_f32(const float* a, const float* b, float* c) { divide(a, b, c); }
extern "C" __global__ void divide_f64(const double* a, const double* b, double* c) { divide(a, b, c); }
extern "C" __global__ void divide_f16(const _Float16* a, const _Float16* b, _Float16* c) { divide(a, b, c); }
extern "C" __global__ void root_f32(const float* a, const float* b, float* c) {
    uint i = workgroup_id() * 64 + thread_id();
    c[i] = __builtin_sqrtf(a[i]);
}
"""
FORMATS = {"f16": (F16, np.uint16), "f32": (F32, np.uint32), "f64": (F64, np.uint64)}


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request):
    return Module(compile_hip(SOURCE, request.param, ("-fno-fast-math",)), request.param)


@pytest.mark.parametrize("kind", FORMATS)
def test_compiled_division_is_correctly_rounded(compiled, kind):
    f, dtype = FORMATS[kind]
    a, b = (column.astype(dtype) for column in samples((kind, kind), 4096))
    want = np.array(
        [f.divide(int(x), int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)], dtype
    ).reshape(a.shape)
    for level in HOST_LEVELS:
        c = np.zeros_like(a)
        compiled.kernel(f"divide_{kind}").launch(pointers(a, b, c), {"a": a, "b": b, "c": c}, grid=[a.shape[0]], block=[64],
                                                 host_level=level)  # fmt: skip
        nan = np.array([f.is_nan(int(x)) for x in want.ravel()]).reshape(want.shape)
        wrong = np.argwhere(~nan & (c != want))
        assert not len(wrong), [hex(int(v[tuple(wrong[0])])) for v in (a, b, c, want)]
        assert all(f.is_nan(int(x)) for x in c[nan])


def test_compiled_square_root_is_correctly_rounded(compiled):
    a = samples(("f32",), 4096)[0].astype(np.uint32) & np.uint32(0x7FFFFFFF)
    c = np.zeros_like(a)
    compiled.kernel("root_f32").launch(pointers(a, a, c), {"a": a, "c": c}, grid=[a.shape[0]], block=[64])
    with np.errstate(invalid="ignore"):
        want = np.sqrt(a.view(np.float32))
    same = (c == want.view(np.uint32)) | np.isnan(want)
    assert same.all(), [hex(int(v[tuple(np.argwhere(~same)[0])])) for v in (a, c, want.view(np.uint32))]


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_flushed_f32_leaves_other_formats_alone(level):
    module = load({"f32": "v_mul_f32_e32 v32, v16, v18", "f16": "v_mul_f16_e32 v32, v16, v18",
                   "f64": "v_mul_f64 v[32:33], v[16:17], v[18:19]", "bf16": "v_cvt_pk_bf16_f32 v32, v16, v18",
                   "fma64": "v_fma_f64 v[32:33], v[16:17], v[18:19], v[20:21]"}, denormals=0)  # fmt: skip
    half, one = 0x3F000000, 0x3F800000
    waves = np.ones((1, 64), np.uint64)
    # 2^-127 as a result, and as a source: both flushed, with their sign.
    assert (run(module, "f32", [waves * 0x00800000, waves * half], host_level=level).destination == 0).all()
    assert (
        run(module, "f32", [waves * 0x80400000, waves * one], host_level=level).destination == 0x80000000
    ).all()
    assert (
        run(module, "f16", [waves * 0x0400, waves * 0x3800], host_level=level).destination == 0x0200
    ).all()
    assert (
        run(module, "bf16", [waves * 0x00400000, waves * one], host_level=level).destination == 0x3F800040
    ).all()
    tiny, half64 = 0x0010000000000000, 0x3FE0000000000000
    assert (
        run(module, "f64", [waves * tiny, waves * half64], host_level=level).destination == 0x0008000000000000
    ).all()
    got = run(module, "fma64", [waves * tiny, waves * half64, waves * 1], host_level=level).destination
    assert (got == 0x0008000000000001).all()


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_kept_denormals(level):
    module = load({"f32": "v_mul_f32_e32 v32, v16, v18"})
    waves = np.ones((1, 64), np.uint64)
    got = run(module, "f32", [waves * 0x00800000, waves * 0x3F000000], host_level=level).destination
    assert (got == 0x00400000).all()
