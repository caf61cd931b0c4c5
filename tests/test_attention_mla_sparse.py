# SPDX-License-Identifier: MIT
"""attention_mla_sparse compared with float64 over lists with holes, page sizes, heads and splits; which memory is never read; refused
arguments.
"""

import dataclasses

import pytest
import torch

import hipkittens
from hipkittens import attention_mla, attention_mla_sparse
from hipkittens.operations._attention_mla_checks import SCALE
from hipkittens.operations._attention_sparse_problems import draw_sparse, sparse_in_float
from tests.simulated_device import TARGETS

INF, NAN = float("inf"), float("nan")
BOTH = pytest.mark.parametrize("target", TARGETS)
CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def check(target, problem, num_splits=0, **options):
    """Error at most twice that of PyTorch's operations in float32 that are rounded once; LSE within 1e-5; no finding."""
    options = {"scale": SCALE} | options
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_mla_sparse(
            *problem.arguments(), num_splits=num_splits, return_lse=True, **options
        )
        exact, sums = sparse_in_float(problem, torch.float64, **options)
        torchs, _ = sparse_in_float(problem, **options)
    assert run.findings == []
    tokens, heads, _ = problem.q.shape
    error, allowed = ((each.double() - exact).abs() for each in (out, torchs))
    assert out.isfinite().all() and (out.shape, out.dtype) == ((tokens, heads, 512), problem.q.dtype)
    assert error.max() <= 2 * allowed.max() and error.norm() <= 2 * allowed.norm()
    assert (lse.shape, lse.dtype) == ((heads, tokens), torch.float32)
    seen = ~sums.isinf()
    assert torch.equal(~lse.isinf(), seen) and (out.transpose(0, 1)[~seen] == 0).all()
    difference = (lse.double() - sums)[seen].abs()
    assert (difference <= 1e-5 * sums[seen].abs().clamp(min=1)).all()
    return out, lse


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("page", [64, 1, 5])
def test_lists_with_holes(target, dtype, page):
    check(target, draw_sparse([0, 1, 2, 17, 255, 257, 300], 300, page=page, dtype=dtype))


@BOTH
@pytest.mark.parametrize("heads", [1, 3, 17, 128])
def test_heads(target, heads):
    check(target, draw_sparse([40, 0, 3], 60, heads=heads), sinks=torch.linspace(-1, 1, heads))


@BOTH
@pytest.mark.parametrize("num_splits", [1, 2, 7])
def test_splits(target, num_splits):
    check(target, draw_sparse([0, 1, 33, 700], 800, heads=4), num_splits=num_splits)


@BOTH
@pytest.mark.parametrize("scale", [None, 0.375, torch.tensor([0.375])], ids=["1", "number", "tensor"])
def test_caches_of_8_bits(target, scale):
    problem = draw_sparse([0, 257, 20], 300, cache_dtype=CODES[target])
    out, _ = check(target, problem, kv_scale=scale)
    as_bytes = dataclasses.replace(problem, kv_cache=problem.kv_cache.view(torch.uint8))
    with hipkittens.simulate(target):
        again = attention_mla_sparse(*as_bytes.arguments(), scale=SCALE, kv_scale=scale)
    assert torch.equal(out, again)


@BOTH
def test_first_entries_alone(target):
    problem = draw_sparse([50, 50, 50, 50, 9], 60, heads=4)
    counts = torch.tensor([0, 1, 31, 60, 99], dtype=torch.int32)
    out, lse = check(target, problem, topk_length=counts)
    shorter = problem.indices.clone()
    shorter[torch.arange(60) >= counts[:, None]] = -1
    with hipkittens.simulate(target):
        again = attention_mla_sparse(problem.q, problem.kv_cache, shorter, scale=SCALE, return_lse=True)
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])


