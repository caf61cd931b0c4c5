"""Element layouts of AMD's matrix instructions in numpy, from the instruction calculator's formulas.

Independent of csrc/simulator/execute/matrix_layout.h, which states the same facts in another form: here every
element is looked up by its coordinates, as the calculator does.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class MatrixShape:
    """One MFMA: `blocks` products of m x k and k x m matrices; bits of one multiplicand and of one result."""

    m: int
    k: int
    blocks: int = 1
    input_bits: int = 16
    output_bits: int = 32

    @property
    def input_registers(self) -> int:
        return self.m * self.k * self.blocks * self.input_bits // (64 * 32)

    @property
    def output_registers(self) -> int:
        return self.m * self.m * self.blocks * self.output_bits // (64 * 32)

    def input_place(self, row: int, k: int, block: int) -> tuple[int, int]:
        """(lane, index of the element within the lane) of A[row][k], or of B[k][row]."""
        lanes_per_k_run = self.m * self.blocks
        run = self.k * lanes_per_k_run // 64
        return row + self.m * block + lanes_per_k_run * (k // run), k % run

    def output_place(self, row: int, column: int, block: int) -> tuple[int, int]:
        """(lane, index of the element within the lane) of D[row][column]."""
        rows_at_once = 4 if self.output_bits == 32 else 1
        if self.m == 4:
            if self.output_bits == 64:
                return column + 4 * block + 16 * row, 0
            return column + 4 * block, row
        groups = 64 // self.m
        lane = column + self.m * (row // rows_at_once % groups)
        return lane, row % rows_at_once + rows_at_once * (
            row // (rows_at_once * groups)
        ) + self.m * self.m // 64 * block


def pack(bits: np.ndarray, element_bits: int) -> np.ndarray:
    """(lane, element) bit patterns to registers: uint32[register][lane]."""
    bits = bits.astype(np.uint64)
    if element_bits == 64:
        return (
            np.stack([bits & 0xFFFFFFFF, bits >> np.uint64(32)], axis=2).reshape(64, -1).T.astype(np.uint32)
        )
    per_dword = 32 // element_bits
    shifts = np.arange(per_dword, dtype=np.uint64) * np.uint64(element_bits)
    return (bits.reshape(64, -1, per_dword) << shifts).sum(axis=2, dtype=np.uint64).T.astype(np.uint32)


def pack_inputs(shape: MatrixShape, bits: np.ndarray) -> np.ndarray:
    """Bit patterns [block][row][k] (of B: [block][column][k]) to registers."""
    lanes = np.zeros((64, shape.m * shape.k * shape.blocks // 64), np.uint64)
    for block in range(shape.blocks):
        for row in range(shape.m):
            for k in range(shape.k):
                lanes[shape.input_place(row, k, block)] = bits[block, row, k]
    return pack(lanes, shape.input_bits)


def pack_outputs(shape: MatrixShape, bits: np.ndarray) -> np.ndarray:
    lanes = np.zeros((64, shape.m * shape.m * shape.blocks // 64), np.uint64)
    for block in range(shape.blocks):
        for row in range(shape.m):
            for column in range(shape.m):
                lanes[shape.output_place(row, column, block)] = bits[block, row, column]
    return pack(lanes, shape.output_bits)


def unpack_outputs(shape: MatrixShape, registers: np.ndarray) -> np.ndarray:
    """Registers to bit patterns [block][row][column]."""
    result = np.zeros((shape.blocks, shape.m, shape.m), np.uint64 if shape.output_bits == 64 else np.uint32)
    for block in range(shape.blocks):
        for row in range(shape.m):
            for column in range(shape.m):
                lane, element = shape.output_place(row, column, block)
                if shape.output_bits == 64:
                    low, high = registers[2 * element, lane], registers[2 * element + 1, lane]
                    result[block, row, column] = int(low) | int(high) << 32
                else:
                    result[block, row, column] = registers[element, lane]
    return result
