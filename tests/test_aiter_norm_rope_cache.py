# SPDX-License-Identifier: MIT
"""hipkittens.aiter's norms and rotations that write caches: values compared with float64, bytes with those of the separate operations."""

import inspect

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, aiter, cache_write, indexer_cache_write, layer_norm, quantize, rotary_qk
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

BF16, F32, I8 = torch.bfloat16, torch.float32, torch.int8
# Names and arguments from AITER's main branch of August 2026, which the pinned version lacks.
NEWER = {
    "fused_qkv_split_qk_norm_rope_cache": "qkv q_weight k_weight cos sin positions key_cache value_cache slot_mapping qh kvh head_dim "
    "is_neox offsets reuse_freqs_front_part attn_output_gate k_scale v_scale eps gated_qkv_layout kv_cache_layout",
    "fused_qk_norm_rope_cache_quant_shuffle": "q k v num_heads_q num_heads_k num_heads_v head_dim eps qw kw cos_sin_cache is_neox_style "
    "pos_ids k_cache v_cache slot_mapping kv_cache_dtype k_scale v_scale",
    "indexer_qk_rope_quant_and_cache": "q q_out weights weights_out k kv_cache slot_mapping norm_weight norm_bias positions cos_cache "
    "sin_cache epsilon quant_block_size scale_fmt weights_scale preshuffle is_neox",
}
TESTED = set(NEWER)


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def angles(rows, columns):
    turned = 6 * torch.rand(rows, columns, generator=torch.Generator().manual_seed(7))
    return turned.cos(), turned.sin()


