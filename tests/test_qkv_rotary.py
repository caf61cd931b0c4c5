# SPDX-License-Identifier: MIT
"""hipkittens.qkv_rotary: bitwise equal to the separate operations; with norms within 2 ulps of float64; gradients; caches."""

import math

import pytest
import torch

import hipkittens
from hipkittens import cache_write, qkv_rotary, rms_norm, rotary, rotary_qk, rotary_tables
from hipkittens.cache import LAYOUTS
from hipkittens.operations import qkv_rotary as record
from hipkittens.operations._caches import caches_of
from hipkittens.quantization import dtype_of

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ULP = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def tables(rows, pairs):
    return rotary_tables(6 * torch.rand(rows, pairs, generator=torch.Generator().manual_seed(7)))


def heads_of(qkv, heads, kv_heads):
    return qkv.unflatten(-1, (heads + 2 * kv_heads, -1)).split((heads, kv_heads, kv_heads), -2)


# features of a head, pairs
SIZES = [
    (128, 64),
    (64, 32),
    (256, 32),
    (80, 40),
    (96, 16),
    (17, 3),
    (2, 1),
    (72, 36),
    (1024, 512),
    (192, 32),
]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(("features", "pairs"), SIZES)
def test_equals_its_parts(target, features, pairs, dtype):
    for tokens, heads, kv_heads, interleaved, nope_first in (
        (1, 4, 1, False, False),
        (7, 3, 2, True, False),
        (9, 1, 2, False, True),
    ):
        qkv, (cos, sin) = draw(tokens, (heads + 2 * kv_heads) * features, dtype=dtype), tables(tokens, pairs)
        options = {"interleaved": interleaved, "nope_first": nope_first}
        q, k, v = qkv_rotary(qkv, cos, sin, heads, kv_heads, **options)
        parts = heads_of(qkv, heads, kv_heads)
        expected = rotary_qk(*parts[:2], cos, sin, **options)
        assert torch.equal(q, expected[0]) and torch.equal(k, expected[1]) and torch.equal(v, parts[2])
        assert v.is_contiguous() and q.shape == (tokens, heads, features)


def test_rotations(target):
    """All options of rotary, for batches."""
    qkv, (cos, sin) = draw(2, 5, 4 * 48), tables(20, 48)
    ids, more = torch.randint(20, (2, 5)), torch.arange(5, dtype=torch.int32)
    q, k, _ = heads_of(qkv, 2, 1)
    for options in (
        {"positions": ids},
        {"offset": 4, "interleaved": True},
        {"positions": ids[0] % 10, "offsets": more, "nope_first": True},
        {"offsets": more},
    ):
        mine = qkv_rotary(qkv, cos[:, :16], sin[:, :16], 2, 1, **options)
        right = rotary_qk(q, k, cos[:, :16], sin[:, :16], **options)
        assert torch.equal(mine[0], right[0]) and torch.equal(mine[1], right[1])
        mine = qkv_rotary(qkv, cos, sin, 2, 1, full_tables=True, **options)
        assert torch.equal(mine[0], rotary(q, cos, sin, full_tables=True, **options))
    ends = torch.tensor([0, 2, 5])
    mine = qkv_rotary(qkv[0], cos[:, :16], sin[:, :16], 2, 1, cu_seqlens=ends)
    assert torch.equal(mine[1], rotary(k[0], cos[:, :16], sin[:, :16], cu_seqlens=ends))


