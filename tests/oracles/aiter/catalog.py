# SPDX-License-Identifier: MIT
"""Which of AITER's code objects run here, on what, and how close to float64 they must come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from tests.oracles.aiter import attention_forward, gemm, wheel
from tests.oracles.aiter.launch import Run

# One rounding to bf16 or f16 of normal values; sums of products that each were rounded once more stay below twice that.
BF16, F16, F32 = 2.5e-3, 4e-4, 2e-7


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one object did: the relative error of every result against float64, and the bar each must meet."""

    run: Run
    errors: Mapping[str, float]
    bars: Mapping[str, float]

    @property
    def worst(self) -> float:
        return max(self.errors.values())

    def check(self) -> None:
        assert self.errors.keys() == self.bars.keys()
        missed = {key: error for key, error in self.errors.items() if not error <= self.bars[key]}
        assert not missed, f"errors {missed}, bars {dict(self.bars)}"


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    name: str
    label: str
    action: Callable[[], Outcome] = dataclasses.field(compare=False)
    sample: bool = False  # in the default run

    @property
    def target(self) -> str:
        return self.name.split("/")[0]

    def __str__(self) -> str:
        return (
            f"{self.name.removesuffix('.co')}-{self.label}" if self.label else self.name.removesuffix(".co")
        )


def _names(fragment: str) -> list[str]:
    return sorted(name for name in wheel.objects() if fragment in name)


def forward_cases() -> Iterator[Case]:
    """The twelve files without rtne, rtna or rtz are left over from an older revision; AITER's tables do not use them."""
    sampled = ("MI300/fwd_hd128_bf16_causal_rtne", "MI308/fwd_hd128_bf16_rtna_group", "gfx950/")

    def action(name: str, label: str):
        def run() -> Outcome:
            if "group" in name:
                result = attention_forward.run_group(name, [(100, 130), (256, 256), (37, 300)], 4, 2)
            elif label == "unseen_rows":
                result = attention_forward.run_batch(name, 1, 300, 100, 2, 1)
            else:
                # The old causal file of MI300 masks the values of the last tile by the wrong length unless it is full.
                queries, keys = (256, 320) if name.endswith("MI300/fwd_hd128_bf16_causal.co") else (300, 333)
                result = attention_forward.run_batch(name, 1, queries, keys, 4, 2)
            rounding = name.startswith("gfx950") or "_rtn" in name
            bars = {
                "out": BF16 if rounding else 6e-3,
                "lse": 2e-6,
            }  # truncation is off by 1/2 unit on average
            return Outcome(result.run, {"out": result.error, "lse": result.lse_error}, bars)

        return run

    for name in _names("/fmha_v3_fwd/"):
        yield Case("fmha_v3_fwd", name, "", action(name, ""), any(part in name for part in sampled))
        if "causal_rtne.co" in name or (name.startswith("gfx950") and name.endswith("causal.co")):
            yield Case("fmha_v3_fwd", name, "unseen_rows", action(name, "unseen_rows"))


def gemm_cases() -> Iterator[Case]:
    def case(family: str, name: str, bar: float, function, *arguments: int, sample: bool = False) -> Case:
        def run() -> Outcome:
            result = function(name, *arguments)
            return Outcome(result.run, {"out": result.error}, {"out": bar})

        return Case(family, name, "x".join(map(str, arguments)), run, sample)

    for name in _names("/bf16gemm/"):
        yield case("bf16gemm", name, F32, gemm.bf16, 100, 128, 256, 1, sample="_48x" in name)
        yield case("bf16gemm", name, F32, gemm.bf16, 100, 128, 640, 3, sample="_96x" in name)
    for name in _names("/i8gemm/"):
        yield case("i8gemm", name, BF16, gemm.int8, 200, 256, 512, 1, sample="192" in name)
        yield case("i8gemm", name, 2 * BF16, gemm.int8, 200, 256, 512, 2, sample="128x128" in name)
        yield case("i8gemm", name, 2 * BF16, gemm.int8, 200, 256, 1024, 4)
    yield case("i8gemm", "gfx942/gemm_a8w8_m128_noSplitK.co", BF16, gemm.int8, 128, 256, 512, 1)
    for name in _names("/f4gemm/"):
        rows, columns = (int(part) for part in name.split("_")[-1].removesuffix(".co").split("x"))
        ragged = rows if rows > 100 else 100
        yield case(
            "f4gemm",
            name,
            BF16,
            gemm.float4,
            ragged,
            columns,
            512,
            sample="_192x256" in name,
        )
        if "noBpre" not in name and (rows, columns) in ((256, 256), (128, 512)):
            yield case("f4gemm", name, 2 * BF16, gemm.float4, rows, columns, 1024, 1, sample=rows == 256)
    for rows in (32, 64, 96, 128):
        name = f"gfx950/f8_block_scale_mi350_x{rows}.co"
        yield case("f8_block_scale", name, BF16, gemm.block_scaled_gfx950, rows, 256, 512)
        yield case("f8_block_scale", name, BF16, gemm.block_scaled_gfx950, 200, 512, 768, sample=rows == 96)
    name = "gfx942/flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co"
    yield case("flatmm", name, F16, gemm.block_scaled_gfx942, 128, 256, 256)
    yield case("flatmm", name, F16, gemm.block_scaled_gfx942, 200, 512, 384, sample=True)


def cases() -> list[Case]:
    return [*forward_cases(), *gemm_cases()]
