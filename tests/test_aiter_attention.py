# SPDX-License-Identifier: MIT
"""hipkittens.aiter's attention over caches compared with float64: prefixes and new tokens."""

import pytest
import torch

import hipkittens
from hipkittens import aiter, attention_paged
from hipkittens.cache import as_operand
from hipkittens.operations._attention_paged_problems import UNUSED, draw_paged, draw_scales, in_layout
from hipkittens.paged_attention import in_rows

BF16, F16, I32 = torch.bfloat16, torch.float16, torch.int32
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
TESTED = set()


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


def starts_of(counts):
    return torch.tensor([0, *counts]).cumsum(0).to(I32)


def exact(q, k, v, causal, cap, scale):
    """The tokens [n, heads, D] of one sequence, whose own keys are the last ones, in q's dtype."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1).transpose(0, 1) for each in (k, v))
    scores = scale * (q.transpose(0, 1) @ k.mT)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if causal:
        n, keys = scores.shape[1:]
        scores = scores.masked_fill(~torch.ones(n, keys, dtype=torch.bool).tril(keys - n), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def within(out, wide, narrow):
    """Error at most twice that of PyTorch's operations in out's dtype, largest and root mean square: parts are rounded, and merged."""
    mine, allowed = ((each.double() - wide).abs() for each in (out, narrow.to(out.dtype)))
    assert out.isfinite().all() and mine.max() <= 2 * allowed.max() and mine.norm() <= 2 * allowed.norm()


@of("extend_attention_fwd")
@pytest.mark.parametrize(
    "dtype, head_dim, heads, key_heads", [(BF16, 64, 8, 2), (F16, 128, 5, 5), (BF16, 256, 4, 1)]
)
@pytest.mark.parametrize("causal, cap, scale", [(True, 0.0, None), (False, 4.0, 0.3)])
def test_extend_attention(target, dtype, head_dim, heads, key_heads, causal, cap, scale):
    """Prefixes of rows in random order, among rows of NaN; one without keys, and a sequence without tokens."""
    before, counts = [70, 0, 33, 5, 1], [3, 17, 0, 1, 2]
    starts, ends = starts_of(before), starts_of(counts)
    rows = torch.randperm(sum(before) + 20, generator=torch.Generator().manual_seed(1))[: sum(before)]
    buffers = [
        torch.full((sum(before) + 20, key_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)
    ]
    for number, buffer in enumerate(buffers):
        buffer[rows] = draw(sum(before), key_heads, head_dim, dtype=dtype, seed=number + 2)
    # As with AITER's callers, there may be spare entries after a list.
    indices = torch.cat((rows, torch.tensor([UNUSED] * 3)))
    q = draw(sum(counts), heads, head_dim, dtype=dtype, seed=5)
    new = [draw(sum(counts), key_heads, head_dim, dtype=dtype, seed=seed) for seed in (6, 7)]
    out = torch.full_like(q, float("nan"))
    call = (q, *new, out, *buffers, ends, starts, indices)
    options = {"sm_scale": scale, "logit_cap": cap}
    assert aiter.extend_attention_fwd(*call, None, causal, None, max(counts), **options) is None
    results = []
    for wide in (torch.float64, q.dtype):
        result = torch.empty(q.shape, dtype=wide)
        for b in range(len(counts)):
            mine, theirs = slice(*ends[b : b + 2]), rows[slice(*starts[b : b + 2])]
            k, v = (
                torch.cat((buffer[theirs], each[mine])).to(wide)
                for buffer, each in zip(buffers, new, strict=True)
            )
            result[mine] = exact(q[mine].to(wide), k, v, causal, cap, scale or head_dim**-0.5)
        results.append(result)
    within(out, *results)
    with pytest.raises(NotImplementedError, match="extend_attention_fwd: custom_mask is given"):
        aiter.extend_attention_fwd(*call, torch.ones(1), causal, starts, max(counts))
    with pytest.raises(ValueError, match="extend_attention_fwd: o_extend has shape"):
        aiter.extend_attention_fwd(*call[:3], out[:1], *call[4:], None, causal, None, max(counts))


def problem_of(target, layout, codes=None, queries=1, lengths=(50, 0, 17, 33), **options):
    cache_dtype = {"fp8": FP8[target], "int8": torch.int8}.get(codes)
    return draw_paged(
        list(lengths), queries, heads=6, key_heads=2, layout=layout, cache_dtype=cache_dtype, **options
    )


def scales_of(problem, layout, kind):
    return {
        name: draw_scales(problem, kind, layout, seed) for seed, name in enumerate(("k_scale", "v_scale"))
    }


@of("pa_fwd_asm")
@pytest.mark.parametrize("codes", [None, "fp8", "int8"])
def test_pa_fwd_asm(target, codes):
    """A scale per key; one token per sequence, several, and packed ones."""
    for queries in (1, 3, [2, 1, 0, 4]):
        problem = problem_of(target, "asm", codes, queries)
        q, k, v, table, lengths, ends, most = problem.arguments()
        scales = scales_of(problem, "asm", "key") if codes else {}
        expected = attention_paged(*problem.arguments(), cache_layout="asm", **scales)
        call = (q, k, v, table, lengths, table.stride(0), most, scales.get("k_scale"), scales.get("v_scale"))
        assert torch.equal(aiter.pa_fwd_asm(*call, qo_indptr=ends), expected)
        out = torch.full_like(q, float("nan"))
        assert aiter.pa_fwd_asm(*call, out_=out, qo_indptr=ends, high_precision=2) is out and torch.equal(
            out, expected
        )


@of("paged_attention_rocm")
@pytest.mark.parametrize("codes", [None, "fp8", "int8"])
def test_paged_attention_rocm(target, codes):
    problem = problem_of(target, "paged", codes, 2)
    q, k, v, table, lengths, _, _ = problem.arguments()
    scales, slopes = scales_of(problem, "paged", "all"), torch.rand(6)
    counted = scales if codes else {}
    options = {"scale": 0.2, "alibi_slopes": slopes, "cache_layout": "paged"}
    expected = attention_paged(*problem.arguments(), **options, **counted)
    out, touched = torch.full_like(q, float("nan")), torch.zeros(3)
    call = (out, touched, touched, touched, q, k, v, 2, 0.2, table, lengths, 16, 50, slopes)
    given = (codes or "auto", *scales.values())
    assert aiter.paged_attention_rocm(*call, *given, mtp=2) is out and torch.equal(out, expected)
    assert (touched == 0).all()
    for name in ("fp8_out_scale", "q_scale"):
        with pytest.raises(NotImplementedError, match=f"paged_attention_rocm: {name} is given"):
            aiter.paged_attention_rocm(*call, *given, mtp=2, **{name: torch.ones(1)})
    with pytest.raises(TypeError, match=r"kv_cache_dtype is .* and the caches are"):
        aiter.paged_attention_rocm(*call, "auto" if codes else "fp8", *scales.values(), mtp=2)
    with pytest.raises(NotImplementedError, match="kv_cache_dtype is 'fp8_e5m2'"):
        aiter.paged_attention_rocm(*call, "fp8_e5m2", *scales.values(), mtp=2)
    with pytest.raises(
        ValueError, match="num_kv_heads is 3 and block_size 16; the caches have 2 heads and 16 keys"
    ):
        aiter.paged_attention_rocm(*call[:7], 3, *call[8:], *given, mtp=2)


@of("paged_attention_v1", "paged_attention_ragged")
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("codes, page", [(None, 16), ("fp8", 1), ("int8", 5)])
def test_paged_attention_with_a_workspace(target, layout, codes, page):
    problem = problem_of(target, layout, codes, 2, page=page)
    q, k, v, table, lengths, _, _ = problem.arguments()
    scales, slopes, out = scales_of(problem, layout, "head"), torch.rand(6), torch.full_like(q, float("nan"))
    options = {
        "scale": 0.2,
        "softcap": 3.0,
        "alibi_slopes": slopes,
        "cache_layout": layout,
        **(scales if codes else {}),
    }
    given = (slopes, codes or "auto", layout.upper(), 3.0, *scales.values())
    expected = attention_paged(*problem.arguments(), window_size=(19, 0), **options)
    call = (out, torch.zeros(1), q, k, v, 0.2, table, None, lengths, 50, *given)
    assert aiter.paged_attention_v1(*call, mtp=2, sliding_window=20) is out and torch.equal(out, expected)
    with pytest.raises(ValueError, match="kv_cache_layout is 'NDH'; allowed: 'HND', 'NHD'"):
        aiter.paged_attention_v1(*call[:-4], "NDH", *call[-3:], mtp=2)
    with pytest.raises(NotImplementedError, match="paged_attention_v1: fp8_out_scale is given"):
        aiter.paged_attention_v1(*call, torch.ones(1), mtp=2)

    pages = [-(-length // page) for length in lengths.tolist()]
    listed = torch.cat([row[:count] for row, count in zip(table, pages, strict=True)])
    last = torch.tensor([(length - 1) % page + 1 for length in lengths.tolist()], dtype=I32)
    expected = attention_paged(*problem.arguments(), **options)
    call = (
        out.fill_(float("nan")),
        torch.zeros(1),
        q,
        k,
        v,
        0.2,
        starts_of(pages),
        listed,
        last,
        page,
        1,
        *given,
    )
    assert aiter.paged_attention_ragged(*call, mtp=2) is out and torch.equal(out, expected)
    with pytest.raises(ValueError, match="block_size 77; the caches have 2 heads and"):
        aiter.paged_attention_ragged(*call[:9], 77, *call[10:], mtp=2)


@of("paged_attention_decode")
@pytest.mark.parametrize("codes, kind", [(None, "all"), ("fp8", "all"), ("fp8", "key"), ("int8", "key")])
def test_paged_attention_decode(target, codes, kind):
    problem = problem_of(target, "hnd", codes)
    q, k, v, table, lengths, _, _ = problem.arguments()
    scales, slopes, out = scales_of(problem, "hnd", kind), torch.rand(6), torch.full_like(q, float("nan"))
    options = {"scale": 0.2, "alibi_slopes": slopes, "cache_layout": "hnd", **(scales if codes else {})}
    call = (out, q, k, v, lengths, table, 0.2, 50, None, *scales.values())
    assert aiter.paged_attention_decode(*call, alibi_slopes=slopes) is None
    assert torch.equal(out, attention_paged(*problem.arguments(), **options))


@of("chunked_prefill_paged_decode", "context_attention_fwd")
@pytest.mark.parametrize("codes", [None, "fp8"])
@pytest.mark.parametrize("head_dim, page", [(64, 16), (128, 32)])
def test_prompts_in_chunks(target, codes, head_dim, page):
    """Sequences of one token and of many. context_attention_fwd gets the new keys separately from caches that lack them."""
    counts, lengths = [3, 1, 17, 30], [50, 20, 17, 70]
    problem = problem_of(target, "paged", codes, counts, lengths, head_dim=head_dim, page=page)
    q, k, v, table, used, ends, most = problem.arguments()
    scales, slopes, out = scales_of(problem, "paged", "all"), torch.rand(6), torch.full_like(q, float("nan"))
    options = {"cache_layout": "paged", **(scales if codes else {})}
    new = [torch.full((sum(counts), 2, head_dim), float("nan"), dtype=BF16) for _ in range(2)]
    given = (table, ends, used, most, *scales.values())
    aiter.chunked_prefill_paged_decode(q, *new, out, codes or "auto", k, v, *given, slopes, 20)
    assert torch.equal(
        out, attention_paged(*problem.arguments(), alibi_slopes=slopes, window_size=(19, 0), **options)
    )

    rows = [
        in_rows(as_operand(cache), "paged", values).view(cache.dtype)
        for cache, values in ((k, False), (v, True))
    ]
    for b, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        place = torch.arange(length - count, length)
        for each, row, scale in zip(new, rows, scales.values(), strict=True):
            kept = as_operand(row)[table[b, place // page].long(), place % page].view(row.dtype)
            each[ends[b] : ends[b + 1]] = (kept.float() * (scale if codes else 1)).to(BF16)
    # In the caches they are NaN.
    for cache, values in ((k, False), (v, True)):
        whole = in_rows(as_operand(cache), "paged", values).clone()
        for b, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            place = torch.arange(length - count, length)
            nothing = torch.full((1,), float("nan")).to(cache.dtype)
            whole[table[b, place // page].long(), place % page] = as_operand(nothing)
        cache.copy_(in_layout(whole.view(cache.dtype), "paged", values))
    out = torch.full_like(out, float("nan"))
    aiter.context_attention_fwd(q, *new, out, codes or "auto", k, v, *given, sm_scale=0.2)
    results = []
    for wide in (torch.float64, q.dtype):
        result = torch.empty(q.shape, dtype=wide)
        for b, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            place, mine = torch.arange(length - count), slice(*ends[b : b + 2])
            keys = []
            for cache, values, each, scale in zip((k, v), (False, True), new, scales.values(), strict=True):
                kept = in_rows(as_operand(cache), "paged", values)[
                    table[b, place // page].long(), place % page
                ].view(cache.dtype)
                keys.append(
                    torch.cat((kept.to(wide) * (scale.to(wide) if codes else 1), each[mine].to(wide)))
                )
            result[mine] = exact(q[mine].to(wide), *keys, True, 0.0, 0.2)
        results.append(result)
    within(out, *results)
    for name, value in (("alibi_slopes", slopes), ("sliding_window", 20), ("skip_decode", True)):
        with pytest.raises(NotImplementedError, match=f"context_attention_fwd: {name} is "):
            aiter.context_attention_fwd(q, *new, out, codes or "auto", k, v, *given, **{name: value})
