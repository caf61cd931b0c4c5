# SPDX-License-Identifier: MIT
"""Builds the launch of a code object in the cycle model from a measured row.

Contents do not matter there, except those that control flow and addresses depend on: shapes, strides, and the tables of a
mixture of experts. Operands are untouched zero pages, so a row with gigabytes of weights costs no memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import struct
from collections.abc import Mapping

import numpy as np
from calibration_rows import CannotRun, Row

import hipkittens
from tests.oracles.aiter import wheel
from tests.oracles.aiter.launch import kernel

# AITER measures 101 launches (aiter/test_common.py), each with separate operands as far as these fit into 32 GiB: data that
# earlier launches left in MALL is found there again only if all of these fit.
_ROTATED_OPERANDS = 101
_GUARD = 1 << 20  # AITER's kernels prefetch past their tensors
# By argument name in the code object's metadata, or by offset where the names are wrong.
Arguments = Mapping[str | int, "Operand | int | float"]
_ITEM_BYTES = {"bf16": 2.0, "f8": 1.0, "i8": 1.0, "f4": 0.5}


@dataclasses.dataclass(frozen=True)
class Product:
    """Matrix products of one size: batch times m x n x k, in tiles of tile_m x tile_n."""

    batch: int
    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int

    @property
    def tiles(self) -> int:
        return self.batch * -(-self.m // self.tile_m) * -(-self.n // self.tile_n)


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch, and its work as the baselines count it."""

    name: str
    grid: tuple[int, int, int]
    arguments: Arguments
    matrix_format: str  # bf16, f8, i8, f4
    products: tuple[Product, ...]
    bytes: float  # read or written at least once
    workgroups: int  # with work
    depth: int  # K of a workgroup's main loop
    zeroed_bytes: float = 0.0  # zeroed by a PyTorch kernel that runs before this one and is measured with it

    @property
    def operations(self) -> float:
        return sum(2.0 * p.batch * p.m * p.n * p.k for p in self.products)


@dataclasses.dataclass(frozen=True, eq=False)
class Operand:
    """A tensor of `bytes` zeros, or of the given values; its memory is only allocated while its launch is modelled."""

    bytes: int
    values: np.ndarray | None = None

    @classmethod
    def of(cls, values: np.ndarray) -> Operand:
        return cls(values.nbytes, values)

    def allocate(self) -> tuple[np.ndarray, int]:
        """Memory with a guard on either side, and the address of the tensor in it."""
        memory = np.zeros(self.bytes + 2 * _GUARD + 256, np.uint8)
        memory = memory[-memory.ctypes.data % 256 :]  # so that the tensor starts on a cache line in the model
        if self.values is not None:
            memory[_GUARD : _GUARD + self.bytes] = self.values.view(np.uint8).reshape(-1)
        return memory, memory.ctypes.data + _GUARD


@functools.cache
def chip_parameters(chip: str) -> Mapping[str, float]:
    """The cycle model's parameters for a chip of the rows."""
    return {entry["name"]: entry["value"] for entry in hipkittens._timing.parameters(chip)}


def compute_units(chip: str) -> int:
    parameters = chip_parameters(chip)
    return int(parameters["xcds"] * parameters["compute_units_per_xcd"])


def _tile(name: str) -> tuple[int, int]:
    found = re.search(r"_(\d+)x(\d+)(?:_\dtg)?(?:_pf\d)?\.co$", name)
    if not found:
        raise CannotRun(f"no tile in the name {name}")
    return int(found[1]), int(found[2])


def _multiple(value: int, of: int, what: str) -> None:
    if value % of:
        raise CannotRun(f"{what} is {value}, no multiple of {of}")


