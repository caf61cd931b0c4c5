# SPDX-License-Identifier: MIT
"""hipkittens.hstu_attention compared with float64: each mask alone and all together, sequences of every length, gradients."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens import hstu_attention
from hipkittens._accuracy import BAR, compare
from hipkittens.hstu import in_torch

BF16, F16, I32 = torch.bfloat16, torch.float16, torch.int32
LENGTHS = (0, 1, 2, 17, 255, 257)
TARGETS_OF = torch.tensor([0, 0, 2, 5, 40, 257], dtype=I32)  # no rows, some and all rows


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


@pytest.fixture(autouse=True)
def results_begin_as_nan():
    """As torch.empty returns in this mode."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3, dtype=BF16).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def ends_of(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=I32)


def draw(lengths, heads, key_heads, size, value_size=None, dtype=BF16, seed=0):
    """q, k, v and the gradient of the result."""
    generator = torch.Generator().manual_seed(seed)
    value_size = value_size or size
    return tuple(
        torch.randn(sum(lengths), count, width, generator=generator).to(dtype)
        for count, width in ((heads, size), (key_heads, size), (key_heads, value_size), (heads, value_size))
    )


def sees(i, j, length, targets, causal=True, max_attn_len=0, contextual_seq_len=0):
    """The definition: positions of context, history and targets, then which of two rows sees the other."""
    before = max(contextual_seq_len - 1, 0)
    behind = length - targets - before

    def place(row):
        return min(max(row - before, 0), behind)

    if i == j:
        return True
    if contextual_seq_len > 0 and place(i) == 0 and place(j) < behind:
        return True
    distance = place(i) - place(j) if causal else abs(place(i) - place(j))
    return distance > 0 and not (0 < max_attn_len < distance)