def exact(qkv, weights, cos, sin, heads, kv_heads, interleaved, eps):
    """The reference in float64, where autograd computes the gradients."""
    results = []
    for part, weight in zip(heads_of(qkv, heads, kv_heads), (*weights, None), strict=True):
        if len(results) == 2:
            results.append(part)
            continue
        if weight is not None:
            part = part / (part.square().mean(-1, keepdim=True) + eps).sqrt() * weight
        turn = torch.complex(cos.double(), sin.double())[: qkv.shape[-2]].unsqueeze(-2)
        pairs = turn.shape[-1]
        first = part[..., : 2 * pairs]
        a, b = (first[..., 0::2], first[..., 1::2]) if interleaved else first.chunk(2, -1)
        z = torch.complex(a, b) * turn
        turned = torch.stack((z.real, z.imag), -1 if interleaved else -2).flatten(-2)
        results.append(torch.cat((turned, part[..., 2 * pairs :]), -1))
    return results


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("weight_dtype", ["same", "f32"])
@pytest.mark.parametrize(("features", "pairs"), SIZES)
def test_norms_and_gradients(target, features, pairs, weight_dtype, dtype):
    tokens, heads, kv_heads, eps = 11, 3, 2, 1e-5
    interleaved = features == 96
    qkv = draw(tokens, (heads + 2 * kv_heads) * features, dtype=dtype, grad=True)
    of_weights = dtype if weight_dtype == "same" else F32
    weights = [draw(features, dtype=of_weights, seed=seed, grad=True) for seed in (1, 2)]
    cos, sin = tables(tokens, pairs)
    options = {"q_weight": weights[0], "k_weight": weights[1], "eps": eps, "interleaved": interleaved}
    mine = qkv_rotary(qkv, cos, sin, heads, kv_heads, **options)
    grads = [draw(*each.shape, dtype=dtype, seed=3 + i) for i, each in enumerate(mine)]
    found = torch.autograd.grad(mine, (qkv, *weights), grads)
    wide = [value.detach().double().requires_grad_() for value in (qkv, *weights)]
    right = exact(wide[0], wide[1:], cos, sin, heads, kv_heads, interleaved, eps)
    for each, of_float64 in zip(mine, right, strict=True):
        # 2 ulps of the terms of a pair: products may cancel
        size = 2 * of_float64.detach().abs().max()
        assert (
            (each.double() - of_float64).abs() <= 2 * ULP[dtype] * of_float64.abs() + 2.0**-21 * size
        ).all()
    for each, of_float64 in zip(
        found, torch.autograd.grad(right, wide, [g.double() for g in grads]), strict=True
    ):
        bound = ULP[each.dtype] * of_float64.abs() + 2.0**-19 * of_float64.abs().max()
        assert each.dtype == (dtype if each.dim() == 2 else of_weights)
        assert ((each.double() - of_float64).abs() <= bound).all()
    alone = qkv_rotary(qkv, cos, sin, heads, kv_heads, k_weight=weights[1], eps=eps, interleaved=interleaved)
    assert torch.equal(alone[1], mine[1])
    assert torch.equal(alone[0], rotary(heads_of(qkv, heads, kv_heads)[0], cos, sin, interleaved=interleaved))


def test_near_the_norm_of_its_own(target):
    """rms_norm rounds in between, which this does not."""
    qkv, weight, (cos, sin) = draw(6, 4 * 64), draw(64, seed=1), tables(6, 32)
    q, _, _ = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=weight)
    apart = rotary(rms_norm(heads_of(qkv, 2, 1)[0].contiguous(), weight), cos, sin)
    assert (q.float() - apart.float()).abs().max() <= 4 * ULP[BF16] * apart.float().abs().max()


def test_gradients_without_norms_are_the_rotation_back(target):
    qkv, (cos, sin) = draw(2, 7, 5 * 40, grad=True), tables(7, 16)
    results = qkv_rotary(qkv, cos, sin, 3, 1, nope_first=True)
    grads = [draw(*each.shape, seed=i) for i, each in enumerate(results)]
    (found,) = torch.autograd.grad(results, qkv, grads)
    leaves = [each.detach().requires_grad_() for each in heads_of(qkv, 3, 1)]
    apart = torch.autograd.grad(rotary_qk(*leaves[:2], cos, sin, nope_first=True), leaves[:2], grads[:2])
    assert torch.equal(found, torch.cat((*apart, grads[2]), -2).flatten(-2))
    (some,) = torch.autograd.grad(qkv_rotary(qkv, cos, sin, 3, 1)[2].sum(), qkv)
    assert torch.equal(some, torch.cat((torch.zeros(2, 7, 160), torch.ones(2, 7, 40)), -1).to(BF16))


