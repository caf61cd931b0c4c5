# SPDX-License-Identifier: MIT
"""torch.func over every operation: grad, vjp and vmap compared with plain autograd and a loop; jvp is refused by name."""

import functools
import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import grad, jacrev, jvp, vjp, vmap

import hipkittens
from hipkittens import operations

CALLS, IN_PLACE = {}, {}
# Five write to an argument and return something: their own tests check the transforms; one draws, and each call differs.
APART = (
    "addmm_",
    "causal_conv1d_update",
    "gated_delta_step",
    "kimi_delta_step",
    "rotary_cache_write",
    "sample",
)


def writes_in_place(name):
    """Whether a function's operator returns nothing."""
    operator = getattr(torch.ops.hipkittens, name, None)
    return operator is not None and not operator.default._schema.returns


for _operation in operations.every():
    for _each in _operation.functions:
        if _each.name in APART:
            continue
        if writes_in_place(_each.name):
            IN_PLACE[_each.name] = (_each.function, functools.partial(_each.arguments, dtype=torch.bfloat16))
            continue
        CALLS[_each.name] = (
            functools.partial(_each.function, **_each.options),
            functools.partial(_each.arguments, dtype=torch.bfloat16),
        )
    for _example in operations.checks(_operation).examples:
        if _example.gradients:
            CALLS[f"example: {_example.title}"] = (
                _example.ours,
                lambda tensor, of=_example: tuple(
                    tensor(*shape, dtype=of.dtype) for shape in of.inputs.values()
                ),
            )
# Their derivative is refused by name.
HAVE_NO_DERIVATIVE = ("quantize", "gated_activation_quantize", "norm_quantize")
# Refused for each argument that could have one.
GETS_NO_GRADIENT = (
    "scaled_matmul",
    "scaled_matmul_concat_heads",
    "scaled_matmul_multiply_add",
    "attention_paged",
    "attention_of_codes",
    "attention_quantized",
    "attention_merge",
    "attention_mla",
    "attention_mla_sparse",
    "kimi_delta_attention",
    "mqa_logits",
    "mqa_logits_paged",
)
every_call = pytest.mark.parametrize("call", CALLS)


@pytest.fixture(autouse=True)
def gradients_are_recomputed(monkeypatch):
    """Make linear_cross_entropy recompute gradients outside of the transforms, too: those that it keeps are rounded once less."""
    monkeypatch.setattr("hipkittens.loss._SMALL_BYTES", 0)


def drawer(seed):
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=generator).to(dtype)

    return tensor


def outputs(call, *values):
    results = CALLS[call][0](*values)
    return tuple(each for each in results if each is not None) if isinstance(results, tuple) else (results,)


def made(call, seed=0):
    """The function as a scalar loss, its arguments, and the positions of those with a gradient."""
    _, arguments = CALLS[call]
    values = arguments(drawer(seed))

    def loss(*values):
        results = outputs(call, *values)
        return sum((result.float() * (index + 1)).square().sum() for index, result in enumerate(results))

    differentiable = tuple(
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and takes_gradient(loss, values, index)
    )
    return loss, values, differentiable


def takes_gradient(loss, values, index):
    """Whether an argument may have a gradient: tables of angles refuse one, and so do arguments without a derivative."""
    values = [v.clone().requires_grad_() if i == index else v for i, v in enumerate(values)]
    try:
        torch.autograd.grad(loss(*values), values[index])
    except ValueError as error:
        assert "requires a gradient and gets none" in str(error)
        return False
    except NotImplementedError as error:
        assert str(error).startswith(tuple(f"hipkittens: {name} has no" for name in HAVE_NO_DERIVATIVE))
        return False
    return True


