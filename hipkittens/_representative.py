# SPDX-License-Identifier: MIT
"""Small problems that together run every prebuilt kernel, and what a recorded launch says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from . import _backend, _disassembly, _installation, attention, layer_norm, matmul, rms_norm, rotary_qk
from ._hot_loop import Executed, hot_loop

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class Problem:
    title: str
    run: Callable[[], Any]


def _draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


def _gemm(orientation: str, dtype: torch.dtype, m: int, n: int, k: int) -> None:
    with torch.no_grad():
        a = _draw(k, m, dtype=dtype).t() if orientation[0] == "t" else _draw(m, k, dtype=dtype)
        b = _draw(n, k, dtype=dtype).t() if orientation[1] == "t" else _draw(k, n, dtype=dtype)
        matmul(a, b)


def _attention(
    dtype: torch.dtype, length: int, heads: int, key_heads: int, size: int, backward: bool, dropout_p: float
) -> None:
    q = _draw(1, length, heads, size, dtype=dtype)
    k, v = (_draw(1, length, key_heads, size, dtype=dtype) for _ in range(2))
    with torch.set_grad_enabled(backward), torch.random.fork_rng(devices=[]):
        out = attention(q, k, v, dropout_p=dropout_p)
    if backward:
        out.backward(torch.ones_like(out))


def _norm(dtype: torch.dtype, rows: int, columns: int) -> None:
    x, weight, bias = (_draw(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (columns,)))
    y = layer_norm(x, weight, bias)
    y.backward(torch.ones_like(y))
    with torch.no_grad():
        rms_norm(x, weight)
        layer_norm(x, None)


def _rotary(dtype: torch.dtype, tokens: int, heads: int, key_heads: int, size: int) -> None:
    with torch.no_grad():
        q, k = (_draw(1, tokens, count, size, dtype=dtype) for count in (heads, key_heads))
        angles = torch.outer(torch.arange(tokens), 10000.0 ** -torch.linspace(0, 1, size // 2))
        cos, sin = angles.cos(), angles.sin()
        for table in {torch.float32, dtype}:
            rotary_qk(q, k, cos.to(table), sin.to(table))
        rotary_qk(q, k, cos, sin, interleaved=True)


# m, n, k: for each tile one at which the plan picks it, on the targets that have it; the last two split K and have odd rows.
_GEMM = (
    (4096, 4096, 640),
    (4096, 2048, 512),
    (2048, 2048, 512),
    (512, 4096, 768),
    (1024, 2048, 256),
    (512, 512, 768),
    (256, 128, 2048),
    (257, 129, 515),
)
# gfx942 has 256x224 tiles for nt alone, and takes them at the first of those above.
_GEMM_NT = ((4864, 4096, 256),)
# length, heads, key heads, head size, backward, dropout_p: the large tiles want one for every compute unit, and
# one head of many keys is split, which a kernel of its own joins, and few queries share the keys of their group.
_ATTENTION = (
    (512, 152, 8, 64, False, 0.0), (512, 152, 8, 128, False, 0.0), (640, 1, 1, 64, False, 0.0),
    (32, 8, 2, 64, False, 0.0), (32, 8, 2, 128, False, 0.0), (32, 8, 2, 256, False, 0.0),
    (384, 8, 2, 64, True, 0.0), (384, 4, 2, 128, True, 0.0), (256, 2, 1, 256, True, 0.0),
    (384, 4, 2, 64, True, 0.1), (384, 4, 2, 128, True, 0.1), (256, 2, 1, 256, True, 0.1),
)  # fmt: skip
_NORM = (
    (1024, 128),
    (2048, 512),
    (1024, 1024),
    (512, 2048),
    (256, 4096),
    (256, 8192),
    (8, 16384),
    (8, 32768),
    (8, 65536),
)


def gemm_shapes(orientation: str) -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) at which the plan picks every tile that it has for "nn", "nt", "tn" or "tt"."""
    return (*_GEMM, *(_GEMM_NT if orientation == "nt" else ()))


def problems() -> Iterator[Problem]:
    for name in ("bf16", "f16"):
        dtype = _DTYPES[name]
        for orientation in ("nn", "nt", "tn", "tt"):
            for shape in gemm_shapes(orientation):
                title = f"matmul {orientation} {'x'.join(map(str, shape))} {name}"
                yield Problem(title, partial(_gemm, orientation, dtype, *shape))
        for length, heads, key_heads, size, backward, dropout_p in _ATTENTION:
            title = (
                f"attention N{length} H{heads} Hkv{key_heads} D{size} {name}{' dropout' if dropout_p else ''}"
            )
            yield Problem(
                title, partial(_attention, dtype, length, heads, key_heads, size, backward, dropout_p)
            )
    for name, dtype in _DTYPES.items():
        for rows, columns in _NORM:
            yield Problem(f"layer_norm {rows}x{columns} {name}", partial(_norm, dtype, rows, columns))
        yield Problem(f"rotary_qk N256 H8 Hkv2 D128 {name}", partial(_rotary, dtype, 256, 8, 2, 128))


def run(target: str, problem: Problem) -> dict[str, dict[str, Any]]:
    """What each kernel did that the problem ran, by symbol; of several launches the longest."""
    from . import _simulator

    with _backend.simulate(target, checks=True):
        _simulator.record_launches(True)
        try:
            problem.run()
        finally:
            _simulator.record_launches(False)
    found: dict[str, dict[str, Any]] = {}
    for launch in _simulator.recorded_launches():
        known = found.get(launch["kernel"])
        if known is None or known["report"]["instructions"] < launch["report"]["instructions"]:
            found[launch["kernel"]] = launch
    _simulator.record_launches(True)  # lets go of the records
    _simulator.record_launches(False)
    return {symbol: _describe(problem, launch) for symbol, launch in found.items()}


def _describe(problem: Problem, launch: dict[str, Any]) -> dict[str, Any]:
    executed = _executed(launch)
    tensors = [
        {
            "name": name,
            "bytes_loaded": loaded,
            "bytes_stored": stored,
            "distinct_bytes_loaded": distinct_loaded,
            "distinct_bytes_stored": distinct_stored,
        }
        for name, loaded, stored, distinct_loaded, distinct_stored in launch["regions"]
        if loaded or stored
    ]
    moved = sum(tensor["bytes_loaded"] + tensor["bytes_stored"] for tensor in tensors)
    useful = sum(tensor["distinct_bytes_loaded"] + tensor["distinct_bytes_stored"] for tensor in tensors)
    wide = sum(instruction.bytes for instruction in executed if "dwordx4" in instruction.mnemonic)
    report = launch["report"]
    return {
        "problem": problem.title,
        "waves": report["waves"],
        "instructions": report["instructions"],
        "hot_loop": hot_loop(executed, report["waves"]),
        "lds_conflict_cycles": report["lds_conflict_cycles"],
        "bytes_moved": moved,
        "useful_bytes": useful,
        "bytes_per_useful_byte": moved / useful,
        "sixteen_byte_share": wide / moved,
        "tensors": tensors,
    }


def _executed(launch: dict[str, Any]) -> list[Executed]:
    from . import _simulator

    target = launch["target"]
    pack = _installation.pack(target)
    ((_, text),) = _disassembly.code(pack.image(pack.entry(launch["kernel"])))
    result = []
    for address, unit, *sums in launch["instructions"]:
        size, line = _simulator.disassemble(int(target[3:]), text[address : address + 16])
        result.append(Executed(address, size, line, unit, *sums))
    return result
