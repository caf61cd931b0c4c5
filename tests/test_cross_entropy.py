# SPDX-License-Identifier: MIT
"""hipkittens.cross_entropy and linear_cross_entropy through the public API."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _accuracy, _backend, cross_entropy, linear_cross_entropy, loss

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_(grad)


def classes_of(rows, classes, ignored=()):
    chosen = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(5))
    chosen[list(ignored)] = -100
    return chosen


def reference(logits, chosen, label_smoothing=0.0, z_loss=0.0, softcap=None):
    return loss.in_torch(logits, chosen, -100, label_smoothing, z_loss, softcap)


def with_gradients(function, leaves, weights):
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    total = sum(
        (result * weight.to(result.dtype)).sum() for result, weight in zip(results, weights, strict=True)
    )
    return *(result.detach() for result in results), *torch.autograd.grad(total, leaves)


def assert_as_accurate(ours, theirs, exact):
    """A gradient is the exponential of a difference from the logarithm of a sum: one rounding of that logarithm is a relative error in it.
    Whether PyTorch's rounding is as large depends on the vector width of the CPU on which it sums."""
    logarithm = max(1.0, exact[0].abs().max().item())
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        largest = right.abs().max().item() * (logarithm if right.dim() == 2 else 1.0)
        comparison = _accuracy.compare(mine, other, right, largest)
        assert comparison.passes, comparison


OPTIONS = {"plain": {}, "all": {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 30.0}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 17, 255, 257, 4096, 4104, 17000, 50257])
def test_the_error_is_at_most_twice_torchs(target, dtype, columns, options):
    rows = 12 if columns < 1000 else 3
    logits, chosen = draw(rows, columns, dtype=dtype, scale=3.0), classes_of(rows, columns, (1,))
    weights = draw(2, rows, dtype=F32, seed=3).unbind()

    def ours(x):
        return cross_entropy(x, chosen, reduction="none", return_entropy=True, **options)

    run = [
        with_gradients(function, [leaf], weights)
        for function, leaf in (
            (ours, logits),
            (lambda x: reference(x, chosen, **options), logits),
            (lambda x: reference(x, chosen, **options), logits.double()),
        )
    ]
    assert run[0][0].dtype == F32 and run[0][2].dtype == dtype
    assert_as_accurate(*run)
    if not options:  # the other kernel
        mine = with_gradients(lambda x: cross_entropy(x, chosen, reduction="none"), [logits], weights[:1])

        def theirs(x):
            return F.cross_entropy(x.to(torch.promote_types(x.dtype, F32)), chosen, reduction="none")

        theirs, exact = (with_gradients(theirs, [leaf], weights[:1]) for leaf in (logits, logits.double()))
        assert_as_accurate(mine, theirs, exact)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions(target, reduction):
    logits, chosen = draw(9, 40, dtype=F32, grad=True), classes_of(9, 40, (0, 4))
    mine, right = (
        with_gradients(lambda x, f=f: f(x, chosen, reduction=reduction), [logits], [torch.ones(())])
        for f in (cross_entropy, F.cross_entropy)
    )
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-7)


def test_nothing_to_learn_from(target):
    logits = draw(3, 40, dtype=F32, grad=True)
    chosen = torch.full((3,), -100)
    assert cross_entropy(logits, chosen).isnan()  # 0 / 0, as in PyTorch
    (gradient,) = torch.autograd.grad(cross_entropy(logits, chosen, reduction="sum"), logits)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_single_class_has_no_gradient(target, softcap):
    """Its probability is 1, with and without smoothing; what is left is the gradient of z_loss."""
    logits, chosen, z_loss = draw(20, 1, dtype=F32, scale=5.0), torch.zeros(20, dtype=torch.int64), 1e-3
    for label_smoothing in (0.0, 0.1):
        options = {"label_smoothing": label_smoothing, "softcap": softcap, "reduction": "sum"}
        x = logits.clone().requires_grad_()
        (none,) = torch.autograd.grad(cross_entropy(x, chosen, **options), x)
        assert not none.any()
        (mine,) = torch.autograd.grad(cross_entropy(x, chosen, z_loss=z_loss, **options), x)
        exact = logits.double().requires_grad_()
        capped = softcap * torch.tanh(exact / softcap) if softcap else exact
        (right,) = torch.autograd.grad((z_loss * capped**2).sum(), exact)
        torch.testing.assert_close(mine, right.float(), rtol=2**-20, atol=0)


