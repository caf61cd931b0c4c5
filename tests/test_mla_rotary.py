# SPDX-License-Identifier: MIT
"""hipkittens.mla_rotary and rotary_cache_write: bitwise equal to the separate operations, in one launch; gradients, caches, 8-bit
queries."""

import pytest
import torch

import hipkittens
from hipkittens import (
    cache_write,
    mla_cache_write,
    mla_rotary,
    rotary,
    rotary_cache_write,
    rotary_qk,
    rotary_tables,
)
from hipkittens.cache import LAYOUTS
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def tables(rows, pairs, columns=1):
    angles = 6 * torch.rand(rows, pairs * columns, generator=torch.Generator().manual_seed(7))
    return rotary_tables(angles)


def latents(*tokens, heads=3, kv_heads=1, nope=32, rotary=16, dtype=BF16, grad=False):
    sizes = ((heads, nope), (heads, rotary), (kv_heads, nope), (kv_heads, rotary))
    return [draw(*tokens, *each, dtype=dtype, seed=i, grad=grad) for i, each in enumerate(sizes)]


def joined(parts, cos, sin, nope_first=True, **options):
    """The definition: the rotated rotary parts, concatenated with the others."""
    turned = [rotary(each, cos, sin, **options) for each in parts[1::2]]
    pairs = [
        (rest, turn) if nope_first else (turn, rest) for rest, turn in zip(parts[::2], turned, strict=True)
    ]
    return [torch.cat(pair, -1) for pair in pairs]


def same_bytes(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def workgroups():
    return hipkittens.simulate.report()["workgroups"]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    ("nope", "rotary_features"), [(512, 64), (128, 64), (7, 6), (0, 32), (24, 16), (1, 2), (40, 10)]
)
def test_equals_its_parts(target, nope, rotary_features, dtype):
    pairs = rotary_features // 2
    for sizes, heads, kv_heads, interleaved, nope_first in (
        ((1,), 16, 1, True, True),
        ((9,), 3, 1, False, True),
        ((2, 5), 4, 2, True, False),
        ((3, 2), 1, 1, False, False),
    ):
        parts = latents(
            *sizes, heads=heads, kv_heads=kv_heads, nope=nope, rotary=rotary_features, dtype=dtype
        )
        options = {"interleaved": interleaved, "offset": 2}
        right = joined(parts, *tables(12, pairs), nope_first, **options)
        mine = mla_rotary(*parts, *tables(12, pairs), nope_first=nope_first, **options)
        assert all(map(torch.equal, mine, right))


def test_every_way_to_say_where_tokens_stand(target):
    parts, (cos, sin) = latents(2, 7), tables(30, 8)
    rows = torch.randint(20, (2, 7), generator=torch.Generator().manual_seed(2))
    for options in (
        {"positions": rows},
        {"positions": rows.int(), "offsets": torch.arange(7)},
        {"offsets": rows[0]},
        {"offset": 11},
    ):
        assert all(
            map(torch.equal, mla_rotary(*parts, cos, sin, **options), joined(parts, cos, sin, **options))
        )
    packed, wide = latents(9), tables(30, 8, 2)
    ends = torch.tensor([0, 4, 4, 9])
    for options in ({"cu_seqlens": ends}, {"full_tables": True}, {"full_tables": True, "interleaved": True}):
        of = wide if "full_tables" in options else (cos, sin)
        assert all(map(torch.equal, mla_rotary(*packed, *of, **options), joined(packed, *of, **options)))


def test_keys_without_a_dimension_of_heads(target):
    parts = latents(5)
    q, k = mla_rotary(*parts[:2], parts[2][:, 0], parts[3][:, 0], *tables(5, 8))
    with_heads = mla_rotary(*parts, *tables(5, 8))
    assert torch.equal(q, with_heads[0]) and torch.equal(k, with_heads[1][:, 0])


