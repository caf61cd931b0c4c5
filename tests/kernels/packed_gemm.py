"""Prebuilt GEMM kernels launched one by one, without the plan, so that their code objects can be modified before they run."""

from __future__ import annotations

import ctypes

import numpy as np

from hipkittens._installation import pack
from tests.simulated_device import Module


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("leading_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
    ]


class _Arguments(ctypes.Structure):
    """GemmArguments of csrc/kernels/gemm/arguments.h."""

    _fields_ = [("a", _Matrix), ("b", _Matrix), ("c", _Matrix), ("c_split_stride", ctypes.c_int64),
                ("bias", ctypes.c_void_p), ("m", ctypes.c_int32), ("n", ctypes.c_int32), ("k", ctypes.c_int32),
                ("k_tiles", ctypes.c_int32), ("k_tiles_per_split", ctypes.c_int32), ("output", ctypes.c_int32),
                ("bias_type", ctypes.c_int32), ("vector_stores", ctypes.c_int32), ("tiles_m", ctypes.c_uint32),
                ("tiles_n", ctypes.c_uint32), ("xcds", ctypes.c_uint32), ("xcd_chunk", ctypes.c_uint32),
                ("window_rows", ctypes.c_uint32)]  # fmt: skip


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Exactly representable f32 values as bf16 bit patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


class PackedGemm:
    """C = A Bᵀ (orientation nt) of small integers in bf16, so that the right result is exact in f32."""

    def __init__(self, target: str, variant: str, m: int, n: int, k: int):
        chosen = pack(target)
        entry = chosen.entry(f"hipkittens_gemm_{variant}_{target}")
        self.image, self.symbol, self.target = chosen.image(entry), entry["kernels"][0]["symbol"], target
        tile_m, tile_n, tile_k = (int(size) for size in variant.split("_")[2].split("x"))
        rng = np.random.default_rng(7)
        a, b = (rng.integers(-4, 5, (rows, k)).astype(np.float32) for rows in (m, n))
        self.expected = a @ b.T
        self.a, self.b, self.c = to_bf16(a), to_bf16(b), np.empty((m, n), np.float32)
        self.threads = {"256x256x64": 512, "128x128x64": 256, "16x64x64": 256}[variant.split("_")[2]]
        tiles_m, tiles_n, k_tiles = -(-m // tile_m), -(-n // tile_n), -(-k // tile_k)
        self.grid = (tiles_m * tiles_n, 1, 1)
        arguments = _Arguments(m=m, n=n, k=k, k_tiles=k_tiles, k_tiles_per_split=k_tiles, output=2, vector_stores=1,
                               tiles_m=tiles_m, tiles_n=tiles_n, xcds=8, xcd_chunk=1, window_rows=min(4, tiles_m))  # fmt: skip
        for matrix, array in ((arguments.a, self.a), (arguments.b, self.b), (arguments.c, self.c)):
            matrix.data, matrix.leading_stride = array.ctypes.data, array.shape[1]
        self.arguments = bytes(arguments)

    def run(self, image: bytes | None = None, **settings):
        """Run the kernel of `image` (default: as shipped); return its report. SimulatorError if it faults."""
        self.c[:] = np.nan
        kernel = Module(image or self.image, self.target).kernel(self.symbol)
        regions = {"a": self.a, "b": self.b, "c": self.c}
        return kernel.launch(
            self.arguments,
            regions,
            grid=self.grid,
            block=(self.threads, 1, 1),
            read_only=("a", "b"),
            **settings,
        )

    def is_right(self) -> bool:
        return np.array_equal(self.c, self.expected)
