# SPDX-License-Identifier: MIT
"""Every row of the norm and rotary lists is chosen by some problem, and runs it with every checker on."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _library

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ROWS = re.findall(
    r"^ROW\(\w+, (\w+)_(bf16|f16|f32)_(\d+),", (ROOT / "csrc/kernels/norm/variants.def").read_text(), re.M
)
ROTARY = re.findall(r"^ROW\(rotary, (\w+),", (ROOT / "csrc/kernels/rotary/variants.def").read_text(), re.M)
ROTARY_PLAIN = re.findall(
    r"^ROW\(plain, plain_(\w+?)_(\w+),", (ROOT / "csrc/kernels/rotary/variants.def").read_text(), re.M
)
TOLERANCE = {"bf16": 2.0**-6, "f16": 2.0**-9, "f32": 2.0**-18}


def chosen(kind, element, columns, target):
    """The row that holds so many columns with the fewest left over."""
    fit = [int(row[2]) for row in ROWS if row[:2] == (kind, element) and int(row[2]) >= columns]
    return f"hipkittens_norm_{kind}_{element}_{min(fit)}_{target}"


def test_the_lists_were_read():
    plain = {"forward": 24, "layer": 24, "rms": 24, "backward": 24}
    assert Counter(row[0] for row in ROWS) == plain | {"odd_layer": 12, "odd_rms": 12, "fused": 12}
    assert ROTARY == ["bf16", "f16", "f32"] and len(ROTARY_PLAIN) == 5


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize(
    ("element", "capacity"),
    sorted({(element, int(capacity)) for kind, element, capacity in ROWS if kind == "forward"}),
)
def test_norm_rows(target, element, capacity):
    """A full row, and one that ends in the middle of a chunk and begins on odd elements: forward and backward."""
    for seed, columns in ((0, capacity), (5, capacity - 5)):
        x = torch.randn(3, columns, generator=torch.Generator().manual_seed(1)).to(DTYPES[element])
        dy = torch.randn(3, columns, generator=torch.Generator().manual_seed(2)).to(DTYPES[element])
        with hipkittens.simulate(target, checks=True, seed=seed):
            y, _, mean, rstd = torch.ops.hipkittens.layer_norm(x, None, None, None, 1e-5, 0.0, None)
            assert _library.last_kernel() == chosen("forward", element, columns, target)
            dx, _, dweight, dbias = torch.ops.hipkittens.norm_backward(
                dy, None, x, None, mean, rstd, 0.0, None, True, True
            )
            assert _library.last_kernel() == chosen("backward", element, columns, target)
        leaf = x.double().requires_grad_()
        exact = F.layer_norm(leaf, (columns,))
        results = {"y": (y, exact), "dx": (dx, torch.autograd.grad(exact, leaf, dy.double())[0]),
                   "dweight": (dweight, (dy.double() * exact).sum(0)), "dbias": (dbias, dy.double().sum(0))}  # fmt: skip
        for name, (value, right) in results.items():
            tolerance = TOLERANCE["f32" if name in ("dweight", "dbias") else element]
            torch.testing.assert_close(
                value.double(), right.detach(), rtol=tolerance, atol=tolerance, msg=name
            )


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize(
    ("kind", "element", "capacity"), [(kind, *rest) for kind, *rest in ROWS if kind.startswith("odd_")]
)
def test_odd_rows(target, kind, element, capacity):
    """Bitwise equal to the kernels for arbitrary arguments, which support rows more than one step apart."""
    norm, taken = {"odd_layer": (hipkittens.layer_norm, 2), "odd_rms": (hipkittens.rms_norm, 1)}[kind]
    for columns in (int(capacity) - 3, int(capacity) // 2 + 1):
        far, residual = (
            torch.randn(2, 4, columns, generator=torch.Generator().manual_seed(i)).to(DTYPES[element])[:, :3]
            for i in range(2)
        )
        parameters = [
            torch.randn(columns, generator=torch.Generator().manual_seed(2 + i)).to(DTYPES[element])
            for i in range(taken)
        ]
        results = []
        for x, z in ((far, residual), (far.reshape(6, columns), residual.reshape(6, columns))):
            with hipkittens.simulate(target, checks="all"):
                found = [
                    norm(x, *parameters, 1e-5),
                    *norm(x, *parameters, 1e-5, residual=z, return_residual=True),
                    *torch.ops.hipkittens.rms_norm(x, z, parameters[0], 1e-5)[2:],
                ]
            results.append([value.flatten() for value in found])
            with hipkittens.simulate(target):
                norm(x, *parameters, 1e-5)
                taken_kind = kind if x.dim() == 2 else "forward"
                assert _library.last_kernel() == chosen(taken_kind, element, columns, target)
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize(
    ("kind", "element", "capacity"), [(kind, *rest) for kind, *rest in ROWS if kind in ("layer", "rms")]
)
def test_plain_rows(target, kind, element, capacity):
    """The forward kernels of most calls, and the backward kernel that follows: a full row, and one that leaves chunks empty."""
    norm, exactly, taken = {
        "layer": (hipkittens.layer_norm, F.layer_norm, 2),
        "rms": (hipkittens.rms_norm, F.rms_norm, 1),
    }[kind]
    for seed, columns in ((0, int(capacity)), (5, int(capacity) - 8)):
        x, residual, weight, bias = (
            torch.randn(*shape, columns, generator=torch.Generator().manual_seed(i)).to(DTYPES[element])
            for i, shape in enumerate(((5,), (5,), (), ()))
        )
        leaves = [tensor.requires_grad_() for tensor in (x, residual, weight, bias)[: 2 + taken]]
        with hipkittens.simulate(target, checks=True, seed=seed):
            y, z = norm(x, *leaves[2:], 1e-5, residual=residual, return_residual=True)
            assert _library.last_kernel() == chosen(kind, element, columns, target)
            plain = norm(x, *leaves[2:], 1e-5)
            assert _library.last_kernel() == chosen(kind, element, columns, target)
            gradients = torch.autograd.grad((y, z), leaves, (y.detach(), z.detach()))
        exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
        total = exact[0] + exact[1]
        right = exactly(z.detach().double(), (columns,), *exact[2:], eps=1e-5)
        tolerance = TOLERANCE[element]
        close = dict(rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(y.double(), right.detach(), **close)
        torch.testing.assert_close(
            plain.double(), exactly(exact[0], (columns,), *exact[2:], eps=1e-5).detach(), **close
        )
        torch.testing.assert_close(z.double(), total.detach(), **close)
        right = exactly(total, (columns,), *exact[2:], eps=1e-5)
        theirs = torch.autograd.grad((right, total), exact, (y.detach().double(), z.detach().double()))
        for ours, value in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(ours.double(), value, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize("element", ROTARY)
def test_rotary_row(target, element):
    x = torch.randn(1, 3, 2, 32).to(DTYPES[element])
    with hipkittens.simulate(target, checks=True, seed=3):
        y = hipkittens.rotary(x, torch.zeros(3, 16), torch.ones(3, 16), interleaved=True)
        assert _library.last_kernel() == f"hipkittens_rotary_{element}_{target}"
    pairs = x.unflatten(-1, (16, 2))
    assert torch.equal(y, torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2))


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize(("element", "table"), ROTARY_PLAIN)
def test_plain_rotary_row(target, element, table):
    """Heads that take several passes of a wave, and more tokens than a workgroup holds; queries with keys, and alone."""
    angle = torch.arange(11.0)[:, None] * torch.linspace(0, 1, 64)
    cos, sin = angle.cos().to(DTYPES[table]), angle.sin().to(DTYPES[table])
    q, k = (torch.randn(2, 9, heads, 128).to(DTYPES[element]) for heads in (21, 3))
    with hipkittens.simulate(target, checks=True, seed=3):
        turned = hipkittens.rotary_qk(q, k, cos, sin, offset=2)
        assert _library.last_kernel() == f"hipkittens_rotary_plain_{element}_{table}_{target}"
        alone = hipkittens.rotary(k, cos, sin, offset=2)
    assert torch.equal(alone, turned[1])
    c, s = (value.double()[2:, None, :] for value in (cos, sin))
    for ours, x in zip(turned, (q, k), strict=True):
        first, second = x.double().chunk(2, -1)
        exact = torch.cat((first * c - second * s, first * s + second * c), -1)
        tolerance = TOLERANCE[element]
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)