def _float4(row: Row) -> Launch:
    m, n, k = row.dimensions
    tile_m, tile_n = _tile(row.name)
    _multiple(k, 32, "K")
    log2_splits = row["splitK"]
    columns = -(-k // 256) * 8
    part = -(-(k >> log2_splits) // 256) * 256
    depths = -(-k // part) if log2_splits else 1
    scales = [Operand(-(-rows // 256) * 256 * columns) for rows in (m, n)]
    arguments = {
        "D": Operand(-(-m // 256) * 256 * n * 2), "A": Operand(m * k // 2), "B": Operand(n * k // 2), "alpha": 1.0,
        "beta": 0.0, "strideC0": n, "strideA0": k, "strideB0": k, "Mdim": m, "Ndim": n, "Kdim": k, "ScaleA": scales[0],
        "ScaleB": scales[1], "strideScaleA0": columns, "strideScaleB0": columns,
    }  # fmt: skip
    if "noBpreShuffle" not in row.name:
        arguments["log2_k_split"] = log2_splits
    grid = (-(-n // tile_n), -(-m // tile_m), depths)
    return _product(row, grid, arguments, "f4", (tile_m, tile_n), depths, 2, scale_bytes=(m + n) * k / 32)


def _product(row: Row, grid, arguments, matrix_format, tile, depths, out_bytes, scale_bytes=0.0) -> Launch:
    m, n, k = row.dimensions
    part = -(-k // depths)
    moved = (m + n) * k * _ITEM_BYTES[matrix_format] + scale_bytes + m * n * out_bytes
    products = (Product(depths, m, n, part, *tile),)
    return Launch(row.name, grid, arguments, matrix_format, products, moved, math.prod(grid), part)


def _bf16(row: Row) -> Launch:
    m, n, k = row.dimensions
    tile_m, tile_n = (int(part) for part in row.name.split("_tn_")[1].split("_")[0].split("x"))
    _multiple(n, 64, "N")
    _multiple(k, 64, "K")
    splits = max(1, row["splitK"])
    arguments = {
        "D": Operand(m * n * 4), "A": Operand(m * k * 2), "B": Operand(n * k * 2), "alpha": 1.0, "beta": 0.0,
        "strideC0": n * 4, "strideA0": k * 2, "strideB0": k * 2, "Mdim": m, "Ndim": n, "Kdim": k, "splitk": splits,
    }  # fmt: skip
    grid = (n // 64, -(-m // tile_m), splits)
    launch = _product(row, grid, arguments, "bf16", (tile_m, tile_n), splits, 4)
    # csrc/py_itfs_cu/asm_gemm_a16w16.cu zeroes the result in each call, and aiter/test_common.py adds up all kernels.
    return dataclasses.replace(launch, zeroed_bytes=m * n * 4.0 if splits > 1 else 0.0)


def _int8(row: Row) -> Launch:
    m, n, k = row.dimensions
    tile_m, tile_n = _tile(row.name)
    _multiple(n, 128, "N")
    asked = max(1, row["splitK"])
    part = math.ceil(math.ceil(k / asked) / 128) * 128
    splits = -(-k // part)  # as in AITER's host code: no part is empty
    arguments = {
        "C": Operand(m * n * 2), "A": Operand(m * k), "B": Operand(n * k), "SA": Operand(m * 4), "SB": Operand(n * 4),
        "BIAS": Operand(n * 4), "M": m, "N": n, "K": k, "PA": k, "PB": k, "PC": n * 2, "KS": splits,
    }  # fmt: skip
    grid = (n // tile_n * splits, -(-m // tile_m), 1)
    return _product(row, grid, arguments, "i8", (tile_m, tile_n), splits, 2)


@dataclasses.dataclass(frozen=True)
class _Routing:
    ids: Operand
    weights: Operand
    experts: Operand
    valid: Operand
    blocks: int  # with work
    all_blocks: int
    active: int  # experts that have tokens


def routing(tokens: int, experts: int, top: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Emulates AITER's moe_sorting for random scores, as its tuner draws them: sorted ids (slot << 24 | token), the expert of
    each block of rows (-1: unused), and the number of rows in use with the number of tokens."""
    scores = np.random.default_rng(0).standard_normal((tokens, experts), dtype=np.float32)
    chosen = np.argpartition(-scores, top - 1, axis=1)[:, :top] if top < experts else np.argsort(-scores, 1)
    room = tokens * top + experts * block - top
    ids = np.full(-(-room // block) * block, top << 24 | tokens, np.int32)
    owner = np.full(-(-room // block), -1, np.int32)
    slots = np.tile(np.arange(top, dtype=np.int32), tokens)
    order = np.argsort(chosen.reshape(-1), kind="stable")
    token, slot = order // top, slots[order]
    counts = np.bincount(chosen.reshape(-1), minlength=experts)
    row = used = taken = 0
    for expert, count in enumerate(counts):
        piece = slice(taken, taken + count)
        ids[row : row + count] = slot[piece] << 24 | token[piece]
        whole = -(-int(count) // block)
        owner[used : used + whole] = expert
        row, used, taken = row + whole * block, used + whole, taken + int(count)
    return ids, owner, np.array([row, tokens], np.int32)


def _routed(row: Row, block: int) -> _Routing:
    if row["topk"] > row["expert"]:
        raise CannotRun(f"topk is {row['topk']} of {row['expert']} experts")
    ids, owner, valid = routing(row["token"], row["expert"], row["topk"], block)
    used = owner[owner >= 0]
    return _Routing(
        Operand.of(ids), Operand(ids.size * 4), Operand.of(owner), Operand.of(valid), len(used), len(owner), len(set(used.tolist()))
    )  # fmt: skip


def _one_kernel(row: Row) -> Launch:
    tokens, inner, dim = row.dimensions
    if "pertokenFp8_g1u1_vs" not in row.name and "blockscaleFp8_g1u1" not in row.name:
        raise CannotRun("a kind of fused mixture of experts that no row had yet")
    blocks, (block, columns) = "blockscale" in row.name, _tile(row.name)
    table, parts = _routed(row, block), -(-inner // columns)
    scales = (
        (dim // 128 * tokens, 2 * inner // 128 * (dim // 128), dim // 128 * (inner // 128))
        if blocks
        else (tokens, 2 * inner, dim)
    )
    count = row["expert"]
    arguments = {
        0: Operand(tokens * dim * 2), 16: Operand(tokens * dim), 32: Operand(count * 2 * inner * dim), 48: table.valid,
        64: Operand(count * dim * inner), 80: Operand(scales[0] * 4), 96: Operand(count * scales[1] * 4),
        112: Operand(count * scales[2] * 4), 128: Operand(count * inner * 4), 144: table.ids, 160: table.weights,
        176: table.experts, 192: dim, 208: inner, 224: tokens, 240: count, 256: dim, 272: dim, 288: inner, 304: dim * 2,
        320: dim * inner * 2, 336: inner * dim, 352: scales[1] * 4, 368: scales[2] * 4, 384: inner * 4,
        400: row["topk"],
    }  # fmt: skip
    resident = compute_units(row.chip) // parts * parts
    if kernel(row.name).metadata.argument_bytes > 416:
        arguments |= {416: resident if "_ps_" in row.name else 0, 432: parts}
    grid = (compute_units(row.chip), 1, 1) if "_ps_" in row.name else (parts, table.all_blocks, 1)
    rows = -(-table.blocks // max(1, table.active)) * block
    products = (
        Product(table.active, rows, 2 * inner, dim, block, 2 * columns),
        Product(table.active, rows, dim, inner, block, -(-dim // parts)),
    )
    moved = table.active * 3.0 * inner * dim + tokens * dim * 3
    return Launch(row.name, grid, arguments, "f8", products, moved, parts * table.blocks, dim)


def _first_stage(row: Row) -> Launch:
    tokens, inner, dim = row.dimensions
    if "pertokenFp8" not in row.name:
        raise CannotRun("a kind of first stage that no row had yet")
    blocks, (block, columns) = "blockscale" in row.name, _tile(row.name)
    table, parts, top, count = _routed(row, block), -(-inner // columns), row["topk"], row["expert"]
    scale = 2 * inner // 128 * (dim // 128) if blocks else 2 * inner
    out_rows, item = (tokens + -(-4 * tokens // 128), 1) if blocks else (tokens, 2)
    arguments = {
        0: Operand(out_rows * top * inner * item), 16: Operand(tokens * dim), 32: Operand(count * 2 * inner * dim),
        48: table.valid, 64: Operand((dim // 128 if blocks else 1) * tokens * 4), 80: Operand(count * scale * 4),
        112: table.ids, 128: table.experts, 144: dim, 160: inner, 176: tokens, 192: count, 208: dim, 224: dim,
        240: top * inner * item, 256: dim * inner * 2, 272: scale * 4, 288: inner * 4, 304: top, 320: 0,
        336: int(row.activation == "gelu"), 352: table.weights,
    }  # fmt: skip
    if kernel(row.name).metadata.argument_bytes > 368:
        arguments |= {368: 0, 384: parts}
    rows = -(-table.blocks // max(1, table.active)) * block
    products = (Product(table.active, rows, 2 * inner, dim, block, 2 * columns),)
    moved = table.active * 2.0 * inner * dim + tokens * dim + tokens * top * inner * item
    grid = (parts, table.all_blocks, 1)
    return Launch(row.name, grid, arguments, "f8", products, moved, parts * table.blocks, dim)


_FAMILIES = {
    "f4gemm": _float4,
    "bf16gemm": _bf16,
    "i8gemm": _int8,
    "fmoe": _one_kernel,
    "fmoe_2stages": _first_stage,
}


def prepare(row: Row) -> Launch:
    """The launch of `row`. Raises CannotRun if the wheel has no such object, or if the object does not accept this shape."""
    if row.name not in wheel.objects():
        raise CannotRun("the wheel has no such code object")
    if row.family not in _FAMILIES:
        raise CannotRun(f"no launcher for the family {row.family}")
    if kernel(row.name).metadata.name != row.symbol:
        raise CannotRun("the code object has another symbol")
    return _FAMILIES[row.family](row)


def _segment(name: str, arguments: Arguments, addresses: Mapping[Operand, int]) -> bytes:
    target = kernel(name)
    packed = bytearray(target.metadata.argument_bytes)
    for key, value in arguments.items():
        offset = key if isinstance(key, int) else target.offsets[key].offset
        if isinstance(value, Operand):
            struct.pack_into("<Q", packed, offset, addresses[value])
        else:
            struct.pack_into("<f" if isinstance(value, float) else "<I", packed, offset, value)
    return bytes(packed)


def modelled(row: Row, launch: Launch, parameters: Mapping[str, float]) -> dict[str, float]:
    """The cycle model's result: microseconds, cycles and shares of time."""
    operands = sum(value.bytes for value in launch.arguments.values() if isinstance(value, Operand))
    warm = _ROTATED_OPERANDS * operands < chip_parameters(row.chip)["mall_bytes"]
    said = run(row.chip, launch.name, launch.grid, launch.arguments, parameters, warm)
    if launch.zeroed_bytes:
        said["zeroing_us"] = _zeroing_us(row.chip, launch.zeroed_bytes)
        said["predicted_us"] += said["zeroing_us"]
        said["cycles"] += said["zeroing_us"] * said["clock_mhz"]
    return said


def _zeroing_us(chip: str, count: float) -> float:
    """Modelled time of a kernel of short waves that only store this many bytes: its start and end, and bandwidth."""
    of = chip_parameters(chip)
    clocks = of["wave_start"] + of["store_acknowledge"] + of["wave_end"]
    return of["packet_processing"] / 1e3 + clocks / of["clock_peak"] + count / of["hbm_bandwidth"] / 1e3


Memory = Mapping[Operand, tuple[np.ndarray, int]]


def allocated(arguments: Arguments) -> Memory:
    """Allocates the memory of every operand."""
    return {value: value.allocate() for value in arguments.values() if isinstance(value, Operand)}


def start(name: str, grid: tuple[int, int, int], arguments: Arguments, memory: Memory) -> None:
    """Launches one code object in the model that is open."""
    target = kernel(name)
    block = (*target.metadata.workgroup, 1, 1)[:3]
    segment = _segment(name, arguments, {operand: address for operand, (_, address) in memory.items()})
    regions = {str(index): array for index, (array, _) in enumerate(memory.values())}
    target.kernel.launch(segment, regions, grid=grid, block=block)


def run(
    chip: str,
    name: str,
    grid: tuple[int, int, int],
    arguments: Arguments,
    parameters: Mapping[str, float],
    warm: bool,
) -> dict[str, float]:
    """Runs one code object in the cycle model; `warm`: its operands are in the MALL from an earlier launch."""
    memory = allocated(arguments)
    warmth = {"mall_starts_warm": 1.0} if warm else {}
    with hipkittens.timing(chip, values=False, parameters={**warmth, **parameters}) as run:
        start(name, grid, arguments, memory)
    (result,) = run.launches
    return {
        "predicted_us": result.microseconds,
        "cycles": result.cycles,
        "launch_overhead_us": result.launch_overhead_microseconds,
        "clock_mhz": result.report["clock_mhz"],
        "matrix_busy": result.busy["matrix"],
        "l2_hit_rate": result.caches["l2_hit_rate"],
        "mall_hit_rate": result.caches["mall_hit_rate"],
        "hbm_bytes_read": result.caches["hbm_bytes_read"],
        "rounds": result.report["rounds"],
    }
