# SPDX-License-Identifier: MIT
"""Facts about conversions between floats, and the denormals of v_exp_f32 and v_log_f32."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._device import THREADS, Device
from ._fact import Fact

# The results of probe.conversion for each float, in this order.
_RESULTS = ("to_fp8", "to_bf8", "from_fp8", "from_bf8", "to_bf16", "to_f16", "exp2", "log2")
_FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
_BF8 = {"gfx942": torch.float8_e5m2fnuz, "gfx950": torch.float8_e5m2}
_UPPER = torch.arange(1 << 16, dtype=torch.int64) << 16
# Every upper half of a float, which covers all ties of fp8; and lower halves around the ties of bf16, with some of the upper ones.
_FLOATS = (
    torch.cat([_UPPER, *(_UPPER[::37] | lower for lower in (0x0001, 0x7FFF, 0x8000, 0x8001))])
    .to(torch.int32)
    .view(torch.float32)
)
_CODES = torch.arange(256, dtype=torch.uint8)
_DENORMAL_EXPONENTS = torch.arange(-149.0, -125.0)  # 2^-126 is the smallest normal number


def _convert(device: Device, floats: torch.Tensor, result: str) -> torch.Tensor:
    threads = THREADS["conversion"]
    count = len(floats)
    padded = torch.cat([floats, torch.zeros(-count % threads)])
    found = device.launch(
        "conversion", padded.view(torch.int32), len(padded) * len(_RESULTS), workgroups=len(padded) // threads
    )
    return found.view(-1, len(_RESULTS))[:count, _RESULTS.index(result)]


def _find(result: str, floats: torch.Tensor = _FLOATS) -> Callable[[Device], torch.Tensor]:
    return lambda device: _convert(device, floats, result)


def _codes(dtypes: dict[str, torch.dtype]) -> Callable[[str], torch.Tensor]:
    """Rounded to nearest even among the values of all codes; torch's own conversion saturates in some versions and not in others."""

    def expected(target: str) -> torch.Tensor:
        dtype = dtypes[target]
        is_fnuz = "fnuz" in str(dtype)
        values = _CODES[:128].view(dtype).double()
        values = values[values.isfinite()]
        # Beyond the largest as if the next code were also a number.
        past = values[-1] + (values[-1] - values[-2])
        middles = (torch.cat([values[1:], past[None]]) + values) / 2
        magnitudes = _FLOATS.double().abs()
        below = torch.bucketize(magnitudes, middles)  # a tie counts as the lower code
        is_tie = magnitudes == middles[below.clamp(max=len(middles) - 1)]
        codes = below + (is_tie & (below % 2 == 1))
        # An infinity follows the largest, where there is one.
        codes = torch.where(codes < len(values), codes, 0x80 if is_fnuz else len(values))
        codes = torch.where(_FLOATS.isnan(), 0x80 if is_fnuz else 0x7F, codes)
        negative = _FLOATS.view(torch.int32) < 0
        has_sign = (codes != 0) & (codes != 0x80) if is_fnuz else torch.ones_like(negative)
        return torch.where(negative & has_sign, codes | 0x80, codes).to(torch.int32)

    return expected


def _values(dtypes: dict[str, torch.dtype]) -> Callable[[str], torch.Tensor]:
    def expected(target: str) -> torch.Tensor:
        dtype = dtypes[target]
        values = _CODES.view(dtype).float()
        has_signs = "fnuz" not in str(dtype)
        nan = torch.where((_CODES >= 0x80) & has_signs, 0xFFC00000, 0x7FC00000)
        return torch.where(values.isnan(), nan, values.view(torch.int32)).to(torch.int32)

    return expected


def _expected_bf16(target: str) -> torch.Tensor:
    bits = _FLOATS.view(torch.int32)
    rounded = bits.long() + 0x7FFF + (bits >> 16 & 1) >> 16
    return torch.where(_FLOATS.isnan(), bits >> 16 | 0x40, rounded).to(torch.int32) & 0xFFFF


def _expected_f16(target: str) -> torch.Tensor:
    bits = _FLOATS.view(torch.int32)
    nan = bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF
    return torch.where(_FLOATS.isnan(), nan, _FLOATS.half().view(torch.int16).to(torch.int32) & 0xFFFF)


def _powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(len(exponents), dtype=torch.float64), exponents).float()


def _expected_exp2(target: str) -> torch.Tensor:
    return _powers_of_two(_DENORMAL_EXPONENTS).view(torch.int32)


def _expected_log2(target: str) -> torch.Tensor:
    return _DENORMAL_EXPONENTS.view(torch.int32)


_QUANTIZE = (
    "csrc/tiles/float8.h",
    "csrc/kernels/quantization/codes.h",
    "csrc/simulator/execute/vector_float8.cpp",
)
_TRANSCENDENTAL = ("csrc/simulator/execute/transcendental.h", "csrc/tiles/lane_intrinsics.h")
FACTS = [
    Fact(
        "convert_to_fp8",
        "v_cvt_pk_fp8_f32 rounds to nearest even, keeps denormals, and makes NaN of what is too large",
        _QUANTIZE,
        _find("to_fp8"),
        _codes(_FP8),
    ),
    Fact(
        "convert_to_bf8",
        "v_cvt_pk_bf8_f32 rounds to nearest even, keeps denormals, and makes NaN (gfx942) or infinity (gfx950) of what is too large",
        _QUANTIZE,
        _find("to_bf8"),
        _codes(_BF8),
    ),
    Fact(
        "convert_from_fp8",
        "v_cvt_f32_fp8 of every code; a NaN becomes 0x7fc00000 with the sign of its code, if codes of NaN have signs",
        _QUANTIZE[-1:],
        _find("from_fp8", torch.zeros(256)),
        _values(_FP8),
    ),
    Fact(
        "convert_from_bf8",
        "v_cvt_f32_bf8 of every code; a NaN becomes 0x7fc00000 with the sign of its code, if codes of NaN have signs",
        _QUANTIZE[-1:],
        _find("from_bf8", torch.zeros(256)),
        _values(_BF8),
    ),
    Fact(
        "convert_to_bf16",
        "v_cvt_pk_bf16_f32 rounds to nearest even and keeps denormals; a NaN keeps its upper bits and is quiet",
        ("csrc/tiles/convert.h",),
        _find("to_bf16"),
        _expected_bf16,
        targets=("gfx950",),
    ),
    Fact(
        "convert_to_f16",
        "v_cvt_f16_f32 rounds to nearest even and keeps denormals; a NaN keeps its upper bits and is quiet",
        ("csrc/tiles/convert.h",),
        _find("to_f16"),
        _expected_f16,
    ),
    Fact(
        "exp2_denormals",
        "v_exp_f32 has denormal results and exact powers of two; LLVM takes denormals for flushed, and no kernel relies on either",
        _TRANSCENDENTAL,
        _find("exp2", _DENORMAL_EXPONENTS),
        _expected_exp2,
    ),
    Fact(
        "log2_denormals",
        "v_log_f32 takes denormals and is exact of powers of two; LLVM takes denormals for flushed, and no kernel relies on either",
        _TRANSCENDENTAL,
        _find("log2", _powers_of_two(_DENORMAL_EXPONENTS)),
        _expected_log2,
    ),
]
