# SPDX-License-Identifier: MIT
"""Expert GEMMs with MXFP4 weights, compared with the unmodified Triton kernels of AITER's wheel: our error is at most 1.1 times theirs."""

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens import aiter
from hipkittens.activation import gated_in_torch
from hipkittens.integrations import triton as simulated
from tests import test_aiter_moe_gemm as problems
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.wheel import needs_wheel
from tests.test_aiter_gemm import BF16, F32, draw, rms

pytestmark = needs_wheel


@pytest.fixture(autouse=True, params=("gfx950",))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield


@pytest.mark.parametrize("format", ["static", "mxfp8"])
def test_rows_of_experts(format):
    """Gathered, with biases, a gate and gammas, and summed."""
    routing, gather, scatter, expert = problems.routed()
    w, w_scales, of_w = problems.experts_weights()
    x, x_scales, static, values = problems.tokens_of(format, problems.TOKENS)
    bias = draw(problems.EXPERTS, problems.N, dtype=F32, seed=1)
    gammas = draw(len(gather), dtype=F32, seed=2)
    options = {
        "bias": bias, "gather_indx": gather, "scatter_indx": scatter, "gammas": gammas, "apply_swiglu": True,
        "alpha": 1.3, "limit": 2.0,
    }  # fmt: skip
    with simulated.active():
        module = aiter_triton.module("moe_routing.routing")
        counts = (routing.expt_hist, routing.n_expts_tot, len(gather), routing.block_m)
        options["routing_data"] = module.RoutingData(
            routing.block_m, None, routing.expt_hist, routing.n_expts_tot, routing.n_expts_act,
            module.compute_expt_data_torch(*counts),
        )  # fmt: skip
        theirs = aiter_triton.module("moe_op_gemm_a8w4").moe_gemm_a8w4(
            x, w, x_scales, w_scales, static, **options
        )
    ours = aiter.moe_gemm_a8w4(x, w, x_scales, w_scales, static, **options)
    rows = values[gather.long() // problems.K_OF_TOKENS]
    exact = problems.expected(rows, of_w, expert, bias, (1.3, 2.0, True), gammas)
    exact = exact[scatter.long().view(problems.TOKENS, problems.K_OF_TOKENS)].sum(1)
    assert rms(ours, exact) <= 1.1 * rms(theirs, exact)


@pytest.mark.parametrize("dtype", problems.DTYPES, ids=str)
@pytest.mark.parametrize("silu", [False, True])
def test_blocks_of_experts(monkeypatch, dtype, silu):
    """Theirs needs K to be a multiple of the tile, reads scales of A for padding, too, and overwrites the next rows of gates with zeros of
    absent experts.
    """
    import triton.language as tl

    monkeypatch.setattr(problems, "K", 256)
    arguments, sums, weights = problems.layer_arguments(dtype, 16, () if silu else (1,))
    if arguments[4] is not None:
        padded = torch.nn.functional.pad(arguments[4], (0, 0, 0, 1))
        arguments = (*arguments[:4], padded, *arguments[5:])
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    exact = sums * weights.double()[..., None]
    name, module = "fused_moe_mxfp4", "moe_op_mxfp4"
    if silu:
        exact = gated_in_torch(exact.flatten(0, 1), "silu")
        name, module = f"{name}_silu", f"{module}_silu_fused"
    errors = []
    with simulated.active():
        theirs = getattr(aiter_triton.module(module), name)
        for function in (getattr(aiter, name), theirs):
            into = torch.full(exact.shape, torch.nan, dtype=BF16)
            function(
                *arguments[:2], into, *arguments[2:], True, problems.K_OF_TOKENS, False, False, config, tl.bfloat16
            )  # fmt: skip
            errors.append(rms(into, exact))
    assert errors[0] <= 1.1 * errors[1]
