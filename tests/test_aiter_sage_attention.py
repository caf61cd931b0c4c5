# SPDX-License-Identifier: MIT
"""hipkittens.aiter's SageAttention: AITER's argument orders over hipkittens.attention_quantized and attention_of_codes."""

import pytest
import torch

import hipkittens
from hipkittens import aiter, attention_of_codes, attention_quantized
from hipkittens.quantized_attention import quantized

TESTED = NEWER = {"fav3_sage_func", "fav3_sage_wrapper_func"}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(dtype=BF16):
    """Two blocks of queries and of keys."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, n, heads, 64, generator=generator).to(dtype)
        for n, heads in ((300, 4), (200, 2), (200, 2))
    ]


def laid_out(tensors, layout):
    return [rows.transpose(1, 2) if layout == "bhsd" else rows for rows in tensors]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_wrapper(target, dtype, layout):
    tensors = draw(dtype)
    taken = [rows.to(BF16) if dtype == F32 else rows for rows in tensors]
    expected = attention_quantized(
        *taken, causal=True, scale=0.2, window_size=(90, 0), query_block=256, key_block=128, return_lse=True
    )
    # By position, in AITER's order.
    out, lse = aiter.fav3_sage_wrapper_func(
        *laid_out(tensors, layout), 0.2, True, (90, 0), 0, 0.0, False, 0, True, layout
    )
    assert out.dtype == BF16 and lse.equal(expected[1])
    assert laid_out([out], layout)[0].equal(expected[0].to(BF16))


def test_wrapper_of_other_blocks(target):
    q, k, v = draw()
    out = aiter.fav3_sage_wrapper_func(
        q, k, v, config={"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4}, smooth_k=False
    )
    assert out.equal(attention_quantized(q, k, v, smooth_k=False))
    assert not out.equal(aiter.fav3_sage_wrapper_func(q, k, v, smooth_k=False))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_codes(target, layout):
    codes = quantized(*draw(), 0.125, None, 256, 128)
    tensors = [codes.q, codes.k, codes.v[..., :200].permute(0, 3, 1, 2)]
    expected = attention_of_codes(
        *tensors,
        *codes[3:],
        causal=True,
        window_size=(90, 0),
        query_block=256,
        key_block=128,
        return_lse=True,
    )
    out, lse = aiter.fav3_sage_func(
        *laid_out(tensors, layout), *codes[3:], None, 7.0, True, (90, 0), 0, 0.0, 0, True, layout
    )
    assert laid_out([out], layout)[0].equal(expected[0]) and lse.equal(expected[1])
    assert aiter.fav3_sage_func(*tensors, *codes[3:])[1] is None


@pytest.mark.parametrize(
    "argument, value",
    [
        ("attention_chunk", 2),
        ("softcap", 30.0),
        ("sm_margin", 4),
        ("block_lut", (1, 2, 3)),
        ("q_smooth", True),
        ("hadamard_rotation", True),
        ("R", torch.ones(2, 2)),
        ("BLOCK_R", 32),
    ],
)
def test_what_the_wrapper_refuses(argument, value):
    with (
        hipkittens.simulate("gfx950"),
        pytest.raises(NotImplementedError, match=f"wrapper_func: {argument} is"),
    ):
        aiter.fav3_sage_wrapper_func(*draw(), **{argument: value})


@pytest.mark.parametrize(
    "argument, value",
    [
        ("bias", torch.ones(1)),
        ("attention_chunk", 2),
        ("softcap", 30.0),
        ("sm_margin", 4),
        ("kv_block_indices", torch.ones(1)),
        ("lut_start", torch.ones(1)),
        ("lut_count", torch.ones(1)),
        ("use_block_sparse", True),
    ],
)
def test_what_codes_refuse(argument, value):
    with hipkittens.simulate("gfx950"):
        codes = quantized(*draw(), 0.125, None, 256, 128)
        with pytest.raises(NotImplementedError, match=f"fav3_sage_func: {argument} is"):
            aiter.fav3_sage_func(*codes, **{argument: value})


def test_bad_arguments():
    q, k, v = draw()
    with hipkittens.simulate("gfx950"):
        with pytest.raises(ValueError, match="layout is 'thd'; allowed: bshd, bhsd"):
            aiter.fav3_sage_wrapper_func(q, k, v, layout="thd")
        with pytest.raises(TypeError, match=r"q is torch\.int8; allowed: .*of codes there is fav3_sage_func"):
            aiter.fav3_sage_wrapper_func(q.to(torch.int8), k, v)
        with pytest.raises(ValueError, match="query_block is 192; it must be a power of two"):
            aiter.fav3_sage_wrapper_func(q, k, v, config={"BLOCK_M": 192})