def test_an_ignored_row_may_hold_anything(target):
    logits = draw(4, 70, dtype=F32)
    logits[1] = math.nan
    logits[2] = math.inf
    chosen = torch.tensor([3, -100, 7, -100])
    chosen[2] = -100
    losses, entropy = cross_entropy(logits.requires_grad_(), chosen, reduction="none", return_entropy=True)
    assert (losses[1:] == 0).all() and (entropy[1:] == 0).all() and losses[0] > 0
    (gradient,) = torch.autograd.grad(losses.sum() + entropy.sum(), logits)
    assert (gradient[1:] == 0).all() and gradient[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("columns", [40, 4096])
def test_infinities_and_nans(target, dtype, columns):
    logits = draw(5, columns, dtype=dtype)
    logits[0, 5:] = -math.inf  # masked classes
    logits[1, 3] = math.nan
    logits[2] = -math.inf
    logits[3, 7] = math.inf
    logits[4] *= 1000
    chosen = torch.tensor([2, 2, 2, 2, 9])
    mine, right = (
        with_gradients(lambda x, f=f: f(x), [logits], [torch.ones(5)])
        for f in (
            lambda x: cross_entropy(x, chosen, reduction="none"),
            lambda x: F.cross_entropy(x.float(), chosen, reduction="none"),
        )
    )
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2 if dtype == BF16 else 2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("late", [8, 4096 + 8, 16384 + 8, 20000 - 1])
def test_the_largest_value_comes_late(target, late):
    logits = draw(2, 20000, dtype=F32)
    logits[:, late] = 90.0
    chosen = torch.tensor([late, 0])
    torch.testing.assert_close(
        cross_entropy(logits, chosen, reduction="none"),
        F.cross_entropy(logits, chosen, reduction="none"),
        rtol=1e-6,
        atol=1e-7,
    )


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70, dtype=F32)
    for x in (
        storage[..., 3:43],
        storage.transpose(0, 2)[..., :64],
        storage[:, 2],
        storage[0, 0, 0],
        storage[:0],
    ):
        ours = partial(cross_entropy, target=torch.randint(x.shape[-1], x.shape[:-1]), reduction="none")
        weights = [torch.ones(x.shape[:-1])]
        mine, other = (with_gradients(ours, [leaf], weights) for leaf in (x, x.contiguous()))
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_offsets_inside_a_storage(target):
    flat, chosen = draw(1 + 4 * 66), classes_of(4, 66)
    for first in (0, 1):
        x = flat[first : first + 4 * 66].view(4, 66)
        assert torch.equal(cross_entropy(x, chosen), cross_entropy(x.clone(), chosen))


def test_targets_that_are_not_dense(target):
    logits, chosen = draw(6, 40, dtype=F32), classes_of(12, 40)[::2]
    assert torch.equal(cross_entropy(logits, chosen), cross_entropy(logits, chosen.clone()))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("recompute", [None, True, False])
@pytest.mark.parametrize(("rows", "features", "classes"), [(1, 8, 17), (300, 64, 1000), (37, 40, 2049)])
def test_linear(target, monkeypatch, dtype, reduction, recompute, rows, features, classes):
    if recompute is False and (reduction == "none" or dtype == F16):
        pytest.skip("refused: test_bad_input")
    monkeypatch.setattr(loss, "_SMALL_BYTES", 1 << 17)  # several parts
    x, weight, bias = draw(rows, features, dtype=dtype), draw(classes, features, dtype=dtype, seed=1, scale=0.3), draw(classes, dtype=dtype, seed=2)  # fmt: skip
    chosen = classes_of(rows, classes, range(1, rows, 3))
    weights = [draw(rows, dtype=F32, seed=4) if reduction == "none" else torch.tensor(1.0)]

    def ours(x, weight, bias):
        return linear_cross_entropy(x, weight, chosen, bias, reduction=reduction, recompute=recompute)

    def theirs(x, weight, bias):
        logits = F.linear(x, weight, bias)
        return F.cross_entropy(logits.to(torch.promote_types(x.dtype, F32)), chosen, reduction=reduction)

    leaves = [x, weight, bias]
    assert_as_accurate(
        with_gradients(ours, leaves, weights),
        with_gradients(theirs, leaves, weights),
        with_gradients(theirs, [leaf.double() for leaf in leaves], weights),
    )


