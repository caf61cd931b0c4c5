# SPDX-License-Identifier: MIT
"""Expert weights further apart than a 32-bit offset reaches: in grouped_matmul with every format, and in moe."""

import pytest
import torch

import hipkittens
from hipkittens.operations._tensors import ends_of
from tests.oracles.aiter.formats import float8
from tests.simulated_device import TARGETS

BF16, F16, I8, U8 = torch.bfloat16, torch.float16, torch.int8, torch.uint8
GROUPS = 3
APART = 5 * 2**29  # bytes: the last of three groups begins 5 GiB after the first, and the second one 2.5
SIZES, N, K = [5, 9, 20], 72, 160


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param) as simulation:
        yield request.param
        assert simulation.findings == []


def apart(near):
    """The same matrices, each in its own pages of a storage that is otherwise never touched."""
    storage = torch.empty(GROUPS * APART // near.itemsize, dtype=near.dtype)
    far = storage.as_strided(near.shape, (APART // near.itemsize, *near[0].contiguous().stride()))
    far.copy_(near)
    assert far.stride(0) * far.itemsize * (GROUPS - 1) > 2**32
    return far


def random(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype in (I8, U8):
        return torch.randint(0, 256, shape, generator=generator).to(U8).view(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def operands(format, target):
    """a, the weights of three groups, and scales."""
    m = sum(SIZES)
    if format in ("bf16", "f16"):
        dtype = BF16 if format == "bf16" else F16
        return random(m, K, dtype=dtype), random(GROUPS, N, K, dtype=dtype, seed=1), {}
    if format in ("fp8", "int8", "blocks"):
        dtype = I8 if format == "int8" else float8(target)
        rows, columns = (m, 1), (GROUPS, 1, N)
        if format == "blocks":
            rows, columns = (m, 2), (GROUPS, 2, 1)
        scales = {"scale_a": torch.rand(rows) + 0.5, "scale_b": torch.rand(columns) + 0.5}
        return random(m, K, dtype=dtype), random(GROUPS, N, K, dtype=dtype, seed=1), scales
    factors = torch.randint(125, 130, (GROUPS, N, K // 32)).to(U8).mT
    weights = random(GROUPS, N, K // 2, dtype=U8, seed=1)
    if format == "bf16 x mxfp4":
        return random(m, K, dtype=BF16), weights, {"scale_b": factors}
    return (
        random(m, K // 2, dtype=U8),
        weights,
        {"scale_a": torch.full((m, K // 32), 127, dtype=U8), "scale_b": factors},
    )


@pytest.mark.parametrize("format", ["bf16", "f16", "fp8", "int8", "blocks", "bf16 x mxfp4", "mxfp4"])
def test_products_of_groups(target, format):
    if format == "mxfp4" and target == "gfx942":
        pytest.skip("gfx942 has no instruction of MXFP4")
    a, near, scales = operands(format, target)
    far, offs = apart(near), ends_of(SIZES)
    expected = hipkittens.grouped_matmul(a, near.mT, offs, **scales)
    assert expected.any() and torch.equal(hipkittens.grouped_matmul(a, far.mT, offs, **scales), expected)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_products_of_weights_by_rows(target, dtype):
    a, near = random(sum(SIZES), K, dtype=dtype), random(GROUPS, K, N, dtype=dtype, seed=1)
    offs = ends_of(SIZES)
    expected = hipkittens.grouped_matmul(a, near, offs)
    assert expected.any() and torch.equal(hipkittens.grouped_matmul(a, apart(near), offs), expected)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_batches(target, dtype):
    """a has a matrix for each group, equally far apart."""
    a, b = random(GROUPS, 40, K, dtype=dtype), random(GROUPS, N, K, dtype=dtype, seed=1)
    expected = hipkittens.grouped_matmul(a, b.mT)
    assert torch.equal(hipkittens.grouped_matmul(apart(a), apart(b).mT), expected)


@pytest.mark.parametrize("format", ["bf16", "int8", "fp8", "mxfp4"])
def test_layers_of_experts(target, format):
    """Both weights; for bfloat16 the gate is fused into the first product."""
    hidden, inner, tokens = 96, 64, 20
    x = random(tokens, hidden, dtype=BF16)
    plain = [
        random(GROUPS, *shape, dtype=BF16, seed=2) / 9 for shape in ((2 * inner, hidden), (hidden, inner))
    ]
    ids = torch.randint(0, GROUPS, (tokens, 2), generator=torch.Generator().manual_seed(4)).to(torch.int32)
    topk = torch.rand(tokens, 2), ids
    scales = {}
    if format != "bf16":
        spec = hipkittens.QuantSpec(format)
        made = [hipkittens.quantize(each, spec) for each in plain]
        plain = [codes for codes, _ in made]
        scales = {"scale_w1": made[0][1], "scale_w2": made[1][1]}
    expected = hipkittens.moe(x, *plain, *topk, **scales)
    found = hipkittens.moe(x, *map(apart, plain), *topk, **scales)
    assert expected.any() and torch.equal(found, expected)
