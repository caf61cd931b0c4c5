# SPDX-License-Identifier: MIT
"""Norms with fused steps, compared with the unmodified Triton kernels of AITER's wheel, both on the simulated device."""

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import triton as simulated
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = [needs_wheel, pytest.mark.filterwarnings("ignore:tl.where")]


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("columns", [4, 16, 320, 640, 2880])
@pytest.mark.parametrize("with_residual", [False, True])
def test_fused_add_rmsnorm_pad(target, columns, with_residual):
    x, weight = draw(5, columns), draw(columns, seed=1)
    residual = draw(5, columns, seed=2) if with_residual else None
    with simulated.active():
        theirs = aiter_triton.module("fused_add_rmsnorm_pad").fused_add_rmsnorm_pad(
            x, weight, 1e-5, None if residual is None else residual.clone(), 256
        )
    theirs = theirs if with_residual else (theirs, x)
    mine = hipkittens.rms_norm(
        x, weight, 1e-5, residual=residual, round_residual=False, pad_to=256, return_residual=True
    )
    z = x.double() if residual is None else x.double() + residual.double()
    exact = torch.nn.functional.rms_norm(z, (columns,), weight.double(), 1e-5)
    assert mine[0].shape == theirs[0].shape and (mine[0][:, columns:] == 0).all()
    assert torch.equal(mine[1], theirs[1])
    errors = [(value[:, :columns].double() - exact).square().mean().sqrt() for value in (mine[0], theirs[0])]
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("columns", [(512, 1536), (96, 40), (256, 256), (1024, 64), (1536, 512)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_fused_rms_mxfp4_quant(target, columns, with_residual):
    """The sums of squares are accumulated in another order: a few values at the edge between two quantized values or scales differ."""
    x, weight, second, other = (draw(5, columns[0]), draw(columns[0], seed=1), draw(5, columns[1], seed=3),
                                draw(columns[1], seed=4))  # fmt: skip
    residual = draw(5, columns[0], seed=2) if with_residual else None
    with simulated.active():
        (codes, scales), normalised, z = aiter_triton.module("fused_mxfp4_quant").fused_rms_mxfp4_quant(
            x, weight, 1e-5, second, other, 1e-6, None if residual is None else residual.clone()
        )
    spec = hipkittens.QuantSpec("mxfp4", scale_rule="even", rounding="away")
    mine = hipkittens.norm_quantize(
        x, weight, 1e-5, spec, residual=residual, round_residual=False, second=second, second_weight=other,
        second_eps=1e-6, return_residual=True,
    )  # fmt: skip
    assert (mine.codes == codes.view(torch.uint8)).double().mean() > 0.995
    assert (mine.scales == scales.view(torch.uint8)).double().mean() > 0.995
    torch.testing.assert_close(mine.second, normalised, rtol=2.0**-7, atol=2.0**-7)
    if with_residual:
        assert torch.equal(mine.residual, z)