def test_many_tokens(target):
    """More than the backward's workgroups process at a time; sums in a fixed order."""
    qkv, weight, (cos, sin) = draw(700, 6 * 16, grad=True), draw(16, seed=1, grad=True), tables(700, 8)
    results = qkv_rotary(qkv, cos, sin, 4, 1, q_weight=weight, k_weight=weight)
    grads = [torch.ones_like(each) for each in results]
    first = torch.autograd.grad(results, (qkv, weight), grads, retain_graph=True)
    wide = [value.detach().double().requires_grad_() for value in (qkv, weight)]
    right = exact(wide[0], [wide[1]] * 2, cos, sin, 4, 1, False, 1e-6)
    right = torch.autograd.grad(right, wide, [torch.ones_like(each) for each in right])
    assert (first[1].double() - right[1]).abs().max() <= 2 * ULP[BF16] * right[1].abs().max()
    with hipkittens.simulate(target, seed=3):
        again = torch.autograd.grad(results, (qkv, weight), grads)
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("kind", ["same", "float8", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches(target, layout, kind, dtype):
    """Bitwise equal to cache_write of the returned tensors, and no other byte is written."""
    of_cache = {"same": dtype, "int8": torch.int8}.get(kind) or dtype_of("fp8", torch.device("cpu"))
    scales = {} if kind == "same" else {"k_scale": torch.tensor(0.3), "v_scale": torch.tensor([2.5])}
    for features, pairs, interleaved, norm in (
        (64, 32, False, True),
        (48, 16, True, False),
        (32, 6, False, False),
    ):
        qkv, (cos, sin), weight = (
            draw(2, 7, 7 * features, dtype=dtype),
            tables(20, pairs),
            draw(features, dtype=dtype),
        )
        slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:14].int()
        slots[3::4] = -1
        mine, right = (caches_of(layout, 4, 16, 2, features, of_cache) for _ in range(2))
        for cache in (*mine, *right):
            cache.view(torch.uint8).fill_(0x5A)
        options = {"interleaved": interleaved, "offset": 3, "k_weight": weight if norm else None}
        caches = {"key_cache": mine[0], "value_cache": mine[1], "slots": slots, "layout": layout, **scales}
        results = qkv_rotary(qkv, cos, sin, 3, 2, **options, **caches)
        assert all(map(torch.equal, results, qkv_rotary(qkv, cos, sin, 3, 2, **options)))
        cache_write(*(each.flatten(0, 1) for each in results[1:]), *right, slots, layout=layout, **scales)
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(mine, right, strict=True)
        )


@pytest.mark.parametrize("batch", [(), (2,)])
def test_heads_apart(target, batch):
    """From a projection with gates next to its queries, from tensors with gaps, and from others: the results for a packed qkv."""
    q, gate, k, v = (draw(*batch, 7, heads, 24, seed=i) for i, heads in enumerate((4, 4, 2, 2)))
    beside, (cos, sin), weight = torch.stack((q, gate), -2).flatten(-3, -2), tables(20, 12), draw(24)
    slots = torch.arange(math.prod(batch) * 7) - 2
    gaps = torch.cat((v, gate[..., :2, :5]), -1)

    def written(qkv):
        caches = [torch.zeros(1, 16, 2, 24, dtype=BF16) for _ in range(2)]
        results = qkv_rotary(
            qkv, cos, sin, 4, 2, q_weight=weight, k_weight=weight, key_cache=caches[0], value_cache=caches[1],
            slots=slots,
        )  # fmt: skip
        return *results, *caches

    right = written(torch.cat((q, k, v), -2).flatten(-2))
    for qkv in (
        (q, k, v),
        [beside[..., ::2, :], k, gaps[..., :24]],
        (q.transpose(-1, -2).contiguous().mT, k, v),
    ):
        assert all(map(torch.equal, written(qkv), right))