def exact(q, k, v, lengths, longest, scale, targets, **masks):
    """The reference in q's float64, sequence by sequence."""
    parts = []
    k, v = (rows.repeat_interleave(q.shape[1] // rows.shape[1], 1) for rows in (k, v))
    for b, (q_b, k_b, v_b) in enumerate(
        zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    ):
        n, of_targets = lengths[b], 0 if targets is None else int(targets[b])
        mask = torch.tensor(
            [[sees(i, j, n, of_targets, **masks) for j in range(n)] for i in range(n)], dtype=torch.float64
        ).reshape(n, n)
        x = scale * torch.einsum("ihd,jhd->hij", q_b, k_b)
        parts.append(torch.einsum("hij,jhd->ihd", x * x.sigmoid() * mask / longest, v_b))
    return torch.cat(parts)


def with_gradients(function, inputs, grad_out):
    leaves = [rows.detach().clone().requires_grad_() for rows in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out.to(out.dtype))]


def assert_parity(problem, lengths, *, longest=None, scale=None, targets=None, **masks):
    *inputs, grad_out = problem
    longest, of = longest or max(lengths), inputs[0].shape[2] ** -0.5 if scale is None else scale
    options = masks.get("causal", True), masks.get("max_attn_len", 0), masks.get("contextual_seq_len", 0)
    mine = with_gradients(
        lambda *rows: hstu_attention(
            *rows, ends_of(lengths), longest, scale=scale, num_targets=targets, **masks
        ),
        inputs,
        grad_out,
    )
    theirs = with_gradients(
        lambda *rows: in_torch(*rows, ends_of(lengths), targets, longest, of, *options), inputs, grad_out
    )
    right = with_gradients(
        lambda *rows: exact(*rows, lengths, longest, of, targets, **masks),
        [rows.double() for rows in inputs],
        grad_out,
    )
    for name, own, other, wanted in zip(("out", "dq", "dk", "dv"), mine, theirs, right, strict=True):
        assert own.dtype == inputs[0].dtype and own.isfinite().all()
        result = compare(own, other, wanted, wanted.abs().max().item())
        assert max(result.ratio_max, result.ratio_rms) <= BAR, (name, result)


MASKS = [
    {},
    {"causal": False},
    {"targets": TARGETS_OF},
    {"targets": torch.zeros(6, dtype=I32)},
    {"contextual_seq_len": 1},
    {"contextual_seq_len": 40},
    {"max_attn_len": 1},
    {"max_attn_len": 100},
    {"targets": TARGETS_OF, "contextual_seq_len": 7},
    {"targets": TARGETS_OF, "max_attn_len": 60},
    {"contextual_seq_len": 70, "max_attn_len": 33},
    {"targets": TARGETS_OF, "contextual_seq_len": 7, "max_attn_len": 100},
    {"targets": TARGETS_OF, "contextual_seq_len": 7, "max_attn_len": 100, "causal": False},
    {"targets": TARGETS_OF, "max_attn_len": 250, "causal": False},
    {"contextual_seq_len": 250, "causal": False},
]


@pytest.mark.parametrize("masks", MASKS, ids=lambda masks: ",".join(masks) or "causal")
def test_masks(target, masks):
    assert_parity(draw(LENGTHS, 2, 1, 64), LENGTHS, **masks)


@pytest.mark.parametrize(
    "dtype, size, value_size, heads, key_heads",
    [(F16, 64, 64, 2, 2), (BF16, 128, 128, 2, 1), (F16, 128, 64, 1, 1), (BF16, 40, 128, 3, 1), (BF16, 8, 8, 1, 1),
     (F16, 256, 256, 1, 1), (BF16, 136, 24, 2, 2)],
)  # fmt: skip
def test_sizes(target, dtype, size, value_size, heads, key_heads):
    lengths = (130, 3, 0, 64)
    problem = draw(lengths, heads, key_heads, size, value_size, dtype)
    targets = torch.tensor([66, 1, 0, 0], dtype=I32)
    assert_parity(problem, lengths, targets=targets, contextual_seq_len=2, max_attn_len=90)


@pytest.mark.parametrize("length", [1, 2, 17, 255, 257])
def test_one_sequence(target, length):
    assert_parity(draw((length,), 1, 1, 64, dtype=F16), (length,), scale=-0.3)


def test_gradients_of_rows_that_see_themselves_alone(target):
    """Where the single gradient of a score is all there is in a row, it is rounded once, as PyTorch's gradient of the weight is: a row's
    error may be any multiple of PyTorch's, either way, and over many rows neither is larger."""
    lengths = (1,) * 512
    *inputs, grad_out = draw(lengths, 2, 2, 8)
    options = 1, -0.3, False, 0, 0

    def ours(q, k, v):
        return hstu_attention(q, k, v, ends_of(lengths), 1, causal=False, scale=-0.3)

    def theirs(q, k, v):
        return in_torch(q, k, v, ends_of(lengths), None, *options)

    _, *found = with_gradients(ours, inputs, grad_out)
    _, *others = with_gradients(theirs, inputs, grad_out)
    _, *wanted = with_gradients(theirs, [each.double() for each in inputs], grad_out.double())

    def errors(result, reference):
        return (result.double() - reference).norm(dim=-1) / reference.norm(dim=-1)

    for result, other, reference in zip(found[:2], others[:2], wanted[:2], strict=True):
        mine, pytorchs = errors(result, reference), errors(other, reference)
        assert mine.square().mean().sqrt() <= 1.1 * pytorchs.square().mean().sqrt()
        assert (mine > 2 * pytorchs).any() and (pytorchs > 2 * mine).any()


def test_large_scores(target):
    """silu of a large score is the score itself if positive, and zero if negative."""
    lengths = (70, 33)
    assert_parity(draw(lengths, 2, 2, 64), lengths, scale=40.0, longest=4096)


@pytest.mark.parametrize("size", [64, 136])
def test_a_sequence_gets_the_same_bits_alone_and_packed(target, size):
    lengths, targets = (40, 257, 0, 130), torch.tensor([40, 12, 0, 70], dtype=I32)
    *inputs, grad_out = draw(lengths, 2, 1, size)
    masks = {"contextual_seq_len": 5, "max_attn_len": 80}
    packed = with_gradients(
        lambda *rows: hstu_attention(*rows, ends_of(lengths), 300, num_targets=targets, **masks),
        inputs,
        grad_out,
    )
    alone = []
    for b, part in enumerate(zip(*(rows.split(lengths) for rows in (*inputs, grad_out)), strict=True)):
        own = targets[b : b + 1]
        alone.append(
            with_gradients(
                lambda *rows, own=own: hstu_attention(
                    *rows, ends_of((len(rows[0]),)), 300, num_targets=own, **masks
                ),
                part[:3],
                part[3],
            )
        )
    for mine, each in zip(packed, zip(*alone, strict=True), strict=True):
        assert torch.equal(mine, torch.cat(each))


def test_strided_rows(target):
    """Rows of one product, with gaps full of NaN, and a gradient that is broadcast."""
    lengths = (70, 9)
    q, k, v, _ = draw(lengths, 2, 2, 64)
    wide = torch.full((79, 2, 4 * 64), float("nan"), dtype=BF16)
    for place, rows in enumerate((q, k, v)):
        wide[..., place * 64 : place * 64 + 64] = rows
    parts = [wide[..., place * 64 : place * 64 + 64] for place in range(3)]
    found = []
    for inputs in ((q, k, v), parts, [torch.nn.functional.pad(rows, (1, 0))[..., 1:] for rows in (q, k, v)]):
        leaves = [rows.detach().requires_grad_() for rows in inputs]
        out = hstu_attention(*leaves, ends_of(lengths), 70, max_attn_len=30)
        out.sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves)])
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_nothing(target):
    """No rows, and empty sequences."""
    for lengths in ((0,), (0, 0)):
        *inputs, grad_out = draw(lengths, 2, 1, 64)
        results = with_gradients(lambda *rows: hstu_attention(*rows, ends_of(lengths), 0), inputs, grad_out)  # noqa: B023
        assert [tuple(each.shape) for each in results] == [(0, 2, 64), (0, 2, 64), (0, 1, 64), (0, 1, 64)]


