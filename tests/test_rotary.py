# SPDX-License-Identifier: MIT
"""hipkittens.rotary and rotary_qk from PyTorch."""

import pytest
import torch

import hipkittens
from hipkittens.nn import RotaryEmbedding

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
rotary, rotary_qk = hipkittens.rotary, hipkittens.rotary_qk


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def tables(rows, pairs, dtype=F32):
    angles = 6 * torch.rand(rows, pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def exact(x, cos, sin, row, interleaved):
    """Complex numbers in float64, for (batch, tokens, heads, features) and a row per (batch, token)."""
    turn = torch.complex(cos.double(), sin.double())[row].unsqueeze(-2)
    pairs = turn.shape[-1]
    first = x[..., : 2 * pairs].double()
    a, b = (first[..., 0::2], first[..., 1::2]) if interleaved else (first[..., :pairs], first[..., pairs:])
    z = torch.complex(a, b) * turn
    turned = torch.stack((z.real, z.imag), -1 if interleaved else -2).flatten(-2)
    return torch.cat((turned, x[..., 2 * pairs :].double()), -1)


def close(value, right):
    tolerance = {BF16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-21}[value.dtype]
    torch.testing.assert_close(value.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("features", "pairs"), [(128, 64), (64, 16), (80, 40), (96, 32), (17, 3), (2, 1), (256, 128)]
)
def test_forms_and_partial_rotation(target, dtype, interleaved, features, pairs):
    x = draw(2, 5, 3, features, dtype=dtype)
    for table in (F32, BF16, F16):
        cos, sin = tables(9, pairs, table)
        y = rotary(x, cos, sin, interleaved=interleaved, offset=2)
        close(y, exact(x, cos, sin, torch.arange(2, 7).expand(2, 5), interleaved))
        assert torch.equal(y[..., 2 * pairs :], x[..., 2 * pairs :])


def test_half_and_interleaved_are_the_same_up_to_order(target):
    x, (cos, sin) = draw(1, 6, 2, 64), tables(6, 32)
    shuffled = torch.stack((x[..., :32], x[..., 32:]), -1).flatten(-2)
    y = rotary(shuffled, cos, sin, interleaved=True)
    assert torch.equal(torch.cat((y[..., 0::2], y[..., 1::2]), -1), rotary(x, cos, sin))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions(target, dtype):
    x, (cos, sin) = draw(3, 4, 2, 32), tables(50, 16)
    ids = torch.tensor([[0, 49, 7, 7], [1, 2, 3, 4], [30, 20, 10, 0]], dtype=dtype)
    close(rotary(x, cos, sin, positions=ids), exact(x, cos, sin, ids.long(), False))
    assert torch.equal(rotary(x, cos, sin, positions=ids[1]), rotary(x, cos, sin, offset=1))
    strided = torch.stack([ids, ids], -1)[..., 0]
    assert torch.equal(rotary(x, cos, sin, positions=strided), rotary(x, cos, sin, positions=ids))


def test_packed_sequences(target):
    """Two sequences end to end, as attention_varlen expects them."""
    x, (cos, sin) = draw(11, 2, 16), tables(8, 8)
    ids = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3])
    y = rotary(x, cos, sin, positions=ids)
    assert torch.equal(y[7:], rotary(x[7:], cos, sin)) and torch.equal(y[:7], rotary(x[:7], cos, sin))


@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts_and_strides(target, interleaved):
    cos, sin = tables(6, 24)
    storage = draw(2, 5, 4, 3, 50)  # a packed qkv with two features more than are used
    for x in (storage[:, :, :, 0, :48], storage[..., 1, 1:49], storage[:, ::2, 1:, 2, 2:],
              draw(48, 4, 5, 2).permute(3, 2, 1, 0), draw(1, 5, 1, 48).expand(2, 5, 4, 48)):  # fmt: skip
        expected = rotary(x.contiguous(), cos, sin, interleaved=interleaved)
        assert torch.equal(rotary(x, cos, sin, interleaved=interleaved), expected)
        across = rotary(x.transpose(1, 2), cos, sin, interleaved=interleaved, layout="bhnd")
        assert torch.equal(across.transpose(1, 2), expected)


def test_table_strides(target):
    x, (cos, sin) = draw(1, 5, 2, 48), tables(6, 24)
    wide_cos, wide_sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    expected = rotary(x, cos, sin)
    assert torch.equal(rotary(x, wide_cos[:, :24], wide_sin[:, 24:]), expected)
    assert torch.equal(rotary(x, cos.t().contiguous().t(), sin.t().contiguous().t()), expected)


def test_queries_and_keys_in_one_launch(target):
    q, k, (cos, sin) = draw(2, 7, 6, 64), draw(2, 7, 2, 64, seed=1), tables(7, 32)
    both = rotary_qk(q, k, cos, sin)
    one_launch = hipkittens.simulate.report()["workgroups"]
    assert torch.equal(both[0], rotary(q, cos, sin)) and torch.equal(both[1], rotary(k, cos, sin))
    assert one_launch == hipkittens.simulate.report()["workgroups"]