def same(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def normal(x, weight, eps):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def turned(x, cos, sin, neox):
    """x (tokens, heads, features) in float64, with its first features rotated by each token's row."""
    x, count = x.double(), 2 * cos.shape[-1]
    part, rest = x[..., :count], x[..., count:]
    a, b = part.chunk(2, -1) if neox else part.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat((torch.cat(pair, -1) if neox else torch.stack(pair, -1).flatten(-2), rest), -1)


def close(mine, right, ulps=2):
    return bool(((mine.double() - right).abs() <= ulps * 2.0**-8 * right.abs() + 2.0**-12).all())


def test_arguments_are_those_of_the_main_branch():
    for name, arguments in NEWER.items():
        assert list(inspect.signature(getattr(aiter, name)).parameters) == arguments.split(), name


@pytest.mark.parametrize("gate", [None, "interleaved", "blocked"])
@pytest.mark.parametrize("neox", [True, False])
def test_packed_projections(target, neox, gate):
    q, gates, k, v = (draw(7, heads, 32, seed=i) for i, heads in enumerate((4, 4, 2, 2)))
    weights = draw(32, seed=5), draw(32, seed=6)
    parts = {None: [q], "blocked": [q, gates], "interleaved": [torch.stack((q, gates), 2).flatten(1, 2)]}[
        gate
    ]
    qkv = torch.cat((*parts, k, v), 1).flatten(1)
    positions, offsets, slots = (
        torch.randperm(9)[:7],
        torch.arange(7) % 3,
        torch.tensor([5, -1, 0, 17, 31, 2, 9]),
    )
    for pairs, layout, dtype in ((16, "HND", BF16), (6, "NHD", BF16), (16, "hnd", I8)):
        cos, sin = angles(12, pairs)
        caches, right = (caches_of(layout.lower(), 2, 16, 2, 32, dtype) for _ in range(2))
        scales = {"k_scale": torch.tensor([0.1]), "v_scale": torch.tensor([0.05])} if dtype == I8 else {}
        options = {} if gate is None else {"attn_output_gate": True, "gated_qkv_layout": gate}
        found = aiter.fused_qkv_split_qk_norm_rope_cache(
            qkv, *weights, cos, sin, positions, *caches, slots, 4, 2, 32, neox, offsets, kv_cache_layout=layout, **scales, **options
        )  # fmt: skip
        q_out, *of_gate, k_out, v_out = found
        rows = cos[positions + offsets], sin[positions + offsets]
        for mine, x, weight in ((q_out, q, weights[0]), (k_out, k, weights[1])):
            assert close(mine, turned(normal(x, 1 + weight.double(), 1e-5), *rows, neox))
        assert same(v_out, v) and (same(of_gate[0], gates) if gate else not of_gate)
        cache_write(k_out, v_out, *right, slots, layout=layout.lower(), **scales)
        assert all(map(same, caches, right))
        full = (each.repeat(1, 2) if neox else each.repeat_interleave(2, -1) for each in (cos, sin))
        again = aiter.fused_qkv_split_qk_norm_rope_cache(
            qkv, *weights, *full, positions, *caches, slots, 4, 2, 32, neox, offsets, False, kv_cache_layout=layout, **scales, **options
        )  # fmt: skip
        assert all(map(same, again, found))


@pytest.mark.parametrize("kind", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("neox", [True, False])
def test_heads_apart(target, neox, kind):
    dtype = BF16 if kind == "auto" else dtype_of(kind, torch.device("cpu"))
    weights = draw(64, seed=5), draw(64, seed=6)
    positions, slots = torch.randperm(9)[:7], torch.tensor([5, -1, 0, 17, 31, 2, 9])
    for layout, pairs, flat in (("asm", 32, True), ("paged", 32, False), ("asm", 8, False)):
        q, k, v = (draw(7, heads, 64, seed=i) for i, heads in enumerate((4, 2, 2)))
        v[3] = 0
        cos, sin = angles(12, pairs)
        caches, right = (caches_of(layout, 2, 16, 2, 64, dtype) for _ in range(2))
        scales, right_scales = ([torch.zeros(2, 2, 16) for _ in range(2)] for _ in range(2))
        given = [(each.flatten(1) if flat else each).clone() for each in (q, k, v)]
        result = aiter.fused_qk_norm_rope_cache_quant_shuffle(
            *given, 4, 2, 2, 64, 1e-5, *weights, torch.cat((cos, sin), 1), neox, positions, *caches, slots, kind,
            *(scales if kind != "auto" else (None, None)),
        )  # fmt: skip
        assert result is None
        mine = [each.view(7, -1, 64) for each in given]
        rows = cos[positions], sin[positions]
        for each, x, weight in zip(mine[:2], (q, k), weights, strict=True):
            exact = normal(x, weight, 1e-5)
            if kind == "auto":
                assert close(each, turned(exact, *rows, neox))
            else:  # rounded in between; the two products of a rotation may cancel
                error = (each.double() - turned(exact.bfloat16(), *rows, neox)).abs()
                assert error.max() <= 2.0**-7 * exact.abs().max()
        assert same(mine[2], v)
        of_tokens = {}
        if kind != "auto":
            of_tokens = dict(
                zip(("key_scales", "value_scales"), (each.mT for each in right_scales), strict=True)
            )
        cache_write(mine[1], v, *right, slots, layout=layout, **of_tokens)
        assert all(map(same, (*caches, *scales), (*right, *right_scales)))


@pytest.mark.parametrize("scale_fmt", ["", "ue8m0"])
@pytest.mark.parametrize("neox", [True, False])
def test_an_indexer(target, neox, scale_fmt):
    q, k, weights = draw(9, 4, 128), draw(8, 128, seed=1), draw(9, 4, seed=2)
    q[2, 1] = 0
    norm = draw(128, dtype=F32, seed=3), draw(128, dtype=F32, seed=4)
    codes, slots, positions = (
        dtype_of("fp8", q.device),
        torch.tensor([5, -1, 0, 17, 31, 2, 9]),
        torch.randperm(20)[:9],
    )
    cos, sin = (each.bfloat16() for each in angles(20, 32))
    cache, right = (torch.full((2, 16, 132), 0x5A, dtype=torch.uint8) for _ in range(2))
    q_out, weights_out = torch.full((9, 4, 128), 7, dtype=torch.uint8).view(codes), torch.full((9, 4), 7.0)
    assert aiter.indexer_qk_rope_quant_and_cache(
        q, q_out, weights, weights_out, k, cache.view(codes), slots, *norm, positions, cos, sin, 1e-6, 128, scale_fmt, 0.25, False, neox
    ) is None  # fmt: skip
    spec = QuantSpec("fp8", scale_rule="round_up") if scale_fmt else QuantSpec("fp8", floor=1e-10)
    key = layer_norm(k[:7], *norm, eps=1e-6)[:, None]
    right_q, right_k = rotary_qk(q[:7], key, cos, sin, positions=positions[:7], interleaved=not neox)
    of_q, scales = quantize(right_q, spec)
    # As in the definition.
    assert close(right_q, turned(q[:7], cos[positions[:7]], sin[positions[:7]], neox))
    exact = torch.nn.functional.layer_norm(k[:7].double(), (128,), *(each.double() for each in norm), 1e-6)
    assert close(key[:, 0], exact)
    largest = torch.finfo(codes).max
    wanted = right_q.float().abs().amax(-1).clamp_min(1e-10) / largest
    wanted = torch.exp2(wanted.double().log2().ceil()).float() if scale_fmt else wanted
    there = right_q.any(-1)
    assert torch.equal(scales.squeeze(-1)[there], wanted[there]) and not there[2, 1]
    assert same(q_out[:7], of_q) and (q_out[7:].view(torch.uint8) == 7).all()
    assert (
        torch.equal(weights_out[:7], weights[:7].float() * scales.squeeze(-1) * 0.25)
        and (weights_out[7:] == 7).all()
    )
    indexer_cache_write(right_k[:, 0], right, slots, powers_of_two=bool(scale_fmt))
    assert torch.equal(cache, right)


QKV, W, COS = torch.zeros(3, 8 * 32, dtype=BF16), torch.zeros(32, dtype=BF16), torch.ones(9, 16)
CACHES, BYTES = caches_of("hnd", 1, 16, 2, 32, BF16), caches_of("paged", 1, 16, 2, 32, I8)
S, PAGED = torch.arange(3), caches_of("paged", 1, 16, 2, 32, BF16)
Q, K, SCALES = QKV[:, :128], QKV[:, :64], torch.zeros(1, 2, 16)
BOTH, TWO = torch.ones(9, 32), QKV.view(3, 2, 128)


def packed(qkv=QKV, caches=CACHES, heads=(4, 2, 32), **named):
    return aiter.fused_qkv_split_qk_norm_rope_cache(qkv, W, W, COS, COS, S, *caches, S, *heads, **named)


def apart(q=Q, k=K, v=K, caches=PAGED, heads=(4, 2, 2), kind="auto", scales=(None, None)):
    return aiter.fused_qk_norm_rope_cache_quant_shuffle(
        q, k, v, *heads, 32, 1e-5, W, W, BOTH, True, S, *caches, S, kind, *scales
    )


def indexer(k=Q, scale_fmt="", out=(3, 2, 128), **named):
    q_out, weights = torch.zeros(out, dtype=torch.float8_e4m3fn), torch.zeros(3, 2)
    cache, norm = torch.zeros(1, 16, 132, dtype=torch.uint8), torch.ones(128)
    return aiter.indexer_qk_rope_quant_and_cache(
        TWO,
        q_out,
        weights.bfloat16(),
        weights,
        k,
        cache,
        S,
        norm,
        norm,
        S,
        COS,
        COS,
        1e-6,
        128,
        scale_fmt,
        1.0,
        **named,
    )


BAD = [
    (lambda: packed(kv_cache_layout="BSH"), ValueError, "kv_cache_layout is 'BSH'; allowed: 'HND', 'NHD'"),
    (lambda: packed(attn_output_gate=True, gated_qkv_layout="x"), ValueError, "gated_qkv_layout is 'x'; allowed: 'interleaved', 'blocked'"),
    (lambda: packed(attn_output_gate=True), ValueError, "8 heads of queries and gates and twice 2 of 32 features need (tokens, 384)"),
    (lambda: packed(k_scale=torch.ones(1)), NotImplementedError, "k_scale is given for key_cache of torch.bfloat16"),
    (lambda: apart(heads=(4, 2, 1), v=K[:, :32]), ValueError, "num_heads_k is 2 and num_heads_v 1; both must be the same"),
    (lambda: apart(q=K), ValueError, "q has shape (3, 64); it must be (tokens, 128) or (tokens, 4, 32)"),
    (lambda: apart(kind="fp8_e5m2"), NotImplementedError, "kv_cache_dtype is 'fp8_e5m2'"),
    (lambda: apart(kind="int8"), TypeError, "kv_cache_dtype is 'int8' and k_cache torch.bfloat16"),
    (lambda: apart(kind="fp8", caches=BYTES), TypeError, "kv_cache_dtype is 'fp8' and k_cache torch.int8"),
    (lambda: apart(kind="int8", caches=BYTES, scales=(SCALES, SCALES[:, :1])), ValueError, "v_scale has shape (1, 1, 16); the result's is (1, 2, 16)"),
    (lambda: apart(kind="int8", caches=BYTES), ValueError, "k_scale is None"),
    (lambda: indexer(preshuffle=True), NotImplementedError, "preshuffle is True"),
    (lambda: indexer(scale_fmt="e5"), ValueError, "scale_fmt is 'e5'; allowed: 'ue8m0', 'fp32', ''"),
    (lambda: indexer(k=QKV[:, :64]), ValueError, "they must be (tokens, heads, features) and (tokens, features)"),
    (lambda: indexer(out=(3, 1, 128)), ValueError, "q_out has shape (3, 1, 128); the result's is (3, 2, 128)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
    assert not any(each.any() for each in (*CACHES, *PAGED, *BYTES))