def in_arithmetic(value):
    """Whether this is a tensor of other than 8-bit floats, with which PyTorch does not compute."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() and value.itemsize == 1)


def first_float(values):
    return next(
        index for index, value in enumerate(values) if in_arithmetic(value) and value.is_floating_point()
    )


def plain(loss, values, positions, **options):
    leaves = [v.clone().requires_grad_() if i in positions else v for i, v in enumerate(values)]
    return torch.autograd.grad(loss(*leaves), [leaves[i] for i in positions], **options)


def equal(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@every_call
def test_grad_is_that_of_plain_autograd(call):
    loss, values, positions = made(call)
    if call in (*HAVE_NO_DERIVATIVE, *GETS_NO_GRADIENT):
        assert not positions
        error, message = ValueError, f"{call}: .* requires a gradient and gets none"
        if call in HAVE_NO_DERIVATIVE:
            error, message = NotImplementedError, f"hipkittens: {call} has no derivative"
        with pytest.raises(error, match=message):
            grad(loss, first_float(values))(*values)
        return
    expected = plain(loss, values, positions)
    assert any(gradient.abs().max() > 0 for gradient in expected)
    assert equal(grad(loss, positions)(*values), expected)

    def of_differentiable(*some):
        given = dict(zip(positions, some, strict=True))
        return loss(*(given.get(index, value) for index, value in enumerate(values)))

    result, pull_back = vjp(of_differentiable, *(values[index] for index in positions))
    assert torch.equal(result, loss(*values)) and equal(pull_back(torch.ones(())), expected)


@every_call
def test_vmap_is_a_loop(call):
    loss, values, positions = made(call)
    mapped = (
        positions[0]
        if positions
        else next(filter(lambda index: in_arithmetic(values[index]), range(len(values))))
    )

    def given(one):
        return [one if index == mapped else value for index, value in enumerate(values)]

    many = torch.stack([values[mapped], made(call, 1)[1][mapped], values[mapped] * 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch's own fallback warns
        found = vmap(lambda one: outputs(call, *given(one)))(many)
    loop = [outputs(call, *given(one)) for one in many]
    assert equal(found, [torch.stack(each) for each in zip(*loop, strict=True)])
    if call in (*HAVE_NO_DERIVATIVE, *GETS_NO_GRADIENT):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        each = vmap(grad(lambda one: loss(*given(one))))(many)
    expected = [plain(loss, given(one), (mapped,))[0] for one in many]
    assert torch.equal(each, torch.stack(expected))
    leaf = many.clone().requires_grad_()
    total = vmap(lambda one: loss(*given(one)), in_dims=1)(leaf.movedim(0, 1)).sum()
    assert torch.equal(torch.autograd.grad(total, leaf)[0], torch.stack(expected))


@every_call
def test_a_forward_mode_derivative_is_refused(call):
    loss, values, positions = made(call)
    mapped = positions[0] if positions else first_float(values)

    def of_one(one):
        return loss(*(one if index == mapped else value for index, value in enumerate(values)))

    one = values[mapped]
    refused = pytest.raises(
        NotImplementedError, match=r"hipkittens: \w+ has no forward-mode derivative .*jvp.*; use reverse"
    )
    with refused:
        jvp(of_one, (one,), (one,))
    with refused, forward_ad.dual_level():
        of_one(forward_ad.make_dual(one, one))
    with forward_ad.dual_level():  # nothing to refuse
        assert torch.equal(loss(*values), loss(*values))


def test_an_operator_in_place_refuses_a_tangent():
    x, cos, sin = drawer(0)(1, 8, 2, 16), *drawer(1)(2, 8, 8)
    with (
        torch.no_grad(),
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="rotary_ has no forward"),
    ):
        hipkittens.rotary(forward_ad.make_dual(x.clone(), x), cos, sin, inplace=True)


def distinct_integers(seed):
    """Like drawer(); it is unspecified which of two rows for one slot stays."""
    tensor, generator = drawer(seed), torch.Generator().manual_seed(seed)

    def drawn(*shape, dtype=torch.bfloat16):
        if dtype.is_floating_point:
            return tensor(*shape, dtype=dtype)
        if dtype == torch.uint8:  # a quantized cache
            return torch.randint(256, shape, generator=generator).to(dtype)
        return torch.randperm(*shape, generator=generator)

    return drawn


@pytest.mark.parametrize("call", IN_PLACE)
def test_what_only_writes(call):
    """A derivative and a tangent are refused; vmap is a loop over rows and caches."""
    function, arguments = IN_PLACE[call]
    values = arguments(distinct_integers(0))
    with pytest.raises(ValueError, match="requires a gradient and gets none"):
        grad(lambda one: function(one, *values[1:]).sum())(values[0])
    with pytest.raises(NotImplementedError, match=f"{call} has no forward"), forward_ad.dual_level():
        function(forward_ad.make_dual(values[0], values[0]), *values[1:])
    two = [tuple(each.clone() for each in arguments(distinct_integers(seed))) for seed in (1, 2)]
    stacked = [torch.stack(each) for each in zip(*two, strict=True)]
    vmap(function, out_dims=None)(*stacked)
    for index, one in enumerate(two):
        function(*one)
        assert equal([each[index] for each in stacked], one)
    with pytest.raises(RuntimeError, match="which is not mapped"):
        vmap(lambda row: function(row, *values[1:]), out_dims=None)(stacked[0])


@pytest.mark.parametrize("call", ["matmul", "linear", "rotary", "rotary_qk"])
def test_second_derivatives(call):
    loss, values, _ = made(call)

    def of_gradient(gradient):
        return gradient.float().pow(3).sum()

    leaf = values[0].clone().requires_grad_()
    first = torch.autograd.grad(loss(leaf, *values[1:]), leaf, create_graph=True)[0]
    (expected,) = torch.autograd.grad(of_gradient(first), leaf)
    found = grad(lambda one: of_gradient(grad(loss)(one, *values[1:])))(values[0])
    assert torch.equal(found, expected) and found.abs().max() > 0


@pytest.mark.parametrize(
    "call", ["attention", "attention_varlen", "layer_norm", "rms_norm", "gated_activation"]
)
def test_second_derivatives_are_refused(call):
    loss, values, _ = made(call)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        grad(lambda one: grad(loss)(one, *values[1:]).float().pow(3).sum())(values[0])


def test_transforms_within_each_other():
    a, b = drawer(0)(2, 3, 8, 16), drawer(1)(16, 8)
    found = vmap(vmap(hipkittens.matmul, in_dims=(0, None)), in_dims=(1, None))(a, b)
    assert torch.equal(found, hipkittens.matmul(a, b).transpose(0, 1))
    rows = jacrev(lambda one: hipkittens.matmul(one, b))(a[0, 0])
    expected = torch.autograd.functional.jacobian(lambda one: hipkittens.matmul(one, b), a[0, 0])
    assert torch.equal(rows, expected)


def test_what_is_in_place_must_be_mapped():
    x, (cos, sin) = drawer(0)(3, 1, 8, 2, 16), drawer(1)(2, 8, 8)
    expected = torch.stack([hipkittens.rotary(one, cos, sin) for one in x])
    turned = x.clone()
    vmap(lambda one: hipkittens.rotary(one, cos, sin, inplace=True))(turned)
    assert torch.equal(turned, expected)
    with pytest.raises(RuntimeError, match=r"rotary_ under torch\.func\.vmap writes to x, which is not"):
        vmap(lambda table: hipkittens.rotary(x[0].clone(), table, sin, inplace=True))(torch.stack([cos, cos]))


def test_a_compiled_transform():
    a, b = drawer(0)(8, 16), drawer(1)(16, 8)

    def step(a, b):
        return grad(lambda a: hipkittens.matmul(a, b).float().square().sum())(a)

    assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(a, b), step(a, b))
