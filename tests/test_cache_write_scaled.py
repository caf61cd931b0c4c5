# SPDX-License-Identifier: MIT
"""cache_write with scale outputs, indexer_cache_write, and AITER's functions for them: every byte of quantized values and scales equals
that of quantize.
"""

import itertools

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, aiter, cache_write, indexer_cache_write, quantize
from hipkittens.cache import LAYOUTS
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

BF16, F16, F32, U8 = torch.bfloat16, torch.float16, torch.float32, torch.uint8


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    """Values of many magnitudes, including a row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(
        -3, 3, (shape[0], 1, 1)[: len(shape)], generator=generator
    )
    rows[len(rows) // 2] = 0
    return rows.to(dtype)


def slots_of(tokens, count):
    slots = torch.randperm(count, generator=torch.Generator().manual_seed(3))[:tokens]
    slots[1::4] = -1
    return slots


def filled(*sizes):
    return torch.full(sizes, 0x5A, dtype=U8)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("features", [(64, 32), (128, 128), (16, 512), (48, 240)])
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_scales_of_heads(target, kind, features, layout, dtype):
    tokens, heads, codes = 21, 3, dtype_of(kind, torch.device("cpu"))
    key, value = (draw(tokens, heads, each, dtype=dtype, seed=i) for i, each in enumerate(features))
    slots, caches = slots_of(tokens, 48), []
    for i, each in enumerate(features):
        caches.append(caches_of(layout, 3, 16, heads, each, codes)[i])
    right = [each.clone() for each in caches]
    scales = [torch.full((3, heads, 16), float("nan")).transpose(1, 2) for _ in range(2)]
    assert (
        cache_write(key, value, *caches, slots, layout=layout, key_scales=scales[0], value_scales=scales[1])
        is None
    )
    rows = [quantize(each.flatten(0, 1), QuantSpec(kind)) for each in (key, value)]
    kept = slots >= 0
    for (_, found), mine in zip(rows, scales, strict=True):
        expected = torch.full((48, heads), float("nan"))
        expected[slots[kept]] = found.view(tokens, heads)[kept]
        torch.testing.assert_close(mine.reshape(48, heads), expected, rtol=0, atol=0, equal_nan=True)
    # Quantized values where cache_write puts already quantized rows.
    as_rows = [each.view(tokens, heads, -1).to(dtype) for each, _ in rows]
    cache_write(*as_rows, *right, slots, layout=layout)
    for mine, expected in zip(caches, right, strict=True):
        assert torch.equal(mine.view(U8), expected.view(U8))


@pytest.mark.parametrize("features", [1, 7, 44, 130, 511])
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_odd_features_and_strides(target, kind, features):
    key, slots = draw(9, 3, features + 5)[..., 3 : 3 + features], slots_of(9, 12)
    caches = [filled(3, 4, 3, features).view(dtype_of(kind, key.device)) for _ in range(2)]
    scales = [torch.zeros(3, 4, 3) for _ in range(2)]
    cache_write(key, key, *caches, slots, key_scales=scales[0], value_scales=scales[1])
    codes, found = quantize(key.reshape(27, features), QuantSpec(kind))
    kept = slots >= 0
    right = filled(12, 3, features)
    right[slots[kept]] = codes.view(U8).view(9, 3, features)[kept]
    assert all(torch.equal(each.view(U8).view(12, 3, features), right) for each in caches)
    assert torch.equal(scales[0].view(12, 3)[slots[kept]], found.view(9, 3)[kept])


def test_a_head_of_integers_with_nan_or_infinity(target):
    """It is quantized to 0, as are finite values next to infinity: 0 times each."""
    key = draw(3, 2, 64)
    key[0, 0, 3], key[0, 1, 5], key[2, 0, 7] = torch.nan, torch.inf, -torch.inf
    caches = [filled(1, 4, 2, 64).view(torch.int8) for _ in range(2)]
    scales = [torch.zeros(1, 4, 2) for _ in range(2)]
    cache_write(key, key, *caches, torch.arange(3), key_scales=scales[0], value_scales=scales[1])
    assert not caches[0][0, 0].any() and not caches[0][0, 2, 0].any()
    assert caches[0][0, 2, 1].view(torch.int8).abs().amax() == 127
    assert scales[0][0, :3].isfinite().tolist() == [[False, False], [True, True], [False, True]]


def test_nan_stays_in_its_head(target):
    key = draw(2, 2, 64)
    clean, mine = ([filled(1, 4, 2, 64) for _ in range(2)] for _ in range(2))
    of_clean, of_mine = ([torch.zeros(1, 4, 2) for _ in range(2)] for _ in range(2))
    cache_write(key, key, *clean, torch.arange(2), key_scales=of_clean[0], value_scales=of_clean[1])
    key[0, 1, 5] = torch.nan
    cache_write(key, key, *mine, torch.arange(2), key_scales=of_mine[0], value_scales=of_mine[1])
    assert of_mine[0].isnan().nonzero().tolist() == [[0, 0, 1]]
    changed = (mine[0] != clean[0]).flatten(3).any(-1).nonzero().tolist()
    assert changed == [[0, 0, 1]] and mine[0].view(dtype_of("fp8", key.device))[0, 0, 1].float().isnan().all()


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_an_indexers_keys(target, powers_of_two, group, dtype):
    codes = dtype_of("fp8", torch.device("cpu"))
    for features, size, tokens in ((128, 16, 37), (256, 1, 5), (512, 64, 70)):
        k, blocks, groups = draw(tokens, features, dtype=dtype), -(-tokens // size) + 1, features // group
        storage = filled(blocks, size * (features + 4 * groups) + 8)
        cache = storage[:, : size * (features + 4 * groups)].view(blocks, size, -1)
        right, slots = storage.clone(), slots_of(tokens, blocks * size)
        assert indexer_cache_write(k, cache, slots, group=group, powers_of_two=powers_of_two) is None
        grouped = k.float().unflatten(-1, (groups, group))
        scales = grouped.abs().amax(-1, keepdim=True).clamp_min(1e-4) / torch.finfo(codes).max
        if powers_of_two:
            scales = torch.exp2(scales.double().log2().ceil()).float()
        values = (grouped * (1 / scales)).clamp(-torch.finfo(codes).max, torch.finfo(codes).max).to(codes)
        for token, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            block, place = divmod(slot, size)
            right[block, place * features : (place + 1) * features] = values[token].view(U8).flatten()
            at = size * features + place * 4 * groups
            right[block, at : at + 4 * groups] = scales[token].flatten().view(U8)
        assert torch.equal(storage, right)


def test_the_cache_is_what_mqa_logits_paged_reads(target):
    k, cache = draw(40, 128), torch.zeros(3, 16, 132, dtype=U8)
    indexer_cache_write(k, cache, torch.arange(40))
    codes = dtype_of("fp8", k.device)
    q, weights = (
        torch.randn(1, 1, 64, 128, generator=torch.Generator().manual_seed(2)).to(codes),
        torch.ones(1, 64),
    )
    logits = hipkittens.mqa_logits_paged(q, cache.view(codes), weights, torch.tensor([40], dtype=torch.int32),
                                         torch.arange(3, dtype=torch.int32)[None], 48)  # fmt: skip
    of_codes, scales = (part.reshape(48, -1) for part in cache.flatten(1).split((16 * 128, 16 * 4), 1))
    rows = of_codes.view(codes).double() * scales.view(F32).double()
    right = (q[0, 0].double() @ rows.T).relu().sum(0)
    assert (logits[0, :40] - right[:40]).norm() <= 1e-5 * right.norm()


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_scales_of_each_token_by_the_name_of_aiter(target, kind):
    codes = dtype_of(kind, torch.device("cpu"))
    key, value, slots = draw(9, 2, 64), draw(9, 2, 64, seed=1), slots_of(9, 32)
    for asm in (False, True):
        mine, right = (caches_of("asm" if asm else "paged", 2, 16, 2, 64, codes) for _ in range(2))
        shape = (2, 2, 16) if asm else (2, 32)
        scales = [torch.zeros(shape) for _ in range(2)]
        aiter.reshape_and_cache_with_pertoken_quant(key, value, *mine, *scales, slots, asm)
        as_slots = [torch.zeros(2, 16, 2) for _ in range(2)]
        cache_write(
            key,
            value,
            *right,
            slots,
            layout="asm" if asm else "paged",
            key_scales=as_slots[0],
            value_scales=as_slots[1],
        )
        for a, b in zip((*mine, *scales), (*right, *as_slots), strict=True):
            if a.dtype == F32:
                b = b.permute(0, 2, 1) if asm else b.permute(2, 0, 1).reshape(2, 32)
            assert torch.equal(a.view(U8), b.contiguous().view(U8))


def test_an_indexers_keys_by_the_names_of_aiter(target):
    codes, slots = dtype_of("fp8", torch.device("cpu")), slots_of(9, 32)
    for scale_fmt in ("", "ue8m0"):
        k, mine, right = draw(9, 128), filled(2, 16, 132), filled(2, 16, 132)
        aiter.indexer_k_quant_and_cache(k, mine.view(codes), slots, 128, scale_fmt)
        indexer_cache_write(k, right, slots, powers_of_two=scale_fmt == "ue8m0")
        assert torch.equal(mine, right)
    aiter.indexer_k_quant_and_cache(k, mine, torch.arange(9) + 12, 128, "")
    out, found = torch.zeros(9, 128, dtype=codes), torch.zeros(9, 4, dtype=U8)
    aiter.cp_gather_indexer_k_quant_cache(
        mine.view(codes),
        out,
        found,
        torch.tensor([[0, 1], [1, 0]], dtype=torch.int32),
        torch.tensor([0, 0, 9], dtype=torch.int32),
    )
    blocks = mine.flatten(1)
    places = torch.arange(9)  # of the second sequence, whose first block is block 1
    assert torch.equal(out.view(U8), blocks[1, : 9 * 128].view(9, 128)) and torch.equal(
        found, blocks[1, 16 * 128 :].view(16, 4)[places]
    )
    with pytest.raises(ValueError, match="scale_fmt is 'e5'"):
        aiter.indexer_k_quant_and_cache(k, mine, slots, 128, "e5")


def test_opcheck(target):
    key, slots, caches = draw(5, 2, 64), torch.arange(5) - 1, [filled(1, 16, 2, 64) for _ in range(2)]
    scales = [torch.zeros(1, 16, 2) for _ in range(2)]
    operators = torch.ops.hipkittens
    for operator, inputs in (
        (operators.cache_write_scaled, (key, key, *caches, *scales, slots, 2)),
        (operators.indexer_cache_write, (key[:, 0].contiguous(), filled(1, 16, 72), slots, 32, True)),
    ):
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def step(k, cache, slots):
        indexer_cache_write(k * 2, cache, slots)
        return cache[0, 0]

    for tokens in (3, 9):
        k, caches = draw(tokens, 128), [filled(1, 16, 132) for _ in range(2)]
        torch.compile(step, fullgraph=True, dynamic=True, backend=compile_backend)(
            k, caches[0], torch.arange(tokens)
        )
        step(k, caches[1], torch.arange(tokens))
        assert torch.equal(*caches)


def test_nothing_to_write(target):
    cache, none = filled(1, 16, 132), torch.zeros(0, dtype=torch.int64)
    indexer_cache_write(torch.zeros(0, 128, dtype=BF16), cache, none)
    keys, scales = [filled(1, 16, 2, 64) for _ in range(2)], [torch.zeros(1, 16, 2) for _ in range(2)]
    empty = torch.zeros(0, 2, 64, dtype=BF16)
    cache_write(empty, empty, *keys, none, key_scales=scales[0], value_scales=scales[1])
    assert bool((cache == 0x5A).all()) and not scales[0].any()


def test_the_other_backend(monkeypatch):
    from hipkittens import _backend

    def results():
        key, slots, written = draw(9, 2, 64), slots_of(9, 32), []
        for layout, dtype in itertools.product(LAYOUTS, (U8, torch.int8)):
            caches = caches_of(layout, 2, 16, 2, 64, dtype)
            scales = [torch.zeros(2, 16, 2) for _ in range(2)]
            cache_write(
                key, -key, *caches, slots, layout=layout, key_scales=scales[0], value_scales=scales[1]
            )
            written += [*caches, *scales]
        for powers in (False, True):
            cache = torch.zeros(2, 16, 68, dtype=U8)
            indexer_cache_write(key[:, 0], cache, slots, group=64, powers_of_two=powers)
            written.append(cache)
        return written

    with hipkittens.simulate():
        mine = results()
    monkeypatch.setattr(_backend._State, "backend", "torch")
    assert all(map(torch.equal, mine, results()))


KEY, S = torch.zeros(3, 2, 64, dtype=BF16), torch.arange(3)
CACHES = [filled(1, 16, 2, 64) for _ in range(2)]
SCALES = {"key_scales": torch.zeros(1, 16, 2), "value_scales": torch.zeros(1, 16, 2)}
WIDE = torch.zeros(3, 1, 520, dtype=BF16)
K, INDEXER = KEY[:, 0].contiguous(), filled(1, 16, 72)
BAD = [
    (lambda: cache_write(KEY, KEY, *CACHES, S, key_scales=SCALES["key_scales"]), ValueError, "value_scales is None and the other scales are not"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, **SCALES, k_scale=torch.ones(1)), ValueError, "scales are given and are to be written"),
    (lambda: cache_write(KEY, KEY, *(c.bfloat16() for c in CACHES), S, **SCALES), ValueError, "only caches of 8-bit codes have scales"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, **SCALES | {"value_scales": torch.zeros(1, 16, 2).half()}), TypeError, "value_scales is torch.float16; allowed: torch.float32"),
    (lambda: cache_write(KEY, KEY, *CACHES, S, **SCALES | {"value_scales": torch.zeros(1, 2, 16)}), ValueError, "value_scales has shape (1, 2, 16); it must be (1, 16, 2)"),
    (lambda: cache_write(WIDE, WIDE, *[filled(1, 16, 1, 520)] * 2, S, key_scales=torch.zeros(1, 16, 1), value_scales=torch.zeros(1, 16, 1)), ValueError, "key has 520 features; with scales that are written, 1 to 512 are allowed"),
    (lambda: indexer_cache_write(KEY, INDEXER, S), ValueError, "k has shape (3, 2, 64); it must be (tokens, features)"),
    (lambda: indexer_cache_write(K, INDEXER, S, group=48), ValueError, "group is 48; allowed: 32, 64, 128"),
    (lambda: indexer_cache_write(K, INDEXER, S), ValueError, "k has 64 features; a multiple of group, 128, up to 512 is allowed"),
    (lambda: indexer_cache_write(K, INDEXER, S, group=64), ValueError, "kv_cache has shape (1, 16, 72); it must be (blocks, block_size, 68)"),
    (lambda: indexer_cache_write(K, INDEXER.bfloat16(), S, group=32), TypeError, "kv_cache is torch.bfloat16; allowed: torch.float8_e4m3fn, torch.uint8"),
    (lambda: indexer_cache_write(K, INDEXER.view(torch.int8), S, group=32), TypeError, "kv_cache is torch.int8; allowed: torch.float8_e4m3fn, torch.uint8"),
    (lambda: indexer_cache_write(K, filled(1, 16, 144)[..., :72], S, group=32), ValueError, "blocks must be contiguous and begin on 4 bytes"),
    (lambda: indexer_cache_write(K, INDEXER, S, group=32, powers_of_two="no"), TypeError, "powers_of_two is 'no'; allowed: True, False"),
    (lambda: indexer_cache_write(K, INDEXER, S[:2], group=32), ValueError, "slots has shape (2,); it must be (3,)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
