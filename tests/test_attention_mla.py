# SPDX-License-Identifier: MIT
"""attention_mla compared with float64 over page sizes, heads, tokens and splits; which memory is loaded and which is never read; refused
arguments.
"""

import dataclasses

import pytest
import torch

import hipkittens
from hipkittens import attention_mla
from hipkittens._latent_rows import scaled_rows_in_bfloat16
from hipkittens.operations._attention_mla_checks import SCALE
from hipkittens.operations._attention_paged_problems import UNUSED, draw_latent, latent_in_float
from hipkittens.quantization import dtype_of
from tests.simulated_device import TARGETS
from tests.test_attention_few_queries import loaded_bytes

INF, NAN = float("inf"), float("nan")
BOTH = pytest.mark.parametrize("target", TARGETS)
CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def check(target, problem, num_splits=0, scale=SCALE, **options):
    """Error at most twice that of PyTorch's operations in float32 that are rounded once; LSE within 1e-5; no finding."""
    options["scale"] = scale
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_mla(*problem.arguments(), num_splits=num_splits, return_lse=True, **options)
        exact, sums = latent_in_float(problem, torch.float64, **options)
        torchs, _ = latent_in_float(problem, **options)
    assert run.findings == []
    tokens, heads, _ = problem.q.shape
    rows = tokens if problem.cu_seqlens_q is None else int(problem.cu_seqlens_q[-1])
    error, allowed = ((each.double() - exact)[:rows].abs() for each in (out, torchs))
    assert out.isfinite().all() and (out.shape, out.dtype) == ((tokens, heads, 512), problem.q.dtype)
    if rows:
        assert error.max() <= 2 * allowed.max() and error.norm() <= 2 * allowed.norm()
    assert (lse.shape, lse.dtype) == ((heads, tokens), torch.float32)
    seen = ~sums[:, :rows].isinf()
    assert torch.equal(~lse[:, :rows].isinf(), seen)
    assert (out[:rows].transpose(0, 1)[~seen] == 0).all()
    difference = (lse.double()[:, :rows] - sums[:, :rows])[seen].abs()
    assert (difference <= 1e-5 * sums[:, :rows][seen].abs().clamp(min=1)).all()
    return out, lse


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("page", [64, 1, 16, 5, 544])
def test_one_token_of_each_sequence(target, dtype, page):
    problem = draw_latent([0, 1, 2, 17, 255, 257, page, page + 1], heads=16, page=page, dtype=dtype)
    check(target, problem)


@BOTH
@pytest.mark.parametrize(
    "heads, queries", [(1, 1), (3, 1), (5, 2), (16, 4), (17, 1), (128, 1), (1, 17), (8, 3)]
)
def test_heads_and_tokens(target, heads, queries):
    check(target, draw_latent([70, 40, 3, 0], queries, heads=heads))


@BOTH
@pytest.mark.parametrize("causal", [True, False])
def test_a_prompt_in_chunks(target, causal):
    """Sequences with different numbers of tokens, also with more tokens than keys, and with none; rows of q past the last one."""
    problem = draw_latent([200, 33, 20, 17, 3, 0], [40, 1, 0, 17, 5, 1], heads=4, page=32)
    out, _ = check(target, problem, causal=causal)
    whole = torch.cat((problem.q, torch.full((3, 4, 576), NAN).to(problem.q)))
    before = torch.full((67, 4, 512), 7.0, dtype=torch.bfloat16)
    arguments = dataclasses.replace(problem, q=whole).arguments()
    with hipkittens.simulate(target, checks="all") as run:
        after = attention_mla(*arguments, scale=SCALE, causal=causal, out=before)
    assert run.findings == [] and after is before and before._version == 1
    assert (after[64:] == 7).all() and torch.equal(after[:64], out)


@BOTH
@pytest.mark.parametrize("num_splits", [0, 1, 2, 7, 33, 256])
def test_splits(target, num_splits):
    problem = draw_latent([0, 1, 31, 32, 33, 290, 1500], 2, heads=4, page=8)
    check(target, problem, num_splits=num_splits, sinks=torch.linspace(-1, 1, 4))


