# SPDX-License-Identifier: MIT
"""Compares the cycle model with published attention times of AITER's own code objects; nothing in the model was fitted on these.

hipkittens/profiling/published.csv names operation, device, shape and source of each figure. Forward is one kernel. Backward
is several, of which the wheel contains the main one and, for 16-bit sums on gfx950, the one that reorders dQ. Row sums of
dO * O and the conversion of 32-bit dQ are kernels of another library: the time of their bytes at the achievable HBM bandwidth is
added. So is the cost of each launch, since these tables were measured with events around many consecutive launches, not
as kernel times.

AITER's own table comes from its C++ benchmark of these kernels. HipKittens published times of calls of AITER's Python package,
of unnamed versions, including everything that such a call does: they are reported separately.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import calibration_launch
from calibration_launch import Arguments, Operand, chip_parameters

from hipkittens import _backend, _timing
from hipkittens.profiling import model_error
from hipkittens.profiling.problems import Problem, parse_shapes
from tests.oracles.aiter.attention_backward import LOG2E
from tests.oracles.aiter.launch import kernel

PUBLISHED = Path(__file__).resolve().parent.parent / "hipkittens" / "profiling" / "published.csv"
AITER = "ROCm/aiter"
CHIPS = ("MI300X", "MI350X", "MI355X")
_FORWARD_ROWS, _SHUFFLED_ROWS = 256, 64
# How AITER's table was measured (op_tests/cpp/mha): consecutive launches on the same tensors; on gfx942 forward with its
# default rounding (to nearest, ties away), backward with rounding towards zero.
_ROUNDING = {
    ("gfx942", "attention"): "_rtna",
    ("gfx942", "attention_backward"): "_rtz",
    ("gfx950", "attention"): "",
    ("gfx950", "attention_backward"): "",
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """The figures published by one project for one problem on one chip. `sums`: the precision in which backward accumulates dQ, a16
    or a32."""

    problem: Problem
    chip: str
    publisher: str
    sums: str
    microseconds: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def key(self) -> str:
        return " ".join(
            filter(None, (self.chip, self.problem.operation, self.problem.shape, self.sums, self.publisher))
        )

    @property
    def best(self) -> float:
        """The fastest figure: others are of older kernels or busier machines."""
        return min(self.microseconds)


def figures(path: Path = PUBLISHED) -> list[Figure]:
    """AITER's attention with heads of 128 on the chips of CHIPS, ordered by cost. Figures of backward that do not state the precision
    of their sums count as a32, the default of AITER's Python package."""
    found: dict[tuple[str, str, str, str, str], list[tuple[float, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if (
                row["library"] != "aiter"
                or row["device"] not in CHIPS
                or not row["op"].startswith("attention")
            ):
                continue
            backward, publisher = row["op"] == "attention_backward", row["source"].partition("@")[0]
            sums = ("a16" if "(a16)" in row["source"] else "a32") if backward else ""
            key = row["op"], row["device"], row["shape"], publisher, sums
            found.setdefault(key, []).append((float(row["microseconds"]), row["source"]))
    result = []
    for (operation, chip, shape, publisher, sums), known in found.items():
        (problem,) = parse_shapes(operation, shape)
        if problem["D"] == 128 and problem["N"] == problem["L"]:
            times, sources = zip(*sorted(known), strict=True)
            result.append(Figure(problem, chip, publisher, sums, times, sources))
    return sorted(result, key=lambda figure: (figure.problem.flops, figure.key))


@dataclasses.dataclass(frozen=True)
class Step:
    """One kernel of an operation."""

    name: str
    grid: tuple[int, int, int]
    arguments: Arguments


class _Tensor(Operand):
    """Batch, tokens, heads and head size in bf16."""

    def __init__(self, batch: int, tokens: int, heads: int, size: int):
        super().__init__(batch * tokens * heads * size * 2)
        object.__setattr__(
            self, "strides", {"Seqs": heads * size * 2, "Hs": size * 2, "BAs": tokens * heads * size * 2}
        )


def _forward(problem: Problem, target: str) -> list[Step]:
    e, causal = problem.extents, problem.causal
    folder = "MI300/" if target == "gfx942" else ""
    name = f"{target}/fmha_v3_fwd/{folder}fwd_hd128_bf16{'_causal' * causal}{_ROUNDING[target, problem.operation]}.co"
    q, out = (_Tensor(e["B"], e["N"], e["H"], 128) for _ in range(2))
    k, v = (_Tensor(e["B"], e["L"], e["K"], 128) for _ in range(2))
    strides = {
        f"{letter}_{'Bs' if stride == 'BAs' else stride}": value
        for letter, tensor in {"k": k, "v": v, "r": out}.items()
        for stride, value in tensor.strides.items()
    }
    arguments = strides | {
        "R": out, "Q": q, "K": k, "V": v, "LSE": Operand(4 * e["B"] * e["H"] * e["N"]), "scalar": 1 / math.sqrt(128),
        "seq_len": e["N"], "Seqs": q.strides["Seqs"], "Ts": _FORWARD_ROWS * q.strides["Seqs"], "Hs": q.strides["Hs"],
        "Bs": q.strides["BAs"], "gqa": e["H"] // e["K"], "msk_opt": 3 if causal and e["H"] % 8 else 5, "lse": 1,
        "kv_seq_len": e["L"], "qk_head_dim": 128, "v_head_dim": 128, "q_head_num": e["H"], "lse_Hs": 4 * e["N"],
    }  # fmt: skip
    tiles = -(-e["N"] // _FORWARD_ROWS)
    return [Step(name, (-(-tiles // 2) if causal else tiles, e["H"], e["B"]), arguments)]


def _backward(problem: Problem, target: str, sums: str) -> list[Step]:
    e, causal = problem.extents, problem.causal
    suffix = "_psskddv" if target == "gfx950" else _ROUNDING[target, problem.operation]
    name = f"{target}/fmha_v3_bwd/bwd_hd128_bf16{'_causal' * causal}_{sums}{suffix}.co"
    queries, rows = e["N"], -(-e["N"] // 16) * 16
    q, d_out = (_Tensor(e["B"], queries, e["H"], 128) for _ in range(2))
    k, v = (_Tensor(e["B"], e["L"], e["K"], 128) for _ in range(2))
    dk, dv = (_Tensor(e["B"], e["L"], e["H"], 128) for _ in range(2))  # for every query head
    shuffled = target == "gfx950" and sums == "a16"
    wide = e["B"] * e["H"] * queries * 128 * 4
    dq = Operand(wide) if sums == "a32" else Operand(e["B"] * e["H"] * rows * 128 * 2)
    per_row = 4 * e["B"] * e["H"] * queries
    arguments: dict[str | int, Any] = {
        "dQ": dq, "dK": dk, "dV": dv, "Q": q, "K": k, "V": v, "dO": d_out, "Lse": Operand(per_row), "D": Operand(per_row),
        "scalar": 1 / math.sqrt(128), "log2e": LOG2E, "ratio": e["H"] // e["K"],
    }  # fmt: skip
    native = kernel(name).metadata.argument_bytes == 704
    key_tile = 256 if native else 192
    if native:
        arguments |= {
            "seqlen_q": queries,
            "seqlen_k": e["L"],
            "Ts": key_tile * k.strides["Seqs"],
            "head_dim_q": 128,
        }
        arguments |= {"head_dim_k": 128, "nhead_q": e["H"], "Hs_lsed": 4 * queries}
        arguments["max_seq_len_dq"] = queries if sums == "a32" else rows
        for letter, tensor in {"q": q, "k": k, "v": v, "do": d_out, "dk": dk, "dv": dv}.items():
            arguments |= {f"{stride}_{letter}": value for stride, value in tensor.strides.items()}
    else:
        arguments |= {"seq_len": queries, "Ts": key_tile * k.strides["Seqs"], "head_dim": 128, **q.strides}
        arguments |= {f"{stride}_kv": value for stride, value in k.strides.items()}
        arguments["Seqs_dkv"] = dk.strides["Seqs"]
    tiles = -(-e["L"] // key_tile)
    steps = [Step(name, (-(-tiles // 2) if causal else tiles, e["H"], e["B"]), arguments)]
    if shuffled:
        steps.append(_in_order(problem, target, dq, q))
    return steps


def _in_order(problem: Problem, target: str, sums: Operand, like: _Tensor) -> Step:
    e, rows = problem.extents, -(-problem["N"] // 16) * 16
    out = _Tensor(e["B"], e["N"], e["H"], 128)
    arguments = {
        "dQ_acc": sums, "dQ": out, "Ts": _SHUFFLED_ROWS * out.strides["Seqs"], "Hs_dq_acc": rows * 256,
        "BAs_dq_acc": e["H"] * rows * 256, "Seqs_dq_acc": 256, "Hs_dq": like.strides["Hs"], "BAs_dq": like.strides["BAs"],
        "Seqs_dq": like.strides["Seqs"], "seqlen_q": e["N"], "head_dim": 128, "max_seqlen_dq": rows,
    }  # fmt: skip
    name = f"{target}/fmha_v3_bwd/bwd_hd128_dq_shuffle.co"
    return Step(name, (-(-e["N"] // _SHUFFLED_ROWS), e["H"], e["B"]), arguments)


def steps(figure: Figure) -> list[Step]:
    """The launches of the wheel's kernels for `figure`."""
    target = _timing.DEVICES[figure.chip]
    if figure.problem.operation == "attention":
        return _forward(figure.problem, target)
    return _backward(figure.problem, target, figure.sums)


def missing(figure: Figure) -> tuple[int, float]:
    """The number of backward kernels that the wheel lacks, and the µs of their bytes: row sums of dO * O, and dQ to bf16."""
    if figure.problem.operation == "attention":
        return 0, 0.0
    e = figure.problem.extents
    rows = e["B"] * e["N"] * e["H"]
    wide = figure.sums == "a32"
    moved = rows * (2 * 128 * 2 + 4) + (rows * 128 * 6 if wide else 0)
    return 1 + wide, moved / chip_parameters(figure.chip)["hbm_bandwidth"] / 1e3


def modelled(figure: Figure, parameters: Mapping[str, float]) -> dict[str, float]:
    """The modelled time of the wheel's kernels, of launching, and of kernels that the wheel lacks."""
    warm = figure.problem.bytes < chip_parameters(figure.chip)["mall_bytes"]
    runs = [
        calibration_launch.run(figure.chip, step.name, step.grid, step.arguments, parameters, warm)
        for step in steps(figure)
    ]
    kernels, missing_us = missing(figure)
    modelled_us = sum(run["predicted_us"] for run in runs)
    launching_us = (len(runs) + kernels) * runs[0]["launch_overhead_us"]
    return {
        "predicted_us": modelled_us + launching_us + missing_us,
        "modelled_us": modelled_us,
        "launching_us": launching_us,
        "missing_us": missing_us,
        "cycles": sum(run["cycles"] for run in runs),
        "clock_mhz": runs[0]["clock_mhz"],
        "matrix_busy": runs[0]["matrix_busy"],
        "rounds": runs[0]["rounds"],
    }


def record(figure: Figure, said: Mapping[str, float]) -> dict[str, Any]:
    family = "fmha_v3_bwd" if figure.problem.operation == "attention_backward" else "fmha_v3_fwd"
    return {
        "key": figure.key,
        "operation": figure.problem.operation,
        "family": family,
        "chip": figure.chip,
        "publisher": figure.publisher,
        "shape": figure.problem.shape,
        "sums": figure.sums,
        "causal": figure.problem.causal,
        "bound": model_error.bound_of(figure.problem, figure.chip),
        "measured_us": figure.best,
        "slowest_us": max(figure.microseconds),
        "sources": list(figure.sources),
        **said,
    }


STREAMS = "ROCm/FlyDSL"


@dataclasses.dataclass(frozen=True)
class Stream:
    """A memory-bound problem for which a rate of another library was published: it is the bandwidth that the chip's memory achieves."""

    problem: Problem
    chip: str
    measured_us: float

    @property
    def key(self) -> str:
        return f"{self.chip} {self.problem.operation} {self.problem.shape} {STREAMS}"

    def modelled(self, parameters: Mapping[str, float]) -> dict[str, float]:
        """The modelled time of our own kernel for it, and its launch overhead, since the published rates are of consecutive launches."""
        with (
            _backend.simulate(_timing.DEVICES[self.chip]),
            _timing.timing(self.chip, values=False, parameters=parameters) as run,
        ):
            self.problem.call()()
        (launch,) = run.launches
        return {"predicted_us": launch.microseconds + launch.launch_overhead_microseconds}

    def record(self, said: Mapping[str, float]) -> dict[str, Any]:
        return {
            "operation": self.problem.operation,
            "shape": self.problem.shape,
            "chip": self.chip,
            "measured_us": self.measured_us,
            "bytes": self.problem.bytes,
            **said,
        }


def streams(path: Path = PUBLISHED) -> list[Stream]:
    """The rates that FlyDSL's continuous integration measured for norms far larger than the MALL."""
    with path.open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["source"].partition("@")[0] == STREAMS]
    return [
        Stream(*parse_shapes(row["op"], row["shape"]), row["device"], float(row["microseconds"]))
        for row in found
    ]
