# SPDX-License-Identifier: MIT
"""attention_paged compared with float64 over layouts, page sizes, groups, masks and score modifications; which memory is never read;
refused arguments.
"""

import dataclasses

import pytest
import torch

import hipkittens
from hipkittens import attention_paged
from hipkittens.operations._attention_paged_problems import UNUSED, draw_paged, draw_scales, in_torch
from tests.simulated_device import TARGETS
from tests.test_attention_few_queries import loaded_bytes

INF, NAN = float("inf"), float("nan")
BOTH = pytest.mark.parametrize("target", TARGETS)
CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def check(target, problem, num_splits=0, **options):
    """Error at most twice that of PyTorch's operations in float32 that are rounded once; LSE within 1e-5; no finding."""
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_paged(*problem.arguments(), num_splits=num_splits, return_lse=True, **options)
        exact, sums = in_torch(problem, torch.float64, **options)
        torchs, _ = in_torch(problem, **options)
    assert run.findings == []
    rows = problem.q.shape[0] if problem.cu_seqlens_q is None else int(problem.cu_seqlens_q[-1])
    error, allowed = ((each.double() - exact)[:rows].abs() for each in (out, torchs))
    assert out.isfinite().all() and (out.shape, out.dtype) == (problem.q.shape, problem.q.dtype)
    if rows:
        assert error.max() <= 2 * allowed.max() and error.norm() <= 2 * allowed.norm()
    assert (lse.shape, lse.dtype) == (problem.q.shape[1::-1], torch.float32)
    seen = ~sums[:, :rows].isinf()
    assert torch.equal(~lse[:, :rows].isinf(), seen)
    assert (out[:rows].transpose(0, 1)[~seen] == 0).all()
    difference = (lse.double()[:, :rows] - sums[:, :rows])[seen].abs()
    assert (difference <= 1e-5 * sums[:, :rows][seen].abs().clamp(min=1)).all()
    return out, lse


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("page, layout", [(16, "nhd"), (1, "hnd"), (64, "hnd"), (5, "nhd")])
def test_one_token_of_each_sequence(target, dtype, head_dim, page, layout):
    lengths = [0, 1, 2, 17, 255, 257, page, page + 1]
    problem = draw_paged(lengths, head_dim=head_dim, page=page, layout=layout, dtype=dtype)
    check(target, problem, cache_layout=layout)


@BOTH
@pytest.mark.parametrize("page", [256, 544, 24, 7])
def test_pages(target, page):
    lengths = [page - 1, page, page + 1, 2 * page + 3]
    check(target, draw_paged(lengths, head_dim=64, page=page), num_splits=3)


@BOTH
@pytest.mark.parametrize(
    "heads, key_heads, queries",
    [(1, 1, 1), (6, 2, 1), (4, 1, 17), (5, 1, 2), (7, 1, 4), (8, 1, 1), (10, 1, 3), (32, 2, 1), (64, 1, 1), (3, 3, 33)],
)  # fmt: skip
def test_groups(target, heads, key_heads, queries):
    problem = draw_paged([70, 40, 3, 0], queries, heads=heads, key_heads=key_heads, head_dim=64)
    check(target, problem)


