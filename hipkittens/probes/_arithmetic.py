# SPDX-License-Identifier: MIT
"""Facts about matrix instructions: where products are rounded or truncated, which of them are added at once, denormals and NaN.

Element (i, i) of a 16x16 product is the i-th case: a few products and C. The expectation is the rule of CDNA3 that MMA-Sim derived from an
MI300X (csrc/simulator/execute/matrix_exact.h), also on gfx950, for which nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ._device import Device
from ._fact import Fact

_SIDE, _LANES = 16, 64
_USERS = ("csrc/simulator/execute/matrix_exact.h", "csrc/tiles/matrix_intrinsics.h")


@dataclass(frozen=True)
class Case:
    """The sum of a * b, the n-th product at k = places[n] (by default n), plus c; and the expected f32."""

    products: tuple[tuple[float, float], ...]
    c: float
    expected: float
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Format:
    """A format of multiplicands in probe.matrix_product.

    number      its number in csrc/kernels/probe/kinds.h: MatrixFormat
    run         consecutive k of a lane in one instruction, by target; k of that instruction is four times as much
    group       products that are added at once
    dtype       by target
    """

    number: int
    run: dict[str, int]
    group: int
    dtype: dict[str, torch.dtype]


def _both(value: object) -> dict:
    return {"gfx942": value, "gfx950": value}


FORMATS = {
    "bf16": Format(0, {"gfx942": 4, "gfx950": 8}, 8, _both(torch.bfloat16)),
    "f16": Format(1, {"gfx942": 4, "gfx950": 8}, 8, _both(torch.float16)),
    "fp8": Format(2, _both(8), 16, {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}),
    "f32": Format(3, _both(1), 1, _both(torch.float32)),
}
_INF, _NAN = float("inf"), float("nan")


def _power(exponent: int) -> float:
    return 2.0**exponent


def _denormal_cases(name: str, target: str) -> list[Case]:
    """A denormal multiplicand, a denormal result for formats with that range, and a denormal C."""
    if name in ("bf16", "f32"):
        return [
            Case(((_power(-130), _power(100)),), 0.0, _power(-30)),
            Case(((_power(-130), 1.0),), 0.0, _power(-130)),
            Case(((_power(-70), _power(-70)),), 0.0, _power(-140)),
            Case((), _power(-140), _power(-140)),
            Case(((-_power(-130), 1.0),), _power(-126), _power(-126) - _power(-130)),
        ]
    smallest = {"f16": -24, "fp8": -10 if target == "gfx942" else -9}[name]
    return [
        Case(((_power(smallest), 1.0),), 0.0, _power(smallest)),
        Case(((_power(smallest), _power(smallest)),), 0.0, _power(2 * smallest)),
        Case(((1.0, 3 * _power(smallest)),), 0.0, 3 * _power(smallest)),
        Case((), _power(-140), _power(-140)),
    ]


def _rounding_cases(name: str, target: str) -> list[Case]:
    one = (1.0, 1.0)
    half_ulp, quarter_ulp = (_power(-12), _power(-12)), (_power(-12), _power(-13))  # of 1.0 in f32
    ties = [
        # The result is rounded to nearest even: 2^24 + 1, + 3.
        Case((one,), _power(24), _power(24)),
        Case((one, one, one), _power(24), _power(24) + 4 if name != "f32" else _power(24)),
    ]
    if name == "f32":  # one fused multiply-add after the other
        return [
            *ties,
            Case((one, half_ulp, half_ulp, half_ulp), 0.0, 1.0),
            # Rounded once: (1 + 2^-12)^2 - 1 has its last bit.
            Case(((1 + _power(-12), 1 + _power(-12)),), -1.0, _power(-11) + _power(-24)),
        ]
    if name == "fp8":
        return ties
    cancelling = ((_power(12), _power(12)), one, (-_power(12), _power(12)))
    return [
        *ties,
        # 24 bits below the largest exponent are kept: three half ulps are added up before there is a rounding.
        Case((one, half_ulp, half_ulp, half_ulp), 0.0, 1 + _power(-22)),
        # Lower bits are truncated toward zero, for either sign.
        Case((one, quarter_ulp, quarter_ulp, quarter_ulp), 0.0, 1.0),
        Case((one, *((-a, b) for a, b in (quarter_ulp,) * 3)), 0.0, 1.0),
        Case(cancelling, 0.0, 1.0),
        # C is truncated toward minus infinity, 24 bits below.
        Case(((_power(5), _power(5)),), -_power(-20), _power(10) - _power(-14)),
        Case(((_power(5), _power(5)),), _power(-20), _power(10)),
        # The sum of the products is truncated 31 bits below C: bits that would break a tie are lost.
        Case((half_ulp, (_power(-14), _power(-14))), 1.0, 1 + _power(-23)),
        Case((half_ulp, (_power(-12), _power(-24))), 1.0, 1.0),
    ]


def _special_cases(name: str, target: str) -> list[Case]:
    cases = [
        Case(((1.0, 1.0),), _INF, _INF),
        Case(((1.0, 1.0),), _NAN, _NAN),
        Case(((_NAN, 1.0),), 0.0, _NAN),
    ]
    if name != "fp8":
        cases += [
            Case(((_INF, 0.0),), 0.0, _NAN),
            Case(((_INF, 1.0), (-_INF, 1.0)), 0.0, _NAN),
            Case(((-_INF, 2.0),), 1.0, -_INF),
        ]
    if name == "bf16":
        cases += [
            Case(((_power(127), 1.0), (_power(127), 1.0)), 0.0, _INF),
            # A product of 2^128 is infinite before it is added.
            Case(((_power(64), _power(64)), (-_power(64), _power(64))), 0.0, _NAN),
        ]
    return cases


def _group_cases(name: str, target: str) -> list[Case]:
    """Two products of 1 together with 2^24: 2^24 + 2 if they are added to each other first, for distances up to all of K."""
    format_ = FORMATS[name]
    k = 4 * format_.run[target]
    far = sorted({*range(1, min(k, 10)), *(at for at in (11, 15, 16, 17, 24, 31) if at < k)})[:_SIDE]
    return [
        Case(
            ((1.0, 1.0),) * 2,
            _power(24),
            _power(24) + (2 if place < format_.group else 0),
            (0, place),
        )
        for place in far
    ]


Cases = Callable[[str, str], list[Case]]


def _operand(cases: Sequence[Case], side: int, name: str, target: str) -> torch.Tensor:
    """The four dwords of each lane: row i of the operand contains the multiplicands of case i."""
    format_ = FORMATS[name]
    run, dtype = format_.run[target], format_.dtype[target]
    values = torch.zeros(_LANES, 16 // dtype.itemsize, dtype=torch.float32)
    for row, case in enumerate(cases):
        for k, product in zip(case.places or range(len(case.products)), case.products, strict=True):
            values[row + _SIDE * (k // run), k % run] = product[side]
    operand = values.to(dtype)
    assert torch.equal(operand.float().nan_to_num(1.5), values.nan_to_num(1.5)), (
        "a value is not of its format"
    )
    return operand.view(torch.int32)


def _find(cases_of: Cases, name: str) -> Callable[[Device], torch.Tensor]:
    def find(device: Device) -> torch.Tensor:
        cases = cases_of(name, device.target)
        c = torch.zeros(_LANES, 4)
        for i, case in enumerate(cases):
            c[_place(i)] = case.c
        operands = (_operand(cases, side, name, device.target) for side in (0, 1))
        input = torch.cat([*operands, c.view(torch.int32)])
        product = device.launch("matrix_product", input, _LANES * 4, which=FORMATS[name].number).view(
            _LANES, 4
        )
        return torch.stack([product[_place(i)] for i in range(len(cases))])

    return find


def _place(i: int) -> tuple[int, int]:
    """Lane and register of element (i, i) of D."""
    return i + _SIDE * (i // 4), i % 4


def _expected(cases_of: Cases, name: str) -> Callable[[str], torch.Tensor]:
    return lambda target: torch.tensor([case.expected for case in cases_of(name, target)]).view(torch.int32)


_STATEMENTS: dict[str, tuple[Cases, str]] = {
    "denormals": (_denormal_cases, "denormal multiplicands, C and results are kept, whatever MODE says"),
    "rounding": (_rounding_cases, "products are added, cut and rounded as CDNA3's rule says"),
    "groups": (_group_cases, "so many products are added to each other before C is added and rounded"),
    "specials": (_special_cases, "infinities and NaN pass as in any sum; every NaN is 0x7fc00000"),
}
FACTS = [
    Fact(
        f"matrix_{name}_{kind}",
        f"16x16 products of {name}: {statement}",
        _USERS,
        _find(cases, name),
        _expected(cases, name),
    )
    for name in FORMATS
    for kind, (cases, statement) in _STATEMENTS.items()
]
