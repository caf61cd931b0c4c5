# SPDX-License-Identifier: MIT
"""Linear layers with a fused activation or gate, and the feed-forward block built from them."""

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens.activation import GATES, gated_in_torch, in_torch
from hipkittens.gemm import ACTIVATIONS_OF_SUMS

TARGETS = ("gfx942", "gfx950")
DTYPES = (torch.bfloat16, torch.float16)
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture(params=TARGETS)
def arch(request):
    with hipkittens.simulate(request.param, checks="all") as run:
        yield request.param
    assert not run.findings


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape, dtype=torch.bfloat16, scale=1.0: (
        torch.randn(shape, generator=generator) * scale
    ).to(dtype)


def gated_in_double(x, weight, bias=None, kind="silu", interleaved=False, **options):
    sums = x.double() @ weight.double().T
    if bias is not None:
        sums = sums + bias.double()
    if interleaved:
        return gated_in_torch(sums[..., ::2], kind, other=sums[..., 1::2], **options)
    return gated_in_torch(sums, kind, **options)


def check_rounded_once(result, reference):
    """Within one rounding of the result, and the error of float32 sums."""
    assert result.shape == reference.shape
    error = (result.double() - reference).abs()
    allowed = ROUNDING.get(result.dtype, 0) * reference.abs() + 2e-5 * reference.abs().max()
    assert (error <= allowed).all(), (error - allowed).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("interleaved", (False, True))
def test_gates(arch, draw, dtype, kind, interleaved):
    x, weight, bias = draw(70, 96, dtype=dtype), draw(160, 96, dtype=dtype, scale=0.1), draw(160, dtype=dtype)
    result = hipkittens.gated_linear(x, weight, bias, kind, interleaved=interleaved)
    check_rounded_once(result, gated_in_double(x, weight, bias, kind, interleaved))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ACTIVATIONS_OF_SUMS)
def test_activations(arch, draw, dtype, kind):
    x, weight, bias = draw(70, 96, dtype=dtype), draw(80, 96, dtype=dtype, scale=0.1), draw(80, dtype=dtype)
    result = hipkittens.linear(x, weight, bias, activation=kind)
    check_rounded_once(result, in_torch(x.double() @ weight.double().T + bias.double(), kind))


@pytest.mark.parametrize("m", (1, 2, 17, 255, 257))
@pytest.mark.parametrize("n, k", ((2, 1), (34, 17), (510, 255), (514, 264), (1024, 2048)))
def test_sizes(arch, draw, m, n, k):
    x, weight = draw(m, k), draw(n, k, scale=k**-0.5)
    check_rounded_once(hipkittens.gated_linear(x, weight), gated_in_double(x, weight))
    reference = in_torch(x.double() @ weight.double().T, "gelu")
    check_rounded_once(hipkittens.linear(x, weight, activation="gelu"), reference)


def test_large_tiles(draw):
    """A 256 by 256 tile, half of whose columns are gate partners, partial in every direction."""
    x, weight = draw(4700, 200), draw(3900, 200, scale=0.07)
    for arch in TARGETS:
        with hipkittens.simulate(arch):
            for interleaved in (False, True):
                result = hipkittens.gated_linear(x, weight, interleaved=interleaved)
                check_rounded_once(result, gated_in_double(x, weight, interleaved=interleaved))


def test_limits_and_alpha(arch, draw):
    x, weight = draw(33, 64, scale=3.0), draw(48, 64)
    options = {"limit": 1.5, "alpha": 1.25}
    result = hipkittens.gated_linear(x, weight, None, "swiglu", **options)
    check_rounded_once(result, gated_in_double(x, weight, None, "swiglu", **options))


def test_strides_and_dtypes(arch, draw):
    x, weight, bias = draw(3, 9, 131)[..., 1:], draw(96, 200)[:, 3:133], draw(192)[::2].float()
    reference = gated_in_double(x, weight, bias)
    for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
        result = hipkittens.gated_linear(x, weight, bias, out_dtype=out_dtype)
        assert result.dtype == out_dtype and result.shape == (3, 9, 48)
        check_rounded_once(result, reference)
    columns = draw(130, 96).t()
    assert torch.equal(hipkittens.gated_linear(x, columns), hipkittens.gated_linear(x, columns.contiguous()))
    assert hipkittens.gated_linear(x[0, 0], weight).shape == (48,)