@BOTH
def test_holes_do_not_matter_to_a_bit(target):
    """A list with holes gives the bits of the same list without them, and those of attention_mla with pages of one key."""
    problem = draw_sparse([70, 33], 200, heads=4)
    keys = problem.kv_cache.shape[0] * problem.kv_cache.shape[1]
    lists = [row[(row >= 0) & (row < keys)] for row in problem.indices]
    packed = torch.full((2, 200), -1, dtype=torch.int32)
    for row, listed in zip(packed, lists, strict=True):
        row[: len(listed)] = listed
    pages = problem.kv_cache.reshape(-1, 1, 576)
    lengths = torch.tensor([70, 33], dtype=torch.int32)
    with hipkittens.simulate(target):
        results = [
            attention_mla_sparse(problem.q, problem.kv_cache, indices, scale=SCALE, return_lse=True)
            for indices in (problem.indices, packed)
        ]
        results.append(attention_mla(problem.q, pages, packed, lengths, scale=SCALE, return_lse=True))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])


@BOTH
def test_every_stride_of_a_cache(target):
    """Without gaps between pages, with gaps that are no multiple of a row, one page, pages of one key, with a dimension for the one
    head."""
    problem = draw_sparse([70, 0, 33], 100, heads=4, page=8)
    expected, _ = check(target, problem)
    blocks = problem.kv_cache.shape[0]
    apart = torch.full((blocks, 8 * 580 + 6), NAN, dtype=torch.bfloat16)
    apart = apart.as_strided((blocks, 8, 576), (8 * 580 + 6, 580, 1), 2)
    apart.copy_(problem.kv_cache)
    whole = problem.kv_cache.contiguous()
    others = (apart, whole, whole.view(1, -1, 576), whole.view(-1, 1, 576), whole.unsqueeze(2))
    for cache in others:
        with hipkittens.simulate(target, checks="all") as run:
            out = attention_mla_sparse(problem.q, cache, problem.indices, scale=SCALE)
        assert run.findings == [] and torch.equal(out, expected)
    result = torch.full((3, 6, 512), 7.0, dtype=torch.bfloat16)
    wide = problem.indices.repeat_interleave(2, 1)[:, ::2]
    with hipkittens.simulate(target):
        given = attention_mla_sparse(problem.q, whole, wide, scale=SCALE, out=result[:, 1:5])
    assert torch.equal(given, expected) and (result[:, 0] == 7).all() and (result[:, 5] == 7).all()


