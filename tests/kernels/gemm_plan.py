"""The GEMM plan from Python: problems as numpy arrays, plans as dictionaries, launches in the simulator."""

from __future__ import annotations

import ctypes
import functools
import json
import pathlib
import re
import tempfile

import numpy as np

from hipkittens._installation import pack
from tests.host_build import ROOT, build
from tests.simulated_device import Module

COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}  # MI300X, MI355X
ELEMENT_TYPES = {
    "bf16": 0,
    "f16": 1,
    "f32": 2,
    "fp8": 3,
    "bf8": 4,
    "i8": 5,
    "fp4": 6,
    "i32": 7,
    "fp6": 8,
    "bf6": 9,
}
SCALES = {"none": 0, "outer": 1, "blocks": 2, "row_blocks": 3, "in_matrix": 4, "of_b": 5}
NO_ACTIVATION = -1
VARIANTS = (ROOT / "csrc/kernels/gemm/variants.def").read_text()
# name -> (targets, orientation, element of A, tile_m, tile_n, tile_k), for rows with unquantized operands
ROWS = {
    name: (targets, orientation, element, *map(int, tile))
    for name, targets, orientation, element, *tile in re.findall(
        r"^ROW\(gemm, (\w+), (\w+), (\w+), (\w+), \w+, none, (\d+), (\d+), (\d+)", VARIANTS, re.M
    )
}
# The same for quantized operands, whose orientation is nt: name -> (targets, element of A, of B, scales, tile_m, tile_n, tile_k)
SCALED_ROWS = {
    name: (targets, a, b, scales, *map(int, tile))
    for name, targets, a, b, scales, *tile in re.findall(
        r"^ROW\(scaled, (\w+), (\w+), nt, (\w+), (\w+), (\w+), (\d+), (\d+), (\d+)", VARIANTS, re.M
    )
}

# For both: name -> K tiles in LDS, as the row states
BUFFERS = {
    name: int(in_lds)
    for name, in_lds in re.findall(
        r"^ROW\((?:gemm|scaled), (\w+),.*, (\d+), \d+, \w+\)", VARIANTS, re.MULTILINE
    )
}
# name -> how many K tiles its loop keeps in LDS (direct loads), in registers (others), for two of the schedules
INTERLEAVED, STREAMED = (
    {
        name: (int(in_lds), int(in_registers))
        for name, in_lds, in_registers in re.findall(
            rf"^ROW\(gemm, (\w+),.*, {schedule}, (\d+), (\d+), \w+\)", VARIANTS, re.M
        )
    }
    for schedule in ("interleaved", "streamed")
)
IN_FLIGHT = INTERLEAVED | STREAMED


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("leading_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("transposed", ctypes.c_bool),
        ("panel_rows", ctypes.c_int32),
    ]


