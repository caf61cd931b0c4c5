# SPDX-License-Identifier: MIT
"""hipkittens.layers: pure classes whose forward, substituted into another module, gives that module's results."""

import inspect

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import layers
from hipkittens.integrations import kernels as installed

BF16 = torch.bfloat16


def draw(*shape, seed=0, grad=False):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)
    return value.requires_grad_(grad)


def forward(name, module, *arguments, **options):
    """The layer's forward on another module's attributes, as `kernels` calls it."""
    return getattr(layers, name).forward(module, *arguments, **options)


def close(found, expected):
    torch.testing.assert_close(found.float(), expected.float(), atol=0.04, rtol=0.02)


@pytest.mark.parametrize("name", layers.__all__)
def test_a_layer_is_pure(name):
    """The rules that `kernels` checks: no constructor, no method but forward, no attribute but these two."""
    layer = getattr(layers, name)
    assert issubclass(layer, torch.nn.Module) and layer.__init__ is torch.nn.Module.__init__
    members = {each for each, _ in inspect.getmembers(layer)} - {
        each for each, _ in inspect.getmembers(torch.nn.Module)
    }
    assert members <= {"can_torch_compile", "has_backward"}
    assert layer.__doc__ and "forward" in vars(layer)


class Norm(torch.nn.Module):
    def __init__(self, eps_name="variance_epsilon", dtype=BF16):
        super().__init__()
        self.weight = torch.nn.Parameter(draw(24, seed=5).to(dtype))
        setattr(self, eps_name, 1e-5)


@pytest.mark.parametrize("eps_name", ["variance_epsilon", "eps"])
def test_norms(eps_name):
    module, x, gate = Norm(eps_name), draw(3, 24), draw(3, 24, seed=1)
    normal = F.rms_norm(x.float(), (24,), eps=1e-5)
    close(forward("RMSNorm", module, x), normal * module.weight)
    close(forward("RMSNormZeroCentered", module, x), normal * (1 + module.weight))
    close(forward("RMSNormGated", module, x, gate.float()), normal * module.weight * F.silu(gate.float()))
    assert forward("RMSNorm", Norm(dtype=torch.float32), x).dtype == torch.float32  # as in Llama's own
    with pytest.raises(AttributeError, match="has no eps"):
        forward("RMSNorm", torch.nn.Linear(24, 24), x.float())