def test_strides(target):
    (cos, sin), storage = tables(6, 8), draw(6, 5, 61)
    packed = storage[..., 1:49]
    for q in (packed, storage[..., 2:50], storage.transpose(0, 1)[..., 3:51].contiguous().transpose(0, 1)):
        for k in (draw(6, 1, 48), draw(48, 1, 6).permute(2, 1, 0)):
            parts = [*q.split((32, 16), -1), *k.split((32, 16), -1)]
            mine = mla_rotary(*parts, cos, sin, interleaved=True)
            right = mla_rotary(*(each.clone(memory_format=torch.contiguous_format) for each in parts), cos, sin,
                               interleaved=True)  # fmt: skip
            assert all(map(torch.equal, mine, right))


@pytest.mark.parametrize("nope_first", [True, False])
def test_gradients_are_the_transpose(target, nope_first):
    parts, (cos, sin) = latents(2, 5, kv_heads=2, grad=True), tables(9, 8)
    rows = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(2))
    options = {"positions": rows, "interleaved": True, "nope_first": nope_first}
    mine, right = mla_rotary(*parts, cos, sin, **options), joined(parts, cos, sin, **options)
    grads = [draw(*each.shape, seed=9, grad=True) for each in right]
    found = torch.autograd.grad(mine, parts, grads, create_graph=True)
    assert all(map(torch.equal, found, torch.autograd.grad(right, parts, grads)))
    # And the rotation of that again.
    weights = [draw(*each.shape, seed=4) for each in found]
    again = torch.autograd.grad(found, grads, weights)
    assert all(map(torch.equal, again, mla_rotary(*weights, cos, sin, **options)))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
