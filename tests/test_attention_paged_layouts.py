# SPDX-License-Identifier: MIT
"""attention_paged with vLLM's and AITER's cache layouts: keys in groups of 16 bytes of features, and values stored feature by feature."""

import dataclasses

import pytest
import torch

import hipkittens
from hipkittens import attention_paged, cache_write
from hipkittens.operations._attention_paged_problems import draw_paged, draw_scales, in_layout
from tests.test_attention_few_queries import loaded_bytes
from tests.test_attention_paged import BOTH, CODES, check, of

LAYOUTS = pytest.mark.parametrize("layout", ["paged", "asm"])
BF16, F16 = torch.bfloat16, torch.float16


def dtype_of(codes, target):
    return {"fp8": CODES[target], "int8": torch.int8}.get(codes)


@BOTH
@LAYOUTS
@pytest.mark.parametrize("codes", [None, "fp8", "int8"])
@pytest.mark.parametrize("dtype, head_dim", [(BF16, 64), (F16, 128), (BF16, 256)], ids=str)
@pytest.mark.parametrize(
    "page, heads, key_heads, queries", [(16, 8, 1, 1), (48, 10, 2, 4), (544, 1, 1, 1), (64, 3, 3, 17)]
)
def test_layouts(target, layout, codes, dtype, head_dim, page, heads, key_heads, queries):
    lengths = [0, 1, 7, 257, page - 1, page, page + 1]
    problem = draw_paged(
        lengths, queries, heads=heads, key_heads=key_heads, head_dim=head_dim, page=page, layout=layout, dtype=dtype,
        cache_dtype=dtype_of(codes, target),
    )  # fmt: skip
    check(target, problem, cache_layout=layout)
    check(
        target,
        problem,
        cache_layout=layout,
        num_splits=3,
        window_size=(37, 0),
        softcap=5.0,
        sinks=torch.ones(heads),
    )


@BOTH
@LAYOUTS
@pytest.mark.parametrize("kind", ["all", "head", "sequence", "key"])
@pytest.mark.parametrize("codes, dtype", [("fp8", BF16), ("int8", F16)], ids=str)
@pytest.mark.parametrize("head_dim, queries", [(64, 9), (128, 1), (256, 2)])
def test_scales_of_codes(target, layout, kind, codes, dtype, head_dim, queries):
    problem = draw_paged(
        [0, 300, 33, 16], queries, heads=6, key_heads=2, head_dim=head_dim, page=16, layout=layout, dtype=dtype,
        cache_dtype=dtype_of(codes, target),
    )  # fmt: skip
    scales = {
        name: draw_scales(problem, kind, layout, seed) for seed, name in enumerate(("k_scale", "v_scale"))
    }
    check(target, problem, cache_layout=layout, window_size=(90, 0), **scales)


@BOTH
@LAYOUTS
def test_pages_of_8_keys(target, layout):
    problem = draw_paged([70, 8, 9, 7], 2, heads=4, head_dim=64, page=8, layout=layout)
    check(target, problem, cache_layout=layout, num_splits=2)
    if layout == "paged":
        narrow = draw_paged(
            [70, 8, 9], 2, heads=4, head_dim=64, page=24, layout=layout, cache_dtype=CODES[target]
        )
        check(target, narrow, cache_layout=layout)


@BOTH
@LAYOUTS
@pytest.mark.parametrize("codes", [None, "fp8"])
def test_same_bits_as_rows(target, layout, codes):
    """With keys and values in any layout."""
    problem = draw_paged(
        [150, 17, 33], [2, 1, 4], heads=8, key_heads=2, head_dim=128, cache_dtype=dtype_of(codes, target)
    )
    caches = {
        "k_cache": in_layout(problem.k_cache, layout, False),
        "v_cache": in_layout(problem.v_cache, layout, True),
    }
    caches = {name: cache.contiguous() for name, cache in caches.items()}
    with hipkittens.simulate(target):
        rows = attention_paged(*problem.arguments(), num_splits=2)
        grouped = dataclasses.replace(problem, **caches)
        assert torch.equal(attention_paged(*grouped.arguments(), num_splits=2, cache_layout=layout), rows)