@pytest.mark.parametrize(
    ("name", "gate"),
    [
        ("SiluAndMul", F.silu),
        ("GeluAndMul", F.gelu),
        ("GeluTanhAndMul", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_gates(name, gate):
    x = draw(3, 24)
    left, right = x.float().chunk(2, -1)
    close(forward(name, torch.nn.Identity(), x), gate(left) * right)


@pytest.mark.parametrize(
    ("name", "gate"), [("SwiGLUMLP", F.silu), ("GeGLUMLP", lambda x: F.gelu(x, approximate="tanh"))]
)
def test_gated_blocks(name, gate):
    module = torch.nn.Module()
    for part, sizes in (("gate_proj", (8, 12)), ("up_proj", (8, 12)), ("down_proj", (12, 8))):
        setattr(module, part, torch.nn.Linear(*sizes, bias=False, dtype=BF16))
    x = draw(3, 8, grad=True)
    out = forward(name, module, x)
    close(out, module.down_proj(gate(module.gate_proj(x)) * module.up_proj(x)))
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape


def test_rotations():
    q, k = draw(2, 4, 5, 16), draw(2, 2, 5, 16, seed=1)
    angles = torch.outer(torch.arange(5.0), 0.1 ** torch.arange(8)).repeat(1, 2)[None]
    cos, sin = angles.cos(), angles.sin()

    def turned(x):
        a, b = x.float().chunk(2, -1)
        return x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]

    for found, given in zip(
        forward("rotary_pos_emb", torch.nn.Identity(), q, k, cos, sin), (q, k), strict=True
    ):
        close(found, turned(given))


def test_attention():
    q, k, v = draw(2, 4, 5, 16), draw(2, 2, 5, 16, seed=1), draw(2, 2, 5, 16, seed=2)
    found = forward(
        "ScaledDotProductAttention", torch.nn.Identity(), q, k, v, is_causal=True, enable_gqa=True
    )
    close(found, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    with pytest.raises(ValueError, match="4 query heads and 2 key heads; pass enable_gqa=True"):
        forward("ScaledDotProductAttention", torch.nn.Identity(), q, k, v)
    with pytest.raises(NotImplementedError, match="attn_mask is given"):
        forward("ScaledDotProductAttention", torch.nn.Identity(), q, q, q, attn_mask=torch.ones(5, 5))
    with pytest.raises(NotImplementedError, match="is_causal with 4 queries and 5 keys"):
        forward("ScaledDotProductAttention", torch.nn.Identity(), q[:, :, 1:], q, q, is_causal=True)


def test_losses():
    module = torch.nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.1)
    logits, target = torch.randn(2, 11, 5), torch.randint(11, (2, 5))
    torch.testing.assert_close(forward("CrossEntropyLoss", module, logits, target), module(logits, target))
    torch.testing.assert_close(
        forward("CrossEntropyLoss", module, logits[0].T, target[0]), module(logits[0].T, target[0])
    )
    with pytest.raises(NotImplementedError, match="weight is given"):
        forward("CrossEntropyLoss", torch.nn.CrossEntropyLoss(weight=torch.ones(11)), logits, target)


def test_convolutions():
    x, weight, bias = draw(2, 8, 6), draw(8, 4, seed=1), draw(8, seed=2)
    nothing = torch.nn.Identity()
    expected = F.silu(
        F.conv1d(x.float(), weight[:, None].float(), bias.float(), padding=3, groups=8)[..., :6]
    )
    close(forward("causal_conv1d_fn", nothing, x, weight, bias, activation="silu", seq_idx=None), expected)
    with pytest.raises(NotImplementedError, match="seq_idx is given"):
        forward("causal_conv1d_fn", nothing, x, weight, bias, seq_idx=torch.zeros(2, 6))
    state = x[..., 2:5].clone()
    found = forward("causal_conv1d_update", nothing, x[..., 5:], state, weight, bias, "silu")
    close(found, expected[..., 5:])
    assert torch.equal(state, x[..., 3:])


def test_gated_delta_rules():
    q, k, v = (F.normalize(draw(1, 7, 2, 16, seed=seed).float(), dim=-1).to(BF16) for seed in range(3))
    g, beta = -torch.rand(1, 7, 2), torch.rand(1, 7, 2)
    nothing = torch.nn.Identity()
    out, state = hipkittens.gated_delta_rule(q, k, v, g, beta, return_state=True)
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        found = forward(name, nothing, q, k, v, g=g, beta=beta, output_final_state=True, cu_seqlens=None)
        assert torch.equal(found[0], out) and torch.equal(found[1], state)
        assert forward(name, nothing, q, k, v, g=g, beta=beta)[1] is None


def test_layers_of_this_installation():
    layer = installed.InstalledLayer("RMSNorm")
    assert layer.load() is layers.RMSNorm and layer == installed.InstalledLayer("RMSNorm")
    assert layer != installed.InstalledLayer("SiluAndMul") and "RMSNorm" in str(layer)
    assert set(installed.mapping()) == set(layers.__all__)
    assert installed.mapping("cpu")["RMSNorm"] == {"cpu": layer}
    with pytest.raises(ValueError, match="no layer 'Norm'; allowed: CrossEntropyLoss, "):
        installed.InstalledLayer("Norm")
    with pytest.raises(ValueError, match="device is 'cuda'; allowed: 'rocm'"):
        installed.mapping("cuda")
