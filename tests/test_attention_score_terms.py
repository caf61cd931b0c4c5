# SPDX-License-Identifier: MIT
"""Sinks, softcap, ALiBi and a separate head size for V in hipkittens.attention and attention_varlen, with their gradients."""

import pytest
import torch
from parity_attention import Terms, gradient_magnitudes, hidden, in_mixed_precision, score_magnitude, steps

import hipkittens
from hipkittens import attention, attention_varlen
from hipkittens._accuracy import BAR, compare
from hipkittens.attention import _in_torch

TARGETS = ("gfx942", "gfx950")
BF16, F16 = torch.bfloat16, torch.float16
INF = float("inf")


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def tensors(batch, n_q, n_k, heads, key_heads, size, value_size=None, dtype=BF16, seed=0):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    value_size = value_size or size
    return tuple(
        torch.randn(batch, rows, count, width, generator=generator).to(dtype)
        for rows, count, width in (
            (n_q, heads, size), (n_k, key_heads, size), (n_k, key_heads, value_size), (n_q, heads, value_size)
        )
    )  # fmt: skip


def results(function, inputs, grad_out, sinks):
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    sinks = None if sinks is None else sinks.detach().clone().requires_grad_()
    out, lse = function(*leaves, sinks)
    wanted = [*leaves, *([] if sinks is None else [sinks])]
    return [out.detach(), *torch.autograd.grad(out, wanted, grad_out.to(out.dtype)), lse.detach()]


def assert_parity(problem, terms, *, causal=False, window=(-1, -1), slopes=None):
    """Each result within twice the error of PyTorch's own with float32 scores and the inputs' dtype elsewhere."""
    *inputs, grad_out = problem
    n_q, n_k, scale = inputs[0].shape[1], inputs[1].shape[1], inputs[0].shape[-1] ** -0.5
    mask = hidden(n_q, n_k, causal, window)

    def ours(q, k, v, sinks):
        options = terms.options() if slopes is None else {**terms.options(), "alibi_slopes": slopes}
        return attention(q, k, v, causal=causal, window_size=window, sinks=sinks, return_lse=True, **options)

    mine = results(ours, inputs, grad_out, terms.sinks)
    exact = results(
        lambda q, k, v, sinks: steps(q, k, v, scale, mask, terms._replace(sinks=sinks)),
        [value.double() for value in inputs], grad_out, None if terms.sinks is None else terms.sinks.double(),
    )  # fmt: skip
    *theirs, lse, of_sinks = in_mixed_precision(*inputs, grad_out, None, scale, mask, terms)
    theirs += [lse] if of_sinks is None else [of_sinks, lse]
    worst = 0.0
    magnitudes = (
        inputs[2].double().abs().max().item(),
        *gradient_magnitudes(*inputs, grad_out, scale, mask, None, terms),
        score_magnitude(*inputs[:2], scale, terms),
    )
    for number, (own, other, wanted, magnitude) in enumerate(
        zip(mine, theirs, exact, magnitudes, strict=True)
    ):
        seen = ~wanted.isneginf()
        assert torch.equal(own.isneginf(), ~seen)
        result = compare(*(value.masked_fill(~seen, 0) for value in (own, other, wanted)), magnitude)
        ratio = max(result.ratio_max, result.ratio_rms)
        assert ratio <= BAR, (number, result)
        worst = max(worst, ratio)
    return worst


ALL = Terms(torch.tensor([0.5, -1.0, 3.0]), 5.0, torch.tensor([0.25, 0.0, 0.03125]))
CASES = {
    "sinks": Terms(sinks=ALL.sinks),
    "softcap": Terms(softcap=2.0),
    "wide softcap": Terms(softcap=50.0),
    "softcap far above": Terms(softcap=1000.0),
    "alibi": Terms(slopes=ALL.slopes),
    "all": ALL,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_gradients(target, name, size):
    dtype = F16 if size == 128 else BF16
    problem = tensors(2, 77, 130, 3, 1, size, dtype=dtype)
    assert_parity(problem, CASES[name], causal=size != 64, window=(-1, -1) if size != 256 else (50, -1))


@pytest.mark.parametrize("share", [0.865, 0.868])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_softcaps_polynomial_and_its_end(target, size, share):
    """A chunk of scores whose largest is this share of the cap: 0.866 is where the polynomial for tanh ends (score_terms.h)."""
    problem = tensors(1, 33, 70, 2, 1, size, dtype=BF16 if size == 128 else F16)
    q, k = (value.double().transpose(1, 2) for value in problem[:2])
    largest = (q @ k.mT).abs().max().item() * size**-0.5
    assert_parity(problem, Terms(softcap=largest / share))


@pytest.mark.parametrize("lengths", [(1, 1), (2, 257), (257, 17), (255, 255)])
def test_lengths(target, lengths):
    assert_parity(tensors(1, *lengths, 3, 3, 40), ALL, causal=lengths[0] != 2)


@pytest.mark.parametrize("size, value_size", [(192, 128), (64, 128), (128, 64), (40, 8), (256, 64), (8, 256)])
def test_head_sizes(target, size, value_size):
    dtype = BF16 if size > value_size else F16
    assert_parity(tensors(1, 130, 130, 4, 2, size, value_size, dtype), Terms(), causal=True)


def test_split_keys_count_the_sink_once(target):
    assert_parity(tensors(1, 3, 1500, 3, 1, 64), ALL)
    assert_parity(tensors(1, 5, 1500, 4, 1, 128, 64), Terms(sinks=torch.tensor([1.0, 8.0, -8.0, 0.0])))


def test_slopes_of_each_sequence(target):
    q, k, v, _grad_out = tensors(2, 33, 47, 3, 1, 64)
    slopes = torch.tensor([[0.5, 0.1, 0.0], [0.0, 0.3, 0.9]])
    both = attention(q, k, v, alibi_slopes=slopes, causal=True)
    for b in range(2):
        alone = attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], alibi_slopes=slopes[b], causal=True)
        assert torch.equal(both[b], alone[0])