def test_partners_beyond_two_gibibytes(draw):
    """Rows so far apart that the gates' partners begin 2.6 GiB after them: an unsigned 32-bit offset."""
    k, inner = 64, 64
    stride = 21 * 2**20  # elements
    storage = torch.empty(
        2 * inner * stride, dtype=torch.bfloat16
    )  # pages that are never touched are not allocated
    weight = storage.as_strided((2 * inner, k), (stride, 1))
    weight.copy_(draw(2 * inner, k))
    x = draw(20, k)
    for arch in TARGETS:
        with hipkittens.simulate(arch):
            check_rounded_once(hipkittens.gated_linear(x, weight), gated_in_double(x, weight))
    too_far = storage.as_strided((8, k), (storage.numel() // 8, 1))  # partners as far, rows 0.66 GiB apart
    with pytest.raises(ValueError, match="must lie within 4 GiB"):
        hipkittens.gated_linear(x, too_far)


def test_rows_do_not_depend_on_each_other(draw):
    """No sum is split, and every tile adds along K in one order: the same bits alone and among others."""
    x, weight = draw(300, 512), draw(256, 512, scale=0.05)
    for arch in TARGETS:
        with hipkittens.simulate(arch):
            among = hipkittens.gated_linear(x, weight)
            for rows in (1, 40):
                assert torch.equal(hipkittens.gated_linear(x[:rows], weight), among[:rows])
            assert torch.equal(among, hipkittens.gated_linear(x, weight))


def torch_block(x, w_up, w_down, bias_up, bias_down, gated):
    sums = F.linear(x, w_up, bias_up)
    hidden = (
        gated_in_torch(sums.to(torch.promote_types(x.dtype, torch.float32)))
        if gated
        else in_torch(sums.to(torch.promote_types(x.dtype, torch.float32)), "silu")
    )
    return F.linear(hidden.to(x.dtype), w_down, bias_down)


@pytest.mark.parametrize("gated", (True, False))
def test_gradients(arch, draw, gated):
    tensors = [
        draw(2, 33, 64),
        draw(192 if gated else 96, 64, scale=0.1),
        draw(40, 96, scale=0.1),
        draw(192 if gated else 96),
        draw(40),
    ]
    grad = draw(2, 33, 40)

    def gradients(function, dtype=None):
        leaves = [each.to(dtype or each.dtype).detach().requires_grad_() for each in tensors]
        result = function(*leaves)
        return [result, *torch.autograd.grad(result, leaves, grad.to(result.dtype))]

    def ours(x, w_up, w_down, bias_up, bias_down):
        return hipkittens.feed_forward(x, w_up, w_down, gated=gated, bias_up=bias_up, bias_down=bias_down)

    found = gradients(ours)
    theirs = gradients(lambda *leaves: torch_block(*leaves, gated))
    exact = gradients(lambda *leaves: torch_block(*leaves, gated), torch.float64)
    for mine, other, reference in zip(found, theirs, exact, strict=True):
        scale = reference.abs().max()
        floor = 2.0**-9 * scale
        mine, other = ((each.double() - reference).abs() for each in (mine, other))
        assert mine.max() <= 2 * max(other.max(), floor)
        assert mine.square().mean() ** 0.5 <= 2 * max(other.square().mean() ** 0.5, floor / 4)


@pytest.mark.parametrize("interleaved", (False, True))
def test_gradients_change_no_result(arch, draw, interleaved):
    """The pre-activation values, from which the gradient of each tensor is derived, are stored in addition to the result."""
    tensors = draw(70, 96), draw(514, 96, scale=0.1), draw(514)
    recorded = [each.clone().requires_grad_() for each in tensors]
    alone = hipkittens.gated_linear(*tensors, interleaved=interleaved)
    assert torch.equal(alone, hipkittens.gated_linear(*recorded, interleaved=interleaved))
    alone = hipkittens.linear(*tensors, activation="gelu")
    assert torch.equal(alone, hipkittens.linear(*recorded, activation="gelu"))
    sums = torch.ops.hipkittens.linear_gated(*tensors, 0, interleaved, 1.0, -1.0, True, torch.bfloat16)[1]
    exact = tensors[0].double() @ tensors[1].double().T + tensors[2].double()
    check_rounded_once(sums, torch.cat((exact[:, ::2], exact[:, 1::2]), 1) if interleaved else exact)
    sums = torch.ops.hipkittens.linear_activated(*tensors, 3, True, torch.bfloat16)[1]
    check_rounded_once(sums, exact)


def test_operators_without_sums_have_no_derivative(draw):
    x, weight = draw(20, 64).requires_grad_(), draw(96, 64)
    result, sums = torch.ops.hipkittens.linear_gated(
        x, weight, None, 0, False, 1.0, -1.0, False, torch.bfloat16
    )
    assert sums.shape == (0,)
    with pytest.raises(RuntimeError, match="called with keep_sums=False and is differentiated"):
        result.sum().backward()


def test_one_launch(draw):
    """Without gradients nothing runs between the product and its gate."""
    x, weight = draw(20, 64), draw(96, 64)
    with hipkittens.timing("MI300X") as run:
        hipkittens.gated_linear(x, weight)
        with torch.no_grad():
            hipkittens.linear(x.requires_grad_(), weight, activation="relu")
    assert len(run.launches) == 2


def test_nothing_to_compute():
    x, weight, down = torch.ones(0, 8).bfloat16(), torch.ones(6, 8).bfloat16(), torch.ones(4, 3).bfloat16()
    assert hipkittens.feed_forward(x, weight, down).shape == (0, 4)
    assert hipkittens.gated_linear(torch.ones(2, 0).bfloat16(), weight[:, :0]).eq(0).all()
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()
    found = hipkittens.gated_linear(torch.ones(2, 0).bfloat16(), weight[:4, :0], bias, "relu")
    assert torch.equal(found, torch.tensor([[3.0, 8.0]] * 2).bfloat16())


X, W, DOWN = torch.ones(4, 8).bfloat16(), torch.ones(6, 8).bfloat16(), torch.ones(8, 3).bfloat16()


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: hipkittens.gated_linear(X, W[:5]), ValueError, "weight has 5 rows; it needs an even number"),
        (lambda: hipkittens.gated_linear(X, W[:, :7]), ValueError, "x has 8 features and weight takes 7"),
        (lambda: hipkittens.gated_linear(X, W.half()), TypeError, "x is torch.bfloat16 and weight is torch.float16"),
        (lambda: hipkittens.gated_linear(X, W, kind="softmax"), ValueError, "kind is 'softmax'; allowed: 'silu'"),
        (lambda: hipkittens.gated_linear(X, W, kind="gelu", alpha=2.0), ValueError, "alpha is 2.0"),
        (lambda: hipkittens.gated_linear(X, W, interleaved=1), TypeError, "interleaved is 1; it must be True or False"),
        (lambda: hipkittens.gated_linear(X, W, out_dtype=torch.int8), TypeError, "out_dtype is torch.int8; allowed"),
        (lambda: hipkittens.gated_linear(X, W, X[0]), ValueError, r"bias has shape \(8,\); it must be \(6,\)"),
        (lambda: hipkittens.linear(X, W, activation="tanh"), ValueError, "activation is 'tanh'; allowed: None, 'silu'"),
        (lambda: hipkittens.feed_forward(X, W, DOWN.t()), ValueError, "w_down takes 8 features and w_up"),
        (lambda: hipkittens.feed_forward(X, W, DOWN, gated="yes"), TypeError, "gated is 'yes'; it must be True or False"),
        (lambda: hipkittens.feed_forward(X, W[0], DOWN), ValueError, r"w_up has shape \(8,\); it must be \(out, in\)"),
        (
            lambda: hipkittens.feed_forward(X, W[:3], DOWN, gated=False, limit=1.0),
            ValueError,
            "limit is 1.0 and gated is False",
        ),
        (
            lambda: hipkittens.feed_forward(X, W[:3], DOWN, gated=False, activation="swiglu"),
            ValueError,
            "activation is 'swiglu' and gated is False",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
