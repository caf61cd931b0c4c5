"""Test kernels made of tiles: compiling them, and the register layouts, in numpy and from the manuals' formulas."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

from tests.simulated_device import Kernel, Module

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {"float": np.float32, "bf16": np.uint16, "half": np.float16}
# Every check of the simulator.
CHECKS = {"poison": 1, "count_lds_conflicts": 1}


@functools.cache
def module(name: str, target: str) -> Module:
    """The code object of tests/tiles/<name>.cpp."""
    with tempfile.TemporaryDirectory() as directory:
        stem = pathlib.Path(directory) / "kernels"

        def zig(*arguments: str):
            done = subprocess.run(
                [sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr

        zig(
            "clang",
            "-x",
            "hip",
            f"--offload-arch={target}",
            "--cuda-device-only",
            "-nogpulib",
            "-nogpuinc",
            "-ffreestanding",
            "-std=c++20",
            "-O3",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT / 'csrc'}",
            "-S",
            "-o",
            f"{stem}.s",
            str(ROOT / "tests/tiles" / f"{name}.cpp"),
        )
        zig("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", f"{stem}.s", "-o", f"{stem}.o")
        zig("ld.lld", "-shared", "-o", f"{stem}.co", f"{stem}.o")
        return Module(pathlib.Path(f"{stem}.co").read_bytes(), target)


@functools.cache
def kernel(file: str, name: str, target: str) -> Kernel:
    return module(file, target).kernel(name)


def run(
    file: str,
    name: str,
    target: str,
    *,
    a=None,
    b=None,
    c=None,
    out=None,
    stride=0,
    rows=0,
    cols=0,
    number=0,
    scalar=0.0,
    threads=64,
    **settings,
):
    """Run a kernel that takes registers.h's Arguments; return the report."""
    given = {"a": a, "b": b, "c": c, "out": out}
    packed = struct.pack(
        "<QQQQqiiif",
        *(x.ctypes.data if x is not None else 0 for x in given.values()),
        stride,
        rows,
        cols,
        number,
        scalar,
    )
    regions = {key: value for key, value in given.items() if value is not None}
    return kernel(file, name, target).launch(
        packed, regions, block=(threads, 1, 1), read_only=("a", "b", "c"), **{**CHECKS, **settings}
    )


def to_type(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to nearest even; bf16 as bit patterns."""
    values = np.asarray(values, np.float32)
    if dtype != "bf16":
        return values.astype(DTYPES[dtype])
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_type(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A register tile's layout: row_l or col_l of base tiles of rows x cols with runs of `run`."""

    name: str
    rows: int
    cols: int
    run: int

    @property
    def is_row(self) -> bool:
        return self.name == "row_l"

    @property
    def suffix(self) -> str:
        four = "_4" if {self.rows, self.cols} == {16, 32} and self.run == 4 else ""
        return f"{self.name}_rt_{self.rows}x{self.cols}{four}"

    def base(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of [element][lane] of a base tile."""
        across, along = (self.rows, self.cols) if self.is_row else (self.cols, self.rows)
        lane = np.arange(64)[None, :]
        element = np.arange(across * along // 64)[:, None]
        groups = 64 // across
        run = element % self.run + (element // self.run * groups + lane // across) * self.run
        position = np.broadcast_to(lane % across, run.shape)
        return (position, run) if self.is_row else (run, position)

    def index(self, rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of [register][lane] of a tile."""
        row, col = self.base()
        return tuple(
            np.concatenate(
                [
                    (row + i * self.rows, col + j * self.cols)[axis]
                    for i in range(rows // self.rows)
                    for j in range(cols // self.cols)
                ]
            )
            for axis in (0, 1)
        )

    def pack(self, matrix: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(matrix[self.index(*matrix.shape)])

    def unpack(self, registers: np.ndarray, rows: int, cols: int) -> np.ndarray:
        index = self.index(rows, cols)
        matrix = np.zeros((rows, cols), registers.dtype)
        matrix[index] = registers.reshape(index[0].shape)
        return matrix

    def vector_index(self, length: int, per_row: bool) -> np.ndarray:
        """Element of [register][lane] of a vector with one value per row (column) of such a tile."""
        row, col = self.base()
        place, step = (row, self.rows) if per_row else (col, self.cols)
        if per_row == self.is_row:  # across lanes: every register of a base tile holds the same row
            place = place[:1]
        return np.concatenate([place + i * step for i in range(length // step)])

    def pack_vector(self, values: np.ndarray, per_row: bool) -> np.ndarray:
        return np.ascontiguousarray(values[self.vector_index(values.size, per_row)])


TILES = [
    Layout("row_l", 16, 16, 4),
    Layout("col_l", 16, 16, 4),
    Layout("row_l", 32, 32, 4),
    Layout("col_l", 32, 32, 4),
    Layout("row_l", 16, 32, 8),
    Layout("col_l", 32, 16, 8),
]
