# SPDX-License-Identifier: MIT
"""hipkittens.aiter's quantization of flattened rows and of reduced parts: quantized values and scales of the rows they represent."""

import pytest
import torch

import hipkittens
from hipkittens import aiter

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(found, right):
    return all(a.shape == b.shape and torch.equal(a.contiguous().view(U8), b.contiguous().view(U8))
               for a, b in zip(found, right, strict=True))  # fmt: skip


@pytest.mark.parametrize("sizes", [(5, 4, 128), (3, 2, 192), (1, 1, 64)])
def test_flattened(target, sizes):
    x = draw(*sizes)
    across = draw(sizes[1], sizes[0], sizes[2]).transpose(0, 1)
    for each in (x, across):
        flat = each.reshape(sizes[0], -1)
        for group in (32, 64, 128):
            if flat.shape[1] % group:
                continue
            found = aiter.fused_flatten_fp8_group_quant(each, group)
            assert same(found, aiter.per_group_quant_hip(flat, quant_dtype=found[0].dtype, group_size=group))
        codes, scales = aiter.fused_flatten_mxfp4_quant(each)
        spec = hipkittens.QuantSpec("mxfp4", scale_rule="even", rounding="away")
        assert same((codes, scales), hipkittens.quantize(flat, spec))


def test_sums_before_a_gate(target):
    x, x2 = draw(4, 6, 256, dtype=F32), draw(4, 6, 48, dtype=F32, seed=1)
    found, second = aiter.fused_reduce_act_mul_fp8_group_quant(x, "gelu", x2, 64)
    assert same(found, aiter.act_mul_and_fp8_group_quant(x.sum(0), "gelu", 64))
    assert second.dtype == BF16 and torch.equal(second, x2.sum(0).to(BF16))
    found, second = aiter.fused_reduce_act_mul_fp8_group_quant(x[0].to(BF16))
    assert second is None and same(found, aiter.act_mul_and_fp8_group_quant(x[0].to(BF16), "silu", 128))


@pytest.mark.parametrize("whole", [False, True])
def test_sums_before_a_norm(target, whole):
    parts = [draw(3, 5, columns, dtype=F32, seed=i) for i, columns in enumerate((256, 64, 48))]
    weights, residual = [draw(256, seed=4), draw(64, seed=5)], draw(5, 256, seed=6)
    if whole:
        first, second = (each[0].to(BF16) for each in parts[:2])
        found = aiter.fused_reduce_rms_fp8_group_quant(
            first, weights[0], 1e-5, second, weights[1], 1e-6, None, 64, None, None, residual, True
        )
        right = aiter.fused_rms_fp8_group_quant(
            first, weights[0], 1e-5, second, weights[1], 1e-6, 64, None, residual, True
        )
        assert same(found[0], right[0]) and same(found[1:4], right[1:]) and found[4] is None
        return
    out3 = torch.empty(5, 48, dtype=BF16)
    found = aiter.fused_reduce_rms_fp8_group_quant(
        parts[0],
        weights[0],
        1e-5,
        parts[1],
        weights[1],
        1e-6,
        parts[2],
        128,
        None,
        BF16,
        residual,
        True,
        out3,
    )
    first, second = parts[0].sum(0), parts[1].sum(0)
    right = aiter.fused_rms_fp8_group_quant(
        first, weights[0], 1e-5, second, weights[1], 1e-6, 128, None, residual.float(), True
    )
    assert same(found[0], right[0]) and same(found[1:4], [each.to(BF16) for each in right[1:]])
    assert found[4] is out3 and torch.equal(out3, parts[2].sum(0).to(BF16))
    codes, *others = aiter.fused_reduce_rms_fp8_group_quant(parts[0], weights[0], 1e-5)
    assert others == [None] * 4 and codes[0].shape == (5, 256)


def test_bad_input():
    x = draw(2, 3, 128)
    with hipkittens.simulate("gfx950"):
        for call, message in (
            (
                lambda: aiter.fused_flatten_fp8_group_quant(x[0], 64),
                r"x has shape \(3, 128\); it must be \[M, N1, N2\]",
            ),
            (lambda: aiter.fused_reduce_act_mul_fp8_group_quant(x), "x2 is None; x is"),
            (lambda: aiter.fused_reduce_act_mul_fp8_group_quant(x, x2=x[:1]), "parts and M are the same"),
            (
                lambda: aiter.fused_reduce_rms_fp8_group_quant(x, x[0, 0], 1e-5, x[0]),
                "only their columns may differ",
            ),
            (
                lambda: aiter.fused_reduce_rms_fp8_group_quant(x[0], x[0, 0], 1e-5, inp3=x[0]),
                "inp1 has no parts",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                call()
