# SPDX-License-Identifier: MIT
"""Results that have the same bits alone and in a batch, in the matrix cores' own arithmetic and with all checkers."""

import threading

import pytest
import torch

import hipkittens
from tests.simulated_device import TARGETS

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def invariant():
    before = hipkittens.set_batch_invariant(True)
    yield
    hipkittens.set_batch_invariant(before)


@pytest.fixture(params=TARGETS)
def exactly(request):
    with hipkittens.simulate(request.param, arithmetic="exact", checks="all") as run:
        yield request.param
    assert not run.findings


def draw(*sizes, seed=0, dtype=BF16):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one, other):
    assert one.shape == other.shape and one.isfinite().all()
    assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def rows_alone_and_together(function, x, tokens=(1, 2, 17, 130)):
    together = function(x)
    for count in tokens:
        same(function(x[:count]), together[:count])
        same(function(x[-count:]), together[-count:])


@pytest.mark.parametrize(("columns", "out"), [(1536, 40), (200, 264)])
def test_linear(exactly, columns, out):
    """Few rows with a long K, which would otherwise be split."""
    weight, bias = draw(out, columns, seed=1), draw(out, seed=2)
    rows_alone_and_together(lambda x: hipkittens.linear(x, weight, bias), draw(300, columns))


@pytest.mark.parametrize("target", TARGETS)
def test_without_it_products_of_few_rows_are_split(target):
    x, weight = draw(4096, 2048), draw(1024, 2048, seed=1)
    # Where the host has AMX, its summation order in "fast" arithmetic differs among tiles.
    with hipkittens.simulate(target, arithmetic="strict"):
        together = hipkittens.linear(x, weight)
        same(hipkittens.linear(x[:16], weight), together[:16])
        with hipkittens.batch_invariant(False):
            assert not torch.equal(hipkittens.linear(x[:16], weight), together[:16])


def test_a_batch_of_products(exactly):
    a, b = draw(5, 33, 512), draw(5, 512, 24, seed=1)
    together = hipkittens.matmul(a, b)
    for i in range(5):
        same(hipkittens.matmul(a[i], b[i]), together[i])


def test_quantised_products(exactly):
    spec = hipkittens.QuantSpec("fp8", "row")
    b, scale_b = hipkittens.quantize(draw(48, 2048, seed=1), spec)

    def product(x):
        a, scale_a = hipkittens.quantize(x, spec)
        return hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t())

    rows_alone_and_together(product, draw(200, 2048))


@pytest.mark.parametrize("columns", [96, 4096])
def test_norms(exactly, columns):
    weight = draw(columns, seed=1)
    rows_alone_and_together(lambda x: hipkittens.rms_norm(x, weight), draw(300, columns))
    rows_alone_and_together(lambda x: hipkittens.layer_norm(x, weight, weight), draw(300, columns))
    rows_alone_and_together(hipkittens.softmax, draw(300, columns))


def test_experts(exactly):
    """Which tokens share an expert's rows differs for each batch."""
    w1, w2 = draw(4, 96, 64, seed=1), draw(4, 64, 48, seed=2)
    x, scores = draw(150, 64), draw(150, 4, seed=3, dtype=torch.float32)

    def layer(both):
        weights, experts = hipkittens.topk(both[:, 64:].float(), 2)
        return hipkittens.moe(both[:, :64].contiguous(), w1, w2, weights.softmax(-1), experts.int())

    rows_alone_and_together(layer, torch.cat([x, scores.to(BF16)], 1), (1, 17, 64))


def gradients(function, inputs, grad):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("lengths", [(1, 200, 17), (300, 5, 128), (40, 333)])
def test_packed_sequences(exactly, size, lengths):
    """Output and gradients of each, alone and packed; the lengths of the others would otherwise influence splits and tiles."""
    total, heads, key_heads = sum(lengths), 4, 2
    q, grad = draw(total, heads, size), draw(total, heads, size, seed=1)
    k, v = (draw(total, key_heads, size, seed=seed) for seed in (2, 3))
    ends = torch.tensor([0, *lengths]).cumsum(0).int()

    def packed(ends, longest):
        return lambda *qkv: hipkittens.attention_varlen(*qkv, ends, ends, longest, longest, causal=True)

    together = gradients(packed(ends, max(lengths)), (q, k, v), grad)
    for first, past in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        own = torch.tensor([0, past - first], dtype=torch.int32)
        part = [x[first:past] for x in (q, k, v)]
        alone = gradients(packed(own, past - first), part, grad[first:past])
        batched = gradients(
            lambda *qkv: hipkittens.attention(*(x[None] for x in qkv), causal=True)[0],
            part,
            grad[first:past],
        )
        for one, padded, all_of_them in zip(alone, batched, together, strict=True):
            same(one, all_of_them[first:past])
            same(padded, all_of_them[first:past])


def test_windows_of_packed_sequences(exactly):
    """A window larger than a whole short sequence acts as a causal mask for it, but not next to a longer sequence.

    16-bit results hide most differences in summation order: float16 hides fewest.
    """
    short, long = 190, 333
    q, grad = (draw(short + long, 4, 128, seed=seed, dtype=torch.float16) for seed in (0, 1))
    k, v = (draw(short + long, 2, 128, seed=seed, dtype=torch.float16) for seed in (2, 3))

    def gradients_of(rows, *ends):
        ends = torch.tensor([0, *ends], dtype=torch.int32)
        longest = int(ends.diff().max())
        return gradients(
            lambda *qkv: hipkittens.attention_varlen(
                *qkv, ends, ends, longest, longest, window_size=(200, 0)
            ),
            [x[:rows] for x in (q, k, v)],
            grad[:rows],
        )

    for one, both in zip(
        gradients_of(short, short), gradients_of(short + long, short, short + long), strict=True
    ):
        same(one, both[:short])


