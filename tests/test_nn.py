# SPDX-License-Identifier: MIT
"""hipkittens.nn compared with torch.nn: the same parameters, results and gradients."""

import inspect

import pytest
import torch

import hipkittens
from hipkittens import nn
from hipkittens._accuracy import BAR, compare

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


@pytest.fixture
def gfx942():
    with hipkittens.simulate("gfx942"):
        yield


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pair(embed_dim, num_heads, dtype=BF16, **options):
    """Our module and torch's, with the same nonzero parameters."""
    ours = nn.MultiheadAttention(embed_dim, num_heads, dtype=dtype, **options)
    theirs = torch.nn.MultiheadAttention(embed_dim, num_heads, dtype=dtype, **options)
    for number, parameter in enumerate(theirs.parameters()):
        parameter.data = draw(*parameter.shape, dtype=dtype, seed=50 + number) * (
            parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.5
        )
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def results(module, inputs, grad_out, dtype, **options):
    """Output, gradients of the inputs and of the parameters. An input that occurs twice is one tensor."""
    module = module.to(dtype)
    unique = {id(value): value.detach().to(dtype).requires_grad_() for value in inputs}
    out, _ = module(*(unique[id(value)] for value in inputs), **options)
    wanted = [*unique.values(), *module.parameters()]
    return [out.detach(), *torch.autograd.grad(out, wanted, grad_out.to(dtype))]


def assert_parity(ours, theirs, inputs, **options):
    """At most twice the error of torch's own module, in the better of its two orders of operations."""
    dtype = inputs[0].dtype
    shape = (*inputs[0].shape[:-1], ours.embed_dim)
    grad_out = draw(*shape, dtype=dtype, seed=99)

    def as_float(value, to):
        return value.to(to) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    result = results(ours, inputs, grad_out, dtype, need_weights=False, **options)
    baselines = [
        results(theirs, inputs, grad_out, dtype, need_weights=weights, **options) for weights in (False, True)
    ]
    exact_options = {name: as_float(value, F64) for name, value in options.items()}
    expected = results(theirs, inputs, grad_out, F64, need_weights=False, **exact_options)
    theirs.to(dtype)
    for index, value in enumerate(result):
        assert value.dtype == dtype
        compared = [
            compare(
                value,
                base[index],
                expected[index],
                expected[index].abs().max().item(),
            )
            for base in baselines
        ]
        assert min(max(c.ratio_max, c.ratio_rms) for c in compared) <= BAR, (index, compared)