@BOTH
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_prompt_in_chunks(target, head_dim, causal):
    """Sequences with different numbers of tokens, also with more tokens than keys, and with none; rows of q past the last one."""
    counts = [130, 1, 0, 17, 5, 1]
    problem = draw_paged([200, 33, 20, 17, 3, 0], counts, heads=4, head_dim=head_dim, page=32)
    whole = dataclasses.replace(
        problem, q=torch.cat((problem.q, torch.full((3, 4, head_dim), NAN).to(problem.q)))
    )
    out, _ = check(target, problem, causal=causal)
    before = torch.full_like(whole.q, 7)
    with hipkittens.simulate(target, checks="all") as run:
        for splits in (1, 2):
            after = attention_paged(*whole.arguments(), causal=causal, out=before, num_splits=splits)
            assert after is before and (after[-3:] == 7).all() and after[:-3].isfinite().all()
    assert run.findings == []
    assert torch.equal(
        in_torch(problem, causal=causal)[1] == -INF,
        in_torch(problem, torch.float64, causal=causal)[1] == -INF,
    )
    assert out.isfinite().all()


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("num_splits", [0, 1, 2, 7, 33, 256])
def test_splits(target, num_splits, head_dim):
    problem = draw_paged([0, 1, 31, 32, 33, 290, 1500], 2, heads=4, head_dim=head_dim, page=8)
    check(target, problem, num_splits=num_splits, sinks=torch.linspace(-1, 1, 4))


OPTIONS = [
    {"window_size": (0, 0)},
    {"window_size": (20, 0)},
    {"window_size": (100, 7), "causal": False},
    {"window_size": (-1, 3), "causal": False},
    {"window_size": (1, -1), "causal": False},
    {"scale": -0.7},
    {"scale": 0.0},
    {"softcap": 0.5},
    {"softcap": 30.0},
    {"alibi": 1},
    {"alibi": 2, "causal": False},
    {"sinks": torch.linspace(-3, 5, 6)},
    {"sinks": torch.tensor([-INF, INF, 0.0, 200.0, -200.0, 1.0])},
    {"sinks": torch.zeros(6, dtype=torch.bfloat16)},
    {"softcap": 2.0, "alibi": 1, "sinks": torch.ones(6), "window_size": (40, 0)},
]


@BOTH
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_edits_of_scores(target, options, num_splits):
    options = dict(options)
    problem = draw_paged([180, 5, 0], 3, heads=6, key_heads=2, head_dim=64, page=16)
    if rank := options.pop("alibi", 0):
        slopes = torch.rand(3, 6, generator=torch.Generator().manual_seed(2))
        options["alibi_slopes"] = slopes[0] if rank == 1 else slopes
    check(target, problem, num_splits=num_splits, **options)


@BOTH
def test_large_scores(target):
    """Maxima that occur late, and scores whose differences exceed the range of float exponents."""
    problem = draw_paged([257, 100], 1, heads=8, head_dim=64)
    problem.q.mul_(30)
    check(target, problem)
    check(target, problem, num_splits=4, scale=1.0)


@BOTH
def test_a_sink_is_a_key_without_a_value(target):
    problem = draw_paged([100], 1, heads=4, head_dim=64)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
    with hipkittens.simulate(target):
        without, lse = attention_paged(*problem.arguments(), return_lse=True)
        with_sinks, same = attention_paged(*problem.arguments(), sinks=sinks, return_lse=True)
    assert torch.equal(lse, same)
    expected = without.float() * torch.sigmoid(lse[:, 0] - sinks)[:, None]
    torch.testing.assert_close(with_sinks.float(), expected, atol=0, rtol=2**-7)