def test_packed_sequences_give_the_same_bits(target):
    q, k, v, grad_out = (value[0] for value in tensors(1, 200, 200, 4, 2, 64, 32))
    ends = torch.tensor([0, 17, 17, 130, 200], dtype=torch.int32)
    slopes = torch.rand(4, 4, generator=torch.Generator().manual_seed(1))
    options = {"softcap": 4.0, "causal": True}

    def run(function, sinks):
        leaves = [value.detach().requires_grad_() for value in (q, k, v, sinks)]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, grad_out)]

    def apart(q, k, v, sinks):
        parts = [
            attention(*(value[None, begin:end] for value in (q, k, v)), sinks=sinks, alibi_slopes=slopes[b], **options)[0]
            for b, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)) if end > begin
        ]  # fmt: skip
        return torch.cat(parts)

    def together(q, k, v, sinks):
        return attention_varlen(q, k, v, ends, ends, 120, 120, sinks=sinks, alibi_slopes=slopes, **options)

    sinks = torch.tensor([0.0, 1.0, -2.0, 4.0])
    *packed, of_sinks = run(together, sinks)
    *separate, wanted = run(apart, sinks)
    assert all(map(torch.equal, packed, separate))
    torch.testing.assert_close(of_sinks, wanted, rtol=1e-5, atol=1e-5)


def test_the_lse_is_without_sinks_and_has_its_own_gradient(target):
    q, k, v, grad_out = tensors(2, 140, 160, 2, 1, 64)
    sinks = torch.tensor([2.0, -1.0])
    out, lse = attention(q, k, v, sinks=sinks, return_lse=True)
    plain, same = attention(q, k, v, return_lse=True)
    assert torch.equal(lse, same)
    share = torch.sigmoid(lse - sinks[:, None]).transpose(1, 2)[..., None]
    torch.testing.assert_close(out.float(), plain.float() * share, rtol=2**-7, atol=0)

    grad_lse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(2))

    def gradients(function, dtype):
        leaves = [value.detach().to(dtype).requires_grad_() for value in (q, k, v)]
        leaves.append(sinks.to(torch.promote_types(dtype, torch.float32)).requires_grad_())
        results = function(*leaves)
        return torch.autograd.grad(
            results, leaves, [grad_out.to(results[0].dtype), grad_lse.to(results[1].dtype)]
        )

    mask = hidden(140, 160, False, (-1, -1))
    mine = gradients(lambda q, k, v, s: attention(q, k, v, sinks=s, return_lse=True), BF16)
    exact = gradients(lambda q, k, v, s: steps(q, k, v, 0.125, mask, Terms(s)), torch.float64)
    *theirs, of_sinks = in_mixed_precision(q, k, v, grad_out, grad_lse, 0.125, mask, Terms(sinks))
    magnitudes = gradient_magnitudes(q, k, v, grad_out, 0.125, mask, grad_lse, Terms(sinks))
    for own, other, wanted, magnitude in zip(mine, [*theirs[1:4], of_sinks], exact, magnitudes, strict=True):
        result = compare(own, other, wanted, magnitude)
        assert max(result.ratio_max, result.ratio_rms) <= BAR


def test_sinks_that_take_all_or_nothing(target):
    q, k, v, grad_out = tensors(1, 20, 30, 5, 5, 64)
    sinks = torch.tensor([-INF, INF, 200.0, -200.0, 0.0]).requires_grad_()
    leaves = [value.requires_grad_() for value in (q, k, v)]
    out = attention(*leaves, sinks=sinks)
    plain = attention(q, k, v)
    assert torch.equal(out[:, :, [0, 3]], plain[:, :, [0, 3]])
    assert torch.equal(out[:, :, 1:3], torch.zeros_like(out[:, :, 1:3]))
    found = torch.autograd.grad(out, [*leaves, sinks], grad_out)
    assert all(bool(value.isfinite().all()) for value in found)
    assert not found[3][:4].any() and found[3][4] != 0


def test_a_sink_that_takes_nearly_all_leaves_gradients_their_digits(target):
    """dQ is summed in units of its bound, which has to shrink with the weight that the keys retain."""
    problem = tensors(1, 64, 64, 1, 1, 64)
    assert_parity(problem, Terms(sinks=torch.tensor([14.0])))