@BOTH
@pytest.mark.parametrize("part", ["latent", "rotary"])
def test_each_part_of_the_score_alone(target, part):
    """With all of a query's features zero except the latent's, or except the rotary ones: weights then follow from the others."""
    problem = draw_latent([130, 40], heads=16)
    hidden = slice(512, 576) if part == "latent" else slice(0, 512)
    problem.q[..., hidden] = 0
    alone, _ = check(target, problem, scale=0.5)
    changed = problem.kv_cache.clone()
    if part == "latent":
        changed[..., 512:] = torch.where(changed[..., 512:].isnan(), NAN, 1.0)
        with hipkittens.simulate(target):
            again = attention_mla(*dataclasses.replace(problem, kv_cache=changed).arguments(), scale=0.5)
        assert torch.equal(alone, again)
    uniform, _ = check(target, dataclasses.replace(problem, q=torch.zeros_like(problem.q)), scale=0.5)
    assert not torch.equal(alone, uniform)


@BOTH
@pytest.mark.parametrize("options", [{"scale": -0.7}, {"scale": 0.0}, {"scale": 1.0}], ids=str)
def test_scales(target, options):
    check(target, draw_latent([257, 100], heads=8), **options)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("page", [64, 1])
@pytest.mark.parametrize("scale", [None, 0.375, torch.tensor([0.375])], ids=["1", "number", "tensor"])
def test_caches_of_8_bits(target, dtype, page, scale):
    problem = draw_latent(
        [0, 1, 257, page + 1], 2, heads=16, page=page, dtype=dtype, cache_dtype=CODES[target]
    )
    out, lse = check(target, problem, num_splits=2, kv_scale=scale)
    as_bytes = dataclasses.replace(problem, kv_cache=problem.kv_cache.view(torch.uint8))
    with hipkittens.simulate(target):
        again, same = attention_mla(
            *as_bytes.arguments(), scale=SCALE, kv_scale=scale, num_splits=2, return_lse=True
        )
    assert torch.equal(out, again) and torch.equal(lse, same)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cache_of_8_bits_is_what_it_holds(target, dtype):
    """Bitwise equal to a cache of q's dtype that holds the same numbers."""
    problem = draw_latent([300], heads=16, dtype=dtype, cache_dtype=CODES[target])
    wide = dataclasses.replace(problem, kv_cache=problem.kv_cache.to(dtype))
    # In "fast" arithmetic a host with AMX has a different summation order for each quantized type.
    with hipkittens.simulate(target, arithmetic="strict"):
        results = [attention_mla(*each.arguments(), scale=SCALE, return_lse=True) for each in (problem, wide)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def widened(problem):
    return dataclasses.replace(problem, kv_cache=scaled_rows_in_bfloat16(problem.kv_cache))


@BOTH
@pytest.mark.parametrize("heads", [16, 40])
@pytest.mark.parametrize("page", [64, 1, 5])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn], ids=str)
def test_rows_with_scales_of_their_own(target, heads, page, dtype):
    """Bitwise equal to a 16-bit cache that holds the same numbers."""
    problem = draw_latent([0, 1, 257, page + 1], 2, heads=heads, page=page, scaled_rows=True)
    given = dataclasses.replace(problem, kv_cache=problem.kv_cache.view(dtype))
    options = {"num_splits": 2, "sinks": torch.linspace(-1, 1, heads)}
    check(target, given, **options)
    # In "fast" arithmetic a host with AMX may have another summation order for another kernel.
    with hipkittens.simulate(target, arithmetic="strict"):
        out, lse = attention_mla(*given.arguments(), scale=SCALE, return_lse=True, **options)
        wide = attention_mla(*widened(problem).arguments(), scale=SCALE, return_lse=True, **options)
    assert torch.equal(out, wide[0]) and torch.equal(lse, wide[1])


