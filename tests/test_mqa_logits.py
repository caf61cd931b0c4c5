# SPDX-License-Identifier: MIT
"""mqa_logits and mqa_logits_paged compared with float64 over heads, ranges, lengths and pages; memory that is never read; refused
arguments."""

import dataclasses
import itertools

import pytest
import torch

import hipkittens
from hipkittens import _simulator, mqa_logits, mqa_logits_paged
from hipkittens.operations._attention_paged_problems import UNUSED
from hipkittens.operations._mqa_logits_problems import (
    LogitsProblem,
    draw_logits,
    draw_paged_logits,
)
from tests.simulated_device import TARGETS
from tests.test_attention_few_queries import loaded_bytes

INF, NAN = float("inf"), float("nan")
BOTH = pytest.mark.parametrize("target", TARGETS)
CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
EVERY = pytest.mark.parametrize("kind", ["fp8", "bf16", "f16"])
# Products of operands are exact in float32 (8-bit floats) or nearly so, and a logit is two float32 sums: over D, and over the heads,
# of at most 300 terms. Each addition loses half a unit in the last place, 6e-8, of the current sum, at random: some 1e-7 of the
# root mean square of the logits, which have the same magnitude. An operand or a weight rounded to 16 bits would show as 1e-3.
RMS = 1e-6


def dtype_of(kind, target):
    return {"fp8": CODES[target], "bf16": torch.bfloat16, "f16": torch.float16}[kind]


def check(target, problem, **options):
    """RMS error at most RMS times the logits' own, and no element off by more than sixteen times as much; no finding."""
    function = mqa_logits if isinstance(problem, LogitsProblem) else mqa_logits_paged
    with hipkittens.simulate(target, checks="all") as run:
        logits = function(*problem.arguments(), **options)
        exact = problem.in_torch(torch.float64)
    assert run.findings == []
    assert logits.dtype == torch.float32 and logits.shape == exact.shape
    seen = exact != -INF
    if options.get("clean", True):
        assert torch.equal(logits != -INF, seen)
    else:
        assert logits[~seen].isnan().all()  # as the simulator fills unwritten memory
    if seen.any():
        error, rms = (logits.double() - exact)[seen], exact[seen].square().mean().sqrt()
        assert exact[seen].isfinite().all()
        assert error.square().mean().sqrt() <= RMS * rms and error.abs().max() <= 16 * RMS * rms
    return logits