def test_in_place(target):
    qkv, (cos, sin) = draw(2, 5, 8, 32), tables(5, 8)
    q, k, v = qkv[:, :, :4], qkv[:, :, 4:6], qkv[:, :, 6:].clone()
    expected = rotary_qk(q, k, cos, sin)
    version = qkv._version
    results = rotary_qk(q, k, cos, sin, inplace=True)
    assert results[0] is q and results[1] is k and qkv._version > version
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1]) and torch.equal(qkv[:, :, 6:], v)
    x = draw(5, 3, 32)
    expected = rotary(x, cos, sin, interleaved=True)
    assert rotary(x, cos, sin, interleaved=True, inplace=True) is x and torch.equal(x, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["bnhd", "bhnd"])
def test_gradients(target, interleaved, layout):
    shape_q, shape_k = ((2, 5, 4, 40), (2, 5, 1, 40)) if layout == "bnhd" else ((2, 4, 5, 40), (2, 1, 5, 40))
    q, k = draw(*shape_q, grad=True), torch.nn.Parameter(draw(*shape_k, seed=1))
    cos, sin = tables(9, 16)
    ids = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(1))
    options = {"interleaved": interleaved, "layout": layout, "positions": ids}
    grads = draw(*shape_q, seed=2), draw(*shape_k, seed=3)
    found = torch.autograd.grad(rotary_qk(q, k, cos, sin, **options), (q, k), grads)

    def right(value):
        value = value.transpose(1, 2) if layout == "bhnd" else value
        value = exact(value, cos, -sin, ids, interleaved)
        return value.transpose(1, 2) if layout == "bhnd" else value

    for mine, grad in zip(found, grads, strict=True):
        close(mine, right(grad))
    (alone,) = torch.autograd.grad(rotary(q, cos, sin, **options), q, grads[0])
    assert torch.equal(alone, found[0])
    (expanded,) = torch.autograd.grad(rotary(q, cos, sin, **options).sum(), q)
    close(expanded, right(torch.ones_like(grads[0])))


def test_a_gradient_of_one_of_two(target):
    q, k, (cos, sin) = draw(1, 3, 2, 16, grad=True), draw(1, 3, 1, 16, grad=True), tables(3, 8)
    rotary_qk(q, k, cos, sin)[0].sum().backward()
    assert q.grad.abs().sum() > 0 and (k.grad is None or not k.grad.any())


def test_double_backward(target):
    x, (cos, sin) = draw(1, 3, 2, 16, dtype=F32, grad=True), tables(3, 8)
    (first,) = torch.autograd.grad(rotary(x, cos, sin).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.full_like(second, 2.0))  # a rotation keeps the square


def test_bits_do_not_depend_on_the_order_of_waves(target):
    q, k, (cos, sin) = draw(2, 9, 5, 80), draw(2, 9, 3, 80), tables(9, 20)
    first = rotary_qk(q, k, cos, sin)
    for seed in range(1, 4):
        with hipkittens.simulate(target, checks=True, seed=seed):
            assert all(torch.equal(a, b) for a, b in zip(first, rotary_qk(q, k, cos, sin), strict=True))


def test_nothing_to_rotate(target):
    cos, sin = tables(3, 8)
    assert rotary(draw(0, 3, 2, 16), cos, sin).shape == (0, 3, 2, 16)
    assert rotary_qk(draw(2, 3, 2, 16), draw(2, 3, 0, 16), cos, sin)[1].shape == (2, 3, 0, 16)