@pytest.mark.parametrize("recompute", [True, False])
def test_linear_takes_all_options(target, recompute):
    x, weight = draw(40, 32, grad=True), draw(100, 32, seed=1, grad=True)
    chosen = classes_of(40, 100, (3,))
    options = {"label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 5.0}
    mine = linear_cross_entropy(x, weight, chosen, recompute=recompute, **options)
    logits = F.linear(x, weight)
    right = reference(logits, chosen, **options)[0].sum() / 39
    torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(mine, (x, weight)), torch.autograd.grad(right, (x, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("ignored", [-100, 0, 5])
def test_linear_ignores_a_class_of_its_own(target, monkeypatch, recompute, ignored):
    """In parts of 256 classes, with targets at the index that the ignored class would have within their part."""
    monkeypatch.setattr(loss, "_SMALL_BYTES", 1 << 16)
    x, weight = draw(64, 32, grad=True), draw(2049, 32, seed=1, grad=True)
    chosen = classes_of(64, 2049)
    chosen[:7] = torch.tensor([0, 5, 256, 261, 512, 517, 2048])
    mine, right = (
        with_gradients(lambda x, weight, f=f: f(x, weight), [x, weight], [torch.ones(())])
        for f in (
            lambda x, weight: linear_cross_entropy(
                x, weight, chosen, ignore_index=ignored, recompute=recompute
            ),
            lambda x, weight: F.cross_entropy(F.linear(x, weight).float(), chosen, ignore_index=ignored),
        )
    )
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("recompute", [True, False])
def test_linear_needs_only_what_is_asked(target, recompute):
    x, weight = draw(20, 32), draw(50, 32, seed=1)
    chosen = classes_of(20, 50)
    for needed in ((True, False), (False, True)):
        leaves = [
            value.detach().requires_grad_(need) for value, need in zip((x, weight), needed, strict=True)
        ]
        linear_cross_entropy(*leaves, chosen, recompute=recompute).backward()
        assert [leaf.grad is not None for leaf in leaves] == list(needed)
    with torch.no_grad():
        assert not linear_cross_entropy(x, weight, chosen).requires_grad
    empty = x[:0].requires_grad_()
    gradient = torch.autograd.grad(
        linear_cross_entropy(empty, weight, chosen[:0], reduction="sum", recompute=recompute), empty
    )
    assert gradient[0].shape == (0, 32)


def test_kept_gradients_serve_once(target):
    x, weight = draw(20, 32, grad=True), draw(50, 32, seed=1, grad=True)
    value = linear_cross_entropy(x, weight, classes_of(20, 50), recompute=False)
    value.backward(torch.tensor(2.0), retain_graph=True)
    with pytest.raises(RuntimeError, match="kept for one backward"):
        value.backward()
    doubled, once = x.grad, torch.autograd.grad(linear_cross_entropy(x, weight, classes_of(20, 50)), x)[0]
    torch.testing.assert_close(doubled, 2 * once, rtol=2e-2, atol=1e-5)


def test_autocast(target):
    x, weight = draw(20, 32, dtype=F32, grad=True), draw(50, 32, dtype=F32, seed=1, grad=True)
    with torch.autocast("cpu", dtype=BF16):
        value = linear_cross_entropy(x, weight, classes_of(20, 50))
    assert value.dtype == F32
    assert all(gradient.dtype == F32 for gradient in torch.autograd.grad(value, (x, weight)))


def test_memory_beside_the_result():
    """No intermediate allocation holds the logits."""
    rows, features, classes = 4096, 128, 4096
    x, weight = draw(rows, features, grad=True), draw(classes, features, seed=1, grad=True)
    chosen = classes_of(rows, classes)
    with hipkittens.simulate("gfx950"):
        for recompute in (True, False, None):
            with torch.profiler.profile(profile_memory=True) as profile:
                torch.autograd.grad(linear_cross_entropy(x, weight, chosen, recompute=recompute), (x, weight))
            largest = max(event.self_cpu_memory_usage for event in profile.events())
            assert 0 < largest <= loss._workspace(rows, classes)


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def step(x, weight, chosen):
        return cross_entropy(x @ weight.t() * 2, chosen) + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=compile_backend)
    weight = draw(30, 24, dtype=F32, grad=True)
    for rows in (3, 8):
        x, chosen = draw(rows, 24, dtype=F32, seed=rows), classes_of(rows, 30)
        mine, other = compiled(x, weight, chosen), step(x, weight, chosen)
        torch.testing.assert_close(mine, other)
        gradients = [torch.autograd.grad(value, weight)[0] for value in (mine, other)]
        torch.testing.assert_close(*gradients)


def test_opcheck(target):
    operators = torch.ops.hipkittens
    logits, chosen = draw(5, 34, dtype=F32, grad=True), classes_of(5, 34)
    rows = draw(5, dtype=F32).abs() + 1
    calls = [
        (operators.cross_entropy, (logits, chosen, -100, 0.1, 0.0, 0.0, True)),
        (operators.cross_entropy, (logits, chosen, -100, 0.0, 0.0, 0.0, False)),
        (
            operators.cross_entropy_backward,
            (rows, None, logits.detach(), chosen, rows, rows, None, -100, 0.0, 0.0, 0.0),
        ),
        (operators.cross_entropy_in_place, (draw(5, 34), chosen, rows, -100, 0.0, 0.0, 0.0)),
        (
            operators.cross_entropy_backward_in_place,
            (draw(5, 34), chosen, rows, rows, rows, 40, -100, 0.0, 0.0, 0.0),
        ),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


def test_meta_tensors():
    chosen = torch.empty(3, dtype=torch.int64, device="meta")
    assert cross_entropy(torch.empty(3, 10, device="meta"), chosen, reduction="none").shape == (3,)


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x, weight, chosen = draw(6, 16, grad=True), draw(30, 16, seed=1), classes_of(6, 30, (2,))
    logits = F.linear(x.float(), weight.float())
    torch.testing.assert_close(linear_cross_entropy(x, weight, chosen), F.cross_entropy(logits, chosen))
    torch.testing.assert_close(cross_entropy(logits, chosen), F.cross_entropy(logits, chosen))


def test_double_backward_is_refused(target):
    x = draw(3, 8, dtype=F32, grad=True)
    (dx,) = torch.autograd.grad(cross_entropy(x, classes_of(3, 8)), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        dx.sum().backward()


X, T, W = torch.zeros(4, 8, dtype=BF16), torch.zeros(4, dtype=torch.int64), torch.zeros(10, 8, dtype=BF16)
BAD = [
    (lambda: cross_entropy([1.0], T), TypeError, "cross_entropy: logits is list; it must be a torch.Tensor"),
    (lambda: cross_entropy(X.double(), T), TypeError, "cross_entropy: logits is torch.float64; allowed"),
    (lambda: cross_entropy(X[:, :0], T), ValueError, "cross_entropy: logits have shape (4, 0); they need a last dimension"),
    (lambda: cross_entropy(X, T.int()), TypeError, "target is torch.int32; allowed: torch.int64 class indices"),
    (lambda: cross_entropy(X, X.float()), TypeError, "class probabilities are not supported"),
    (lambda: cross_entropy(X, T[:3]), ValueError, "target has shape (3,) and logits (4, 8); target must have the shape (4,)"),
    (lambda: cross_entropy(X, T + 8), IndexError, "target has the class 8; allowed: 0 .. 7, and ignore_index -100"),
    (lambda: cross_entropy(X, T - 1), IndexError, "target has the class -1"),
    (lambda: cross_entropy(X, T, ignore_index=0.5), TypeError, "ignore_index is 0.5; it must be an int"),
    (lambda: cross_entropy(X, T, label_smoothing=1.5), ValueError, "label_smoothing is 1.5; it must be in [0, 1)"),
    (lambda: cross_entropy(X, T, z_loss=-1), ValueError, "z_loss is -1; it must be 0 or more"),
    (lambda: cross_entropy(X, T, softcap=0.0), ValueError, "softcap is 0.0; it must be above 0, or None"),
    (lambda: cross_entropy(X, T, reduction="max"), ValueError, "reduction is 'max'; allowed: 'mean', 'sum', 'none'"),
    (lambda: cross_entropy(X, T, return_entropy="no"), TypeError, "return_entropy is 'no'"),
    (lambda: linear_cross_entropy(X.float(), W, T), TypeError, "linear_cross_entropy: x is torch.float32; allowed"),
    (lambda: linear_cross_entropy(X, W.half(), T), TypeError, "weight is torch.float16; allowed: torch.bfloat16"),
    (lambda: linear_cross_entropy(X, W[:, :4], T), ValueError, "they must be (..., H) and (V, H)"),
    (lambda: linear_cross_entropy(X, W, T, W[0]), ValueError, "bias has shape (8,); it must be (10,)"),
    (lambda: linear_cross_entropy(X, W, T + 10), IndexError, "target has the class 10; allowed: 0 .. 9"),
    (lambda: linear_cross_entropy(X.requires_grad_(), W, T, recompute=False, reduction="none"), ValueError, "leave recompute out"),
    (lambda: linear_cross_entropy(X, W, T, recompute="yes"), TypeError, "recompute is 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert str(caught.value).startswith(("hipkittens.cross_entropy: ", "hipkittens.linear_cross_entropy: "))


OPERATORS = torch.ops.hipkittens
NONE = (-100, 0.0, 0.0, 0.0)
BAD_OPERANDS = [
    (lambda: OPERATORS.cross_entropy(X, T[:2], *NONE, False), "target needs the shape of logits without the last"),
    (lambda: OPERATORS.cross_entropy(X, T.int(), *NONE, False), "target needs to be dense int64"),
    (lambda: OPERATORS.cross_entropy(X[:, :0], T, *NONE, False), "rows have no elements"),
    (lambda: OPERATORS.cross_entropy_backward(T, None, X, T, X[:, 0].float(), X[:, 0].float(), None, *NONE), "dloss"),
    (lambda: OPERATORS.cross_entropy_backward(torch.zeros(3), None, X, T, torch.zeros(4), torch.zeros(4), None, *NONE), "one element, or one for each row"),
    (lambda: OPERATORS.cross_entropy_backward(torch.zeros(4), torch.zeros(4), X, T, torch.zeros(4), torch.zeros(4), None, *NONE), "dentropy needs the entropy"),
    (lambda: OPERATORS.cross_entropy_in_place(X.t(), torch.zeros(8, dtype=torch.int64), torch.zeros(()), *NONE), "logits need to be dense"),
    (lambda: OPERATORS.cross_entropy_backward_in_place(X.detach().clone(), T, torch.zeros(()), torch.zeros(4), torch.zeros(4), 7, *NONE), "classes is 7"),
    (lambda: OPERATORS.cross_entropy(torch.zeros(1, dtype=BF16).expand(2**24, 8), torch.zeros(1, dtype=torch.int64).expand(2**24).contiguous(), *NONE, False), "16777216 rows of 8 columns; 1 .. "),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows further apart than 32-bit offsets reach, forward and backward."""
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    chosen = classes_of(2, 64)
    with hipkittens.simulate("gfx942"):
        far, near = (
            with_gradients(lambda x: cross_entropy(x, chosen), [value], [torch.ones(())])
            for value in (x, x.clone())
        )
        assert all(torch.equal(a, b) for a, b in zip(far, near, strict=True))