def test_in_pytorch_without_kernels(monkeypatch):
    lengths = (20, 9)
    *inputs, grad_out = draw(lengths, 2, 1, 64)
    targets = torch.tensor([3, 9], dtype=I32)

    def call(*rows):
        return hstu_attention(*rows, ends_of(lengths), 20, num_targets=targets, contextual_seq_len=4)

    with hipkittens.simulate("gfx950"):
        ours = with_gradients(call, inputs, grad_out)
    monkeypatch.setenv("HIPKITTENS_BACKEND", "torch")
    for mine, other in zip(ours, with_gradients(call, inputs, grad_out), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-2, rtol=1e-2)


def test_opcheck(target):
    q, k, v, grad_out = draw((9, 3), 4, 2, 16)
    leaves = [rows.requires_grad_() for rows in (q, k, v)]
    targets = torch.tensor([2, 3], dtype=I32)
    for operator, tensors in (("hstu_attention", leaves), ("hstu_attention_backward", (grad_out, q, k, v))):
        results = torch.library.opcheck(
            getattr(torch.ops.hipkittens, operator).default,
            (*(rows.detach() if operator.endswith("backward") else rows for rows in tensors), ends_of((9, 3)), targets, 9, 0.2, True, 4, 1),
        )  # fmt: skip
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(q, k, v, ends, longest, targets):
        return hstu_attention(torch.relu(q), k, v, ends, longest, num_targets=targets) * 2

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for lengths in ((9, 20), (40, 2)):
        q, k, v, grad_out = draw(lengths, 4, 2, 16)
        gradients = []
        for function in (compiled, block):
            leaf = q.detach().requires_grad_()
            out = function(leaf, k, v, ends_of(lengths), max(lengths), torch.tensor([1, 2], dtype=I32))
            out.backward(grad_out)
            gradients.append((out.detach(), leaf.grad))
        assert all(map(torch.equal, *gradients))


def test_flop_count(target):
    q, k, v, _ = draw((10, 4), 4, 2, 32, 16)
    with FlopCounterMode(display=False) as counter:
        hstu_attention(q.requires_grad_(), k, v, ends_of((10, 4)), 10).sum().backward()
    assert counter.get_total_flops() == 2 * 4 * (100 + 16) * (32 + 16 + 3 * 32 + 2 * 16)


def test_what_is_refused():
    q, k, v, _ = draw((4, 6), 4, 2, 16)

    def refused(error, match, *, rows=(q, k, v), ends=ends_of((4, 6)), longest=6, **options):  # noqa: B008
        with pytest.raises(error, match=f"hipkittens.hstu_attention: {match}"):
            hstu_attention(*rows, ends, longest, **options)

    refused(TypeError, "q is torch.float32; allowed", rows=(q.float(), k.float(), v.float()))
    refused(ValueError, "q has 10 rows and k 8; sequences attend to themselves", rows=(q, k[:8], v[:8]))
    refused(
        ValueError,
        "4 heads of q are not a multiple",
        rows=(q, k.repeat(1, 3, 1)[:, :3], v.repeat(1, 3, 1)[:, :3]),
    )
    refused(ValueError, "the head size is 12; allowed", rows=(q[..., :12], k[..., :12], v))
    refused(ValueError, "cu_seqlens is torch.int64", ends=ends_of((4, 6)).long())
    refused(
        ValueError,
        r"cu_seqlens is \[0, 4, 9\]; it must rise from 0 to the 10 rows of q",
        ends=ends_of((4, 5)),
    )
    refused(ValueError, "max_seqlen is 5 and the longest sequence of cu_seqlens has 6 rows", longest=5)
    refused(TypeError, "causal is 'no'; allowed: True, False", causal="no")
    refused(ValueError, "scale is inf; it must be finite", scale=float("inf"))
    refused(ValueError, r"max_attn_len is -1; it must be 0 \(none\) or more", max_attn_len=-1)
    refused(TypeError, "contextual_seq_len is 1.5; it must be a whole number", contextual_seq_len=1.5)
    refused(TypeError, "num_targets is list", num_targets=[1, 2])
    refused(ValueError, r"num_targets is torch.int64 of shape \(2,\)", num_targets=torch.tensor([1, 2]))
    refused(
        ValueError, r"num_targets is torch.int32 of shape \(1,\)", num_targets=torch.tensor([1], dtype=I32)
    )
    refused(
        ValueError, "num_targets is not contiguous", num_targets=torch.tensor([1, 0, 2, 0], dtype=I32)[::2]
    )
    for targets in ([5, 0], [0, -1]):
        refused(
            ValueError,
            r"num_targets is \[.*\] and the sequences have \[4, 6\] rows; each must be from 0",
            num_targets=torch.tensor(targets, dtype=I32),
        )