@BOTH
@LAYOUTS
def test_what_cache_write_has_written(target, layout):
    """Tokens written to slots in any order, then attention over them."""
    key, value = (
        torch.randn(40, 2, 64, generator=torch.Generator().manual_seed(seed)).to(BF16) for seed in (1, 2)
    )
    k_cache = torch.full((5, 2, 8, 16, 8), float("nan"), dtype=BF16)
    v_cache = torch.full((5, 2, 64, 16) if layout == "paged" else (5, 2, 2, 64, 8), float("nan"), dtype=BF16)
    table = torch.tensor([[4, 1, 3]], dtype=torch.int32)
    places = torch.arange(40)
    slots = table[0, places // 16] * 16 + places % 16
    q, used = torch.randn(1, 6, 64).to(BF16), torch.tensor([40], dtype=torch.int32)
    with hipkittens.simulate(target, checks="all") as run:
        cache_write(key, value, k_cache, v_cache, slots.int(), layout=layout)
        out = attention_paged(q, k_cache, v_cache, table, used, cache_layout=layout)
        rows = attention_paged(
            q, key.unsqueeze(0), value.unsqueeze(0), torch.zeros(1, 1, dtype=torch.int32), used
        )
    assert run.findings == [] and torch.equal(out, rows)


@BOTH
@LAYOUTS
def test_keys_are_loaded_once(target, layout):
    problem = draw_paged([4096], heads=8, head_dim=128, layout=layout)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(
            lambda: attention_paged(*problem.arguments(), num_splits=1, cache_layout=layout)
        )
    assert launch["v_cache"] <= 4096 * 256 and launch["k_cache"] <= (4096 + 4 * 32) * 256


REFUSED = [
    (lambda p: of(p, cache_layout="nhd"), "k_cache has shape .* with cache_layout 'nhd' it must be"),
    (lambda p: of(p, v_cache=p.v_cache.mT), r"k_cache has shape .* and v_cache .*; with cache_layout 'paged' .* x = 8 and block_size a multiple of 8"),
    (lambda p: of(p, k_cache=p.k_cache[..., :4, :], v_cache=p.v_cache[..., :4]), "block_size a multiple of 8"),
    (lambda p: of(p, k_cache=p.k_cache.view(torch.int8)[..., :8], v_cache=p.v_cache.view(torch.int8)[..., :16]), "x = 16"),
    (lambda p: of(p, k_cache=p.k_cache[:, :, :4]), "q has head size 64 and k_cache 32"),
    (lambda p: of(p, v_cache=p.v_cache[:3]), "k_cache has shape .* and v_cache"),
    (lambda p: of(p, v_cache=p.v_cache.mT.contiguous().mT), "v_cache has strides .* unit stride along its last"),
]  # fmt: skip


@pytest.mark.parametrize("make, message", REFUSED, ids=[message for _, message in REFUSED])
def test_refused(make, message):
    problem = draw_paged([50, 17], 1, heads=4, key_heads=2, head_dim=64, layout="paged")
    with hipkittens.simulate("gfx950"), pytest.raises(ValueError, match=message):
        attention_paged(**{"cache_layout": "paged"} | make(problem))


def test_torch_backend_has_the_same_meaning(monkeypatch):
    for layout in ("paged", "asm"):
        problem = draw_paged([50, 0, 17], [2, 1, 4], heads=4, head_dim=64, layout=layout)
        with hipkittens.simulate("gfx950"):
            ours = attention_paged(*problem.arguments(), cache_layout=layout)
        with monkeypatch.context() as patch:
            patch.setattr(hipkittens._backend._State, "backend", "torch")
            theirs = attention_paged(*problem.arguments(), cache_layout=layout)
        torch.testing.assert_close(ours, theirs, atol=2**-7, rtol=2**-7)