def test_one_launch(target):
    qkv, tables_of_six = draw(6, 4 * 64), tables(6, 32)
    caches = [torch.zeros(1, 16, 1, 64, dtype=BF16) for _ in range(2)]
    before = caches[0]._version
    qkv_rotary(
        qkv,
        *tables_of_six,
        2,
        1,
        q_weight=draw(64),
        key_cache=caches[0],
        value_cache=caches[1],
        slots=torch.arange(6),
    )
    assert (
        hipkittens.simulate.report()["workgroups"] == 3
    )  # two tokens each: with more launches these would differ
    assert caches[0]._version > before


def test_strides(target):
    cos, sin = tables(6, 16)
    storage = draw(2, 6, 5 * 32 + 7)
    for qkv in (
        storage[..., 1:161],
        storage[..., 2:162],
        storage[:, ::2, 4:164],
        draw(160, 6, 2).permute(2, 1, 0),
    ):
        mine = qkv_rotary(qkv, cos, sin, 3, 1, q_weight=cos[:, :].flatten()[:32])
        right = qkv_rotary(qkv.contiguous(), cos, sin, 3, 1, q_weight=cos.flatten()[:32].clone())
        assert all(map(torch.equal, mine, right))


def test_nan_and_infinity_stay_in_their_head(target):
    qkv, (cos, sin) = draw(3, 4 * 32), tables(3, 16)
    clean = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=torch.ones(32), k_weight=torch.ones(32))
    qkv[1, 5], qkv[2, 70] = torch.nan, torch.inf
    q, k, v = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=torch.ones(32), k_weight=torch.ones(32))
    assert q[1, 0].isnan().all() and torch.equal(q[1, 1], clean[0][1, 1]) and torch.equal(q[2], clean[0][2])
    assert k[2].isnan().any() and torch.equal(k[:2], clean[1][:2]) and torch.equal(v, clean[2])


def test_nothing_to_split(target):
    cos, sin = tables(3, 8)
    q, k, v = qkv_rotary(draw(0, 4 * 16), cos, sin, 2, 1)
    assert q.shape == (0, 2, 16) and k.shape == v.shape == (0, 1, 16)
    qkv, weight = draw(2, 0, 4 * 16, grad=True), draw(16, grad=True)
    results = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=weight)
    grads = torch.autograd.grad(results, (qkv, weight), [torch.ones_like(each) for each in results])
    assert grads[0].shape == qkv.shape and torch.equal(grads[1], torch.zeros(16, dtype=BF16))


def test_a_second_derivative_is_refused(target):
    qkv, (cos, sin) = draw(2, 64, grad=True), tables(2, 8)
    (first,) = torch.autograd.grad(qkv_rotary(qkv, cos, sin, 2, 1)[0].square().sum(), qkv, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="the gradient of qkv_rotary cannot be differentiated again"
    ):
        first.sum().backward()


@pytest.mark.parametrize("tokens", [1, 5, 303, 304, 305, 2000])
def test_the_sizes_of_partial_sums(tokens):
    """The shapes computed without a launch are those of a launch."""
    qkv, weight, (cos, sin) = draw(1, tokens, 6, dtype=F32), draw(2, dtype=F32), tables(tokens, 1)
    with hipkittens.simulate("gfx950"):
        operands = (cos, sin, None, None, None, None, 0, False, False, False)
        results = torch.ops.hipkittens.qkv_rotary(qkv, weight, None, *operands, False, 1, 1, 1e-6)
        arguments = (*results, qkv, weight, None, *operands, True, 1e-6)
        found = torch.ops.hipkittens.qkv_rotary_backward(*arguments)
    assert [each.shape for each in found] == [each.shape for each in record._backward_fake(*arguments)]


