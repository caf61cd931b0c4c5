# SPDX-License-Identifier: MIT
"""The cases of layer_norm, rms_norm and rotary for benchmarks/parity.py: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import hipkittens
from hipkittens._accuracy import compare

OPERATIONS = ("layer_norm", "rms_norm", "rotary")
TARGETS = ("gfx942", "gfx950")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Single elements, primes, multiples of a lane's 8 elements and of every variant's capacity, and one off them.
LENGTHS = (
    1,
    2,
    3,
    8,
    17,
    64,
    255,
    256,
    257,
    512,
    513,
    768,
    1000,
    2048,
    2049,
    4096,
    5003,
    8192,
    8200,
    33000,
    65536,
)
# batch, tokens, query heads, key heads, features, pairs
HEADS = (
    (1, 1, 1, 1, 2, 1), (2, 5, 4, 2, 64, 32), (1, 17, 8, 1, 128, 64), (2, 3, 3, 3, 80, 40), (1, 9, 2, 1, 96, 16),
    (1, 4, 5, 1, 17, 3), (3, 7, 2, 2, 256, 128), (1, 33, 4, 4, 72, 36), (2, 2, 1, 1, 40, 8), (1, 257, 2, 1, 64, 16),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    operation: str
    target: str
    dtype: str
    shape: tuple[int, ...]
    parameters: str = ""  # dtype of weight and bias, or of the tables; "" none
    bias: bool = False
    residual: bool = False
    mean: float = 0.0
    layout: str = "dense"  # norms: gap, transposed; rotary: bnhd, bhnd
    interleaved: bool = False
    positions: bool = False

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape)), self.dtype, self.parameters or "plain", self.layout]
        flags = ("bias", "residual", "interleaved", "positions")
        words += [name for name in flags if getattr(self, name)]
        return "_".join(words + [f"mean{self.mean:g}"] * (self.mean != 0))


def cases(operation: str, targets: tuple[str, ...] = TARGETS) -> Iterator[Case]:
    """Every dtype for every length, with the other properties rotating through."""
    for target in targets:
        for number, shape in enumerate(HEADS if operation == "rotary" else LENGTHS):
            for turn, dtype in enumerate(DTYPES):
                step = number + turn
                if operation == "rotary":
                    for interleaved in (False, True):
                        yield Case(
                            operation, target, dtype, shape, ("f32", dtype)[(step + interleaved) % 2],
                            layout=("bnhd", "bhnd")[step % 2], interleaved=interleaved, positions=number % 3 == 1,
                        )  # fmt: skip
                    continue
                parameters = (dtype, "f32", "", "bf16")[step % 4]
                yield Case(
                    operation, target, dtype, (5, shape), parameters,
                    bias=operation == "layer_norm" and bool(parameters) and step % 3 != 1, residual=step % 2 == 1,
                    mean=(0.0, 0.0, 20.0)[step % 3], layout=("dense", "gap", "transposed")[(number // 2) % 3],
                )  # fmt: skip


def run(case: Case) -> list[dict]:
    return _run_rotary(case) if case.operation == "rotary" else _run_norm(case)


def _lay_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, in rows with NaN between them, or with the rows of three dimensions in another order."""
    if layout == "gap":
        wide = torch.full((*values.shape[:-1], values.shape[-1] + 3), float("nan"), dtype=values.dtype)
        wide[..., 1:-2] = values
        return wide[..., 1:-2]
    if layout == "transposed":
        both = torch.stack([values, values.flip(0)], dim=1)  # rows, 2, columns
        return both.transpose(0, 1)
    return values


def _run_norm(case: Case) -> list[dict]:
    generator = torch.Generator().manual_seed(1234)
    dtype = DTYPES[case.dtype]
    rows, columns = case.shape

    def draw(*shape, dtype=dtype, mean=0.0):
        return (torch.randn(shape, generator=generator) + mean).to(dtype)

    inputs = {"x": _lay_out(draw(rows, columns, mean=case.mean), case.layout)}
    if case.residual:
        inputs["residual"] = _lay_out(draw(rows, columns), case.layout)
    if case.parameters:
        inputs["weight"] = draw(columns, dtype=DTYPES[case.parameters])
    if case.bias:
        inputs["bias"] = draw(columns, dtype=DTYPES[case.parameters])
    dy = _lay_out(draw(rows, columns), case.layout)
    eps = 1e-5

    def results(function, convert):
        # Views keep their strides: the leaf is the whole storage's view itself.
        leaves = {name: convert(name, value.detach()).requires_grad_() for name, value in inputs.items()}
        y = function(**leaves)
        gradients = torch.autograd.grad(y, list(leaves.values()), convert("y", dy).to(y.dtype))
        return {"y": y.detach(), **{"d" + name: value for name, value in zip(leaves, gradients, strict=True)}}

    def ours(x, residual=None, weight=None, bias=None):
        if case.operation == "rms_norm":
            return hipkittens.rms_norm(x, weight, eps, residual=residual)
        return hipkittens.layer_norm(x, weight, bias, eps, residual=residual)

    def theirs(x, residual=None, weight=None, bias=None):
        z = x if residual is None else x + residual
        if case.operation == "rms_norm":
            return F.rms_norm(z, (columns,), weight, eps)
        return F.layer_norm(z, (columns,), weight, bias, eps)

    with hipkittens.simulate(case.target, checks=True):
        mine = results(ours, lambda _, value: value)
    # PyTorch gets parameters of x's dtype, and rounds their gradients to the dtype they are wanted in.
    other = results(theirs, lambda _, value: value.to(dtype))
    exact = results(theirs, lambda _, value: value.double())
    return _rows(case, mine, other, exact, _norm_magnitudes(case, inputs, dy, eps))


