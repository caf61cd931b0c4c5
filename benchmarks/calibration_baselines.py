# SPDX-License-Identifier: MIT
"""The baselines that a model has to beat: a roofline, AMD's analytical model Origami, and two fitted numbers per kernel."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Hashable, Iterable, Mapping

from calibration_launch import Launch, Product, chip_parameters, compute_units
from calibration_rows import Row

from hipkittens.profiling.model_error import SMALL_MICROSECONDS

# Operations per clock and CU, dense: AMD's CDNA3 and CDNA4 white papers.
RATES = {
    "gfx942": {"bf16": 2048, "f8": 4096, "i8": 4096},
    "gfx950": {"bf16": 4096, "f8": 8192, "i8": 8192, "f4": 16384},
}
BITS = {"bf16": 16, "f8": 8, "i8": 8, "f4": 4}
CLASSES = {
    "matrix": "matrix-bound",
    "memory": "memory-bound",
    "small": f"small (roofline below {SMALL_MICROSECONDS:.0f} µs)",
}


def _limits(row: Row, launch: Launch) -> tuple[float, float]:
    """Microseconds that the matrix units take at peak clock, and that the transfers take at the achievable HBM bandwidth."""
    parameters = chip_parameters(row.chip)
    rate = RATES[row.arch][launch.matrix_format] * compute_units(row.chip) * parameters["clock_peak"]
    return launch.operations / rate, launch.bytes / parameters["hbm_bandwidth"] / 1e3


def roofline(row: Row, launch: Launch) -> float:
    return max(_limits(row, launch))


def is_impossible(row: Row, launch: Launch) -> bool:
    """Whether the operations would take longer than the measured time at the data sheet's rate and peak clock."""
    rate = (
        RATES[row.arch][launch.matrix_format]
        * compute_units(row.chip)
        * chip_parameters(row.chip)["clock_peak"]
    )
    return launch.operations / rate > row.measured_us


def bound(row: Row, launch: Launch) -> str:
    """The limit that sets the roofline: "matrix" or "memory", or "small" where launch and latency dominate; see CLASSES."""
    matrix, memory = _limits(row, launch)
    if max(matrix, memory) < SMALL_MICROSECONDS:
        return "small"
    return "matrix" if matrix > memory else "memory"


# TB/s of L2, MALL and HBM, and the share of the bandwidth that n active CUs reach: microbenchmarked constants of Origami
# (ROCm/rocm-libraries shared/origami include/origami/hardware.hpp@0192efda).
_ORIGAMI = {
    "gfx942": (17.0, 7.3125, 4.0, lambda n: min(1.0, 0.015 * n)),
    "gfx950": (17.0, 8.53, 6.0, lambda n: min(1.0, -1.3e-5 * n * n + 0.00707 * n + 0.027355)),
}
_DEPTH_BYTES = 128  # along K, in an iteration of the main loop