def test_opcheck(target):
    qkv, weight, (cos, sin) = draw(2, 3, 4 * 10, grad=True), draw(10, grad=True), tables(9, 4)
    ids, slots = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.arange(6) - 1
    caches = [torch.zeros(1, 16, 1, 10, dtype=BF16) for _ in range(2)]
    rotation = (cos, sin, ids, None, None, None, 0, False, True, False, False)
    operators = torch.ops.hipkittens
    grads = [draw(2, 3, heads, 10) for heads in (2, 1, 1)]
    calls = [
        (operators.qkv_rotary, (qkv, weight, None, *rotation, 2, 1, 1e-6)),
        (operators.qkv_rotary_cache, (*grads, None, weight.detach(), *caches, slots, None, None, *rotation, 1e-6, 2)),
        (operators.qkv_rotary_backward, (*grads, qkv.detach(), None, weight.detach(), *rotation, 1e-6)),
    ]  # fmt: skip
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    cos, sin = tables(16, 8)

    def block(qkv, weight):
        q, k, v = qkv_rotary(qkv * 1, cos, sin, 2, 1, q_weight=weight)
        return q * 2, k, v

    def step(qkv, keys, values, slots):
        return qkv_rotary(qkv * 2, cos, sin, 2, 1, key_cache=keys, value_cache=values, slots=slots)[0]

    compiled, compiled_step = (
        torch.compile(each, fullgraph=True, dynamic=True, backend=compile_backend) for each in (block, step)
    )
    for tokens in (3, 9):
        qkv, weight = draw(tokens, 64, grad=True), draw(16, grad=True)
        mine, right = compiled(qkv, weight), block(qkv, weight)
        assert all(map(torch.equal, mine, right))
        ones = [torch.ones_like(each) for each in right]
        found, expected = (torch.autograd.grad(each, (qkv, weight), ones) for each in (mine, right))
        assert all(map(torch.equal, found, expected))
        caches = [[torch.zeros(1, 16, 1, 16, dtype=BF16) for _ in range(2)] for _ in range(2)]
        slots = torch.arange(tokens)
        assert torch.equal(
            compiled_step(qkv.detach(), *caches[0], slots), step(qkv.detach(), *caches[1], slots)
        )
        assert all(map(torch.equal, *caches))


