# SPDX-License-Identifier: MIT
"""Every row of the norm and rotary lists is chosen by some problem, and runs it with every check on."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _library

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ROWS = re.findall(
    r"^NORM_\w+\((\w+)_(bf16|f16|f32)_(\d+),", (ROOT / "csrc/kernels/norm/variants.def").read_text(), re.M
)
ROTARY = re.findall(r"^ROTARY\((\w+),", (ROOT / "csrc/kernels/rotary/variants.def").read_text(), re.M)
TOLERANCE = {"bf16": 2.0**-6, "f16": 2.0**-9, "f32": 2.0**-18}


def chosen(kind, element, columns, target):
    """The row that takes so many columns with the fewest to spare."""
    fit = [int(row[2]) for row in ROWS if row[:2] == (kind, element) and int(row[2]) >= columns]
    return f"hipkittens_norm_{kind}_{element}_{min(fit)}_{target}"


def test_the_lists_were_read():
    assert {row[0] for row in ROWS} == {"forward", "backward"}
    assert len(ROWS) == 48 and ROTARY == ["bf16", "f16", "f32"]


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize(
    ("element", "capacity"), sorted({(element, int(capacity)) for _, element, capacity in ROWS})
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
@pytest.mark.parametrize("element", ROTARY)
def test_rotary_row(target, element):
    x = torch.randn(1, 3, 2, 32).to(DTYPES[element])
    with hipkittens.simulate(target, checks=True, seed=3):
        y = hipkittens.rotary(x, torch.zeros(3, 16), torch.ones(3, 16))
        assert _library.last_kernel() == f"hipkittens_rotary_{element}_{target}"
    assert torch.equal(y, torch.cat((-x[..., 16:], x[..., :16]), -1))
