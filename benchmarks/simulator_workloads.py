# SPDX-License-Identifier: MIT
"""Launches for benchmarks/simulator.py to repeat, in this build of the simulator or in another."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import hipkittens
from hipkittens import _installation, _library

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mutation_run

from tests import device_compiler, simulated_device
from tests.oracles.aiter import attention_forward, gemm, launch, wheel

LOOP = """
extern "C" __global__ void loop(unsigned count) {{
    float value = 1.0f;  // from a denormal, the host's own assist would be measured
    for (unsigned i = 0; i < count; ++i)
        asm volatile(".rept 256\\n\\t{instruction}\\n\\t.endr" : "+v"(value)::"s20");
}}
"""
INSTRUCTIONS = {"valu": "v_fma_f32 %0, %0, %0, %0", "dispatch": "s_mov_b32 s20, s20"}
_FP8 = {
    "gfx942": "gfx942/flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co",
    "gfx950": "gfx950/f8_block_scale_mi350_x128.co",
}
_ATTENTION = {
    "gfx942": "gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_rtne.co",
    "gfx950": "gfx950/fmha_v3_fwd/fwd_hd128_bf16.co",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A launch with its memory. flops: of the whole launch; None if an instruction is timed."""

    name: str
    target: str
    flops: float | None
    code: bytes
    kernel: str
    arguments: bytes
    launch: Mapping[str, Any]  # arguments of simulated_device.Kernel.launch
    keeps: Any = None  # keeps the memory alive
    object: str | None = None  # the name of AITER's object

    @functools.cache  # noqa: B019 (a workload lives as long as the program)
    def _loaded(self, library: Path | None) -> simulated_device.Kernel:
        with simulated_device.using(library):
            return simulated_device.Module(self.code, self.target).kernel(self.kernel)

    def run(self, library: Path | None = None, **settings: Any) -> simulated_device.Report:
        return self._loaded(library).launch(self.arguments, **{**self.launch, **settings})


def loop(name: str, target: str) -> Workload:
    """One wave that loops over one instruction."""
    code = device_compiler.compile_hip(LOOP.format(instruction=INSTRUCTIONS[name]), target)
    return Workload(name, target, None, code, "loop", (16000).to_bytes(4, "little"), {})


def product(target: str, size: int) -> Workload:
    """The launch of hipkittens.matmul, a times the transpose of b."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    with hipkittens.simulate(target):
        hipkittens.matmul(a[:64], b.t())
        hipkittens.matmul(a, b.t())
    symbol = _library.last_kernel()
    seen = mutation_run.capture(target, [symbol], lambda: hipkittens.matmul(a, b.t()), skip=True)[symbol]
    pack = _installation.pack(target)
    return Workload(
        f"gemm_nt_bf16_{size}", target, 2.0 * size**3, pack.image(pack.entry(symbol)), seen.kernel, seen.arguments,
        {
            "regions": {region.name: region.data for region in seen.regions}, "grid": seen.grid, "block": seen.block,
            "shared_bytes": seen.shared_bytes,
            "read_only": [region.name for region in seen.regions if not region.writable],
        }, seen,
    )  # fmt: skip


def _aiter(name: str, flops: float, file: str, run: launch.Run) -> Workload:
    kernel = launch.kernel(file)
    code = wheel.objects()[file].read_bytes()
    return Workload(
        name, file.split("/")[0], flops, code, kernel.metadata.name, run.segment, run.launch, run, file
    )


def aiter_products(target: str, size: int) -> dict[str, Callable[[], Workload]]:
    """AITER's objects for 8- and 4-bit floats; each is created when it is called."""
    made = {
        "fp8_block_scale": (gemm.block_scaled_gfx942 if target == "gfx942" else gemm.block_scaled_gfx950, _FP8[target])
    }  # fmt: skip
    if target == "gfx950":
        made["fp4_block_scale"] = (
            gemm.float4,
            "gfx950/f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256.co",
        )
        made["bf16"] = (gemm.bf16, "gfx950/bf16gemm/bf16gemm_outf32_tn_64x64_pf3.co")

    def make(name: str, function: Callable[..., gemm.Result], file: str) -> Workload:
        return _aiter(name, 2.0 * size**3, file, function(file, size, size, size).run)

    def attend(name: str) -> Workload:
        queries, heads = size, 8
        result = attention_forward.run_batch(_ATTENTION[target], 1, queries, queries, heads, heads)
        return _aiter(name, 4.0 * queries * queries * heads * 128, _ATTENTION[target], result.run)

    rows: dict[str, Callable[[], Workload]] = {}
    for key, (function, file) in made.items():
        name = f"aiter_gemm_{key}_{size}"
        rows[name] = functools.partial(make, name, function, file)
    name = f"aiter_attention_forward_bf16_d128_{size}"
    rows[name] = functools.partial(attend, name)
    return rows


def why_no_aiter() -> str | None:
    if wheel.objects():
        return None
    return (
        f"AITER's code objects are not installed: pip install --no-deps {wheel.DISTRIBUTION}=={wheel.VERSION}"
    )


def paired(target: str) -> Iterator[tuple[Workload, dict[str, Any]]]:
    """The workloads and settings with which two builds of the simulator are compared."""
    large = product(target, 1024)
    yield large, {"arithmetic": "fast"}
    yield product(target, 512), {"arithmetic": "strict"}
    yield product(target, 256), {"arithmetic": "exact"}
    yield large, {"arithmetic": "fast", "checks": simulated_device.ALL_CHECKS, "poison": 1}
    for name in INSTRUCTIONS:
        yield loop(name, target), {}
    if not why_no_aiter():
        for make in aiter_products(target, 512).values():
            yield make(), {}