@pytest.mark.parametrize(("heads", "key_heads"), [(8, 1), (4, 4)])
def test_a_batch_of_sequences(exactly, heads, key_heads):
    """Few queries and many keys: alone they would be split, and all together they fill the device."""
    count = 310
    q = draw(1, 3, heads, 64).expand(count, -1, -1, -1)
    k, v = (draw(1, 700, key_heads, 64, seed=seed).expand(count, -1, -1, -1) for seed in (1, 2))
    sinks = draw(heads, seed=3, dtype=torch.float32)
    together = hipkittens.attention(q, k, v, sinks=sinks)
    for few in (1, 5):
        same(hipkittens.attention(q[:few], k[:few], v[:few], sinks=sinks), together[:few])


def test_gradients_of_a_batch_of_sequences(exactly):
    """Key heads whose query heads would otherwise be divided among workgroups."""
    count = 160
    q, grad = (draw(1, 40, 8, 64, seed=seed).expand(count, -1, -1, -1) for seed in (0, 1))
    k, v = (draw(1, 40, 1, 64, seed=seed).expand(count, -1, -1, -1) for seed in (2, 3))
    together = gradients(hipkittens.attention, (q, k, v), grad)
    alone = gradients(hipkittens.attention, (q[:1], k[:1], v[:1]), grad[:1])
    for one, all_of_them in zip(alone, together, strict=True):
        same(one, all_of_them[:1])


@pytest.mark.parametrize("heads", [4, 16])
def test_latent_caches(exactly, heads):
    """One token of a sequence, which has few rows, together with several of another."""
    lengths, counts, page = (600, 90, *(2,) * 300), (1, 3, *(1,) * 300), 16
    used = torch.tensor(lengths, dtype=torch.int32)
    pages = [-(-length // page) for length in lengths]
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    for row, mine in zip(table, torch.randperm(sum(pages)).int().split(pages), strict=True):
        row[: len(mine)] = mine
    cache, q = draw(sum(pages), page, 576, seed=1), draw(sum(counts), heads, 576)
    ends = torch.tensor([0, *counts]).cumsum(0).int()

    def attend(sequences, width):
        own = torch.tensor([0, *(counts[i] for i in sequences)]).cumsum(0).int()
        tokens = torch.cat([torch.arange(ends[i], ends[i + 1]) for i in sequences])
        return hipkittens.attention_mla(
            q[tokens], cache, table[list(sequences), :width].contiguous(), used[list(sequences)], scale=0.1,
            cu_seqlens_q=own, max_seqlen_q=max(counts[i] for i in sequences))  # fmt: skip

    together = attend(range(len(lengths)), max(pages))
    for i in range(3):
        same(attend((i,), pages[i]), together[ends[i] : ends[i + 1]])


@pytest.mark.parametrize("sinks", [False, True])
def test_caches_in_pages(exactly, sinks):
    """Sequences of very different lengths, one token each and several, with tables of any width, and so many short ones that
    the device is filled."""
    lengths, counts = (700, 1, 64, 1300, 33, *(2,) * 160), (1, 1, 4, 2, 1, *(1,) * 160)
    page, heads, key_heads, size = 16, 8, 2, 128
    used = torch.tensor(lengths, dtype=torch.int32)
    pages = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(5)).int()
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    for row, mine in zip(table, order.split(pages), strict=True):
        row[: len(mine)] = mine
    k, v = (draw(sum(pages), page, key_heads, size, seed=seed) for seed in (1, 2))
    q = draw(sum(counts), heads, size)
    ends = torch.tensor([0, *counts]).cumsum(0).int()
    options = {"sinks": draw(heads, seed=3, dtype=torch.float32)} if sinks else {}

    def attend(sequences, width):
        tokens = torch.cat([torch.arange(ends[i], ends[i + 1]) for i in sequences])
        own = torch.tensor([0, *(counts[i] for i in sequences)]).cumsum(0).int()
        return hipkittens.attention_paged(
            q[tokens], k, v, table[list(sequences), :width].contiguous(), used[list(sequences)],
            cu_seqlens_q=own, max_seqlen_q=max(counts[i] for i in sequences), **options)  # fmt: skip

    together = attend(range(len(lengths)), max(pages))
    for i, first in enumerate(ends.tolist()[:6]):
        same(attend((i,), pages[i]), together[first : first + counts[i]])
    both = attend((0, 3), max(pages))
    same(both[:1], together[:1])


def test_the_flag():
    assert hipkittens.is_batch_invariant()
    with hipkittens.batch_invariant(False) as block:
        assert not hipkittens.is_batch_invariant()
        with block, hipkittens.batch_invariant():
            assert hipkittens.is_batch_invariant()
        assert not hipkittens.is_batch_invariant()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(hipkittens.is_batch_invariant()))
        thread.start()
        thread.join()
        assert seen == [False]
    assert hipkittens.is_batch_invariant()

    @hipkittens.batch_invariant(False)
    def asks():
        return hipkittens.is_batch_invariant()

    assert not asks() and hipkittens.is_batch_invariant()
    with pytest.raises(RuntimeError), hipkittens.batch_invariant(False):
        raise RuntimeError
    assert hipkittens.set_batch_invariant(False) is True and hipkittens.set_batch_invariant(True) is False


def test_what_is_no_flag():
    with pytest.raises(
        TypeError, match=r"hipkittens\.batch_invariant: enabled is 1; it must be True or False"
    ):
        hipkittens.batch_invariant(1)
    with pytest.raises(TypeError, match=r"hipkittens\.set_batch_invariant: enabled is None"):
        hipkittens.set_batch_invariant(None)