@BOTH
@pytest.mark.parametrize("heads", [1, 40])
def test_every_code_of_a_row_and_any_scale(target, heads):
    """-0 and subnormal values, each bit pattern in each quarter of a lane's word, scales of both signs and over 2^60; a key with a NaN
    is one."""
    rows = torch.zeros(16, 1, 656, dtype=torch.uint8)
    codes = torch.arange(256, dtype=torch.uint8)
    for row in range(16):
        rows[row, 0, :512] = torch.cat((codes.roll(row), codes.flip(0).roll(-row)))
        rows[row, 0, 512:528] = torch.tensor([2.0**-30, -3.0, 0.7, 2.0**30]).roll(row).view(torch.uint8)
    table, q = torch.arange(16, dtype=torch.int32)[None], torch.zeros(1, heads, 576, dtype=torch.bfloat16)
    # So that a row's weight is 1, and its values are the result.
    rows[..., 528:] = torch.zeros(16, 1, 64).bfloat16().view(torch.uint8)
    finite = rows.clone()
    finite[..., :512][(rows[..., :512] & 0x7F) == 0x7F] = 0x80
    for cache, length in ((finite, 16), (rows, 1)):
        lengths = torch.tensor([length], dtype=torch.int32)
        wide = scaled_rows_in_bfloat16(cache)
        with hipkittens.simulate(target, checks="all", arithmetic="strict") as run:
            out = attention_mla(q, cache, table, lengths, scale=SCALE)
            expected = attention_mla(q, wide, table, lengths, scale=SCALE)
        assert run.findings == []
        if length == 1:
            assert out.isnan().all() and expected.isnan().any()
        else:
            assert out.isfinite().all() and torch.equal(out, expected)
    for row in range(16):
        with hipkittens.simulate(target):
            one = attention_mla(q, finite, table[:, row:], torch.tensor([1], dtype=torch.int32), scale=SCALE)
        assert torch.equal(one[0, 0], scaled_rows_in_bfloat16(finite[row, 0])[:512])


def test_other_rows_with_scales_are_refused():
    q, cache, table, lengths, *_ = draw_latent([20], heads=4, scaled_rows=True).arguments()
    for given, options, kind, message in [
        ((q.half(), cache), {}, TypeError, "q is torch.float16 and kv_cache has rows of 656 bytes"),
        ((q, cache), {"kv_scale": 2.0}, ValueError, "kv_scale is given and kv_cache has rows of 656 bytes"),
        ((q, cache.view(torch.float8_e4m3fnuz)), {}, TypeError, "kv_cache is torch.float8_e4m3fnuz; allowed"),
        ((q, cache.expand(-1, -1, 2, -1)), {}, ValueError, r"it must be \(blocks, block_size, 656\)"),
        (
            (q, torch.zeros(3, 8, 640, dtype=torch.uint8)),
            {},
            ValueError,
            "or of 8 bits with rows of 656 bytes",
        ),
    ]:
        with hipkittens.simulate("gfx942"), pytest.raises(kind, match=message):
            attention_mla(*given, table, lengths, scale=SCALE, **options)


@BOTH
def test_what_mla_cache_write_has_written(target):
    torch.manual_seed(0)
    kv_c, k_pe = torch.randn(40, 512).bfloat16(), torch.randn(40, 64).bfloat16()
    slots = torch.randperm(64)[:40]
    q = torch.randn(1, 16, 576).bfloat16()
    table, used = torch.arange(64, dtype=torch.int32)[None], torch.tensor([40], dtype=torch.int32)
    table[0, :40] = slots
    table[0, 40:] = UNUSED
    with hipkittens.simulate(target):
        for dtype, scale in (
            (torch.bfloat16, None),
            (dtype_of("fp8", torch.device("cpu")), torch.tensor([0.03])),
        ):
            cache = torch.zeros(64, 1, 576, dtype=torch.uint8 if scale is not None else dtype)
            hipkittens.mla_cache_write(kv_c, k_pe, cache, slots, scale=scale)
            cache = cache.view(dtype)
            out = attention_mla(q, cache, table, used, scale=SCALE, kv_scale=scale)
            keys = torch.cat((kv_c, k_pe), 1).float()
            expected = (SCALE * q[0].float() @ keys.T).softmax(-1) @ keys[:, :512]
            tolerance = 0.02 if scale is None else 0.1
            torch.testing.assert_close(out[0].float(), expected, atol=tolerance, rtol=tolerance)
        rows = torch.zeros(64, 1, 656, dtype=torch.uint8)
        hipkittens.mla_cache_write(kv_c, k_pe, rows, slots)
        held = scaled_rows_in_bfloat16(rows)[slots, 0].float()
        assert torch.equal(held[:, 512:], k_pe.float())
        torch.testing.assert_close(held[:, :512], kv_c.float(), atol=2e-4, rtol=2**-4 + 2**-9)
        out = attention_mla(q, rows, table, used, scale=SCALE)
        expected = (SCALE * q[0].float() @ held.T).softmax(-1) @ held[:, :512]
        torch.testing.assert_close(out[0].float(), expected, atol=0.02, rtol=0.02)


