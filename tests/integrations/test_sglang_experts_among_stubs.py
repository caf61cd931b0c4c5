# SPDX-License-Identifier: MIT
"""Our experts for SGLang with a configuration that has SGLang's names. tests/oracles/test_sglang.py runs SGLang's own runner."""

from types import SimpleNamespace

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec
from hipkittens.integrations.sglang_experts import experts
from tests.simulated_device import TARGETS

THEIRS = object()


def config(**changes):
    given = {
        "is_gated": True, "swiglu_limit": None, "gemm1_alpha": None, "gemm1_clamp_limit": None, "activation": "silu", "no_combine": False,
        "gate_up_interleaved": True, "apply_router_weight_on_input": False, "routed_scaling_factor": None, "inplace": False,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def problem():
    random = torch.Generator().manual_seed(0)
    x, w1, w2 = (
        torch.randn(shape, generator=random).to(torch.bfloat16)
        for shape in ((9, 256), (4, 256, 256), (4, 256, 128))
    )
    weights, ids = torch.rand(9, 4, generator=random).topk(2)
    return x, w1, w2, weights, ids


def theirs(*given, **options):
    return THEIRS, given, options


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, {}),
        ({"activation": "gelu"}, {"activation": "gelu"}),
        (
            {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0},
            {"activation": "swiglu", "interleaved": True},
        ),
        (
            {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0, "gate_up_interleaved": False},
            {"activation": "swiglu", "interleaved": False},
        ),
        ({"apply_router_weight_on_input": True}, {"weight_input": True}),
    ],
)
def test_gates(target, changes, ours):
    x, w1, w2, weights, ids = problem()
    with hipkittens.simulate(target, checks="all") as launches:
        out = experts(theirs, x, w1, w2, (weights, ids, None), config(**changes))
        expected = hipkittens.moe(x, w1, w2, weights, ids, **ours)
        whole = x.clone()
        again = experts(theirs, whole, w1, w2, (weights, ids, None), config(inplace=True, routed_scaling_factor=2.0, **changes))  # fmt: skip
    assert launches.findings == [] and torch.equal(out, expected)
    assert again is whole and torch.equal(whole, expected * 2.0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["blocks", "row", "tensor", "int8"])
def test_scales(target, kind):
    x, w1, w2, weights, ids = problem()
    with hipkittens.simulate(target, checks="all") as launches:
        if kind == "tensor":
            each = [[hipkittens.quantize(part, QuantSpec("fp8", "tensor")) for part in w] for w in (w1, w2)]
            stored = [tuple(torch.stack(parts) for parts in zip(*of, strict=True)) for of in each]
        else:
            spec = {"blocks": QuantSpec("fp8", (128, 128)), "int8": QuantSpec("int8", "row")}
            stored = [hipkittens.quantize(w, spec.get(kind, QuantSpec("fp8", "row"))) for w in (w1, w2)]
        (codes1, scale1), (codes2, scale2) = stored
        given = {
            "use_fp8_w8a8": kind != "int8", "use_int8_w8a8": kind == "int8", "per_channel_quant": kind in ("row", "int8"),
            "block_shape": [128, 128] if kind == "blocks" else None, "w1_scale": scale1, "w2_scale": scale2,
        }  # fmt: skip
        out = experts(theirs, x, codes1, codes2, (weights, ids, None), config(), **given)
        recipe = {"blocks": ("1x128", "128x128"), "tensor": ("tensor", "tensor")}.get(kind, ("row", "row"))
        if kind == "tensor":
            scale1, scale2 = scale1.view(-1, 1, 1), scale2.view(-1, 1, 1)
        expected = hipkittens.moe(
            x, codes1, codes2, weights, ids, scale_w1=scale1, scale_w2=scale2, recipe=recipe
        )
    assert launches.findings == [] and torch.equal(out, expected)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"is_gated": False}, {}),
        ({"activation": "relu2"}, {}),
        ({"swiglu_limit": 7.0}, {}),
        ({"gemm1_clamp_limit": 7.0}, {}),
        ({"gemm1_alpha": 1.0, "gemm1_clamp_limit": 7.0}, {}),
        ({"no_combine": True}, {}),
        ({}, {"use_int8_w8a16": True}),
        ({}, {"use_int4_w4a16": True}),
        ({}, {"w1_zp": torch.zeros(1)}),
        ({}, {"use_fp8_w8a8": True, "a1_scale": torch.ones(1)}),
        ({}, {"use_fp8_w8a8": True, "block_shape": [64, 128]}),
        ({}, {"use_int8_w8a8": True, "block_shape": [128, 128]}),
        ({}, {"fuse_swiglu_interleaved": True}),
        ({}, {"a1_q": torch.zeros(1)}),
    ],
)
def test_what_stays_with_sglang(changes, given):
    x, w1, w2, weights, ids = problem()
    answer, passed, options = experts(theirs, x, w1, w2, (weights, ids, None), config(**changes), **given)
    assert answer is THEIRS and passed[0] is x and passed[1] is w1
    names = (
        "b1", "b2", "use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant", "w1_scale", "w2_scale",
        "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape",
    )  # fmt: skip
    seen = dict(zip(names, passed[5:], strict=True)) | options
    assert all(seen[name] is value for name, value in given.items())


def test_padded_weights_and_other_dtypes_stay_with_sglang():
    x, w1, w2, weights, ids = problem()
    padded = torch.nn.functional.pad(w1, (0, 128))
    assert experts(theirs, x, padded, w2, (weights, ids, None), config())[0] is THEIRS
    assert experts(theirs, x, w1.half(), w2, (weights, ids, None), config())[0] is THEIRS
    single = (each.float() for each in (x, w1, w2))
    assert experts(theirs, *single, (weights, ids, None), config())[0] is THEIRS
