# SPDX-License-Identifier: MIT
"""hipkittens.rotary of packed sequences, delimited by cu_seqlens."""

import pytest
import torch

import hipkittens

BF16, F32 = torch.bfloat16, torch.float32
LENGTHS = (3, 0, 1, 7, 5)
TOKENS = sum(LENGTHS)


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tables(rows=16, pairs=16):
    angles = 6 * torch.rand(rows, pairs, generator=torch.Generator().manual_seed(7))
    return angles.cos(), angles.sin()


def starts(lengths=LENGTHS, dtype=torch.int32):
    return torch.tensor((0, *lengths), dtype=dtype).cumsum(0, dtype=dtype)


def one_by_one(x, cos, sin, **options):
    """Each sequence separately, starting at offset."""
    return torch.cat([hipkittens.rotary(part, cos, sin, **options) for part in x.split(LENGTHS)])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("interleaved", [False, True])
def test_each_sequence_begins_again(target, interleaved, dtype):
    x, (cos, sin) = draw(TOKENS, 2, 40), tables()
    for offset in (0, 4):
        options = {"interleaved": interleaved, "offset": offset}
        expected = one_by_one(x, cos, sin, **options)
        assert torch.equal(
            hipkittens.rotary(x, cos, sin, cu_seqlens=starts(dtype=dtype), **options), expected
        )
        batch_of_one = hipkittens.rotary(x[None], cos, sin, cu_seqlens=starts(dtype=dtype), **options)
        assert torch.equal(batch_of_one[0], expected)
        heads_first = hipkittens.rotary(
            x.transpose(0, 1), cos, sin, cu_seqlens=starts(dtype=dtype), layout="bhnd", **options
        )
        assert torch.equal(heads_first.transpose(0, 1), expected)
    assert not torch.equal(expected, hipkittens.rotary(x, cos, sin, interleaved=interleaved))


def test_queries_and_keys(target):
    q, k, (cos, sin) = draw(TOKENS, 4, 32), draw(TOKENS, 1, 32, seed=1), tables()
    turned = hipkittens.rotary_qk(q, k, cos, sin, cu_seqlens=starts())
    for value, original in zip(turned, (q, k), strict=True):
        assert torch.equal(value, one_by_one(original, cos, sin))
    hipkittens.rotary_qk(q, k, cos, sin, cu_seqlens=starts(), inplace=True)
    assert torch.equal(q, turned[0]) and torch.equal(k, turned[1])


def test_gradient(target):
    x, grad, (cos, sin) = draw(TOKENS, 2, 32).requires_grad_(), draw(TOKENS, 2, 32, seed=1), tables()
    (ours,) = torch.autograd.grad(hipkittens.rotary(x, cos, sin, cu_seqlens=starts()), x, grad)
    (expected,) = torch.autograd.grad(one_by_one(x, cos, sin), x, grad)
    assert torch.equal(ours, expected)


def test_backend_torch_does_the_same(monkeypatch):
    x, (cos, sin) = draw(TOKENS, 2, 32, dtype=F32), tables()
    with hipkittens.simulate("gfx942"):
        ours = hipkittens.rotary(x, cos, sin, cu_seqlens=starts())
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    torch.testing.assert_close(hipkittens.rotary(x, cos, sin, cu_seqlens=starts()), ours)


def test_a_sequence_longer_than_the_tables_is_refused(target):
    cos, sin = tables(rows=6)
    with pytest.raises(RuntimeError, match="position 6"):
        hipkittens.rotary(draw(TOKENS, 2, 32), cos, sin, cu_seqlens=starts())


def test_compiles_without_a_break_for_any_length():
    compiled = torch.compile(
        lambda x, cos, sin, cu: hipkittens.rotary(x, cos, sin, cu_seqlens=cu),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    cos, sin = tables()
    with hipkittens.simulate("gfx942"):
        for lengths in ((3, 4), (5, 9, 2)):
            x, cu = draw(sum(lengths), 2, 32), starts(lengths)
            assert torch.equal(compiled(x, cos, sin, cu), hipkittens.rotary(x, cos, sin, cu_seqlens=cu))


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"cu_seqlens": [0, 4]}, TypeError, "cu_seqlens is list"),
        ({"cu_seqlens": torch.zeros(3)}, TypeError, "cu_seqlens is torch.float32; allowed: a tensor of"),
        ({"cu_seqlens": starts()[None]}, ValueError, r"cu_seqlens has shape \(1, 6\)"),
        ({"cu_seqlens": starts()[:1]}, ValueError, r"cu_seqlens has shape \(1,\)"),
        ({"cu_seqlens": starts().to("meta")}, ValueError, "cu_seqlens is on meta and x on cpu"),
        ({"positions": torch.arange(TOKENS)}, ValueError, "positions and cu_seqlens are both given"),
        ({"offset": -1}, ValueError, "offset is -1"),
        ({"x": draw(2, TOKENS, 2, 32)}, ValueError, "x has batch 2; cu_seqlens needs"),
    ],
)
def test_refused(change, kind, match):
    cos, sin = tables()
    call = {"x": draw(TOKENS, 2, 32), "cos": cos, "sin": sin, "cu_seqlens": starts(), **change}
    with pytest.raises(kind, match=f"hipkittens.rotary: {match}"):
        hipkittens.rotary(**call)