def test_it_is_made_and_saved_as_torch_makes_it():
    for name in ("__init__", "forward"):
        one, other = (getattr(home.MultiheadAttention, name) for home in (nn, torch.nn))
        for given, published in zip(
            inspect.signature(one).parameters.values(),
            inspect.signature(other).parameters.values(),
            strict=True,
        ):
            assert (given.name, given.default) == (published.name, published.default)
    for options in ({}, {"kdim": 24, "vdim": 40}, {"bias": False}, {"add_bias_kv": True}):
        ours, theirs = pair(64, 2, **options)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        assert all(torch.equal(ours.state_dict()[key], value) for key, value in theirs.state_dict().items())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_self_attention(target, batch_first, dtype):
    x = draw(2, 19, 64, dtype=dtype)
    x = x if batch_first else x.transpose(0, 1).contiguous()
    modules = pair(64, 2, dtype, batch_first=batch_first)
    causal = torch.triu(torch.ones(19, 19, dtype=torch.bool), 1)
    assert_parity(*modules, (x, x, x))
    assert_parity(*modules, (x, x, x), attn_mask=causal, is_causal=True)
    assert_parity(*modules, (x, x, x), attn_mask=causal)
    assert_parity(
        *modules, (x, x, x), attn_mask=torch.nn.Transformer.generate_square_subsequent_mask(19, dtype=dtype)
    )
    out = modules[0](x, x, x, need_weights=False, is_causal=True)[0]
    assert torch.equal(out, modules[0](x, x, x, need_weights=False, attn_mask=causal)[0])
    assert out.is_contiguous()


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 24, "vdim": 40}, {"add_bias_kv": True}, {"add_zero_attn": True}]
)
def test_cross_attention(target, options):
    ours, theirs = pair(64, 4, batch_first=True, **options)
    query, key = draw(2, 9, 64), draw(2, 14, options.get("kdim", 64), seed=1)
    value = draw(2, 14, options.get("vdim", 64), seed=2)
    assert_parity(ours, theirs, (query, key, value))
    if "kdim" not in options:
        assert_parity(ours, theirs, (query, key, key))
    # Masks that hide the keys past a diagonal, with more keys than queries and with fewer.
    for diagonal in (1, 6, 13):
        mask = torch.triu(torch.ones(9, 14, dtype=torch.bool), diagonal)
        assert_parity(ours, theirs, (query, key, value), attn_mask=mask)
        if diagonal < 9:
            mask = torch.triu(torch.ones(9, 5, dtype=torch.bool), diagonal)
            assert_parity(ours, theirs, (query, key[:, :5], value[:, :5]), attn_mask=mask)


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_padded_keys(target, batch_first, options):
    ours, theirs = pair(64, 2, batch_first=batch_first, **options)
    x, memory = draw(3, 12, 64), draw(3, 15, 64, seed=1)
    holes = torch.rand(3, 15, generator=torch.Generator().manual_seed(3)) < 0.4
    holes[:, 4] = False
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    assert_parity(ours, theirs, (x, memory, memory), key_padding_mask=holes)
    added = torch.zeros(3, 15, dtype=BF16).masked_fill(holes, float("-inf"))
    assert_parity(ours, theirs, (x, memory, memory), key_padding_mask=added)


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}])
@pytest.mark.parametrize("side", ["last", "first"])
def test_padded_keys_under_a_causal_mask(target, side, options):
    ours, theirs = pair(64, 2, batch_first=True, **options)
    x = draw(3, 12, 64)
    padding = torch.arange(12) >= torch.tensor([[12], [7], [1]])
    causal = torch.triu(torch.ones(12, 12, dtype=torch.bool), 1)
    unseen = None
    if side == "first":
        padding = padding.flip(1)
        # torch divides zero by zero where a query sees no key, and NaN spreads: those rows are not compared.
        unseen = padding if not options else None
    if unseen is None:
        assert_parity(ours, theirs, (x, x, x), key_padding_mask=padding, attn_mask=causal)
        return
    grad_out = draw(3, 12, 64, seed=99).masked_fill(unseen[..., None], 0)
    result = results(
        ours, (x, x, x), grad_out, BF16, need_weights=False, key_padding_mask=padding, is_causal=True
    )
    assert torch.equal(result[0][unseen], ours.out_proj.bias.detach().expand(int(unseen.sum()), -1))
    for row in range(3):  # each sequence by itself, without its padding
        kept = x[row : row + 1, ~padding[row]]
        alone = results(
            theirs, (kept, kept, kept), grad_out[row : row + 1, ~padding[row]], BF16, need_weights=False,
            attn_mask=causal[: kept.shape[1], : kept.shape[1]], is_causal=True,
        )  # fmt: skip
        torch.testing.assert_close(result[0][row][~padding[row]], alone[0][0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(result[1][row][~padding[row]], alone[1][0], rtol=2e-2, atol=2e-2)


def test_a_sequence_without_keys(gfx942):
    ours, _ = pair(64, 2, batch_first=True)
    x = draw(2, 5, 64)
    padding = torch.tensor([[False] * 5, [True] * 5])
    out, weights = ours(x, x, x, key_padding_mask=padding, need_weights=False)
    assert weights is None and torch.equal(out[1], ours.out_proj.bias.detach().expand(5, -1))
    assert torch.equal(out[0], ours(x[:1], x[:1], x[:1], need_weights=False)[0][0])


def test_one_sequence_without_a_batch(target):
    ours, theirs = pair(64, 2)
    x, memory = draw(7, 64), draw(9, 64, seed=1)
    assert_parity(ours, theirs, (x, x, x))
    assert_parity(ours, theirs, (x, memory, memory), key_padding_mask=torch.arange(9) > 5)


def test_under_autocast(gfx942):
    ours, theirs = pair(64, 2, F32, batch_first=True, add_bias_kv=True)
    x = draw(2, 9, 64, dtype=F32)
    with torch.autocast("cpu", BF16):
        out, _ = ours(x, x, x, need_weights=False)
        expected, _ = theirs(x, x, x, need_weights=False)
    assert out.dtype == expected.dtype == BF16
    torch.testing.assert_close(out, expected, rtol=3e-2, atol=3e-2)


def test_in_a_layer_of_torchs_own(gfx942):
    """As training code does: the module replaces another, several steps."""
    layers = [
        torch.nn.TransformerEncoderLayer(64, 2, 96, 0.0, batch_first=True, dtype=BF16) for _ in range(2)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    ours = nn.MultiheadAttention(64, 2, batch_first=True, dtype=BF16)
    ours.load_state_dict(layers[1].self_attn.state_dict())
    layers[1].self_attn = ours
    x, padding = draw(2, 11, 64), torch.arange(11) >= torch.tensor([[11], [8]])
    losses = []
    for layer in layers:
        optimizer = torch.optim.SGD(layer.parameters(), 0.05)
        steps = []
        for _ in range(4):
            loss = layer(x, src_key_padding_mask=padding)[~padding].float().pow(3).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses.append(steps)
    assert losses[0][0] != losses[0][-1]
    torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-2)


def refused(kind, match, module=None, inputs=None, **options):
    module = module or pair(64, 2, batch_first=True)[0]
    inputs = inputs or (draw(2, 5, 64),) * 3
    with pytest.raises(kind, match=match):
        module(*inputs, **{"need_weights": False, **options})


def test_what_has_no_kernel_is_refused_by_name(gfx942):
    where = "hipkittens.nn.MultiheadAttention: "
    x = draw(2, 5, 64)
    refused(
        NotImplementedError, where + "need_weights is True; .* pass need_weights=False", need_weights=True
    )
    banded = torch.triu(torch.ones(5, 5), 1).bool() | torch.tril(torch.ones(5, 5), -2).bool()
    refused(
        NotImplementedError, where + r"attn_mask of shape \(5, 5\) does not hide exactly", attn_mask=banded
    )
    refused(NotImplementedError, where + r"attn_mask of shape \(4, 5, 5\)", attn_mask=banded.expand(4, 5, 5))
    refused(NotImplementedError, where + "attn_mask adds values other", attn_mask=torch.ones(5, 5))
    refused(
        NotImplementedError, where + "key_padding_mask adds values other", key_padding_mask=torch.ones(2, 5)
    )
    refused(TypeError, where + "key_padding_mask is torch.int64", key_padding_mask=torch.zeros(2, 5).long())
    refused(ValueError, where + r"key_padding_mask has shape \(5,\)", key_padding_mask=torch.zeros(5).bool())
    hole = torch.tensor([[False, True, False, False, False]] * 2)
    refused(
        NotImplementedError,
        where + "key_padding_mask together with an attn_mask: keys in the middle",
        key_padding_mask=hole,
        is_causal=True,
    )
    refused(
        NotImplementedError, where + "key_padding_mask together with an attn_mask",
        inputs=(x, draw(2, 6, 64), draw(2, 6, 64)), key_padding_mask=torch.zeros(2, 6).bool(), is_causal=True,
    )  # fmt: skip
    refused(
        NotImplementedError,
        where + "query is a nested tensor",
        inputs=(torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged), x, x),
    )
    refused(ValueError, where + r"value has shape \(2, 5, 60\)", inputs=(x, x, x[..., :60]))
    refused(ValueError, where + "query has shape .* one batch", inputs=(x, x[:1], x[:1]))
    refused(TypeError, where + "key is list", inputs=(x, [1], x))
    refused(TypeError, "x is torch.float32", inputs=(x.float(),) * 3)
    odd = nn.MultiheadAttention(36, 3, batch_first=True, dtype=BF16)
    refused(ValueError, "the head size is 12", module=odd, inputs=(draw(2, 5, 36),) * 3)


def test_dropout_belongs_to_training(gfx942):
    ours, _ = pair(64, 2, batch_first=True, dropout=0.5)
    x = draw(2, 5, 64)
    plain, _ = pair(64, 2, batch_first=True)
    assert torch.equal(ours.eval()(x, x, x, need_weights=False)[0], plain(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("shape", [(6,), (4, 6), (3, 4, 6)])
def test_norms_of_several_dimensions(target, shape):
    for make, options in (
        ("LayerNorm", {}), ("LayerNorm", {"bias": False}), ("LayerNorm", {"elementwise_affine": False}),
        ("RMSNorm", {}), ("RMSNorm", {"elementwise_affine": False}),
    ):  # fmt: skip
        ours, theirs = (getattr(home, make)(shape, **options) for home in (nn, torch.nn))
        for number, parameter in enumerate(theirs.parameters()):
            parameter.data = draw(*shape, dtype=F32, seed=number)
        ours.load_state_dict(theirs.state_dict())
        x = [draw(2, 3, 4, 6, dtype=F32, seed=7).requires_grad_() for _ in range(2)]
        outs = [module(value) for module, value in zip((ours, theirs), x, strict=True)]
        torch.testing.assert_close(*outs)
        for out in outs:
            out.pow(3).sum().backward()
        torch.testing.assert_close(x[0].grad, x[1].grad, rtol=1e-4, atol=1e-4)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
        with pytest.raises(ValueError, match=r"its last dimensions must be"):
            ours(x[0][..., :5])