def test_queries_that_see_nothing(target):
    q, k, v, grad_out = tensors(1, 20, 10, 1, 1, 64)
    sinks = torch.zeros(1, requires_grad=True)
    leaf = q.requires_grad_()
    out, lse = attention(leaf, k, v, causal=True, sinks=sinks, softcap=3.0, return_lse=True)
    assert not out[:, :10].any() and bool(lse[..., :10].isneginf().all())
    of_q, of_sinks = torch.autograd.grad(out, (leaf, sinks), grad_out)
    assert not of_q[:, :10].any() and bool(of_sinks.isfinite())
    nothing = attention(q, k[:, :0], v[:, :0], sinks=sinks)
    assert not nothing.any() and not torch.autograd.grad(nothing.sum(), sinks)[0].any()


def test_two_runs_give_the_same_gradient_of_sinks(target):
    q, k, v, grad_out = tensors(3, 130, 70, 4, 1, 64)
    sinks = torch.nn.Parameter(torch.linspace(-1, 1, 4).bfloat16())
    first, again = (
        torch.autograd.grad(attention(q, k, v, sinks=sinks), sinks, grad_out)[0] for _ in range(2)
    )
    assert first.dtype == BF16 and torch.equal(first, again)


def test_operators_are_registered_for_all_of_it(compile_backend):
    q, k, v, _ = tensors(1, 9, 11, 2, 1, 64, 32)
    options = (0.125, True, -1, -1, 0.0, None, torch.zeros(2), 3.0, torch.ones(2))
    with hipkittens.simulate("gfx950"):
        leaves = [value.requires_grad_() for value in (q, k, v)]
        torch.library.opcheck(
            torch.ops.hipkittens.attention_forward, (*leaves, *options[:6], torch.zeros(2, requires_grad=True), *options[7:])
        )  # fmt: skip
        compiled = torch.compile(
            lambda *tensors, **more: attention(*tensors, **more), fullgraph=True, backend=compile_backend
        )
        more = {"causal": True, "sinks": torch.ones(2), "softcap": 3.0, "alibi_slopes": torch.ones(2)}
        assert torch.equal(compiled(q, k, v, **more), attention(q, k, v, **more))


def test_in_torch_has_the_same_meaning():
    q, k, v, _ = tensors(2, 20, 33, 3, 1, 64, 32)
    more = {
        "causal": True,
        "sinks": ALL.sinks,
        "softcap": 3.0,
        "alibi_slopes": torch.rand(2, 3),
        "return_lse": True,
    }
    with hipkittens.simulate("gfx942"):
        ours = attention(q, k, v, **more)
    more.pop("return_lse")
    theirs = _in_torch(q, k, v, 0.125, True, -1, -1, 0.0, more["sinks"], 3.0, more["alibi_slopes"])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.float(), other.float(), rtol=2**-6, atol=2**-6)


REFUSALS = (
    ({"softcap": -1.0}, ValueError, r"softcap is -1.0; it must be finite and 0 \(none\) or more"),
    ({"softcap": float("nan")}, ValueError, "softcap is nan"),
    ({"softcap": "3"}, TypeError, "softcap is '3'"),
    ({"sinks": torch.zeros(3)}, ValueError, r"sinks has shape \(3,\); it must be \(2,\)"),
    ({"sinks": torch.zeros(2, dtype=torch.int32)}, TypeError, "sinks is torch.int32"),
    ({"sinks": [0.0, 0.0]}, TypeError, "sinks is list"),
    ({"alibi_slopes": torch.zeros(1)}, ValueError, r"alibi_slopes has shape \(1,\); it must be \(2,\) or \(1, 2\)"),
    ({"alibi_slopes": torch.zeros(2).half()}, TypeError, "alibi_slopes is torch.float16"),
    ({"alibi_slopes": torch.zeros(2, requires_grad=True)}, ValueError, "alibi_slopes requires a gradient"),
    ({"softcap": 2.0, "dropout_p": 0.1}, ValueError, "dropout_p is 0.1 with softcap; no kernel has both"),
    ({"alibi_slopes": torch.ones(2), "dropout_p": 0.1}, ValueError, "dropout_p is 0.1 with alibi_slopes"),
)  # fmt: skip


@pytest.mark.parametrize("options, error, text", REFUSALS)
def test_bad_input(options, error, text):
    q, k, v, _ = tensors(1, 4, 4, 2, 1, 64)
    with hipkittens.simulate("gfx942"), pytest.raises(error, match=rf"^hipkittens\.attention: .*{text}"):
        attention(q, k, v, **options)


def test_value_sizes_without_a_kernel():
    q, k, v, _ = tensors(1, 4, 4, 2, 1, 64)
    with hipkittens.simulate("gfx942"):
        with pytest.raises(ValueError, match="the head size of v is 20; allowed: multiples of 8 up to 256"):
            attention(q, k, v[..., :20])
        with pytest.raises(ValueError, match="k and v differ in more than the head size"):
            attention(q, k, v[:, :3])