def _norm_magnitudes(case: Case, inputs, dy, eps) -> dict[str, float]:
    """The largest sums of absolute values that each result is made of: what float32 arithmetic rounds."""
    x, dy = inputs["x"].double(), dy.double()
    z = x + inputs["residual"].double() if case.residual else x
    mean = z.mean(-1, keepdim=True) if case.operation == "layer_norm" else torch.zeros_like(z[..., :1])
    rstd = ((z - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    # A mean, too, is rounded to float32.
    xhat = ((z - mean).abs() + mean.abs()) * rstd
    weight = inputs["weight"].double().abs() if case.parameters else torch.ones(())
    bias = inputs["bias"].double().abs() if case.bias else torch.zeros(())
    g = dy.abs() * weight
    dx = rstd * (g + g.mean(-1, keepdim=True) + xhat * (g * xhat).mean(-1, keepdim=True))
    columns = case.shape[1]
    return {
        "y": (xhat * weight + bias).max().item(),
        "dx": dx.max().item(),
        "dresidual": dx.max().item(),
        "dweight": (dy.abs() * xhat).reshape(-1, columns).sum(0).max().item(),
        "dbias": dy.abs().reshape(-1, columns).sum(0).max().item(),
    }


def _run_rotary(case: Case) -> list[dict]:
    from hipkittens.rotary import _in_torch

    generator = torch.Generator().manual_seed(1234)
    dtype, table = DTYPES[case.dtype], DTYPES[case.parameters]
    batch, tokens, heads, key_heads, features, pairs = case.shape
    heads_first = case.layout == "bhnd"

    def draw(count):
        values = torch.randn(batch, tokens, count, features, generator=generator).to(dtype)
        return values.transpose(1, 2) if heads_first else values

    tensors = {"q": draw(heads), "k": draw(key_heads)}
    gradients = [draw(heads), draw(key_heads)]
    angles = 100 * torch.rand(tokens + 6, pairs, generator=generator, dtype=torch.float64)
    cos, sin = angles.cos().to(table), angles.sin().to(table)
    positions = torch.randint(tokens + 6, (batch, tokens), generator=generator) if case.positions else None
    offset = 0 if case.positions else 3

    def results(function, dtype):
        leaves = [value.detach().to(dtype).requires_grad_() for value in tensors.values()]
        outputs = function(*leaves)
        found = torch.autograd.grad(outputs, leaves, [value.to(dtype) for value in gradients])
        return dict(
            zip(("q", "k", "dq", "dk"), [*(value.detach() for value in outputs), *found], strict=True)
        )

    def ours(q, k):
        return hipkittens.rotary_qk(
            q,
            k,
            cos,
            sin,
            interleaved=case.interleaved,
            positions=positions,
            offset=offset,
            layout=case.layout,
        )

    def theirs(q, k):
        return [
            _in_torch(value, cos, sin, case.interleaved, positions, offset, heads_first) for value in (q, k)
        ]

    def exact(q, k):
        row = torch.arange(tokens) + offset if positions is None else positions
        turn = torch.complex(cos.double(), sin.double())[row].unsqueeze(-3 if heads_first else -2)

        def turned(value):
            first = value[..., : 2 * pairs]
            a, b = (first[..., 0::2], first[..., 1::2]) if case.interleaved else first.chunk(2, -1)
            z = torch.complex(a, b) * turn
            parts = torch.stack((z.real, z.imag), -1 if case.interleaved else -2).flatten(-2)
            return torch.cat((parts, value[..., 2 * pairs :]), -1)

        return [turned(q), turned(k)]

    with hipkittens.simulate(case.target, checks=True):
        mine = results(ours, dtype)
    largest = 2 * max(value.double().abs().max().item() for value in (*tensors.values(), *gradients))
    return _rows(
        case, mine, results(theirs, dtype), results(exact, torch.float64), dict.fromkeys(mine, largest)
    )


def _rows(case: Case, mine, other, exact, magnitudes) -> list[dict]:
    rows = []
    for name, value in mine.items():
        result = compare(value, other[name].to(value.dtype), exact[name], magnitudes[name])
        rows.append(
            {
                "op": f"{case.operation}.{name}",
                "target": case.target,
                "case": str(case),
                "ratio_max": result.ratio_max,
                "ratio_rms": result.ratio_rms,
            }
        )
    return rows
