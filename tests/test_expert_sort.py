# SPDX-License-Identifier: MIT
"""hipkittens.expert_sort through the public API: every layout is a stable sort of the ids."""

import pytest
import torch

import hipkittens
from hipkittens import _backend, expert_sort

TARGETS = ("gfx942", "gfx950")
SHAPES = [(0, 2), (1, 1), (7, 3), (64, 1), (65, 2), (256, 8), (1024, 8), (1025, 8), (4097, 2), (8193, 8)]


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert not simulation.findings


def draw_ids(tokens, k, experts, seed=0):
    """-1 and `experts` stand for no expert."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, experts + 1, (tokens, k), generator=generator, dtype=torch.int32)


def draw_weights(tokens, k):
    return torch.rand(tokens, k, generator=torch.Generator().manual_seed(1)) + 0.5


def expected(ids, weights, experts, block, padding, entry):
    """Entries, weights, (expert, pairs left) of blocks, offsets and places, computed with lists."""
    k = ids.shape[1]
    flat = ids.flatten().tolist()
    values = weights.flatten().tolist()
    lists = [[] for _ in range(experts)]
    for pair, expert in enumerate(flat):
        if 0 <= expert < experts:
            lists[expert].append(pair)
    entries, in_order, blocks, offsets, places = [], [], [], [], [-1] * len(flat)
    for expert, pairs in enumerate(lists):
        offsets.append(len(entries))
        for first in range(0, len(pairs), block):
            blocks.append((expert, len(pairs) - first))
            part = pairs[first : first + block]
            for place, pair in enumerate(part, len(entries)):
                places[pair] = place
            entries += [entry(pair // k, pair % k) for pair in part] + [padding] * (block - len(part))
            in_order += [values[pair] for pair in part] + [0.0] * (block - len(part))
    return entries, in_order, blocks, [*offsets, len(entries)], places


def check(ids, experts, block, layout, weighted=True):
    tokens, k = ids.shape
    weights = draw_weights(tokens, k)
    padding, entry = {
        "aligned": (tokens * k, lambda token, choice: token * k + choice),
        "packed": (k << 24 | tokens, lambda token, choice: choice << 24 | token),
        "ragged": (-1, lambda token, choice: token * k + choice),
    }[layout]
    found = expert_sort(
        ids, weights if weighted else None, experts, block if layout != "ragged" else None, layout
    )
    entries, in_order, blocks, offsets, places = expected(
        ids, weights, experts, block if layout != "ragged" else 1, padding, entry
    )
    size = found.entries.numel()
    rest = size - len(entries)
    assert rest >= 0 and size < tokens * k + experts * block + block
    assert found.entries.tolist() == entries + [padding] * rest
    assert found.offsets.tolist() == offsets
    assert found.places.tolist() == torch.tensor(places, dtype=torch.int32).reshape(ids.shape).tolist()
    if weighted:
        assert torch.equal(found.weights, torch.tensor(in_order + [0.0] * rest))
    else:
        assert found.weights is None
    for each in found:
        assert each is None or each.dtype in (torch.int32, torch.float32)
    if layout != "ragged":
        missing = size // block - len(blocks)
        assert size % block == 0
        assert found.block_experts.tolist() == [expert for expert, _ in blocks] + [-1] * missing
        assert found.tokens_left.tolist() == [left for _, left in blocks] + [0] * missing
        assert found.num_valid.tolist() == [len(entries), tokens]


@pytest.mark.parametrize("layout", ["aligned", "packed", "ragged"])
@pytest.mark.parametrize("experts", [1, 8, 48, 128, 256, 512])
@pytest.mark.parametrize(("tokens", "k"), SHAPES)
def test_it_is_a_stable_sort(target, tokens, k, experts, layout):
    block = {1: 16, 8: 32, 48: 64, 128: 128, 256: 16, 512: 48}[experts]
    check(draw_ids(tokens, k, experts), experts, block, layout, weighted=tokens % 2 == 1)


@pytest.mark.parametrize("layout", ["aligned", "packed", "ragged"])
@pytest.mark.parametrize("tokens", [33, 32800])
def test_all_tokens_to_one_expert_and_to_none(target, tokens, layout):
    for expert in (0, 5, 15, -1, 16, 2**31 - 1, -(2**31)):
        check(torch.full((tokens, 2), expert, dtype=torch.int32), 16, 32, layout)


def test_more_experts_than_pairs(target):
    check(draw_ids(3, 2, 1536), 1536, 128, "aligned")
    check(draw_ids(2000, 6, 1500), 1500, 1, "packed")
    check(draw_ids(11000, 6, 1500), 1500, 1, "packed")


@pytest.mark.slow
def test_more_pairs_than_segments_of_the_smallest_size(target):
    check(draw_ids(40000, 8, 256), 256, 64, "packed")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.int8, torch.uint8])
def test_other_integers_and_strides(target, dtype):
    ids = draw_ids(50, 4, 9).clamp(min=0).to(dtype)
    check(ids.to(torch.int32), 9, 16, "aligned")
    right = expert_sort(ids.to(torch.int32), None, 9, 16)
    for each in (ids, ids.t().contiguous().t(), ids.repeat(1, 2)[:, :4]):
        assert all(
            torch.equal(a, b) for a, b in zip(expert_sort(each, None, 9, 16)[2:], right[2:], strict=True)
        )
    one = expert_sort(ids[:, 0], None, 9, 16)
    assert one.places.shape == (50,) and torch.equal(
        one.entries, expert_sort(ids[:, :1], None, 9, 16).entries
    )


def test_expert_map(target):
    """Every second expert is here, in descending order."""
    ids = draw_ids(300, 4, 20)
    local = torch.full((20,), -1, dtype=torch.int32)
    local[::2] = torch.arange(9, -1, -1, dtype=torch.int32)
    known = (ids >= 0) & (ids < 20)
    renamed = torch.where(known, local[ids.clamp(0, 19).long()], -1)
    weights = draw_weights(300, 4)
    for layout, block in (("aligned", 16), ("packed", 16), ("ragged", None)):
        mine = expert_sort(ids, weights, 10, block, layout, expert_map=local)
        right = expert_sort(renamed, weights, 10, block, layout)
        assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))


def test_the_gradient_of_weights(target):
    ids, weights = draw_ids(100, 3, 12), draw_weights(100, 3).bfloat16().requires_grad_()
    found = expert_sort(ids, weights, 12, 16)
    dy = torch.rand(found.weights.shape, generator=torch.Generator().manual_seed(2))
    (mine,) = torch.autograd.grad(found.weights, weights, dy)
    right = torch.where(found.places >= 0, dy[found.places.clamp(min=0).long()], 0)
    assert torch.equal(mine, right.bfloat16())


def test_a_mixture_of_experts_trains(target):
    """Gate, router, sort, experts, and weighted results: gradients are those of the dense sum."""
    torch.manual_seed(0)
    tokens, experts = torch.randn(40, 8), torch.randn(6, 8, 8) * 0.3
    gate = torch.randn(8, 6).requires_grad_()

    def sparse():
        weights, ids = hipkittens.router(tokens @ gate, 2, renormalize=True)
        found = expert_sort(ids, weights, 6, layout="ragged")
        out = torch.zeros(40, 8)
        bounds = found.offsets.tolist()
        for expert in range(6):
            pairs = slice(bounds[expert], bounds[expert + 1])
            rows = found.entries[pairs].long() // 2
            out = out.index_add(0, rows, (tokens[rows] @ experts[expert]) * found.weights[pairs, None])
        return out

    def dense():
        values, ids = (tokens @ gate).topk(2)
        weights = torch.zeros(40, 6).scatter(-1, ids, values.softmax(-1))
        return torch.einsum("te,td,edf->tf", weights, tokens, experts)

    outputs = sparse(), dense()
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(
        *(torch.autograd.grad(out.square().sum(), gate)[0] for out in outputs), rtol=1e-4, atol=1e-4
    )


def test_opcheck(target):
    operator = torch.ops.hipkittens.expert_sort.default
    ids, weights = draw_ids(20, 2, 5), draw_weights(20, 2).requires_grad_()
    for inputs in [(ids, weights, None, 5, 16, 0), (ids, None, torch.arange(5, dtype=torch.int32), 5, 1, 2)]:
        assert set(torch.library.opcheck(operator, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(ids, weights):
        found = expert_sort(ids, weights * 2, 5, 16)
        return found.entries + 1, found.weights

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for tokens in (30, 80):
        ids, weights = draw_ids(tokens, 2, 5), draw_weights(tokens, 2).requires_grad_()
        (mine, kept), (other, right) = compiled(ids, weights), block(ids, weights)
        assert torch.equal(mine, other) and torch.equal(kept, right)
        assert torch.equal(*(torch.autograd.grad(each.square().sum(), weights)[0] for each in (kept, right)))


def test_meta_tensors():
    found = expert_sort(torch.empty(10, 2, device="meta", dtype=torch.int32), None, 4, 16)
    assert (
        found.entries.shape == (80,) and found.block_experts.shape == (5,) and found.places.shape == (10, 2)
    )


def test_the_torch_backend(monkeypatch):
    ids, weights, local = (
        draw_ids(90, 3, 12),
        draw_weights(90, 3),
        torch.arange(11, -1, -1, dtype=torch.int32),
    )
    calls = [lambda layout=layout, block=block, given=given: expert_sort(ids, weights, 12, block, layout, expert_map=given)
             for layout, block in (("aligned", 16), ("packed", 32), ("ragged", None)) for given in (None, local)]  # fmt: skip
    with hipkittens.simulate("gfx950"):
        right = [call() for call in calls]
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for call, other in zip(calls, right, strict=True):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(call(), other, strict=True))


IDS, WEIGHTS = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, 2)
BAD = [
    (lambda: expert_sort([0], None, 4, 16), TypeError, "ids is list; it must be a torch.Tensor"),
    (lambda: expert_sort(WEIGHTS, None, 4, 16), TypeError, "ids is torch.float32; allowed: torch.int32"),
    (lambda: expert_sort(IDS[None], None, 4, 16), ValueError, "ids has shape (1, 4, 2); it needs (tokens, k) or (tokens,)"),
    (lambda: expert_sort(IDS[:, :0], None, 4, 16), ValueError, "ids has shape (4, 0); a token needs at least 1 choice"),
    (lambda: expert_sort(IDS, None, 0, 16), ValueError, "num_experts is 0; allowed: 1 to 1536"),
    (lambda: expert_sort(IDS, None, 1537, 16), ValueError, "num_experts is 1537; allowed: 1 to 1536"),
    (lambda: expert_sort(IDS, None, 4.0, 16), TypeError, "num_experts is 4.0; it must be a whole number"),
    (lambda: expert_sort(IDS, None, 4), ValueError, "block is None; layout 'aligned' needs one, 1 to 65536"),
    (lambda: expert_sort(IDS, None, 4, 0), ValueError, "block is 0; allowed: 1 to 65536"),
    (lambda: expert_sort(IDS, None, 4, 16, "ragged"), ValueError, "block is 16; ragged experts have none: leave it out"),
    (lambda: expert_sort(IDS, None, 4, 16, "dense"), ValueError, "layout is 'dense'; allowed: 'aligned', 'packed', 'ragged'"),
    (lambda: expert_sort(IDS.expand(1, 4, 2)[0].repeat(1, 64), None, 4, 16, "packed"), ValueError, "16777215 tokens of 127 choices"),
    (lambda: expert_sort(IDS, WEIGHTS[:3], 4, 16), ValueError, "weights has shape (3, 2); it needs that of ids, (4, 2)"),
    (lambda: expert_sort(IDS, WEIGHTS.double(), 4, 16), TypeError, "weights is torch.float64; allowed"),
    (lambda: expert_sort(IDS, None, 4, 16, expert_map=IDS), ValueError, "expert_map has shape (4, 2); it needs (ids,)"),
    (lambda: expert_sort(IDS, None, 4, 16, expert_map=IDS[0].long()), TypeError, "expert_map is torch.int64; allowed: torch.int32"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.expert_sort: ")


OPERATOR = torch.ops.hipkittens.expert_sort
BAD_OPERANDS = [
    (lambda: OPERATOR(IDS.long(), None, None, 4, 16, 0), "ids needs to be int32"),
    (lambda: OPERATOR(IDS, WEIGHTS.half(), None, 4, 16, 0), "weights needs to be float32"),
    (lambda: OPERATOR(IDS, WEIGHTS.t().contiguous().t(), None, 4, 16, 0), "weights needs to be contiguous"),
    (lambda: OPERATOR(IDS, None, None, 4, 16, 2), "layout is 2 with blocks of 16"),
    (lambda: OPERATOR(IDS, None, None, 1537, 16, 0), "1537 experts; 1 .. 1536 are allowed"),
    (lambda: OPERATOR(IDS[0], None, None, 4, 16, 0), "ids need two dimensions"),
    (lambda: OPERATOR(torch.zeros(1, 1, dtype=torch.int32).expand(2**20, 2**11), None, None, 4, 16, 0), "1048576 tokens with 2048 choices"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