@BOTH
def test_pages_before_a_window_are_never_read(target):
    """Neither their entries in the table nor their keys."""
    problem = draw_paged([300, 100], 2, heads=4, head_dim=64, page=16)
    expected, _ = check(target, problem, window_size=(30, 0))
    problem.block_table[0, : (300 - 2 - 30) // 16] = UNUSED
    problem.block_table[1, : (100 - 2 - 30) // 16] = -1
    with hipkittens.simulate(target, checks="all") as run:
        assert torch.equal(attention_paged(*problem.arguments(), window_size=(30, 0)), expected)
    assert run.findings == []


@BOTH
def test_no_entry_is_read_where_there_is_no_key(target):
    problem = draw_paged([0, 0], 1, heads=4, head_dim=64)
    assert problem.block_table.eq(UNUSED).all()
    for splits in (1, 3):
        out, lse = check(target, problem, num_splits=splits)
        assert (out == 0).all() and (lse == -INF).all()
    empty = dataclasses.replace(problem, block_table=problem.block_table[:, :0])
    check(target, empty)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    "page, layout, queries", [(16, "nhd", 1), (1, "hnd", 3), (5, "nhd", 1), (64, "hnd", 5)]
)
def test_caches_of_8_bits(target, dtype, head_dim, page, layout, queries):
    problem = draw_paged(
        [0, 1, 257, page, page + 1], queries, head_dim=head_dim, page=page, layout=layout, dtype=dtype,
        cache_dtype=CODES[target],
    )  # fmt: skip
    options = {"cache_layout": layout, "k_scale": torch.tensor([0.375]), "v_scale": 2.5}
    out, lse = check(target, problem, num_splits=2, softcap=4.0, sinks=torch.linspace(-2, 2, 8), **options)
    narrow = {name: getattr(problem, name).view(torch.uint8) for name in ("k_cache", "v_cache")}
    options |= {"softcap": 4.0, "sinks": torch.linspace(-2, 2, 8), "return_lse": True, "num_splits": 2}
    as_numbers = {"k_scale": 0.375, "v_scale": torch.tensor(2.5)}
    with hipkittens.simulate(target):
        again, same = attention_paged(
            *dataclasses.replace(problem, **narrow).arguments(), **options | as_numbers
        )
    torch.testing.assert_close(again, out, atol=2**-9, rtol=2**-7)
    torch.testing.assert_close(same, lse, atol=1e-5, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("kind", ["all", "head", "sequence", "key"])
@pytest.mark.parametrize(
    "dtype, head_dim", [(torch.bfloat16, 128), (torch.float16, 64), (torch.float16, 256)], ids=str
)
@pytest.mark.parametrize(
    "codes, page, layout, queries", [("int8", 16, "nhd", 1), ("int8", 5, "hnd", 3), ("fp8", 1, "nhd", 7)]
)
@pytest.mark.parametrize("num_splits", [1, 3])
def test_scales(target, kind, dtype, head_dim, codes, page, layout, queries, num_splits):
    problem = draw_paged(
        [0, 1, 257, page, page + 1, 600], queries, heads=6, key_heads=2, head_dim=head_dim, page=page, layout=layout,
        dtype=dtype, cache_dtype=torch.int8 if codes == "int8" else CODES[target],
    )  # fmt: skip
    scales = {
        name: draw_scales(problem, kind, layout, seed) for seed, name in enumerate(("k_scale", "v_scale"))
    }
    options = (
        {"softcap": 4.0} if queries > 1 else {"sinks": torch.linspace(-2, 2, 6), "window_size": (300, 0)}
    )
    check(target, problem, num_splits=num_splits, cache_layout=layout, **scales, **options)


@BOTH
def test_values_of_very_different_scales(target):
    """Weights of float16 times scales from 2^-40 to 2^20, in any order: values small relative to the rest may vanish, nothing overflows."""
    problem = draw_paged([500, 40], 1, heads=8, head_dim=64, dtype=torch.float16, cache_dtype=torch.int8)
    k_scale, v_scale = (draw_scales(problem, "key", seed=seed) for seed in (4, 5))
    steps = torch.randint(-40, 20, v_scale.shape, generator=torch.Generator().manual_seed(6))
    problem.v_cache.clamp_(-1, 1)
    v_scale = v_scale * 2.0**steps * 2.0**-10
    check(target, problem, num_splits=1, k_scale=k_scale, v_scale=v_scale)
    check(target, problem, num_splits=2, k_scale=k_scale, v_scale=v_scale * 0)
    check(target, problem, num_splits=1, k_scale=-k_scale, v_scale=-v_scale)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_all_codes_of_integers(target, dtype):
    """Every one as a value, weighted by 1: a sequence of one key returns its value exactly."""
    cache = torch.arange(-128, 128).to(torch.int8).view(4, 1, 1, 64)
    table = torch.arange(4, dtype=torch.int32)[:, None]
    q, used = torch.zeros(4, 1, 64, dtype=dtype), torch.ones(4, dtype=torch.int32)
    with hipkittens.simulate(target, checks="all") as run:
        out = attention_paged(q, cache, cache, table, used)
    assert run.findings == [] and torch.equal(out.flatten(), cache.flatten().to(dtype))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_all_codes_of_8_bits(target, dtype):
    """Every finite one as a value, weighted by 1: a sequence of one key returns its value exactly."""
    codes = torch.arange(256, dtype=torch.uint8).view(CODES[target])
    codes = codes[codes.float().isfinite()]
    values = torch.zeros(256).to(CODES[target])
    values[: len(codes)].copy_(codes)
    cache = values.view(4, 1, 1, 64)
    table = torch.arange(4, dtype=torch.int32)[:, None]
    q, used = torch.zeros(4, 1, 64, dtype=dtype), torch.ones(4, dtype=torch.int32)
    with hipkittens.simulate(target, checks="all") as run:
        out = attention_paged(q, cache, cache, table, used)
    assert run.findings == [] and torch.equal(out.flatten(), values.to(dtype))


@BOTH
def test_keys_of_8_bits_are_loaded_once(target):
    problem = draw_paged([4096], heads=8, head_dim=128, cache_dtype=CODES[target])
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(lambda: attention_paged(*problem.arguments(), num_splits=1))
    assert launch["v_cache"] <= 4096 * 128 and launch["k_cache"] <= (4096 + 4 * 32) * 128


@BOTH
def test_nothing(target):
    """No tokens, no sequences."""
    none = draw_paged([], 1, heads=4, head_dim=64)
    with hipkittens.simulate(target):
        out, lse = attention_paged(*none.arguments(), return_lse=True)
        assert out.shape == (0, 4, 64) and lse.shape == (4, 0)
        no_tokens = draw_paged([20, 3], [0, 0], heads=4, head_dim=64)
        assert attention_paged(*no_tokens.arguments()).shape == (0, 4, 64)


@BOTH
def test_strides(target):
    """q from a fused projection, K and V in one tensor, a column of a wider table, an out between other columns."""
    problem = draw_paged([50, 33], 1, heads=4, key_heads=2, head_dim=64)
    expected, _ = check(target, problem)
    qkv = torch.full((2, 4 + 2 + 2, 64), NAN, dtype=torch.bfloat16)
    qkv[:, :4] = problem.q
    both = torch.stack((problem.k_cache, problem.v_cache), 1)
    table = problem.block_table.repeat_interleave(2, 1)[:, ::2]
    wide = torch.full((2, 6, 64), 7.0, dtype=torch.bfloat16)
    with hipkittens.simulate(target, checks="all") as run:
        out = attention_paged(qkv[:, :4], both[:, 0], both[:, 1], table, problem.seqused_k, out=wide[:, 1:5])
    assert run.findings == []
    assert torch.equal(out, expected) and (wide[:, 0] == 7).all() and (wide[:, 5] == 7).all()


def listed(problem):
    """Arguments of the same problem with all blocks in one list, and where those of each sequence begin."""
    page = problem.k_cache.shape[1]
    rows = [
        row[: -(-length // page)]
        for row, length in zip(problem.block_table, problem.seqused_k.tolist(), strict=True)
    ]
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)[:-1].to(torch.int32)
    # Among other numbers; only every second one is a block.
    blocks = torch.cat([*rows, torch.full((2,), UNUSED, dtype=torch.int32)]).repeat_interleave(2)[::2]
    return dataclasses.replace(problem, block_table=blocks).arguments(), starts


@BOTH
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_blocks_in_one_list(target, page, num_splits):
    """Bitwise equal to a table with a row for each sequence."""
    problem = draw_paged(
        [0, 1, 257, 40, 0, page + 1], [2, 1, 3, 0, 1, 2], heads=8, key_heads=2, head_dim=64, page=page
    )
    expected, sums = check(target, problem, num_splits=num_splits, window_size=(70, 0))
    arguments, starts = listed(problem)
    options = {"num_splits": num_splits, "window_size": (70, 0), "return_lse": True}
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_paged(*arguments, table_starts=starts.repeat_interleave(2)[::2], **options)
        with pytest.raises(ValueError, match=r"table_starts is .*; block_table has \d+ entries"):
            attention_paged(*arguments, table_starts=starts + 1000)
        with pytest.raises(
            ValueError, match=r"block_table has shape .*; it must be \(blocks of all sequences,\)"
        ):
            attention_paged(*problem.arguments(), table_starts=starts)
    assert run.findings == [] and torch.equal(out, expected) and torch.equal(lse, sums)
    cropped = arguments[3][:-2]
    with hipkittens.simulate(target):
        assert torch.equal(
            attention_paged(*arguments[:3], cropped, *arguments[4:], table_starts=starts, **options)[0],
            expected,
        )


@BOTH
def test_pages_beyond_4_gib(target):
    """Bitwise equal to the same pages at low addresses, with a cache of which only those pages are ever touched."""
    page_bytes, used = 16 * 64 * 2, 5
    blocks = int(4.5 * 2**30) // page_bytes
    low = draw_paged([70], 1, heads=4, head_dim=64, spare_pages=0)
    order = low.block_table[0, :used].clone()
    cache = torch.empty(blocks, 16, 1, 64, dtype=torch.bfloat16)
    high = torch.tensor([blocks - 1, 2**31 // page_bytes, 3, 2**32 // page_bytes, 2**31 // page_bytes - 1])
    table = low.block_table.clone()
    table[0, :used] = high
    with hipkittens.simulate(target):
        cache[high] = low.k_cache[order]
        expected = attention_paged(low.q, low.k_cache, low.k_cache, low.block_table, low.seqused_k)
        assert torch.equal(attention_paged(low.q, cache, cache, table, low.seqused_k), expected)


@BOTH
def test_alone_and_among_others(target):
    """One split: the bits do not depend on the rest of the batch, nor on the width of its table."""
    problem = draw_paged([300, 5, 77], 1, heads=8, head_dim=128)
    with hipkittens.simulate(target):
        together = attention_paged(*problem.arguments(), num_splits=1)
        for row in range(3):
            alone = attention_paged(
                problem.q[row : row + 1], problem.k_cache, problem.v_cache, problem.block_table[row : row + 1, : 19],
                problem.seqused_k[row : row + 1], num_splits=1,
            )  # fmt: skip
            assert torch.equal(alone[0], together[row])


@BOTH
def test_several_tokens_are_those_of_one_each(target):
    problem = draw_paged([90], 3, heads=4, head_dim=64)
    with hipkittens.simulate(target):
        out = attention_paged(*problem.arguments())
        for token in range(3):
            length = torch.tensor([88 + token], dtype=torch.int32)
            arguments = (
                problem.q[token : token + 1],
                problem.k_cache,
                problem.v_cache,
                problem.block_table,
                length,
            )
            one = attention_paged(*arguments)
            torch.testing.assert_close(out[token], one[0], atol=2**-8, rtol=2**-7)


@BOTH
@pytest.mark.parametrize("window, most", [((-1, -1), 4096), ((127, 0), 128 + 32)])
def test_keys_are_loaded_once(target, window, most):
    """All 8 heads of a group share loaded keys: 4096 keys, or those of the tiles that a window touches; and each of the four waves
    loads a tile of keys past its last one, with all lanes on the same row."""
    problem = draw_paged([4096], 1, heads=8, head_dim=128)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(
            lambda: attention_paged(*problem.arguments(), num_splits=1, window_size=window)
        )
    assert launch["v_cache"] <= most * 128 * 2
    assert launch["k_cache"] <= (most + 4 * 32) * 128 * 2
    assert launch["k_cache"] + launch["v_cache"] <= 1.02 * 2 * 4096 * 128 * 2


def test_torch_backend_has_the_same_meaning(monkeypatch):
    problem = draw_paged([50, 0, 17], [2, 1, 4], heads=4, head_dim=64)
    options = {"sinks": torch.ones(4), "softcap": 3.0, "window_size": (20, 0)}
    with hipkittens.simulate("gfx950"):
        ours = attention_paged(*problem.arguments(), return_lse=True, **options)
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    theirs = attention_paged(*problem.arguments(), return_lse=True, **options)
    torch.testing.assert_close(ours, theirs, atol=2**-7, rtol=2**-7)


def test_operators_and_compile(compile_backend):
    problem = draw_paged([50, 17], 1, heads=4, head_dim=64)
    options = (None, None, None, None, 1, 2, 0.125, 1.0, True, -1, -1, 0.0, 2)
    operators = torch.ops.hipkittens
    tensors = (
        problem.q,
        problem.k_cache,
        problem.v_cache,
        problem.block_table,
        None,
        problem.seqused_k,
        None,
        None,
    )
    with hipkittens.simulate("gfx950"):
        torch.library.opcheck(operators.attention_paged.default, (*tensors, *options))
        torch.library.opcheck(
            operators.attention_paged_into.default, (torch.zeros_like(problem.q), *tensors, *options)
        )

        def step(out):
            return attention_paged(*problem.arguments(), return_lse=True), attention_paged(
                *problem.arguments(), out=out
            )

        (out, lse), into = torch.compile(step, fullgraph=True, backend=compile_backend)(
            torch.zeros_like(problem.q)
        )
        (expected, sums), _ = step(torch.zeros_like(problem.q))
    assert torch.equal(out, expected) and torch.equal(lse, sums) and torch.equal(into, expected)


def test_writing_out_raises_its_version():
    problem = draw_paged([50], 1, heads=4, head_dim=64)
    out = torch.zeros_like(problem.q)
    with hipkittens.simulate("gfx942"):
        attention_paged(*problem.arguments(), out=out)
    assert out._version == 1


def of(problem, **changes):
    """Arguments of attention_paged by name, with some of them changed."""
    return {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)} | changes


def narrow(problem, size=64):
    """With 8-bit float caches in gfx950's format."""
    blocks = problem.k_cache.shape[:-1]
    caches = [torch.zeros(*blocks, size).to(torch.float8_e4m3fn) for _ in range(2)]
    return dataclasses.replace(problem, k_cache=caches[0], v_cache=caches[1])


REFUSED = [
    (lambda p: of(p, q=[1.0]), TypeError, "q is list; it must be a torch.Tensor"),
    (lambda p: of(p, q=p.q.float()), TypeError, "q is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda p: of(p, q=p.q.half()), TypeError, "q is torch.float16 and k_cache is torch.bfloat16; convert q to the cache's"),
    (lambda p: of(p, k_cache=p.k_cache.to(torch.float8_e4m3fnuz)), TypeError, "k_cache is torch.float8_e4m3fnuz; allowed: .*float8_e4m3fn,"),
    (lambda p: of(p, k_cache=p.k_cache.to(torch.float8_e5m2)), TypeError, "k_cache is torch.float8_e5m2; allowed"),
    (lambda p: of(p, k_cache=p.k_cache.to(torch.float8_e4m3fn)), TypeError, "k_cache is torch.float8_e4m3fn and v_cache is torch.bfloat16"),
    (lambda p: of(p, k_scale=0.5), ValueError, "k_scale is given and k_cache is torch.bfloat16; only caches of 8 bits have a scale"),
    (lambda p: of(narrow(p), k_scale=torch.ones(9, 2, 16)), ValueError, "one of k_scale and v_scale has a number for each key; give both"),
    (lambda p: of(narrow(p), k_scale=torch.ones(9, 16, 2), v_scale=torch.ones(9, 2, 16)), ValueError, r"k_scale has shape \(9, 16, 2\); it must have .*\(blocks, key heads, block_size\) \(9, 2, 16\)"),
    (lambda p: of(p, k_cache=narrow(p).k_cache.view(torch.int8), v_cache=narrow(p).v_cache), TypeError, "k_cache is torch.int8 and v_cache is torch.float8_e4m3fn; both"),
    (lambda p: of(p, v_scale=torch.ones(1)), ValueError, "v_scale is given and v_cache is torch.bfloat16"),
    (lambda p: of(narrow(p), v_scale=torch.ones(3)), ValueError, r"v_scale has shape \(3,\); it must have one element, or be \(key heads,\) \(2,\)"),
    (lambda p: of(narrow(p), k_scale=NAN), ValueError, "k_scale is nan; it must be finite"),
    (lambda p: of(narrow(p), k_scale=torch.ones(1).double()), TypeError, "k_scale is torch.float64; allowed: torch.float32"),
    (lambda p: of(narrow(p), k_cache=narrow(p, 66).k_cache[..., 1:65]), ValueError, "k_cache has strides .* rows on 4 bytes"),
    (lambda p: of(p, q=p.q[0]), ValueError, r"q has shape \(4, 64\); it must be \(tokens, heads, D\)"),
    (lambda p: of(p, q=p.q[..., :40]), ValueError, "the head size of q is 40; allowed: 64, 128, 256"),
    (lambda p: of(p, q=p.q[:, :3]), ValueError, "q has 3 heads and k_cache 2 .* the first must be a multiple of the second"),
    (lambda p: of(p, q=p.q[:1]), ValueError, "q has 1 tokens and block_table 2 rows; without cu_seqlens_q each"),
    (lambda p: of(p, k_cache=p.k_cache[0]), ValueError, r"k_cache has shape \(16, 2, 64\); with cache_layout 'nhd' it must be"),
    (lambda p: of(p, k_cache=p.k_cache[..., :32], v_cache=p.v_cache[..., :32]), ValueError, "q has head size 64 and k_cache 32"),
    (lambda p: of(p, k_cache=p.k_cache[:, :0], v_cache=p.v_cache[:, :0]), ValueError, "its blocks need 1 place or more"),
    (lambda p: of(p, v_cache=p.v_cache[:3]), ValueError, r"k_cache has shape .* and v_cache .*; both have the same"),
    (lambda p: of(p, v_cache=p.v_cache.transpose(1, 3)), ValueError, "both have the same"),
    (lambda p: of(p, k_cache=p.k_cache.mT.contiguous().mT), ValueError, "k_cache has strides .* it needs unit stride along its last"),
    (lambda p: of(p, q=torch.zeros(600, dtype=torch.bfloat16)[1:513].view(2, 4, 64)), ValueError, "begins at address % 4 = 2"),
    (lambda p: of(p, q=p.q.clone().requires_grad_()), ValueError, r"q requires a gradient and gets none; pass q.detach\(\)"),
    (lambda p: of(p, v_cache=p.v_cache.clone().requires_grad_()), ValueError, "v_cache requires a gradient"),
    (lambda p: of(p, block_table=p.block_table.long()), TypeError, "block_table is torch.int64; allowed: torch.int32"),
    (lambda p: of(p, block_table=p.block_table[0]), ValueError, r"block_table has shape \(5,\); it must be \(sequences, blocks"),
    (lambda p: of(p, seqused_k=p.seqused_k[:1]), ValueError, "seqused_k has 1 lengths and block_table 2 rows; they must be equal"),
    (lambda p: of(p, seqused_k=p.seqused_k.long()), TypeError, "seqused_k is torch.int64; allowed: torch.int32"),
    (lambda p: of(p, seqused_k=p.seqused_k + 100), ValueError, r"seqused_k\[0\] is 150; a row of block_table has 5 blocks of 16 keys, 0 .. 80"),
    (lambda p: of(p, seqused_k=p.seqused_k - 40), ValueError, r"seqused_k\[1\] is -23"),
    (lambda p: of(p, block_table=p.block_table - 1), ValueError, r"block_table\[\d\] is .* where keys are used; the cache has 9 blocks, 0 .. 8"),
    (lambda p: of(p, block_table=p.block_table + 9), ValueError, "where keys are used"),
    (lambda p: of(p, cu_seqlens_q=torch.tensor([0, 2], dtype=torch.int32)), ValueError, "cu_seqlens_q has 2 entries; 2 rows of block_table need 3"),
    (lambda p: of(p, cu_seqlens_q=torch.tensor([0, 2, 1], dtype=torch.int32)), ValueError, r"cu_seqlens_q is \[0, 2, 1\]; it must rise from 0"),
    (lambda p: of(p, cu_seqlens_q=torch.tensor([0, 1, 3], dtype=torch.int32)), ValueError, "at most the 2 rows of q"),
    (lambda p: of(p, cu_seqlens_q=torch.tensor([0, 0, 2], dtype=torch.int32)), ValueError, "max_seqlen_q is 1 and the longest sequence of cu_seqlens_q has 2 rows"),
    (lambda p: of(p, max_seqlen_q=True), TypeError, r"max_seqlen_q is True; it must be a whole number"),
    (lambda p: of(p, max_seqlen_q=-1), ValueError, "max_seqlen_q is -1; it must be 0 or more"),
    (lambda p: of(p, causal="no"), TypeError, "causal is 'no'; allowed: True, False"),
    (lambda p: of(p, return_lse="yes"), TypeError, "return_lse is 'yes'"),
    (lambda p: of(p, scale=INF), ValueError, "scale is inf; it must be finite"),
    (lambda p: of(p, softcap=-1.0), ValueError, r"softcap is -1.0; it must be finite and 0 \(none\) or more"),
    (lambda p: of(p, softcap=NAN), ValueError, "softcap is nan"),
    (lambda p: of(p, window_size=3), TypeError, r"window_size is 3; it must be two integers \(left, right\)"),
    (lambda p: of(p, cache_layout="bhnd"), ValueError, "cache_layout is 'bhnd'; allowed: nhd, hnd, paged, asm"),
    (lambda p: of(p, num_splits=257), ValueError, "num_splits is 257; allowed: 0 .. 256"),
    (lambda p: of(p, num_splits=1.5), TypeError, "num_splits is 1.5; it must be a whole number"),
    (lambda p: of(p, alibi_slopes=torch.ones(4).double()), TypeError, "alibi_slopes is torch.float64; allowed: torch.float32"),
    (lambda p: of(p, alibi_slopes=torch.ones(3)), ValueError, r"alibi_slopes has shape \(3,\); it must be \(4,\) or \(2, 4\)"),
    (lambda p: of(p, sinks=torch.ones(3)), ValueError, r"sinks has shape \(3,\); it must be \(4,\)"),
    (lambda p: of(p, sinks=torch.ones(4, requires_grad=True)), ValueError, "sinks requires a gradient"),
    (lambda p: of(p, out=torch.empty(2, 4, 64)), ValueError, r"out is torch.float32 of shape \(2, 4, 64\) on cpu; it must be as q"),
    (lambda p: of(p, out=p.q[:1].expand(2, 4, 64)), ValueError, "out is expanded, so that rows share memory; clone it first"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, message", REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(make, error, message):
    problem = draw_paged([50, 17], 1, heads=4, key_heads=2, head_dim=64)
    with hipkittens.simulate("gfx950"), pytest.raises(error, match=message):
        attention_paged(**make(problem))
    with hipkittens.simulate("gfx950"):
        attention_paged(**of(problem))
