"""bf16 products on the host's AMX unit: the same sums as strict arithmetic up to f32 rounding, in every shape."""

import numpy as np
import pytest

from tests.device_compiler import compile_hip
from tests.simulated_device import HOST_LEVELS, TARGETS, Module, library, pointers
from tests.simulator.register_kernels import RegisterKernel, RegisterKernels

# name, size, k, target that has it
SHAPES = [("16x16x16bf16_1k", 16, 16, "gfx942"), ("32x32x8bf16_1k", 32, 8, "gfx942"), ("16x16x16bf16_1k", 16, 16, "gfx950"),
          ("16x16x32_bf16", 16, 32, "gfx950"), ("32x32x16_bf16", 32, 16, "gfx950")]  # fmt: skip

SOURCE = """
typedef short short_n __attribute__((ext_vector_type({per_lane})));
typedef __bf16 operand __attribute__((ext_vector_type({per_lane})));
typedef float sums __attribute__((ext_vector_type({registers})));
extern "C" __global__ void products(const short_n* a, const short_n* b, sums* d) {{
    uint i = thread_id();
    sums x = d[i], y = d[i + 64], z = {{}};
    #pragma unroll
    for (int step = 0; step < 4; ++step) {{
        {type} left = __builtin_bit_cast({type}, a[i + 64 * step]), right = __builtin_bit_cast({type}, b[i + 64 * step]);
        x = __builtin_amdgcn_mfma_f32_{name}(left, right, x, 0, 0, 0);
        y = __builtin_amdgcn_mfma_f32_{name}(right, left, y, 0, 0, 0);
        z = __builtin_amdgcn_mfma_f32_{name}(left, left, z, 0, 0, 0);
    }}
    d[i] = x; d[i + 64] = y; d[i + 128] = z;
}}
"""


needs_amx = pytest.mark.skipif(
    library().hipkittens_best_host_level() < HOST_LEVELS["amx"], reason="this host has no AMX unit"
)


@needs_amx
@pytest.mark.parametrize(("name", "size", "k", "target"), SHAPES)
@pytest.mark.parametrize("integers", [True, False])
def test_products_agree_with_strict_arithmetic(name, size, k, target, integers):
    assert target in TARGETS
    per_lane, registers = size * k // 64, size * size // 64
    kind = "short_n" if "1k" in name else "operand"
    source = SOURCE.format(name=name, per_lane=per_lane, registers=registers, type=kind)
    kernel = Module(compile_hip(source, target), target).kernel("products")
    rng = np.random.default_rng(size + k)
    shape = (2, 4, 64, per_lane)
    values = rng.integers(-8, 9, shape) if integers else rng.standard_normal(shape)
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    start = rng.integers(-8, 9, (3, 64, registers)).astype(np.float32)
    results = []
    for settings in (
        {"host_level": "amx"},
        {"host_level": "amx", "arithmetic": "strict"},
        {"host_level": "portable"},
    ):
        sums = start.copy()
        kernel.launch(pointers(bits[0], bits[1], sums), {"a": bits[0], "b": bits[1], "d": sums}, **settings)
        results.append(sums)
    amx, strict, portable = results
    np.testing.assert_array_equal(strict, portable)
    if integers:
        np.testing.assert_array_equal(amx, strict)
    else:
        np.testing.assert_allclose(amx, strict, rtol=0, atol=2e-6 * k)
        assert (amx != start).all()


# The product is first in its block, so that the step which counts the block precedes its own.
LOOP = """
  s_mov_b32 s8, 3
.Lproduct_loop:
  v_mfma_f32_16x16x16_bf16 v[{sum}:{end}], v[16:17], v[18:19], v[{sum}:{end}]
  s_sub_u32 s8, s8, 1
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 .Lproduct_loop
  s_nop 15"""


@needs_amx
@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_that_starts_with_a_product(target):
    kernel = RegisterKernel(LOOP.format(sum=20, end=23), first_input=16, inputs=8, first_output=20, outputs=4)
    rng = np.random.default_rng(1)
    operands = (rng.integers(-4, 5, (4, 64, 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    rows = np.concatenate([operands.view(np.uint32)[:, :, 0], np.zeros((4, 64), np.uint32)])
    amx, strict = (
        RegisterKernels({"k": kernel}, target).run("k", rows, host_level="amx", arithmetic=arithmetic)
        for arithmetic in ("fast", "strict")
    )
    assert strict.any()
    np.testing.assert_array_equal(amx, strict)
