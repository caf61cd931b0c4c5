# SPDX-License-Identifier: MIT
"""hipkittens.aiter's rotations that concatenate heads and write caches: equal to the separate operations, with results written to tensors
that the caller passes.
"""

import inspect

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, aiter, cache_write, quantize, rotary_qk
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

BF16, F16 = torch.bfloat16, torch.float16
TESTED = set()
# Names and arguments from AITER's main branch of August 2026, which the pinned version lacks.
NEWER = {
    "fused_qk_rope_concat_and_cache_mla": "q_nope q_pe kv_c k_pe kv_cache q_out slot_mapping k_scale q_scale positions cos_cache "
    "sin_cache is_neox is_nope_first",
    "fused_fp8_bmm_rope_cat_and_cache_mla": "q_nope w_k w_k_scale q_pe k_nope k_rope kv_cache slot_mapping positions cos sin "
    "group_size transpose_bm config k_scale is_neox q_out_dtype num_decode_toks_for_zeros",
    "fused_fp4_bmm_rope_cat_and_cache_mla": "q_nope w_k w_k_scale q_pe k_nope k_rope kv_cache slot_mapping positions cos sin y "
    "transpose_bm prequant y_scale config k_scale is_neox q_out_dtype num_decode_toks_for_zeros",
}


def of(*names):
    """Declare the names that a test covers."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def latents(tokens, keys, heads=4, kv_heads=1, nope=48, rotary=16):
    sizes = ((tokens, heads, nope), (tokens, heads, rotary), (keys, kv_heads, nope), (keys, kv_heads, rotary))
    return [draw(*each, seed=i) for i, each in enumerate(sizes)]


def angles(rows, columns):
    turned = 6 * torch.rand(rows, 1, 1, columns, generator=torch.Generator().manual_seed(7))
    return turned.cos(), turned.sin()


def codes_of(x, scale=1.0):
    dtype = dtype_of("fp8", torch.device("cpu"))
    largest = torch.finfo(dtype).max
    return (x.float() * (1 / torch.tensor(scale))).clamp(-largest, largest).to(dtype)


def turned(q, k, pos, cos, sin, is_neox):
    tables = (each.reshape(each.shape[0], -1) for each in (cos, sin))
    return rotary_qk(
        q, k, *tables, positions=pos, interleaved=not is_neox, full_tables=cos.shape[-1] == q.shape[-1]
    )


def same(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def test_arguments_are_those_of_the_main_branch():
    for name, arguments in NEWER.items():
        assert list(inspect.signature(getattr(aiter, name)).parameters) == arguments.split(), name


@of("fused_qk_rope_cat")
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("columns", [8, 16])
def test_joined_heads(target, columns, is_neox):
    parts, pos, tables = latents(7, 7, kv_heads=2), torch.randperm(9)[:7], angles(9, columns)
    q_pe, k_pe = turned(parts[1], parts[3], pos, *tables, is_neox)
    q, k = aiter.fused_qk_rope_cat(*parts, pos, *tables, is_neox)
    assert same(q, torch.cat((parts[0], q_pe), -1)) and same(k, torch.cat((parts[2], k_pe), -1))


@of("fused_qk_rope_cat_and_cache_mla")
@pytest.mark.parametrize("coded", [False, True])
def test_latent_caches(target, coded):
    tokens, keys, zeros = 5, 9, 2
    dtype = dtype_of("fp8", torch.device("cpu")) if coded else BF16
    for kv_heads, is_neox, places in ((1, False, False), (2, True, True)):
        parts, tables = latents(tokens, keys, kv_heads=kv_heads), angles(20, 8)
        pos, slots = torch.arange(keys) + 3, torch.tensor([4, -1, 0, 7, 2, 9, -1, 11])
        cache = torch.full((12, kv_heads, 64 * dtype.itemsize), 0x5A, dtype=torch.uint8).view(dtype)
        right = cache.clone()
        out = [torch.empty(tokens, 4, 64, dtype=dtype), torch.empty(zeros, 4, 16, dtype=BF16),
               torch.empty(keys, kv_heads, 16, dtype=BF16)]  # fmt: skip
        named = (
            dict(zip(("q_out", "decode_q_pe_out", "k_pe_out"), out, strict=True))
            if places
            else {"q_out_dtype": dtype}
        )
        scale = torch.tensor([0.5]) if coded else None
        found = aiter.fused_qk_rope_cat_and_cache_mla(
            *parts, cache, slots, pos, *tables, scale, is_neox, zeros, True, **named
        )
        if places:
            assert all(a is b for a, b in zip(found[:3], out, strict=True))
        q_pe, k_pe = turned(parts[1], parts[3][:tokens], pos[:tokens], *tables, is_neox)
        q, k_pe = torch.cat((parts[0], q_pe), -1), torch.cat((k_pe, parts[3][tokens:]))
        assert (
            same(found[0], codes_of(q) if coded else q)
            and same(found[1], q_pe[:zeros])
            and same(found[2], k_pe)
        )
        assert found[3].shape == (zeros, 4, 48) and not found[3].any()
        rows = torch.cat((parts[2], k_pe), -1)[: len(slots)]
        rows = codes_of(rows, 0.5) if coded else rows
        kept = slots >= 0
        right.view(torch.uint8)[slots[kept]] = rows[kept].view(torch.uint8)
        assert same(cache, right)


@of("fused_qk_rope_concat_and_cache_mla")
@pytest.mark.parametrize("coded", [False, True])
def test_latent_caches_of_the_main_branch(target, coded):
    dtype = dtype_of("fp8", torch.device("cpu")) if coded else BF16
    for with_heads, nope_first in ((False, True), (True, False)):
        parts, tables = latents(6, 6), angles(20, 8)
        slots, pos = torch.tensor([4, -1, 0, 7, 2, 9]), torch.arange(6) + 3
        cache = torch.zeros(2, 8, *(1,) * with_heads, 64, dtype=BF16).to(dtype)
        q_out = torch.empty(6, 4, 64, dtype=dtype)
        keys = parts[2:] if with_heads else [each[:, 0] for each in parts[2:]]
        scales = (torch.tensor([0.5]), torch.tensor(2.0))
        assert aiter.fused_qk_rope_concat_and_cache_mla(
            *parts[:2], *keys, cache, q_out, slots, *scales, pos, *tables, False, nope_first
        ) is None  # fmt: skip
        q_pe, k_pe = turned(parts[1], parts[3], pos, *tables, False)
        q, k = (
            torch.cat(pair if nope_first else pair[::-1], -1) for pair in ((parts[0], q_pe), (parts[2], k_pe))
        )
        assert same(q_out, codes_of(q, 2.0) if coded else q)
        rows, kept = codes_of(k, 0.5) if coded else k, slots >= 0
        places = cache.view(16, 64)
        assert same(places[slots[kept]], rows[kept, 0]) and not places[1].float().any()


@of("fused_qk_rope_reshape_and_cache")
@pytest.mark.parametrize("layout", ["nhd", "paged", "asm"])
@pytest.mark.parametrize("coded", [False, True])
def test_caches_of_keys_and_values(target, layout, coded):
    dtype = dtype_of("fp8", torch.device("cpu")) if coded else BF16
    q, k, v = draw(7, 4, 32), draw(7, 2, 32, seed=1), draw(7, 2, 32, seed=2)
    pos, offs, tables, slots = torch.arange(7), torch.arange(7) % 3, angles(20, 16), torch.randperm(32)[:9]
    mine, right = (caches_of(layout, 2, 16, 2, 32, dtype) for _ in range(2))
    scales = [torch.tensor([0.5]), torch.tensor([2.0])] if coded else [None, None]
    out = torch.empty_like(q)
    found = aiter.fused_qk_rope_reshape_and_cache(
        q, k, v, *mine, slots, pos, *tables, *scales, True, layout == "nhd", True, offs, out
    )
    q_right, k_right = turned(q, k, pos + offs, *tables, True)
    assert found[0] is out and same(out, q_right) and same(found[1], k_right)
    assert found[2] is mine[0] and found[3] is mine[1] and found[4].shape == q.shape and not found[4].any()
    cache_write(k_right, v, *right, slots[:7], layout=layout, k_scale=scales[0], v_scale=scales[1])
    assert all(map(same, mine, right))
    named = {"output_zeros": False}
    assert len(aiter.fused_qk_rope_reshape_and_cache(
        q, k, v, *mine, slots, pos, *tables, *scales, True, layout == "nhd", **named)) == 4  # fmt: skip


@of("fused_fp8_bmm_rope_cat_and_cache_mla", "fused_fp4_bmm_rope_cat_and_cache_mla")
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_products_first(kind):
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        parts, tables, slots = latents(5, 5, heads=2, nope=64), angles(20, 8), torch.arange(5)
        query, cache = draw(2, 5, 128, seed=5), torch.zeros(8, 1, 80, dtype=BF16)
        weights = [quantize(draw(64, 128, seed=i), QuantSpec("mxfp4", granularity=32)) for i in range(2)]
        if kind == "fp8":
            w, scale = codes_of(draw(2, 64, 128)), torch.tensor([0.25])
            product = aiter.batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
                query, w, scale, transpose_bm=True
            )
            function = aiter.fused_fp8_bmm_rope_cat_and_cache_mla
        else:
            w, scale = (torch.stack(each) for each in zip(*weights, strict=True))
            product = aiter.batched_gemm_a16wfp4(query, w, scale, transpose_bm=True)
            function = aiter.fused_fp4_bmm_rope_cat_and_cache_mla
        right = torch.zeros_like(cache)
        expected = aiter.fused_qk_rope_cat_and_cache_mla(
            product, *parts[1:], right, slots, slots, *tables, None, False, 3
        )
        found = function(
            query, w, scale, *parts[1:], cache, slots, slots, *tables, num_decode_toks_for_zeros=3
        )
        assert all(map(same, found, expected)) and same(cache, right)
        with pytest.raises(NotImplementedError, match="transpose_bm is False"):
            function(query, w, scale, *parts[1:], cache, slots, slots, *tables, transpose_bm=False)
    assert simulation.findings == []


def test_what_has_no_kernel_says_so():
    parts, tables, slots = latents(3, 3), angles(5, 8), torch.arange(3)
    cache, scale = torch.zeros(8, 1, 64, dtype=BF16), torch.ones(1)
    keys = [torch.zeros(1, 16, 1, 16, dtype=BF16) for _ in range(2)]
    with hipkittens.simulate("gfx950"):
        with pytest.raises(NotImplementedError, match=r"k_scale is given for kv_cache of torch\.bfloat16"):
            aiter.fused_qk_rope_cat_and_cache_mla(*parts, cache, slots, slots, *tables, scale, True)
        with pytest.raises(NotImplementedError, match=r"v_scale is given for value_cache of torch\.bfloat16"):
            aiter.fused_qk_rope_reshape_and_cache(
                parts[1], parts[3], parts[3], *keys, slots, slots, *tables, None, scale, True, True
            )
        with pytest.raises(ValueError, match="slot_mapping has 2 slots for 3 tokens of q and 3 of k"):
            aiter.fused_qk_rope_cat_and_cache_mla(*parts, cache, slots[:2], slots, *tables, None, True)
        with pytest.raises(ValueError, match="num_decode_toks_for_zeros is 4; 0 to 3"):
            aiter.fused_qk_rope_cat_and_cache_mla(*parts, cache, slots, slots, *tables, None, True, 4)
        with pytest.raises(ValueError, match=r"q_out has shape \(3, 4, 60\); the result's is \(3, 4, 64\)"):
            aiter.fused_qk_rope_cat_and_cache_mla(
                *parts, cache, slots, slots, *tables, None, True, q_out=torch.empty(3, 4, 60)
            )
        assert not cache.any()
