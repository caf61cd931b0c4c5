# SPDX-License-Identifier: MIT
"""moe: a mixture-of-experts layer compared with float64 and PyTorch, its gradients, and refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import moe
from hipkittens.operations._expert_sort_checks import drawn_experts
from hipkittens.operations._moe_checks import by_tokens
from tests.simulated_device import TARGETS

HIDDEN, INNER = 64, 40
HERE = torch.tensor([0, -1, 1, -1, 2, -1, 3, -1], dtype=torch.int32)


def drawn(tokens, experts, k, dtype, held=None, bias=False, seed=3, inner=INNER):
    """Arguments of moe without the ids, and the ids: k different experts per token."""
    generator = torch.Generator().manual_seed(seed)
    held = held or experts

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    arguments = [
        random(tokens, HIDDEN),
        random(held, 2 * inner, HIDDEN, scale=HIDDEN**-0.5),
        random(held, HIDDEN, inner, scale=inner**-0.5),
        torch.rand((tokens, k), generator=generator).to(dtype),
    ]
    if bias:
        arguments += [random(held, 2 * inner), random(held, HIDDEN)]
    return arguments, drawn_experts(tokens, experts, k, "cpu", generator)


def ours(ids, **options):
    def layer(x, w1, w2, weights, bias1=None, bias2=None):
        return moe(x, w1, w2, weights, ids, bias1=bias1, bias2=bias2, **options)

    return layer


def result_and_gradients(layer, dtype, arguments, grad):
    leaves = [value.detach().to(dtype).requires_grad_() for value in arguments]
    out = layer(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]


def assert_within_twice(found, reference, dtype, arguments, grad):
    """In norm, and in the largest element."""
    exact = result_and_gradients(reference, torch.float64, arguments, grad)
    torchs = result_and_gradients(reference, dtype, arguments, grad)
    for name, a, b, c in zip(
        ("out", "x", "w1", "w2", "weights", "bias1", "bias2"), found, torchs, exact, strict=False
    ):
        for error in (torch.Tensor.norm, lambda value: value.abs().max()):
            mine, allowed = error(a.double() - c), 2 * error(b.double() - c)
            assert mine <= allowed, f"{name}: error {mine:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_layer_and_its_gradients(target, dtype, experts):
    """All experts here, half of them, and every token to one expert."""
    held = HERE if experts == "half" else None
    arguments, ids = drawn(33, 8, 2, dtype, held=4 if experts == "half" else 8)
    if experts == "one":
        ids = torch.full_like(ids, 5)
    grad = torch.randn(33, HIDDEN, generator=torch.Generator().manual_seed(4))
    with hipkittens.simulate(target, checks="all"):
        found = result_and_gradients(ours(ids, expert_map=held), dtype, arguments, grad)
    assert_within_twice(found, by_tokens(ids, held=held), dtype, arguments, grad)


OPTIONS = [
    {"kind": "swiglu", "interleaved": True, "limit": 1.0},
    {"kind": "gelu_tanh", "weight_input": True},
    {"kind": "silu", "limit": 0.5},
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_options_and_biases(target, options):
    arguments, ids = drawn(65, 8, 2, torch.bfloat16, bias=True, inner=17)
    grad = torch.randn(65, HIDDEN, generator=torch.Generator().manual_seed(4))
    given = {{"kind": "activation", "limit": "swiglu_limit"}.get(key, key): v for key, v in options.items()}
    with hipkittens.simulate(target, checks="all"):
        found = result_and_gradients(ours(ids, **given), torch.bfloat16, arguments, grad)
    assert_within_twice(found, by_tokens(ids, **options), torch.bfloat16, arguments, grad)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ("silu", "gelu"))
def test_without_a_gate(target, kind):
    (x, w1, *others), ids = drawn(33, 8, 2, torch.bfloat16, bias=True)
    w2, weights, bias1, bias2 = others
    arguments = [x, w1[:, :INNER], w2, weights, bias1[:, :INNER], bias2]
    grad = torch.randn(33, HIDDEN, generator=torch.Generator().manual_seed(4))
    with hipkittens.simulate(target, checks="all") as run:
        found = result_and_gradients(ours(ids, activation=kind, gated=False), torch.bfloat16, arguments, grad)
    assert not run.findings
    assert_within_twice(found, by_tokens(ids, kind, gated=False), torch.bfloat16, arguments, grad)


def test_under_autocast():
    """Results and gradients are those of tensors converted beforehand, with gradients in float32."""
    arguments, ids = drawn(20, 8, 2, torch.bfloat16, bias=True)
    grad = torch.randn(20, HIDDEN, generator=torch.Generator().manual_seed(4))
    expected = result_and_gradients(ours(ids), torch.bfloat16, arguments, grad)
    leaves = [value.float().requires_grad_() for value in arguments]
    with torch.autocast("cpu", torch.bfloat16):
        out = ours(ids)(*leaves)
    assert out.dtype == torch.bfloat16 and torch.equal(out, expected[0])
    for mine, theirs in zip(torch.autograd.grad(out, leaves, grad.bfloat16()), expected[1:], strict=True):
        assert mine.dtype == torch.float32 and torch.allclose(mine, theirs.float(), rtol=2**-7, atol=2**-14)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("experts, k", [(8, 2), (128, 8), (512, 10)])
@pytest.mark.parametrize("tokens", (0, 1, 7, 64, 257))
def test_tokens_and_experts(target, tokens, experts, k):
    arguments, ids = drawn(tokens, experts, k, torch.bfloat16, inner=16)
    with hipkittens.simulate(target):
        found = moe(*arguments, ids)
    assert found.shape == (tokens, HIDDEN) and found.dtype == torch.bfloat16
    if tokens:
        exact = by_tokens(ids)(*(value.double() for value in arguments))
        error = (found.double() - exact).norm()
        assert error <= 2 * (by_tokens(ids)(*arguments).double() - exact).norm()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", (1, 7, 257))
@pytest.mark.parametrize("interleaved", (False, True))
def test_without_gradients_no_launch_gathers_rows(target, tokens, interleaved):
    """The same bits in one launch less; an expert map, tokens apart and at an odd address are gathered as well."""
    (x, *arguments), ids = drawn(tokens, 8, 2, torch.bfloat16, bias=True)
    layer = ours(ids, interleaved=interleaved, expert_map=HERE)
    odd = torch.zeros(tokens * HIDDEN + 1, dtype=x.dtype)[1:].view(tokens, HIDDEN).copy_(x)
    wide = torch.zeros(tokens, HIDDEN + 8, dtype=x.dtype)
    wide[:, 8:] = x
    with hipkittens.simulate(target, checks="all") as run:
        expected = layer(x.clone().requires_grad_(), *arguments).detach()
        for each in (x, odd, wide[:, 8:]):
            assert torch.equal(layer(each, *arguments), expected)
    assert not run.findings
    with hipkittens.timing("MI300X" if target == "gfx942" else "MI355X") as run:
        layer(x, *arguments)
    assert [launch.kernel for launch in run.launches if "gather" in launch.kernel] == []


def test_weights_that_would_be_copied_are_read_where_they_are():
    """Rows an odd number of elements apart: a launch gathers the rows of tokens for a kernel that loads single elements."""
    (x, w1, *arguments), ids = drawn(7, 8, 2, torch.bfloat16)
    wide = torch.zeros(*w1.shape[:2], HIDDEN + 1, dtype=w1.dtype)
    wide[..., :HIDDEN] = w1
    with hipkittens.timing("MI355X") as run:
        found = ours(ids)(x, wide[..., :HIDDEN], *arguments)
    assert [launch.kernel for launch in run.launches if "gather" in launch.kernel]
    with hipkittens.simulate("gfx950"):
        assert torch.equal(found, ours(ids)(x, w1, *arguments))


def test_two_runs_and_permuted_tokens_give_the_same_bytes():
    arguments, ids = drawn(64, 8, 2, torch.bfloat16)
    x, w1, w2, weights = arguments
    first = moe(x, w1, w2, weights, ids)
    assert torch.equal(first, moe(x, w1, w2, weights, ids))
    turned = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first[turned], moe(x[turned], w1, w2, weights[turned], ids[turned]))


def test_devices_of_expert_parallelism_sum_to_the_layer():
    (x, w1, w2, weights), ids = drawn(48, 8, 2, torch.bfloat16)
    maps = [torch.tensor([i % 4 if i // 4 == rank else -1 for i in range(8)]).int() for rank in range(2)]
    parts = [
        moe(x, w1[4 * rank :][:4], w2[4 * rank :][:4], weights, ids, expert_map=maps[rank])
        for rank in range(2)
    ]
    exact = by_tokens(ids)(*(value.double() for value in (x, w1, w2, weights)))
    whole = moe(x, w1, w2, weights, ids)
    # Each part is rounded once more.
    bound = 2 * (whole.double() - exact).norm()
    assert ((parts[0].double() + parts[1].double()) - exact).norm() <= bound


def test_ids_of_no_expert_and_views():
    arguments, ids = drawn(20, 8, 2, torch.bfloat16)
    x, w1, w2, weights = arguments
    nowhere = ids.clone()
    nowhere[3], nowhere[4] = -1, 8
    found = moe(x, w1, w2, weights, nowhere)
    expected = moe(x, w1, w2, weights, ids)
    assert not found[3:5].any() and torch.equal(found[5:], expected[5:])
    wide = torch.full((20, 200), float("nan"), dtype=torch.bfloat16)
    view = wide[:, 1::2][:, 3 : 3 + HIDDEN]
    view.copy_(x)
    columns = weights.T.contiguous().T
    assert torch.equal(moe(view, w1, w2.mT.contiguous().mT, columns, ids.long()), expected)
    parameters = [torch.nn.Parameter(value) for value in (w1, w2)]
    assert torch.equal(moe(x, *parameters, weights, ids), expected)


def test_compiled(monkeypatch):
    arguments, ids = drawn(16, 8, 2, torch.bfloat16)
    expected = moe(*arguments, ids)
    assert torch.equal(torch.compile(ours(ids), fullgraph=True)(*arguments), expected)
    monkeypatch.setattr("hipkittens._backend.uses_torch", lambda: True)
    exact = by_tokens(ids)(*(value.double() for value in arguments))
    assert (moe(*arguments, ids).double() - exact).norm() <= 2 * (expected.double() - exact).norm()


(X, W1, W2, WEIGHTS), IDS = drawn(4, 8, 2, torch.bfloat16)
WRONG = [
    (lambda: moe(X.float(), W1, W2, WEIGHTS, IDS), TypeError, "moe: x is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda: moe(X, W1.half(), W2, WEIGHTS, IDS), TypeError, "w1 is torch.float16 and x is torch.bfloat16"),
    (lambda: moe(X[0], W1, W2, WEIGHTS, IDS), ValueError, "x has shape (64,); it needs 2 dimensions"),
    (lambda: moe(X, W1[:, 1:], W2, WEIGHTS, IDS), ValueError, "w1 has shape (8, 79, 64); it needs (E, 2 I, H)"),
    (lambda: moe(X[:, 1:], W1, W2, WEIGHTS, IDS), ValueError, "w1 has shape (8, 80, 64) and x (4, 63)"),
    (lambda: moe(X, W1, W2.mT, WEIGHTS, IDS), ValueError, "w2 has shape (8, 40, 64); with w1 (8, 80, 64) it needs (8, 64, 40)"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS[:3]), ValueError, "topk_ids has shape (3, 2); it needs (4, k)"),
    (lambda: moe(X, W1, W2, WEIGHTS[:, :1], IDS), ValueError, "topk_weights has shape (4, 1); it needs that of topk_ids, (4, 2)"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS.float()), TypeError, "moe: topk_ids is torch.float32; allowed"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS, activation="selu"), ValueError, "activation is 'selu'; allowed: 'silu'"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS, bias1=X), ValueError, "bias1 has shape (4, 64); it needs (8, 80)"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS, interleaved="yes"), TypeError, "interleaved"),
    (lambda: moe(X, W1, W2, WEIGHTS, IDS, gated=False), ValueError, "w2 has shape (8, 64, 40); with w1 (8, 80, 64) it needs (8, 64, 80)"),
    (lambda: moe(X, W1[:, :40], W2, WEIGHTS, IDS, gated=False, activation="swiglu"), ValueError, "activation is 'swiglu'; allowed: 'silu'"),
    (lambda: moe(X, W1[:, :40], W2, WEIGHTS, IDS, gated=False, interleaved=True), ValueError, "interleaved is True and gated False"),
    (lambda: moe(X, W1[:, :40], W2, WEIGHTS, IDS, gated=False, swiglu_limit=1.0), ValueError, "swiglu_limit is 1.0 and gated False"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", WRONG)
def test_bad_input(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