@BOTH
def test_rows_beyond_4_gib(target):
    """Bitwise equal to the same rows at low addresses, with gaps between pages, so that rows are not contiguous."""
    low = draw_sparse([70], 90, heads=4, page=16)
    keys = low.kv_cache.shape[0] * 16
    blocks = int(4.5 * 2**30) // (20 * 1152)
    cache = torch.empty(blocks * 20 * 576, dtype=torch.bfloat16).view(blocks, 20, 576)[:, :16]
    used = low.indices[(low.indices >= 0) & (low.indices < keys)].unique()
    spread = torch.linspace(0, blocks * 16 - 1, len(used), dtype=torch.float64).to(torch.int32)
    moved = torch.full_like(low.indices, -1)
    for before, after in zip(used, spread, strict=True):
        moved[low.indices == before] = after
        cache[int(after) // 16, int(after) % 16] = low.kv_cache[int(before) // 16, int(before) % 16]
    with hipkittens.simulate(target):
        expected = attention_mla_sparse(*low.arguments(), scale=SCALE)
        assert torch.equal(attention_mla_sparse(low.q, cache, moved, scale=SCALE), expected)


@BOTH
@pytest.mark.parametrize("heads", [4, 40])
def test_a_token_alone_and_among_others(target, heads):
    """Batch-invariant: with enough other tokens to fill the device, and with a list without spare entries."""
    problem = draw_sparse([600, 0, 33, *[5] * 300], 700, heads=heads)
    keys = problem.kv_cache.shape[0] * problem.kv_cache.shape[1]
    alone = problem.indices[0][(problem.indices[0] >= 0) & (problem.indices[0] < keys)][None]
    with hipkittens.simulate(target), hipkittens.batch_invariant():
        together = attention_mla_sparse(*problem.arguments(), scale=SCALE)
        for row, indices in ((0, alone), (2, problem.indices[2:3])):
            one = attention_mla_sparse(problem.q[row : row + 1], problem.kv_cache, indices, scale=SCALE)
            assert torch.equal(one[0], together[row])


@BOTH
def test_nothing(target):
    with hipkittens.simulate(target):
        for tokens, width in ((0, 5), (2, 0)):
            problem = draw_sparse([0] * tokens, width, heads=4)
            out, lse = attention_mla_sparse(*problem.arguments(), scale=SCALE, return_lse=True)
            assert out.shape == (tokens, 4, 512) and lse.shape == (4, tokens)
            assert (out == 0).all() and (lse == -INF).all()


def test_torch_backend_and_compile(monkeypatch, compile_backend):
    problem = draw_sparse([50, 0, 17], 60, heads=4)
    options = {"scale": SCALE, "sinks": torch.ones(4), "return_lse": True}
    with hipkittens.simulate("gfx950"):
        ours = attention_mla_sparse(*problem.arguments(), **options)
        compiled = torch.compile(attention_mla_sparse, fullgraph=True, backend=compile_backend)(
            *problem.arguments(), **options
        )
    assert torch.equal(ours[0], compiled[0]) and torch.equal(ours[1], compiled[1])
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    theirs = attention_mla_sparse(*problem.arguments(), **options)
    torch.testing.assert_close(ours, theirs, atol=2**-7, rtol=2**-7)


def of(problem, **changes):
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return fields | {"scale": SCALE} | changes


REFUSED = [
    (lambda p: of(p, q=p.q.float()), TypeError, "q is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda p: of(p, q=p.q[0]), ValueError, r"q has shape \(4, 576\) and indices \(2, 60\); they must be"),
    (lambda p: of(p, q=p.q[:1]), ValueError, r"q has shape \(1, 4, 576\) and indices \(2, 60\)"),
    (lambda p: of(p, kv_cache=p.kv_cache[0]), ValueError, r"kv_cache has shape \(16, 576\); it must be"),
    (lambda p: of(p, kv_cache=p.kv_cache[..., :512]), ValueError, r"kv_cache has shape .* it must be \(blocks, block_size, 576\)"),
    (lambda p: of(p, indices=p.indices.long()), TypeError, "indices is torch.int64; allowed: torch.int32"),
    (lambda p: of(p, indices=p.indices[0]), ValueError, r"indices has shape \(60,\); it must be \(tokens, keys of a token\)"),
    (lambda p: of(p, topk_length=torch.ones(2)), TypeError, "topk_length is torch.float32; allowed: torch.int32"),
    (lambda p: of(p, topk_length=p.indices[0]), ValueError, "topk_length has 60 lengths and q 2 tokens; they must be equal"),
    (lambda p: of(p, kv_scale=0.5), ValueError, "kv_scale is given and kv_cache is torch.bfloat16"),
    (lambda p: of(p, head_dim_v=128), ValueError, "head_dim_v is 128; it must be 512"),
    (lambda p: of(p, scale=None), TypeError, "scale is None; pass the model's"),
    (lambda p: of(p, sinks=torch.ones(3)), ValueError, r"sinks has shape \(3,\); it must be \(4,\)"),
    (lambda p: of(p, num_splits=257), ValueError, "num_splits is 257; allowed: 0 .. 256"),
    (lambda p: of(p, return_lse="no"), TypeError, "return_lse is 'no'"),
    (lambda p: of(p, out=p.q), ValueError, "out is torch.bfloat16 of shape"),
    (lambda p: of(p, kv_cache=p.kv_cache.clone().requires_grad_()), ValueError, "kv_cache requires a gradient"),
    (lambda p: of(p, kv_cache=p.kv_cache.to("meta")), ValueError, "kv_cache is on meta and q on cpu"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, message", REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(make, error, message):
    problem = draw_sparse([50, 17], 60, heads=4)
    with hipkittens.simulate("gfx950"):
        attention_mla_sparse(**of(problem))
        with pytest.raises(error, match="hipkittens.attention_mla_sparse: .*" + message):
            attention_mla_sparse(**make(problem))


def test_a_cache_whose_rows_have_no_number_is_refused():
    """Pages of 16 rows at odd distances, over more than 2^31 steps of their common divisor: checked with tensors without memory."""
    q = torch.empty(1, 4, 576, dtype=torch.bfloat16, device="meta")
    cache = torch.empty_strided((2**15, 16, 576), (2**18 + 2, 580, 1), dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match=r"lie at multiples of 2 elements, .* 2\^31 are allowed"):
        attention_mla_sparse(q, cache, torch.empty(1, 4, dtype=torch.int32, device="meta"), scale=SCALE)