class Scale(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("k_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("block_rows", ctypes.c_int64),
    ]


class Problem(ctypes.Structure):
    """gemm::Problem of csrc/kernels/gemm/plan.h."""

    _fields_ = [
        ("target", ctypes.c_int),
        ("compute_units", ctypes.c_int),
        ("xcds", ctypes.c_int),
        ("batch_invariant", ctypes.c_bool),
        ("a_type", ctypes.c_int32),
        ("b_type", ctypes.c_int32),
        ("output", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("bias", ctypes.c_void_p),
        ("bias_type", ctypes.c_int32),
        ("load_order", ctypes.c_int32),
        ("scales", ctypes.c_int32),
        ("a_scale", Scale),
        ("b_scale", Scale),
        ("activation", ctypes.c_int32),
        ("adds", ctypes.c_bool),
    ]


class Order(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32) for name in ("tiles_m", "tiles_n", "xcds", "xcd_chunk", "window_rows")
    ]


@functools.cache
def probe() -> ctypes.CDLL:
    directory = pathlib.Path(tempfile.mkdtemp(prefix="plan_probe"))
    path = build(
        directory / "libplan_probe.so",
        ["tests/kernels/plan_probe.cpp", "csrc/kernels/gemm/plan.cpp"],
        "-O1",
        "-shared",
    )
    library = ctypes.CDLL(str(path))
    library.probe_plan.restype = library.probe_suitable.restype = ctypes.c_char_p
    library.probe_plan.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    library.probe_suitable.argtypes = [ctypes.c_void_p]
    return library


class PlanError(Exception):
    pass


def make_plan(problem: Problem, variant: str = "", splits: int = 1, workspace: int | None = None) -> dict:
    text = probe().probe_plan(ctypes.byref(problem), variant.encode(), splits, workspace).decode()
    if text.startswith("error: "):
        raise PlanError(text.removeprefix("error: "))
    return json.loads(text)


def stored(element: str, codes: int) -> int:
    """The number of stored elements for so many quantized values of a row: stored_elements of csrc/kernels/element_type.h."""
    if element == "fp4":
        return codes // 2
    return -(-codes // 128) * 24 if element in ("fp6", "bf6") else codes


def shape(
    target: str,
    m: int,
    n: int,
    k: int,
    *,
    orientation: str = "nt",
    batch: int = 1,
    element: str = "bf16",
    element_b: str | None = None,
    scales: str = "none",
    output: str | None = None,
    compute_units: int = 0,
    xcds: int = 8,
    data: int = 1 << 20,
) -> Problem:
    """A problem of contiguous matrices at an address that is never read, by default for MI300X or MI355X."""
    k_a, k_b = stored(element, k), stored(element_b or element, k)
    a = Matrix(data, m if orientation[0] == "t" else k_a, m * k_a, orientation[0] == "t")
    b = Matrix(data, k_b if orientation[1] == "t" else n, n * k_b, orientation[1] == "t")
    return Problem(
        int(target[3:]),
        compute_units or COMPUTE_UNITS[target],
        xcds,
        False,
        ELEMENT_TYPES[element],
        ELEMENT_TYPES[element_b or element],
        ELEMENT_TYPES[output or element],
        m,
        n,
        k,
        batch,
        a,
        b,
        Matrix(data, n, m * n, False),
        None,
        0,
        1,
        SCALES[scales],
        Scale(data if scales != "none" else None, block_rows=1),
        Scale(data if scales != "none" else None, block_rows=128 if scales == "blocks" else 1),
        NO_ACTIVATION,
    )


def suitable(problem: Problem) -> list[str]:
    return probe().probe_suitable(ctypes.byref(problem)).decode().split()


def to_bits(values: np.ndarray, element: str) -> np.ndarray:
    """Values that the element type represents exactly, as its bit patterns (f32: the values)."""
    values = values.astype(np.float32)
    if element == "f32":
        return values
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    assert not (bits & 0xFFFF)[np.isfinite(values)].any()
    return (bits >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray, element: str) -> np.ndarray:
    if element == "f32":
        return bits
    if element == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray, element: str) -> np.ndarray:
    """Rounded to nearest, ties to even."""
    values = values.astype(np.float32)
    if element == "f32":
        return values
    if element == "f16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@functools.cache
def kernel(target: str, symbol: str):
    chosen = pack(target)
    return Module(chosen.image(chosen.entry(symbol)), target).kernel(symbol)


class Gemm:
    """C = A B (+ bias) of small integers, exact in f32, with rows `padding` elements apart and NaN in between."""

    def __init__(
        self,
        target: str,
        orientation: str,
        element: str,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        output: str = "f32",
        bias: str | None = None,
        padding: int = 0,
        offset: int = 0,
        seed: int = 5,
    ):
        rng = np.random.default_rng(seed)
        self.target, self.output = target, output

        def operand(rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
            values = np.full((batch, rows, cols + padding), np.nan, np.float32)
            values[:, :, :cols] = rng.integers(-4, 5, (batch, rows, cols))
            storage = np.full(offset + values.size, 0x7FFF, np.uint16)
            storage[offset:] = to_bits(values.reshape(-1), element)
            # The matrix ends with its last element, not with that row's padding.
            return values[:, :, :cols].astype(np.float64), storage[: storage.size - padding]

        a, self.a = operand(*((k, m) if orientation[0] == "t" else (m, k)))
        b, self.b = operand(*((n, k) if orientation[1] == "t" else (k, n)))
        exact = (a.transpose(0, 2, 1) if orientation[0] == "t" else a) @ (
            b.transpose(0, 2, 1) if orientation[1] == "t" else b
        )
        self.regions = {"a": self.a, "b": self.b}
        if bias:
            values = rng.integers(-9, 10, n).astype(np.float32)
            self.regions["bias"] = to_bits(values, bias)
            exact = exact + values
        self.expected = rounded(exact, output)
        self.c = np.full((batch, m, n), 0x5555, np.float32 if output == "f32" else np.uint16)
        self.regions["c"] = self.c

        def matrix(storage: np.ndarray, rows: int, cols: int, transposed: bool) -> Matrix:
            return Matrix(
                storage.ctypes.data + 2 * offset, cols + padding, rows * (cols + padding), transposed
            )

        self.problem = Problem(
            int(target[3:]),
            COMPUTE_UNITS[target],
            8,
            False,
            ELEMENT_TYPES[element],
            ELEMENT_TYPES[element],
            ELEMENT_TYPES[output],
            m,
            n,
            k,
            batch,
            matrix(self.a, *((k, m) if orientation[0] == "t" else (m, k)), orientation[0] == "t"),
            matrix(self.b, *((n, k) if orientation[1] == "t" else (k, n)), orientation[1] == "t"),
            Matrix(self.c.ctypes.data, n, m * n, False),
            self.regions["bias"].ctypes.data if bias else None,
            ELEMENT_TYPES[bias or "f32"],
            activation=NO_ACTIVATION,
        )

    def run(self, variant: str = "", splits: int = 1, **settings):
        """Run the plan; return its description and the report of each launch."""
        self.c[:] = np.float32("nan") if self.output == "f32" else 0x7FFF
        plan = make_plan(self.problem, variant, splits)
        regions = dict(self.regions)
        if plan["workspace_bytes"]:
            regions["workspace"] = np.full(plan["workspace_bytes"] // 4, np.nan, np.float32)
            plan = make_plan(self.problem, variant, splits, regions["workspace"].ctypes.data)
        reports = [
            kernel(self.target, launch["kernel"]).launch(
                bytes.fromhex(launch["arguments"]),
                regions,
                grid=launch["grid"],
                block=launch["block"],
                read_only=("a", "b", "bias"),
                **settings,
            )
            for launch in plan["launches"]
        ]
        return plan, reports

    def check(self):
        np.testing.assert_array_equal(from_bits(self.c, self.output), self.expected)
