# SPDX-License-Identifier: MIT
"""The fast path of an operator call next to the dispatcher's, and checks that run once per problem."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens import _backend, _call

BF16 = torch.bfloat16


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def dispatched(monkeypatch):
    """Names of operators that `call` left to the dispatcher."""
    names = []

    class Operators:
        def __getattr__(self, name):
            names.append(name)
            return getattr(torch.ops.hipkittens, name)

    class Namespace:
        OPERATORS = Operators()

    monkeypatch.setattr(_call, "_namespace", Namespace())
    return names


def product(a, b):
    return _call.call("gemm", a, b, None, BF16, False)


def pair(requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(24, 24, dtype=BF16, generator=generator).requires_grad_(requires_grad) for _ in range(2)
    ]


def test_both_ways_give_the_same(dispatched):
    a, b = pair()
    assert torch.equal(product(a, b), torch.ops.hipkittens.gemm(a, b, None, BF16, False))
    leaves, others = pair(True), pair(True)
    short = torch.autograd.grad(product(*leaves).float().square().sum(), leaves, create_graph=True)
    assert not dispatched
    long = torch.autograd.grad(
        torch.ops.hipkittens.gemm(*others, None, BF16, False).float().square().sum(),
        others,
        create_graph=True,
    )
    assert all(map(torch.equal, short, long))
    twice = [
        torch.autograd.grad(sum(g.float().pow(3).sum() for g in each), of)
        for each, of in ((short, leaves), (long, others))
    ]
    assert all(map(torch.equal, *twice))


def test_parameters_and_disabled_gradients_take_the_short_way(dispatched):
    a, b = pair()
    parameter = torch.nn.Parameter(a)
    assert product(parameter, b).requires_grad
    with torch.no_grad():
        assert not product(parameter, b).requires_grad
    with torch.inference_mode():
        assert product(parameter, b).is_inference()
    assert not dispatched


def test_a_defaulted_argument_reaches_the_derivative():
    q = torch.randn(1, 8, 1, 64, dtype=BF16, requires_grad=True)
    options = (q, q, 0.125, False, -1, -1)  # without dropout_p and seed
    out, _ = _call.call("attention_forward", q, *options)
    expected, _ = torch.ops.hipkittens.attention_forward(q, *options)
    ones = torch.ones_like(out)
    assert torch.equal(torch.autograd.grad(out, q, ones)[0], torch.autograd.grad(expected, q, ones)[0])


def test_whatever_listens_is_told(dispatched):
    a, b = pair()
    with Seen() as seen:
        product(a, b)
    assert "gemm" in seen.names and dispatched == ["gemm"]
    with FlopCounterMode(display=False) as counter:
        product(a, b)
    assert counter.get_total_flops() == 2 * 24**3

    class Subclass(torch.Tensor):
        pass

    assert isinstance(product(a.as_subclass(Subclass), b), Subclass)
    assert dispatched == ["gemm"] * 3
    assert torch.func.grad(lambda a: product(a, b).float().sum())(a).shape == a.shape
    assert dispatched == ["gemm"] * 5  # and the gradient's product


def test_an_operator_that_writes_goes_through_the_dispatcher(dispatched):
    x = torch.randn(1, 4, 1, 16, dtype=BF16)
    before = x._version
    hipkittens.rotary(x, torch.ones(4, 8), torch.zeros(4, 8), inplace=True)
    assert dispatched == ["rotary_"] and x._version > before


def checked():
    seen = []

    @_backend.checked_once(0, 1)
    def check(a, b, option):
        seen.append(option)
        if not isinstance(a, torch.Tensor) or a.dtype != BF16:
            raise TypeError("refused")
        return float(option)

    return check, seen


def test_a_check_runs_once_for_each_problem():
    check, seen = checked()
    a, b = pair()
    assert [check(a, b, 1), check(b, a, 1), check(a, None, 1), check(a, b, 2)] == [1.0, 1.0, 1.0, 2.0]
    assert seen == [1, 1, 2]
    check(a[:12], b, 1)
    check(a, b.to("meta"), 1)
    with hipkittens.simulate():
        check(a, b, 1)
    assert len(seen) == 6


def test_what_is_refused_is_refused_again():
    check, seen = checked()
    a, b = pair()
    for _ in range(2):
        for value in (a.float(), "a", None):
            with pytest.raises(TypeError, match="refused") as refused:
                check(value, b, 1)
            assert refused.value.__context__ is None
    assert len(seen) == 6


def test_values_that_may_change_are_looked_at_each_time():
    check, _ = checked()
    a, b = pair()
    option = torch.tensor(1.0)
    assert check(a, b, option) == 1.0
    option += 1
    assert check(a, b, option) == 2.0
    q = torch.linspace(-0.1, 0.1, 256, dtype=BF16).view(1, 4, 1, 64)
    scale = torch.tensor(0.5)
    first = hipkittens.attention(q, q, q, scale=scale)
    scale *= 4
    assert not torch.equal(first, hipkittens.attention(q, q, q, scale=scale))
    with pytest.raises(TypeError, match="window_size"):
        hipkittens.attention(q, q, q, window_size=[1, 2, 3])
    assert torch.equal(
        hipkittens.attention(q, q, q, window_size=[1, 0]), hipkittens.attention(q, q, q, window_size=(1, 0))
    )


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(_backend, "_LARGEST_MEMORY", 4)
    check, seen = checked()
    a, b = pair()
    for option in range(9):
        check(a, b, option)
    check(a, b, 8)
    assert len(seen) == 9
    check(a, b, 0)
    assert len(seen) == 10