def test_opcheck(target):
    operators, (cos, sin) = torch.ops.hipkittens, tables(9, 4)
    q, k, ids = (
        draw(2, 3, 4, 10, grad=True),
        draw(2, 3, 2, 10, grad=True),
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
    )
    calls = [
        (operators.rotary, (q, cos, sin, None, None, None, None, 2, False, False, False, False, False)),
        (operators.rotary_qk, (q, k, cos, sin, ids, ids % 3, None, None, 0, True, True, True, False, False)),
        (
            operators.rotary,
            (q, cos[:2, :2], sin[:2, :2], None, None, cos[:2, :2], sin[:2, :2], 0, *[False] * 5),
        ),
        (operators.rotary_, (q.detach(), cos, sin, None, None, None, None, 2, *[False] * 4, True)),
        (
            operators.rotary_qk_,
            (q.detach(), k.detach(), cos, sin, ids, None, None, None, 0, *[False] * 3, True, False),
        ),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target):
    torch._dynamo.reset()
    cos, sin = tables(16, 8)

    def block(q, k):
        q, k = rotary_qk(q, k, cos, sin, offset=1)
        return rotary(q, cos, sin) * 2, k

    def in_place(x):
        y = x * 1
        rotary(y, cos, sin, inplace=True)
        return y

    compiled, compiled_in_place = (torch.compile(f, fullgraph=True, dynamic=True) for f in (block, in_place))
    for tokens in (3, 9):
        q, k = draw(1, tokens, 4, 16, grad=True), draw(1, tokens, 2, 16, seed=1, grad=True)
        mine, other = compiled(q, k), block(q, k)
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
        ones = [torch.ones_like(v) for v in other]
        for a, b in zip(*(torch.autograd.grad(v, (q, k), ones) for v in (mine, other)), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(compiled_in_place(q.detach()), in_place(q.detach()))


def test_meta_tensors():
    x, table = torch.empty(2, 3, 4, 8, device="meta"), torch.empty(5, 4, device="meta")
    assert rotary(x, table, table).shape == (2, 3, 4, 8)


def test_autocast_changes_nothing(target):
    x, (cos, sin) = draw(1, 3, 2, 16, dtype=F32), tables(3, 8)
    with torch.autocast("cpu", BF16):
        assert rotary(x, cos, sin).dtype == F32


def test_module(target):
    rope = RotaryEmbedding(32, 20, base=1e4)
    assert not rope.state_dict() and rope.cos.shape == (20, 16)
    frequencies = 1e4 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    torch.testing.assert_close(rope.sin[7].double(), (7 * frequencies).sin(), rtol=0, atol=1e-7)
    q, k = draw(1, 5, 2, 48), draw(1, 5, 1, 48, seed=1)
    assert torch.equal(rope(q, k, offset=3)[1], rope(k, offset=3))
    with pytest.raises(ValueError, match="must be even"):
        RotaryEmbedding(3)


X = torch.zeros(2, 3, 4, 16, dtype=BF16)
COS = torch.zeros(5, 8)
NEEDS = torch.zeros(5, 8, requires_grad=True)
BAD = [
    (lambda: rotary(1, COS, COS), TypeError, "x is int; it must be a torch.Tensor"),
    (lambda: rotary(X.int(), COS, COS), TypeError, "x is torch.int32; allowed"),
    (lambda: rotary(X, COS.double(), COS), TypeError, "cos is torch.float64; allowed"),
    (lambda: rotary(X[0, 0], COS, COS), ValueError, "x has shape (4, 16); it needs 4 dimensions, or 3"),
    (lambda: rotary_qk(X, X.half(), COS, COS), TypeError, "q is torch.bfloat16 and k is torch.float16"),
    (lambda: rotary_qk(X, X[:, :2], COS, COS), ValueError, "only their heads may differ"),
    (lambda: rotary(X, COS, COS[:4]), ValueError, "both must be (rows, pairs) of one dtype"),
    (lambda: rotary(X[..., :14], COS, COS), ValueError, "cos has 8 columns and x 14 features; 1 to 7 are allowed"),
    (lambda: rotary(X, COS, COS, offset=3), ValueError, "offset 3 and 3 tokens need 6 rows; cos and sin have 5"),
    (lambda: rotary(X, COS, COS, offset=-1), ValueError, "offset -1 and 3 tokens"),
    (lambda: rotary(X, COS, COS, layout="nbhd"), ValueError, "layout is 'nbhd'; allowed: bnhd, bhnd"),
    (lambda: rotary(X, NEEDS, COS), ValueError, "cos requires a gradient and gets none; pass cos.detach()"),
    (lambda: rotary(X, COS, NEEDS), ValueError, "sin requires a gradient and gets none; pass sin.detach()"),
    (lambda: rotary(X.clone().requires_grad_(), COS, COS, inplace=True), ValueError, "inplace=True records no gradient"),
    (lambda: rotary(X.mT.contiguous().mT, COS, COS, inplace=True), ValueError, "inplace=True needs unit last stride"),
    (lambda: rotary(X[:1].expand(2, 3, 4, 16), COS, COS, inplace=True), ValueError, "x, which is expanded"),
    (lambda: rotary(X, COS, COS, positions=[1, 2, 3]), TypeError, "positions is list; allowed"),
    (lambda: rotary(X, COS, COS, positions=torch.zeros(3)), TypeError, "positions is torch.float32; allowed"),
    (lambda: rotary(X, COS, COS, positions=torch.zeros(2, dtype=torch.int64)), ValueError, "positions has shape (2,)"),
    (lambda: rotary(X, COS, COS, positions=torch.zeros(3, dtype=torch.int64), offset=1), ValueError, "are both given"),
    (lambda: rotary(X, COS.to("meta"), COS), ValueError, "cos is on meta and x on cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_a_position_without_a_row(target, wrong):
    ids = torch.tensor([0, wrong, 1])
    with pytest.raises(RuntimeError, match=rf"position {wrong} at \[0, 1\]; cos and sin have 5 rows"):
        rotary(X, COS, COS, positions=ids)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Tokens and heads further apart than 32-bit offsets reach."""
    storage = torch.zeros(2**31 + 2**30 + 200, dtype=BF16)
    x = torch.as_strided(storage, (1, 2, 2, 64), (0, 2**31, 2**30, 1), 2)
    near = draw(1, 2, 2, 64)
    x.copy_(near)
    cos, sin = tables(2, 32)
    with hipkittens.simulate("gfx942"):
        assert torch.equal(rotary(x, cos, sin), rotary(near, cos, sin))
        rotary(x, cos, sin, inplace=True)
        assert torch.equal(x, rotary(near, cos, sin))