def _hit_rate(product: Product, units: int, depth: int, capacity: float | None, bits: int) -> float:
    """Hit rate of the reads of A and B by the tiles that `units` CUs work on at a time, in row-major order."""
    grid_m, grid_n = -(-product.m // product.tile_m), -(-product.n // product.tile_n)
    across = max(1, min(grid_n, units))
    down = max(1, min(grid_m, units // grid_n))
    while capacity and down > 1:
        if (down * product.tile_m + across * product.tile_n) * depth * bits / 8 <= capacity:
            break
        down -= 1
    reads = down * across * (product.tile_m + product.tile_n)
    return 1 - (down * product.tile_m + across * product.tile_n) / reads


def _origami_clocks(product: Product, row: Row, bits: int, rate: int) -> float:
    parameters, units = chip_parameters(row.chip), compute_units(row.chip)
    clock = parameters["clock_peak"] / 1e6  # TB/s over this: bytes per clock
    l2, mall, hbm, reached = _ORIGAMI[row.arch]
    depth = _DEPTH_BYTES * 8 // bits
    active = min(product.tiles, units)
    compute = 2.0 * product.tile_m * product.tile_n * depth / rate
    loads = active * (product.tile_m + product.tile_n) * depth * bits / 8
    l2_hits = _hit_rate(product, -(-active // int(parameters["xcds"])), depth, parameters["l2_bytes"], bits)
    mall_loads = (1 - l2_hits) * loads
    hbm_loads = (1 - _hit_rate(product, active, depth, None, bits)) * mall_loads
    if active < units:  # each operand is read at least once
        least = product.batch * (product.m + product.n) * depth * bits / 8
        mall_loads, hbm_loads = max(mall_loads, least), max(hbm_loads, least)
    share = reached(active)
    memory = max(
        loads / (l2 / clock * active / units), mall_loads / (mall / clock * share), hbm_loads / (hbm / clock * share) + 200
    )  # fmt: skip
    rounds = -(-product.tiles // units)
    epilogue = product.tile_m * product.tile_n * 2 / (l2 / clock / units)
    iterations = max(1, -(-product.k // depth) - 1)
    tile = iterations * (max(compute, memory) + 28) + 1.5 * memory * 0.95**rounds + epilogue
    return rounds * tile


def origami(row: Row, launch: Launch) -> float:
    """Origami's published formulas (shared/origami, AnalyticalGemm.cpp): per iteration the larger of the matrix units'
    time and that of the slowest of L2, MALL and HBM; a prologue of 1.5 memory latencies; an epilogue through L2; times
    the rounds of tiles, at the peak clock. A mixture of experts is a batch with one product per active expert."""
    bits, rate = BITS[launch.matrix_format], RATES[row.arch][launch.matrix_format]
    clocks = sum(_origami_clocks(product, row, bits, rate) for product in launch.products)
    return clocks / chip_parameters(row.chip)["clock_peak"]


def _rounds(row: Row, launch: Launch) -> int:
    return -(-launch.workgroups // compute_units(row.chip))


def _least_relative_squares(points: list[tuple[float, float, float]]) -> tuple[float, float]:
    """a, b >= 0 that minimise the sum of ((a u + b v) / t - 1)^2 over (u, v, t)."""
    scaled = [(u / t, v / t) for u, v, t in points]
    uu, uv, vv = (sum(x[i] * x[j] for x in scaled) for i, j in ((0, 0), (0, 1), (1, 1)))
    u, v = (sum(x[i] for x in scaled) for i in (0, 1))
    determinant = uu * vv - uv * uv
    if determinant > 1e-9 * uu * vv:
        a, b = (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant
        if a >= 0 and b >= 0:
            return a, b
    candidates = [(u / uu, 0.0), (0.0, v / vv)]
    return min(candidates, key=lambda ab: sum((ab[0] * x + ab[1] * y - 1) ** 2 for x, y in scaled))


class TwoParameters:
    """time = rounds x (a + b K), with a and b fitted per kernel and chip on the rows that may be fitted on.

    A kernel with fewer than three such rows uses the pair of its family on that chip, with K replaced by the operations
    of a workgroup.
    """

    def __init__(self, fit: Iterable[tuple[Row, Launch]]):
        own, family = collections.defaultdict(list), collections.defaultdict(list)
        for row, launch in fit:
            rounds = _rounds(row, launch)
            own[row.hw, row.symbol].append((rounds, rounds * launch.depth, row.measured_us))
            work = launch.operations / launch.workgroups
            family[row.hw, row.family].append((rounds, rounds * work, row.measured_us))
        self.kernels = {
            key: _least_relative_squares(points) for key, points in own.items() if len(points) > 2
        }
        self.families = {key: _least_relative_squares(points) for key, points in family.items()}

    def __call__(self, row: Row, launch: Launch) -> float | None:
        """None: no row of its family was fitted on."""
        rounds = _rounds(row, launch)
        if (row.hw, row.symbol) in self.kernels:
            a, b = self.kernels[row.hw, row.symbol]
            return rounds * (a + b * launch.depth)
        if (row.hw, row.family) in self.families:
            a, b = self.families[row.hw, row.family]
            return rounds * (a + b * launch.operations / launch.workgroups)
        return None


def errors(pairs: Iterable[tuple[float, float]]) -> Mapping[str, float]:
    """Errors of (predicted, measured): the mean, median and largest absolute relative error, and the median signed one, in per cent."""
    relative = [predicted / measured - 1 for predicted, measured in pairs]
    if not relative:
        return {"rows": 0} | dict.fromkeys(("mape", "median", "bias", "worst"), float("nan"))
    absolute = [abs(value) for value in relative]
    return {
        "rows": len(relative),
        "mape": 100 * statistics.fmean(absolute),
        "median": 100 * statistics.median(absolute),
        "bias": 100 * statistics.median(relative),
        "worst": 100 * max(absolute),
    }


def _ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for index in order[begin:end]:
            ranks[index] = (begin + end - 1) / 2
        begin = end
    return ranks


def rank_correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, with ties at their mean rank; None where it is not defined."""
    pairs = list(pairs)
    if len(pairs) < 2:
        return None
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(first, second)


def rank_correlation_at_same_problem(
    kernels: Iterable[tuple[Hashable, float, float]], apart: float = 0.0
) -> tuple[float | None, int]:
    """For (problem, predicted, measured): the mean over problems of the correlation between the kernels measured there, and the
    number of problems. The correlation is 0 where all predictions are equal, since they rank nothing.

    A problem does not count if the measured times of all its kernels are within a factor of 1 + `apart`: the measurement does not
    distinguish them.
    """
    groups = collections.defaultdict(list)
    for problem, predicted, measured in kernels:
        groups[problem].append((predicted, measured))
    found = []
    for pairs in groups.values():
        times = [measured for _, measured in pairs]
        if max(times) > min(times) and max(times) >= (1 + apart) * min(times):
            found.append(rank_correlation(pairs) or 0.0)
    return (statistics.fmean(found) if found else None), len(found)