def test_the_other_backend(monkeypatch):
    from hipkittens import _backend

    qkv, weight, (cos, sin) = draw(2, 5, 4 * 32, dtype=F32), draw(32, dtype=F32), tables(5, 8)
    with hipkittens.simulate():
        mine = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=weight, nope_first=True)
    monkeypatch.setattr(_backend._State, "backend", "torch")
    theirs = qkv_rotary(qkv, cos, sin, 2, 1, q_weight=weight, nope_first=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast_changes_nothing(target):
    with torch.autocast("cpu", BF16):
        assert qkv_rotary(draw(3, 64, dtype=F32), *tables(3, 8), 2, 1)[0].dtype == F32


QKV = torch.zeros(3, 64, dtype=BF16)
COS = torch.zeros(5, 8)
W = torch.ones(16)
Q, K = torch.zeros(3, 2, 16, dtype=BF16), torch.zeros(3, 1, 16, dtype=BF16)
CACHE = {
    "key_cache": torch.zeros(1, 16, 1, 16, dtype=BF16),
    "value_cache": torch.zeros(1, 16, 1, 16, dtype=BF16),
}
S = torch.arange(3)
BAD = [
    (lambda: qkv_rotary(1, COS, COS, 2, 1), TypeError, "qkv is int; it must be a torch.Tensor"),
    (lambda: qkv_rotary(QKV.int(), COS, COS, 2, 1), TypeError, "qkv is torch.int32; allowed"),
    (lambda: qkv_rotary(QKV[0], COS, COS, 2, 1), ValueError, "qkv has shape (64,); it must be (tokens, n)"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 2), ValueError, "qkv has 64 columns for 6 heads, 2 of queries and 2 each"),
    (lambda: qkv_rotary(QKV, COS, COS, 2.0, 1), TypeError, "num_heads is 2.0; it must be a whole number"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 0), ValueError, "num_kv_heads is 0; it must be 1 or more"),
    (lambda: qkv_rotary(torch.zeros(1, 3 * 1026), COS, COS, 1, 1), ValueError, "heads of qkv have 1026 features; 1 to 1024"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, q_weight=W[:8]), ValueError, "q_weight has shape (8,); it must be (16,)"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, q_weight=W, k_weight=W.half()), TypeError, "q_weight is torch.float32 and k_weight torch.float16"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, eps="x"), TypeError, "eps is 'x'; it must be a number"),
    (lambda: qkv_rotary(QKV, COS[:, :1].expand(5, 9), COS[:, :1].expand(5, 9), 2, 1), ValueError, "cos has 9 columns and a head of qkv 16 features"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, offset=3), ValueError, "offset 3 and 3 tokens need 6 rows"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, **CACHE), ValueError, "slots is None and another argument of a cache is not"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, slots=S), ValueError, "key_cache is None"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, layout="hnd"), ValueError, "layout is 'hnd' and there is no cache"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, **CACHE, slots=S[:2]), ValueError, "slots has shape (2,); it must be (3,)"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, **CACHE, slots=S, layout="nope"), ValueError, "layout is 'nope'; allowed: paged, asm, nhd, hnd"),
    (lambda: qkv_rotary(QKV.float(), COS, COS, 2, 1, **CACHE, slots=S), TypeError, "qkv is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda: qkv_rotary(QKV.clone().requires_grad_(), COS, COS, 2, 1, **CACHE, slots=S), ValueError, "qkv requires a gradient and gets none"),
    (lambda: qkv_rotary((Q, K, K), COS, COS, 2, 1), ValueError, "qkv is tuple and there is no cache; give a packed tensor"),
    (lambda: qkv_rotary((Q, K), COS, COS, 2, 1, **CACHE, slots=S), ValueError, "qkv has 2 tensors; it must be (q, k, v)"),
    (lambda: qkv_rotary((Q, K, K), COS, COS, 3, 1, **CACHE, slots=S), ValueError, "q of qkv has shape (3, 2, 16); it must be (3, 3, 16)"),
    (lambda: qkv_rotary((Q, K, Q), COS, COS, 2, 1, **CACHE, slots=S), ValueError, "v of qkv has shape (3, 2, 16); it must be (3, 1, 16)"),
    (lambda: qkv_rotary((Q[0], K, K), COS, COS, 2, 1, **CACHE, slots=S), ValueError, "it must be (tokens, 2, features), or with a batch in front"),
    (lambda: qkv_rotary((Q, K.half(), K), COS, COS, 2, 1, **CACHE, slots=S), TypeError, "q of qkv is torch.bfloat16 and k is torch.float16"),
    (lambda: qkv_rotary((Q, 1, K), COS, COS, 2, 1, **CACHE, slots=S), TypeError, "k of qkv is int; it must be a torch.Tensor"),
    (lambda: qkv_rotary((Q, K, K.clone().requires_grad_()), COS, COS, 2, 1, **CACHE, slots=S), ValueError, "qkv requires a gradient and gets none"),
    (lambda: qkv_rotary(QKV, COS, COS, 2, 1, **CACHE, slots=S, k_scale=W[:1]), ValueError, "only caches of 8-bit codes have a scale"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


def test_a_slot_behind_the_last_is_refused(target):
    with pytest.raises(RuntimeError, match=r"qkv_rotary_cache: slot 16 at \[1\]; the cache has 16"):
        qkv_rotary(QKV, COS, COS, 2, 1, **CACHE, slots=torch.tensor([0, 16, 1]))