def test_latent_caches(target, kind, dtype):
    """Bitwise equal to mla_cache_write of the returned tensors, and no other byte is written; results as without a cache."""
    of_cache = {"same": dtype, "int8": torch.int8}.get(kind) or dtype_of("fp8", torch.device("cpu"))
    scale = None if kind == "same" else torch.tensor(0.3)
    for nope, features, interleaved, nope_first in (
        (512, 64, True, True),
        (20, 6, False, True),
        (24, 16, True, False),
    ):
        parts = latents(2, 7, nope=nope, rotary=features, dtype=dtype)
        slots = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:14].int()
        slots[3::4] = -1
        mine, right = (torch.full((3, 16, (nope + features) * of_cache.itemsize), 0x5A, dtype=torch.uint8).view(of_cache)
                       for _ in range(2))  # fmt: skip
        options = {"interleaved": interleaved, "nope_first": nope_first}
        plain = mla_rotary(*parts, *tables(20, features // 2), **options)
        found = mla_rotary(
            *parts, *tables(20, features // 2), **options, kv_cache=mine, slots=slots, scale=scale
        )
        assert all(map(torch.equal, found, plain))
        rows = plain[1].flatten(0, 1)[:, 0]
        mla_cache_write(rows[:, :nope], rows[:, nope:], right, slots, scale=scale)
        assert same_bytes(mine, right)


def test_a_cache_with_heads(target):
    parts = latents(9, kv_heads=2)
    mine, right = torch.zeros(2, 8, 2, 48, dtype=BF16), torch.zeros(2, 8, 2, 48, dtype=BF16)
    slots = torch.randperm(16, generator=torch.Generator().manual_seed(1))[:9]
    _, k = mla_rotary(*parts, *tables(9, 8), kv_cache=mine, slots=slots)
    right.flatten(0, 1)[slots] = k
    assert torch.equal(mine, right)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_queries_of_float8(target, dtype):
    parts, codes = latents(2, 7, dtype=dtype), dtype_of("fp8", torch.device("cpu"))
    cache, slots = torch.zeros(1, 16, 48, dtype=codes), torch.arange(14) - 1
    plain, _ = mla_rotary(*parts, *tables(7, 8))
    for scale in (None, torch.tensor([0.01]), torch.tensor(3.0)):
        q, _ = mla_rotary(*parts, *tables(7, 8), kv_cache=cache, slots=slots, q_dtype=codes, q_scale=scale)
        largest = torch.finfo(codes).max
        scaled = plain.float() if scale is None else plain.float() * (1 / scale)
        assert q.dtype == codes and same_bytes(q, scaled.clamp(-largest, largest).to(codes))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches_of_keys_and_values(target, layout, kind, dtype):
    """Bitwise equal to cache_write of the returned tensors and v, and no other byte is written."""
    of_cache = {"same": dtype, "int8": torch.int8}.get(kind) or dtype_of("fp8", torch.device("cpu"))
    scales = {} if kind == "same" else {"k_scale": torch.tensor(0.3), "v_scale": torch.tensor([2.5])}
    for features, pairs, interleaved, nope_first in (
        (64, 32, False, False),
        (48, 16, True, True),
        (32, 6, False, False),
    ):
        q, k, v = (draw(2, 7, heads, features, dtype=dtype, seed=i) for i, heads in enumerate((5, 2, 2)))
        slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:14].int()
        slots[3::4] = -1
        mine, right = (caches_of(layout, 4, 16, 2, features, of_cache) for _ in range(2))
        for cache in (*mine, *right):
            cache.view(torch.uint8).fill_(0x5A)
        options = {"interleaved": interleaved, "offset": 3, "nope_first": nope_first}
        found = rotary_cache_write(
            q, k, v, *tables(20, pairs), *mine, slots, layout=layout, **scales, **options
        )
        expected = rotary_qk(q, k, *tables(20, pairs), **options)
        assert all(map(torch.equal, found, expected))
        cache_write(expected[1].flatten(0, 1), v.flatten(0, 1), *right, slots, layout=layout, **scales)
        assert all(map(same_bytes, mine, right))


def test_one_launch(target):
    parts, cache = latents(6, nope=512, rotary=64, heads=16), torch.zeros(1, 16, 576, dtype=BF16)
    before = cache._version
    mla_rotary(*parts, *tables(6, 32), kv_cache=cache, slots=torch.arange(6))
    # Units of heads, 256 per workgroup, of pairs and of what is copied: with more launches these would differ.
    assert workgroups() == -(-6 * 16 * 4 // 256) - (-6 * 16 * 32 // 256) + 2 and cache._version > before
    q, k, caches = (
        draw(6, 8, 128),
        draw(6, 2, 128),
        [torch.zeros(1, 16, 2, 128, dtype=BF16) for _ in range(2)],
    )
    rotary_cache_write(q, k, k, *tables(6, 64), *caches, torch.arange(6))
    assert workgroups() == 2 + 1 + 1  # of the last launch


def test_nothing_to_turn(target):
    cache, slots = torch.zeros(1, 16, 48, dtype=BF16), torch.zeros(0, dtype=torch.int64)
    for options in ({}, {"kv_cache": cache, "slots": slots}):
        q, k = mla_rotary(*latents(0), *tables(3, 8), **options)
        assert q.shape == (0, 3, 48) and k.shape == (0, 1, 48)
    parts = latents(2, 0, grad=True)
    results = mla_rotary(*parts, *tables(3, 8))
    grads = torch.autograd.grad(results, parts, [torch.ones_like(each) for each in results])
    assert [each.shape for each in grads] == [each.shape for each in parts]
    keys = [torch.zeros(1, 16, 1, 16, dtype=BF16) for _ in range(2)]
    q, k = rotary_cache_write(draw(0, 2, 16), draw(0, 1, 16), draw(0, 1, 16), *tables(3, 8), *keys, slots)
    assert q.shape == (0, 2, 16) and k.shape == (0, 1, 16)


def test_nan_and_infinity_stay_where_they_are(target):
    parts, rows = latents(3), tables(3, 8)
    clean, _ = mla_rotary(*parts, *rows)
    parts[0][1, 2, 5], parts[1][2, 0, 3] = torch.nan, torch.inf
    q, _ = mla_rotary(*parts, *rows)
    changed = (q != clean).nonzero().tolist()
    assert changed == [[1, 2, 5], [2, 0, 32 + 3], [2, 0, 32 + 11]]


def test_opcheck(target):
    parts, (cos, sin) = latents(2, 3, grad=True), tables(9, 8)
    fixed = [each.detach() for each in parts]
    ids, slots = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.arange(6) - 1
    rotation = (cos, sin, ids, None, None, None, 0, False, True, False, False)
    cache, codes = torch.zeros(1, 16, 1, 48, dtype=BF16), torch.zeros(1, 16, 1, 48, dtype=torch.uint8)
    caches = [torch.zeros(1, 16, 1, 16, dtype=BF16) for _ in range(2)]
    operators = torch.ops.hipkittens
    calls = [
        (operators.mla_rotary, (*parts, *rotation)),
        (operators.mla_rotary_cache, (*fixed, cache, slots, None, None, *rotation, False)),
        (operators.mla_rotary_cache, (*fixed, codes, slots, None, torch.ones(1), *rotation, True)),
        (operators.rotary_cache_write, (fixed[1], fixed[3], fixed[3], *caches, slots, None, None, *rotation, 2)),
    ]  # fmt: skip
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    cos, sin = tables(16, 8)

    def block(*parts):
        q, k = mla_rotary(*(each * 1 for each in parts), cos, sin, interleaved=True)
        return q * 2, k

    def step(cache, slots, *parts):
        return mla_rotary(*(each * 2 for each in parts), cos, sin, kv_cache=cache, slots=slots)[0]

    compiled, compiled_step = (
        torch.compile(each, fullgraph=True, dynamic=True, backend=compile_backend) for each in (block, step)
    )
    for tokens in (3, 9):
        parts = latents(tokens, grad=True)
        mine, right = compiled(*parts), block(*parts)
        assert all(map(torch.equal, mine, right))
        ones = [torch.ones_like(each) for each in right]
        found, expected = (torch.autograd.grad(each, parts, ones) for each in (mine, right))
        assert all(map(torch.equal, found, expected))
        caches = [torch.zeros(1, 16, 48, dtype=BF16) for _ in range(2)]
        fixed, slots = [each.detach() for each in parts], torch.arange(tokens)
        assert torch.equal(compiled_step(caches[0], slots, *fixed), step(caches[1], slots, *fixed))
        assert torch.equal(*caches)


def test_the_other_backend(monkeypatch):
    from hipkittens import _backend

    codes = dtype_of("fp8", torch.device("cpu"))

    def results():
        written = []
        for of_cache, q_dtype in ((BF16, None), (codes, codes)):
            cache = torch.zeros(1, 16, 48, dtype=BF16).to(of_cache)
            q, k = mla_rotary(*latents(2, 5), *tables(5, 8), kv_cache=cache, slots=torch.arange(10) - 1,
                              nope_first=False, q_dtype=q_dtype)  # fmt: skip
            written += [q, k, cache]
        caches = caches_of("asm", 1, 16, 2, 32, BF16)
        q, k = draw(5, 3, 32), draw(5, 2, 32)
        return [
            *written,
            *rotary_cache_write(q, k, k, *tables(5, 8), *caches, torch.arange(5), layout="asm"),
            *caches,
        ]

    with hipkittens.simulate():
        mine = results()
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for a, b in zip(mine, results(), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=2**-7 if a.dtype == BF16 else 0.13, atol=2**-7)


def test_autocast_changes_nothing(target):
    with torch.autocast("cpu", BF16):
        assert mla_rotary(*latents(3, dtype=F32), *tables(3, 8))[0].dtype == F32


P = latents(3)
COS = torch.zeros(5, 8)
CACHE, S = torch.zeros(1, 16, 48, dtype=BF16), torch.arange(3)
CODES = torch.zeros(1, 16, 48, dtype=torch.uint8)
W = torch.ones(1)
KEYS = [torch.zeros(1, 16, 1, 16, dtype=BF16) for _ in range(2)]
BAD = [
    (lambda: mla_rotary(1, *P[1:], COS, COS), TypeError, "q_nope is int; it must be a torch.Tensor"),
    (lambda: mla_rotary(P[0].int(), *P[1:], COS, COS), TypeError, "q_nope is torch.int32; allowed"),
    (lambda: mla_rotary(P[0], P[1].half(), *P[2:], COS, COS), TypeError, "q_nope is torch.bfloat16 and q_pe is torch.float16"),
    (lambda: mla_rotary(*(each[0] for each in P), COS, COS), ValueError, "q_nope has shape (3, 32); it must be (tokens, heads"),
    (lambda: mla_rotary(P[0], P[1][None], *P[2:], COS, COS), ValueError, "all have the same dimensions"),
    (lambda: mla_rotary(P[0], P[1][:2], *P[2:], COS, COS), ValueError, "q_pe has shape (1, 2, 3, 16), as (batch, tokens, heads, features); with q_nope it must be (1, 3, 3, any)"),
    (lambda: mla_rotary(*P[:2], P[2][..., :8], P[3], COS, COS), ValueError, "with q_nope it must be (1, 3, any, 32)"),
    (lambda: mla_rotary(*P[:3], P[3][..., :8], COS, COS), ValueError, "with k_nope and q_pe it must be (1, 3, 1, 16)"),
    (lambda: mla_rotary(*P, COS[:, :4], COS[:, :4]), ValueError, "cos has 4 columns, which turn 8 features, and q_pe has 16"),
    (lambda: mla_rotary(*P, COS, COS, offset=3), ValueError, "offset 3 and 3 tokens need 6 rows"),
    (lambda: mla_rotary(*P, COS, COS, nope_first="yes"), TypeError, "nope_first is 'yes'; allowed: True, False"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CACHE), ValueError, "slots is None and another argument of a cache is not"),
    (lambda: mla_rotary(*P, COS, COS, slots=S), ValueError, "kv_cache is None and another argument of a cache is not"),
    (lambda: mla_rotary(*P, COS, COS, q_dtype=torch.float8_e4m3fn), ValueError, "kv_cache is None and another argument of a cache is not"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CACHE[..., :40], slots=S), ValueError, "kv_cache has shape (1, 16, 40); it must be (blocks, block_size, 48) or (blocks, block_size, 1, 48)"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CACHE, slots=S[:2]), ValueError, "slots has shape (2,); it must be (3,)"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CACHE, slots=S, scale=W), ValueError, "only caches of 8-bit codes have a scale"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CODES, slots=S, scale=W.half()), TypeError, "scale is torch.float16; allowed: torch.float32"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CODES, slots=S, q_scale=W), ValueError, "q_scale is given and q_dtype is not"),
    (lambda: mla_rotary(*P, COS, COS, kv_cache=CODES, slots=S, q_dtype=BF16), TypeError, "q_dtype is torch.bfloat16; allowed: None, and the target's torch.float8_e4m3fn"),
    (lambda: mla_rotary(*(each.float() for each in P), COS, COS, kv_cache=CACHE, slots=S), TypeError, "q_nope is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda: mla_rotary(P[0].clone().requires_grad_(), *P[1:], COS, COS, kv_cache=CACHE, slots=S), ValueError, "q_nope requires a gradient and gets none"),
    (lambda: rotary_cache_write(P[1].float(), *[P[3]] * 2, COS, COS, *KEYS, S), TypeError, "q is torch.float32; allowed"),
    (lambda: rotary_cache_write(P[1][0], *[P[3]] * 2, COS, COS, *KEYS, S), ValueError, "q has shape (3, 16), k (3, 1, 16) and v (3, 1, 16); all must be"),
    (lambda: rotary_cache_write(P[1], P[3], P[2], COS, COS, *KEYS, S), ValueError, "v has shape (1, 3, 1, 32), as (batch, tokens, heads, features); with k it must be (1, 3, 1, 16)"),
    (lambda: rotary_cache_write(P[1], P[3], P[3], COS, COS, *KEYS, S, layout="thd"), ValueError, "layout is 'thd'; allowed: paged, asm, nhd, hnd"),
    (lambda: rotary_cache_write(P[1], P[3], P[3].clone().requires_grad_(), COS, COS, *KEYS, S), ValueError, "v requires a gradient and gets none"),
    (lambda: rotary_cache_write(P[1], P[3], P[3], COS, COS, KEYS[0], KEYS[1].half(), S), TypeError, "value_cache is torch.float16; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


def test_a_slot_behind_the_last_is_refused(target):
    with pytest.raises(RuntimeError, match=r"mla_rotary_cache: slot 16 at \[1\]; the cache has 16"):
        mla_rotary(*P, COS, COS, kv_cache=CACHE, slots=torch.tensor([0, 16, 1]))


def test_a_position_behind_the_tables_is_refused(target):
    with pytest.raises(RuntimeError, match=r"position 5 at \[0, 1\]; cos and sin have 5 rows"):
        mla_rotary(*P, COS, COS, positions=torch.tensor([0, 5, 1]))