@BOTH
@EVERY
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("keys", [1, 2, 17, 255, 257])
def test_ragged_ranges(target, kind, size, keys):
    ranges = [(0, keys), (keys // 2, keys), (0, keys // 3 + 1), (keys // 3, keys // 3), (-5, keys + 9)]
    check(target, draw_logits(ranges, keys, size=size, dtype=dtype_of(kind, target)))


@BOTH
@EVERY
@pytest.mark.parametrize("heads", [1, 3, 16, 17, 64, 129, 300])
def test_heads(target, kind, heads):
    """Also more heads than fit into LDS."""
    check(target, draw_logits([(0, 70), (60, 300), (5, 6)], 300, heads=heads, dtype=dtype_of(kind, target)))


@BOTH
@EVERY
def test_tokens_that_share_keys(target, kind):
    """More tokens than a workgroup has, each with its own end."""
    check(
        target,
        draw_logits([(0, 200 + n) for n in range(37)], 260, heads=8, size=64, dtype=dtype_of(kind, target)),
    )


@BOTH
@EVERY
@pytest.mark.parametrize("page", [64, 1, 16, 5, 256])
def test_pages(target, kind, page):
    lengths = [0, 1, 2, 17, 255, 257, page, page + 1]
    check(target, draw_paged_logits(lengths, heads=32, page=page, dtype=dtype_of(kind, target)))


@BOTH
@EVERY
@pytest.mark.parametrize("tokens, heads", [(2, 64), (3, 5), (17, 16), (2, 150)])
@pytest.mark.parametrize("size", [64, 128])
def test_several_tokens_of_a_sequence(target, kind, tokens, heads, size):
    """Also sequences shorter than their tokens, whose first ones see nothing."""
    check(
        target,
        draw_paged_logits([70, 3, 0, 16], tokens, heads=heads, size=size, dtype=dtype_of(kind, target)),
    )


@BOTH
def test_lengths_of_each_token(target):
    problem = draw_paged_logits([90, 40], 3, heads=4, dtype=CODES[target])
    each = torch.tensor([[90, 0, 17], [1, 40, 40]], dtype=torch.int32)
    check(target, dataclasses.replace(problem, context_lens=each))
    counted = problem.context_lens[:, None] - 2 + torch.arange(3)
    logits = check(target, problem)
    again = check(target, dataclasses.replace(problem, context_lens=counted.to(torch.int32)))
    assert torch.equal(logits, again)


@BOTH
@EVERY
def test_what_is_not_clean_is_not_written(target, kind):
    dtype = dtype_of(kind, target)
    check(target, draw_logits([(0, 300), (70, 80), (9, 9)], 700, heads=16, dtype=dtype), clean=False)
    check(target, draw_paged_logits([300, 0, 33], heads=16, dtype=dtype, room=500), clean=False)


@BOTH
@EVERY
def test_each_part_of_a_logit_alone(target, kind):
    """One head and one feature, so that each logit is a known product."""
    dtype = dtype_of(kind, target)
    problem = draw_logits([(0, 64)] * 4, 64, heads=4, dtype=dtype)
    q, k = torch.zeros(4, 4, 128), torch.zeros(64, 128)
    weights, scale = torch.zeros(4, 4), torch.ones(64)
    for token in range(4):
        q[token, token, token * 37] = 2.0
        k[:, token * 37] = torch.arange(64) % 8 - 3.0
        weights[token, token] = token - 1.5
    scale[::2] = -0.25
    alone = dataclasses.replace(problem, q=q.to(dtype), k=k.to(dtype), weights=weights, k_scale=scale)
    expected = scale * weights.diagonal()[:, None] * (2 * (torch.arange(64) % 8 - 3.0)).clamp(min=0)
    assert torch.equal(check(target, alone), expected)


@BOTH
@EVERY
@pytest.mark.parametrize("heads", [64, 20])
def test_nan_stays(target, kind, heads):
    """In a key, its scale, a query and a weight: it appears where it belongs and nowhere else."""
    dtype = dtype_of(kind, target)
    problem = draw_logits([(0, 200)] * 3, 200, heads=heads, dtype=dtype)
    problem.k[70, 5] = problem.k_scale[131] = problem.q[1, 3, 9] = NAN
    problem.weights[2, heads - 1] = NAN
    expected = torch.zeros(3, 200, dtype=torch.bool)
    expected[:, [70, 131]] = expected[1] = expected[2] = True
    with hipkittens.simulate(target):
        assert torch.equal(mqa_logits(*problem.arguments()).isnan(), expected)


@BOTH
@EVERY
def test_a_token_alone_has_the_same_bits(target, kind):
    dtype = dtype_of(kind, target)
    problem = draw_logits([(0, 500), (100, 300), (20, 40), (0, 7)], 500, heads=40, dtype=dtype)
    paged = draw_paged_logits([500, 33, 260], 2, heads=40, dtype=dtype)
    with hipkittens.simulate(target):
        together = mqa_logits(*problem.arguments())
        for row in range(4):
            q, k, scale, *limits = problem.arguments()
            alone = mqa_logits(q[row : row + 1], k, scale, *(each[row : row + 1] for each in limits))
            assert torch.equal(alone[0], together[row])
        together = mqa_logits_paged(*paged.arguments()).unflatten(0, (3, 2))
        for row in range(3):
            alone = mqa_logits_paged(
                paged.q[row : row + 1], paged.kv_cache, paged.weights.unflatten(0, (3, 2))[row],
                paged.context_lens[row : row + 1], paged.block_table[row : row + 1], 700,
            )  # fmt: skip
            assert torch.equal(alone[:, :505], together[row]) and (alone[:, 505:] == -INF).all()
        assert torch.equal(mqa_logits_paged(*paged.arguments()), together.flatten(0, 1))


@BOTH
@EVERY
def test_pages_and_rows_have_the_same_bits(target, kind):
    dtype = dtype_of(kind, target)
    paged = draw_paged_logits([300], heads=64, dtype=dtype, page=16, room=0)
    row = paged.kv_cache.shape[-1]
    with hipkittens.simulate(target):
        expected = mqa_logits_paged(*paged.arguments())
        keys, scales = hipkittens.indexer_logits.split_blocks(paged.kv_cache, 128)
        order = paged.block_table[0, :19].long()
        k = keys[order].flatten(0, 1)[:300]
        scale = None if scales is None else scales[order].flatten()[:300]
        limits = torch.tensor([0], dtype=torch.int32), torch.tensor([300], dtype=torch.int32)
        again = mqa_logits(paged.q[0], k, scale, paged.weights, *limits)
    assert row == (132 if kind == "fp8" else 128) and torch.equal(again, expected)


@BOTH
@EVERY
def test_strides_and_bytes(target, kind):
    """q between other columns, keys between others, columns of wider tensors, bytes for 8-bit floats, a dimension for the one head."""
    dtype = dtype_of(kind, target)
    problem = draw_logits([(0, 90), (4, 33)], 90, heads=6, dtype=dtype)
    expected = check(target, problem)
    q, k, scale, weights, start, end = problem.arguments()
    wide = torch.full((2, 9, 140), NAN).to(dtype)
    wide[:, 2:8, 4:132] = q
    apart = torch.full((90, 2, 136), NAN).to(dtype)
    apart[:, 1, :128] = k
    columns = [each.repeat_interleave(2, -1)[..., ::2] for each in (scale, weights, start, end)]
    moved = LogitsProblem(wide[:, 2:8, 4:132], apart[:, 1, :128], *columns)
    transposed = dataclasses.replace(problem, weights=weights.T.contiguous().T)
    for each in (moved, transposed):
        assert torch.equal(check(target, each), expected)
    paged = draw_paged_logits([90, 33], 2, heads=6, dtype=dtype, page=8)
    expected = check(target, paged)
    with hipkittens.simulate(target, checks="all") as run:
        fifth = paged.kv_cache.unsqueeze(2)
        table = paged.block_table.repeat_interleave(2, 1)[:, ::2]
        wide = paged.q.transpose(0, 1).contiguous().transpose(0, 1)
        again = mqa_logits_paged(wide, fifth, paged.weights, paged.context_lens, table, 95)
        assert torch.equal(again, expected)
        if kind == "fp8":
            as_bytes = paged.q.view(torch.uint8), paged.kv_cache.view(dtype)
            assert torch.equal(mqa_logits_paged(*as_bytes, *paged.arguments()[2:]), expected)
            bare = mqa_logits(q.view(torch.uint8), k.view(torch.uint8), scale, weights, start, end)
            assert torch.equal(bare, mqa_logits(*problem.arguments()))
    assert run.findings == []


@BOTH
@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_pages_beyond_4_gib(target, kind):
    """Bitwise equal to the same pages at low addresses, with a cache of which only those pages are ever touched."""
    dtype = dtype_of(kind, target)
    low = draw_paged_logits([70], heads=16, page=16, dtype=dtype)
    row = low.kv_cache.shape[-1]
    page_bytes, used = 16 * row * dtype.itemsize, 5
    blocks = int(4.5 * 2**30) // page_bytes
    order = low.block_table[0, :used].long()
    cache = torch.empty(blocks * page_bytes, dtype=torch.uint8).view(low.kv_cache.dtype).view(blocks, 16, row)
    high = torch.tensor([blocks - 1, 2**31 // page_bytes, 3, 2**32 // page_bytes, 2**31 // page_bytes - 1])
    cache.view(torch.uint8)[high] = low.kv_cache.view(torch.uint8)[order]
    table = low.block_table.clone()
    table[0, :used] = high.to(torch.int32)
    moved = dataclasses.replace(low, kv_cache=cache, block_table=table)
    with hipkittens.simulate(target):
        expected = mqa_logits_paged(*low.arguments())
        assert torch.equal(mqa_logits_paged(*moved.arguments()), expected)


@BOTH
@EVERY
def test_keys_outside_of_ranges_are_not_loaded(target, kind):
    """Blocks of keys that no token sees are skipped, and those that several tokens see are loaded once."""
    dtype = dtype_of(kind, target)
    problem = draw_logits([(1024, 2048), (4096, 4160)], 16384, heads=16, dtype=dtype)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(lambda: mqa_logits(*problem.arguments()))
    assert launch["k"] == (1024 + 64) * 128 * dtype.itemsize
    paged = draw_paged_logits([1024, 0, 100], 4, heads=16, size=64, dtype=dtype)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(lambda: mqa_logits_paged(*paged.arguments()))
    # A wave has 64 keys; their scales are loaded with them.
    assert launch["kv_cache"] <= (1024 + 128) * (64 * dtype.itemsize + 4)


@BOTH
@EVERY
@pytest.mark.parametrize("heads", [33, 70])
def test_several_turns_of_a_workgroup(target, kind, heads):
    """So many tokens that a workgroup makes several passes over all of its keys: few tokens see any. With 70 heads of 16 bits queries also
    alternate in LDS."""
    tokens, keys = 40000, 900
    seen = {0: (0, 900), 17: (250, 260), 777: (300, 700), 39999: (899, 900)}
    few = draw_logits(list(seen.values()), keys, heads=heads, dtype=dtype_of(kind, target))
    start, end = torch.zeros(2, tokens, dtype=torch.int32)
    rows = torch.tensor(list(seen))
    start[rows], end[rows] = few.start, few.end
    q, weights = few.q[:1].expand(tokens, -1, -1), few.weights[:1].expand(tokens, -1)
    same = dataclasses.replace(few, q=few.q[:1].expand(4, -1, -1), weights=few.weights[:1].expand(4, -1))
    with hipkittens.simulate(target, checks="all") as run:
        expected = mqa_logits(*same.arguments())
        _simulator.record_launches(True)
        logits = mqa_logits(q, few.k, few.k_scale, weights, start, end, clean=False)
        (launch,) = _simulator.recorded_launches()
        _simulator.record_launches(False)
    assert run.findings == [] and launch["report"]["workgroups"] <= tokens
    visible = expected != -INF
    assert torch.equal(logits[rows][visible], expected[visible]) and logits[rows][~visible].isnan().all()
    assert logits.isnan().sum() == logits.numel() - visible.sum()


@BOTH
def test_nothing(target):
    with hipkittens.simulate(target):
        for ranges, keys in (([], 9), ([(0, 9)], 0)):
            logits = mqa_logits(*draw_logits(ranges, keys, heads=4).arguments())
            assert logits.shape == (len(ranges), keys)
        none = draw_paged_logits([], heads=4)
        assert mqa_logits_paged(*none.arguments()).shape == (0, 5)
        empty = draw_paged_logits([0, 0], heads=4)
        assert empty.block_table.eq(UNUSED).all()
        assert (check(target, empty) == -INF).all()
        without_columns = dataclasses.replace(empty, max_context_len=0)
        assert mqa_logits_paged(*without_columns.arguments()).shape == (2, 0)


@BOTH
def test_fewer_columns_than_keys_and_more_than_the_table_has(target):
    problem = draw_paged_logits([300, 40], heads=4, page=16)
    whole = check(target, problem)
    for columns in (1, 33, 299, 2000):
        other = check(target, dataclasses.replace(problem, max_context_len=columns))
        shared = min(columns, whole.shape[1])
        assert torch.equal(other[:, :shared], whole[:, :shared]) and (other[:, shared:] == -INF).all()


def test_torch_backend_and_compile(monkeypatch, compile_backend):
    problem, paged = draw_logits([(0, 50), (3, 9)], 60, heads=4), draw_paged_logits([50, 0], 2, heads=4)
    operators = torch.ops.hipkittens
    with hipkittens.simulate("gfx950"):
        torch.library.opcheck(operators.mqa_logits.default, (*problem.arguments(), True))
        q, *rest = paged.arguments()
        torch.library.opcheck(operators.mqa_logits_paged.default, (q.flatten(0, 1), *rest, True))
        ours = [mqa_logits(*problem.arguments()), mqa_logits_paged(*paged.arguments())]
        for result, function, each in zip(
            ours, (mqa_logits, mqa_logits_paged), (problem, paged), strict=True
        ):
            compiled = torch.compile(
                lambda of=function, given=each: of(*given.arguments()),
                fullgraph=True,
                backend=compile_backend,
            )
            assert torch.equal(compiled(), result)
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    theirs = [mqa_logits(*problem.arguments()), mqa_logits_paged(*paged.arguments())]
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-5)


def test_logits_choose_keys():
    """With topk and attention_mla_sparse: the keys of the largest logits, among those that a token sees."""
    problem = draw_logits([(0, 40), (10, 90), (5, 6)], 90, heads=4)
    with hipkittens.simulate("gfx950"):
        logits = mqa_logits(*problem.arguments(), clean=False)
        _, chosen = hipkittens.topk(logits, 8, row_starts=problem.start, row_ends=problem.end)
    exact = problem.in_torch(torch.float64)
    for row, (start, end) in enumerate(zip(problem.start.tolist(), problem.end.tolist(), strict=True)):
        count = min(8, end - start)
        wanted = exact[row].topk(count).indices.sort().values
        found = chosen[row][chosen[row] >= 0].sort().values
        assert torch.equal(found, wanted) or torch.equal(found + start, wanted)


P, Q = 0, 1
CHANGED = [
    (P, lambda p: {"q": p.q.float()}, TypeError, "q is torch.float32; allowed: torch.bfloat16, torch.float16, torch.float8_e4m3fn"),
    (P, lambda p: {"q": p.q[..., :96]}, ValueError, r"q has shape \(2, 4, 96\); it must be \(tokens, heads, 64 or 128\)"),
    (P, lambda p: {"q": p.q[0]}, ValueError, r"q has shape \(4, 128\); it must be"),
    (P, lambda p: {"q": p.q.half()}, TypeError, "q is torch.float16 and k is torch.bfloat16; convert one"),
    (P, lambda p: {"q": p.q.transpose(1, 2).contiguous().transpose(1, 2)}, ValueError, "q has strides .* needs unit stride"),
    (P, lambda p: {"k": p.k[:, :64]}, ValueError, r"k has shape \(60, 64\); it must be \(keys, 128\)"),
    (P, lambda p: {"k": [1]}, TypeError, "k is list; it must be a torch.Tensor"),
    (P, lambda p: {"k": p.k.clone().requires_grad_()}, ValueError, "k requires a gradient and gets none"),
    (P, lambda p: {"k_scale": p.k_scale[:9]}, ValueError, r"k_scale has shape \(9,\); it must be \(60,\)"),
    (P, lambda p: {"k_scale": p.k_scale.half()}, TypeError, "k_scale is torch.float16; allowed: torch.float32"),
    (P, lambda p: {"weights": p.weights.half()}, TypeError, "weights is torch.float16; allowed: torch.float32"),
    (P, lambda p: {"weights": p.weights[:1]}, ValueError, r"weights has shape \(1, 4\); it must be \(2, 4\)"),
    (P, lambda p: {"start": p.start.long()}, TypeError, "start is torch.int64; allowed: torch.int32"),
    (P, lambda p: {"end": p.end[:1]}, ValueError, "end has 1 entries and q 2 tokens; they must be equal"),
    (P, lambda p: {"clean": "no"}, TypeError, "clean is 'no'"),
    (Q, lambda p: {"q": p.q[0]}, ValueError, r"q has shape \(1, 4, 128\); it must be \(sequences, tokens of each, heads, 64 or 128\)"),
    (Q, lambda p: {"kv_cache": p.kv_cache[..., :128]}, ValueError, r"kv_cache has shape .* \(blocks, block_size, 132\) .* 4 bytes of a scale"),
    (Q, lambda p: {"kv_cache": p.kv_cache.bfloat16()}, TypeError, "q is torch.float8_e4m3fn and kv_cache is torch.bfloat16"),
    (Q, lambda p: {"kv_cache": torch.zeros(9, 64, 136, dtype=torch.uint8)[..., :132]}, ValueError, "must be contiguous: its codes"),
    (Q, lambda p: {"weights": p.weights[0]}, ValueError, r"weights has shape \(4,\); it must be \(2, 4\)"),
    (Q, lambda p: {"context_lens": p.context_lens[:1]}, ValueError, r"context_lens has shape \(1,\); it must be \(2,\) or \(2, 1\)"),
    (Q, lambda p: {"context_lens": p.context_lens + 999}, ValueError, r"context_lens\[0\] is 1049; a row of block_table has 2 blocks"),
    (Q, lambda p: {"context_lens": p.context_lens - 99}, ValueError, r"context_lens\[0\] is -49"),
    (Q, lambda p: {"block_table": p.block_table.long()}, TypeError, "block_table is torch.int64"),
    (Q, lambda p: {"block_table": p.block_table[:1]}, ValueError, "block_table has 1 rows and q 2 sequences"),
    (Q, lambda p: {"block_table": p.block_table + 9}, ValueError, r"block_table\[0\] is .* where keys are used; the cache has 5 blocks"),
    (Q, lambda p: {"max_context_len": -1}, ValueError, "max_context_len is -1; it must be 0 or more"),
    (Q, lambda p: {"max_context_len": 5.0}, TypeError, "max_context_len is 5.0; it must be a whole number"),
    (Q, lambda p: {"clean": None}, TypeError, "clean is None"),
]  # fmt: skip


@pytest.mark.parametrize("which, change, error, message", CHANGED, ids=[each[-1] for each in CHANGED])
def test_refused(which, change, error, message):
    paged = which == Q
    problem = (
        draw_paged_logits([50, 17], heads=4, dtype=CODES["gfx950"])
        if paged
        else draw_logits([(0, 50), (3, 9)], 60, heads=4)
    )
    function = mqa_logits_paged if paged else mqa_logits
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    with hipkittens.simulate("gfx950"):
        function(**fields)
        with pytest.raises(error, match=f"hipkittens.{function.__name__}: " + ".*" + message):
            function(**(fields | change(problem)))


def test_other_targets_codes_are_refused():
    for ours, other in itertools.permutations(TARGETS):
        problem = draw_logits([(0, 9)], 9, heads=4, dtype=CODES[other])
        with (
            hipkittens.simulate(ours),
            pytest.raises(TypeError, match=f"q is {CODES[other]}; allowed: .*{CODES[ours]}"),
        ):
            mqa_logits(*problem.arguments())