@BOTH
def test_no_entry_is_read_where_there_is_no_key(target):
    problem = draw_latent([0, 0], heads=4)
    assert problem.block_table.eq(UNUSED).all()
    for splits in (1, 3):
        out, lse = check(target, problem, num_splits=splits)
        assert (out == 0).all() and (lse == -INF).all()
    check(target, dataclasses.replace(problem, block_table=problem.block_table[:, :0]))


@BOTH
def test_lists_of_blocks(target):
    """The blocks of all sequences in one list, in another order than the sequences, with invalid block numbers between them."""
    problem = draw_latent([100, 0, 33], [2, 1, 4], heads=16, page=16)
    rows = [row[: -(-length // 16)] for row, length in zip(problem.block_table, (100, 0, 33), strict=True)]
    unused = torch.full((2,), UNUSED, dtype=torch.int32)
    listed = torch.cat((unused, rows[2], unused, rows[0]))
    starts = torch.tensor([7, len(listed), 2], dtype=torch.int32)
    expected, sums = check(target, problem)
    q, cache, _, lengths, ends, most = problem.arguments()
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_mla(
            q, cache, listed, lengths, ends, most, scale=SCALE, table_starts=starts, return_lse=True
        )
    assert run.findings == []
    assert torch.equal(out, expected) and torch.equal(lse, sums)
    with (
        hipkittens.simulate(target),
        pytest.raises(ValueError, match=r"table_starts is .* 0 \.\. 14 are allowed"),
    ):
        attention_mla(q, cache, listed, lengths, ends, most, scale=SCALE, table_starts=starts + 1)


@BOTH
def test_nothing(target):
    with hipkittens.simulate(target):
        none = draw_latent([], heads=4)
        out, lse = attention_mla(*none.arguments(), scale=SCALE, return_lse=True)
        assert out.shape == (0, 4, 512) and lse.shape == (4, 0)


@BOTH
def test_strides(target):
    """q between other columns, a cache without the dimension for its one head, a column of a wider table."""
    problem = draw_latent([50, 33], heads=4)
    expected, _ = check(target, problem)
    wide = torch.full((2, 6, 600), NAN, dtype=torch.bfloat16)
    wide[:, :4, :576] = problem.q
    out = torch.full((2, 6, 512), 7.0, dtype=torch.bfloat16)
    table = problem.block_table.repeat_interleave(2, 1)[:, ::2]
    with hipkittens.simulate(target, checks="all") as run:
        result = attention_mla(
            wide[:, :4, :576],
            problem.kv_cache.squeeze(2),
            table,
            problem.seqused_k,
            scale=SCALE,
            out=out[:, 1:5],
        )
    assert run.findings == []
    assert torch.equal(result, expected) and (out[:, 0] == 7).all() and (out[:, 5] == 7).all()


@BOTH
@pytest.mark.parametrize("kind", ["16 bits", "codes", "scaled rows"])
def test_pages_beyond_4_gib(target, kind):
    """Bitwise equal to the same pages at low addresses, with a cache of which only those pages are ever touched."""
    codes, scaled_rows = kind == "codes", kind == "scaled rows"
    low = draw_latent(
        [70],
        heads=4,
        page=16,
        spare_pages=0,
        cache_dtype=CODES[target] if codes else None,
        scaled_rows=scaled_rows,
    )
    dtype, features = low.kv_cache.dtype, low.kv_cache.shape[3]
    page_bytes, used = 16 * features * dtype.itemsize, 5
    blocks = int(4.5 * 2**30) // page_bytes
    order = low.block_table[0, :used].clone()
    cache = torch.empty(blocks * page_bytes, dtype=torch.uint8).view(dtype).view(blocks, 16, 1, features)
    high = torch.tensor([blocks - 1, 2**31 // page_bytes, 3, 2**32 // page_bytes, 2**31 // page_bytes - 1])
    table = low.block_table.clone()
    table[0, :used] = high.to(torch.int32)
    cache.view(torch.uint8)[high] = low.kv_cache.view(torch.uint8)[order]
    with hipkittens.simulate(target):
        expected = attention_mla(*low.arguments(), scale=SCALE)
        moved = dataclasses.replace(low, kv_cache=cache, block_table=table)
        assert torch.equal(attention_mla(*moved.arguments(), scale=SCALE), expected)


@BOTH
@pytest.mark.parametrize("heads", [16, 80])
def test_alone_and_among_others(target, heads):
    """One split: the bits do not depend on the rest of the batch, nor on the width of its table."""
    problem = draw_latent([300, 5, 77], heads=heads)
    with hipkittens.simulate(target):
        together = attention_mla(*problem.arguments(), scale=SCALE, num_splits=1)
        for row in range(3):
            alone = attention_mla(
                problem.q[row : row + 1], problem.kv_cache, problem.block_table[row : row + 1, :19],
                problem.seqused_k[row : row + 1], scale=SCALE, num_splits=1,
            )  # fmt: skip
            assert torch.equal(alone[0], together[row])


@BOTH
def test_rows_are_loaded_once(target):
    """As keys and as values, for all 16 heads; each of the four waves loads a tile past its last one, with all lanes on the same row."""
    problem = draw_latent([4096], heads=16)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(lambda: attention_mla(*problem.arguments(), scale=SCALE, num_splits=1))
    assert launch["kv_cache"] <= (4096 + 4 * 32) * 576 * 2


@BOTH
def test_rows_are_loaded_once_for_64_rows(target):
    """By the four waves together, and a tile past the last one."""
    problem = draw_latent([2048], 2, heads=32)
    with hipkittens.simulate(target):
        (launch,) = loaded_bytes(lambda: attention_mla(*problem.arguments(), scale=SCALE, num_splits=1))
    assert launch["kv_cache"] <= (2048 + 32) * 576 * 2


def test_torch_backend_has_the_same_meaning(monkeypatch):
    problem = draw_latent([50, 0, 17], [2, 1, 4], heads=4)
    options = {"scale": SCALE, "sinks": torch.ones(4), "return_lse": True}
    with hipkittens.simulate("gfx950"):
        ours = attention_mla(*problem.arguments(), **options)
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    theirs = attention_mla(*problem.arguments(), **options)
    q, cache, table, *rest = problem.arguments()
    starts = torch.arange(3, dtype=torch.int32) * table.shape[1]
    listed = attention_mla(q, cache, table.flatten(), *rest, table_starts=starts, **options)
    assert torch.equal(listed[0], theirs[0]) and torch.equal(listed[1], theirs[1])
    torch.testing.assert_close(ours, theirs, atol=2**-7, rtol=2**-7)


def test_operators_and_compile(compile_backend):
    problem = draw_latent([50, 17], heads=4)
    options = (None, None, None, 1, SCALE, 1.0, False, 2)
    tensors = (problem.q, problem.kv_cache, problem.block_table, None, problem.seqused_k)
    out = torch.zeros(2, 4, 512, dtype=torch.bfloat16)
    operators = torch.ops.hipkittens
    with hipkittens.simulate("gfx950"):
        torch.library.opcheck(operators.attention_mla.default, (*tensors, *options))
        torch.library.opcheck(operators.attention_mla_into.default, (out, *tensors, *options))

        def step():
            return attention_mla(*problem.arguments(), scale=SCALE, return_lse=True)

        result, lse = torch.compile(step, fullgraph=True, backend=compile_backend)()
        expected, sums = step()
    assert torch.equal(result, expected) and torch.equal(lse, sums)


def of(problem, **changes):
    """Arguments of attention_mla by name, with some of them changed."""
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return fields | {"scale": SCALE} | changes


REFUSED = [
    (lambda p: of(p, q=p.q.float()), TypeError, "q is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda p: of(p, q=p.q.half()), TypeError, "q is torch.float16 and kv_cache is torch.bfloat16; convert q"),
    (lambda p: of(p, q=p.q[..., :512]), ValueError, r"q has shape \(2, 4, 512\); it must be \(tokens, heads, 576\)"),
    (lambda p: of(p, kv_cache=[1]), TypeError, "kv_cache is list; it must be a torch.Tensor"),
    (lambda p: of(p, kv_cache=p.kv_cache.expand(-1, -1, 2, -1)), ValueError, r"kv_cache has shape \(9, 16, 2, 576\); it must be"),
    (lambda p: of(p, kv_cache=p.kv_cache[..., :512]), ValueError, r"kv_cache has shape .* it must be \(blocks, block_size, 576\)"),
    (lambda p: of(p, kv_cache=p.kv_cache.to(torch.float8_e4m3fnuz)), TypeError, "kv_cache is torch.float8_e4m3fnuz; allowed: .*float8_e4m3fn,"),
    (lambda p: of(p, kv_scale=0.5), ValueError, "kv_scale is given and kv_cache is torch.bfloat16; only caches of 8 bits"),
    (lambda p: of(p, kv_cache=p.kv_cache.to(torch.float8_e4m3fn), kv_scale=INF), ValueError, "kv_scale is inf; it must be finite"),
    (lambda p: of(p, kv_cache=p.kv_cache.to(torch.float8_e4m3fn), kv_scale=torch.ones(2)), ValueError, "kv_scale has shape .* one element"),
    (lambda p: of(p, kv_cache=p.kv_cache.to(torch.float8_e4m3fn), kv_scale="no"), TypeError, "kv_scale is 'no'; it must be a number"),
    (lambda p: of(p, kv_cache=p.kv_cache.clone().requires_grad_()), ValueError, "kv_cache requires a gradient"),
    (lambda p: of(p, head_dim_v=128), ValueError, "head_dim_v is 128; it must be 512"),
    (lambda p: of(p, scale=None), TypeError, "scale is None; pass the model's"),
    (lambda p: of(p, scale=INF), ValueError, "scale is inf; it must be finite"),
    (lambda p: of(p, block_table=p.block_table.long()), TypeError, "block_table is torch.int64; allowed: torch.int32"),
    (lambda p: of(p, block_table=p.block_table + 9), ValueError, "where keys are used; the cache has 9 blocks"),
    (lambda p: of(p, seqused_k=p.seqused_k + 100), ValueError, r"seqused_k\[0\] is 150"),
    (lambda p: of(p, sinks=torch.ones(3)), ValueError, r"sinks has shape \(3,\); it must be \(4,\)"),
    (lambda p: of(p, causal="no"), TypeError, "causal is 'no'"),
    (lambda p: of(p, num_splits=257), ValueError, "num_splits is 257; allowed: 0 .. 256"),
    (lambda p: of(p, out=p.q), ValueError, r"out is torch.bfloat16 of shape \(2, 4, 576\) on cpu; it must be as q, .*\(2, 4, 512\)"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, message", REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(make, error, message):
    problem = draw_latent([50, 17], heads=4)
    with hipkittens.simulate("gfx950"), pytest.raises(error, match=message):
        attention_mla(**make(problem))
    with hipkittens.simulate("gfx950"):
        attention_mla(**of(problem))
