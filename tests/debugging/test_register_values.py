# SPDX-License-Identifier: MIT
"""Register bytes shown as numbers and as matrices."""

from __future__ import annotations

import pytest
import torch

from hipkittens.debugging.register_values import RegisterFile, Scalar, VectorRegisters, as_json


def registers(dwords):
    """Registers from a (registers, 64) tensor of 32-bit numbers."""
    return VectorRegisters(dwords.contiguous().view(torch.uint8).reshape(*dwords.shape, 4), "v")


def test_numbers_of_each_width():
    dwords = torch.arange(4 * 64, dtype=torch.int32).reshape(4, 64)
    assert torch.equal(registers(dwords).i32, dwords)
    assert registers(dwords[:1]).i32.shape == (64,)
    halves = torch.randn(2, 64, 2, dtype=torch.float16)
    assert torch.equal(registers(halves.view(torch.int32).squeeze(-1)).f16, halves)
    doubles = torch.randn(64, dtype=torch.float64)
    low, high = doubles.view(torch.int32).reshape(64, 2).unbind(1)
    assert torch.equal(registers(torch.stack([low, high])).f64, doubles)
    assert registers(dwords)[5] == [5, 69, 133, 197]


# What the ISA manuals say of single elements (csrc/tiles/lane_layout.h asserts the same of the kernels' own rule).
@pytest.mark.parametrize(
    ("shape", "dtype", "lane", "element", "place"),
    [
        ("16x32", "bf16", 17, 3, (1, 11)),
        ("16x16", "f32", 17, 3, (7, 1)),
        ("32x32", "f32", 33, 5, (13, 1)),
        ("16x4", "f32", 37, 0, (5, 2)),
    ],
)
def test_an_element_of_a_tile_is_where_the_matrix_instruction_has_it(shape, dtype, lane, element, place):
    rows, columns = map(int, shape.split("x"))
    size = 2 if dtype == "bf16" else 4
    count = rows * columns * size // 256
    raw = torch.zeros(count, 64, 4, dtype=torch.uint8)
    values = VectorRegisters(raw, "v")
    position, part = divmod(element * size, 4)
    one = torch.ones(1, dtype=torch.bfloat16 if size == 2 else torch.float32)
    raw[position, lane, part : part + size] = one.view(torch.uint8)
    tile = values.tile(shape, dtype)
    assert tile.shape == (rows, columns)
    assert tile.nonzero().tolist() == [list(place)]


@pytest.mark.parametrize("shape", ["16x32", "32x16", "16x16", "32x32", "16x4"])
@pytest.mark.parametrize("layout", ["row", "col"])
def test_a_tile_has_each_element_once(shape, layout):
    rows, columns = map(int, shape.split("x"))
    dwords = torch.arange(rows * columns, dtype=torch.int32).reshape(-1, 64)
    tile = registers(dwords).tile(shape, "i32", layout)
    assert sorted(tile.flatten().tolist()) == list(range(rows * columns))


def test_tiles_beside_and_below_each_other():
    dwords = torch.arange(16 * 64, dtype=torch.int32).reshape(16, 64)
    parts = [registers(dwords[first : first + 4]).tile("16x16", "i32") for first in range(0, 16, 4)]
    assert torch.equal(registers(dwords).tile("16x16", "i32"), torch.cat(parts))
    beside = torch.cat([torch.cat(parts[:2], 1), torch.cat(parts[2:], 1)])
    assert torch.equal(registers(dwords).tile("16x16", "i32", columns=2), beside)


def test_scalars_read_as_another_type():
    assert Scalar(0x3F800000).f32 == 1.0
    assert Scalar(0xFFFFFFFF).i32 == -1
    assert Scalar(0x3FF0000000000000, 64).f64 == 1.0
    assert as_json(Scalar(7)) == 7 and type(as_json(Scalar(7))) is int


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda v: v.tile("8x8"), "'8x8' is no base tile; allowed: 16x32, 32x16, 16x16, 32x32, 16x4"),
        (lambda v: v.tile("32x32"), "v holds 4 f32 a lane; a 32x32 tile takes 16"),
        (lambda v: v.tile("16x16", "f33"), "'f33' is no type"),
        (lambda v: v.tile("16x16", layout="rows"), "layout is 'rows'; allowed: 'row', 'col'"),
        (lambda v: v[64], "lane 64; a wave has lanes 0 to 63"),
        (lambda v: registers(torch.zeros(3, 64, dtype=torch.int32)).f64, "a 64-bit number takes two"),
        (lambda v: RegisterFile("v", None, 8)[6:9], r"v\[6:9\]; the kernel has v\[0:8\]"),
        (lambda v: RegisterFile("v", None, 8)[0:8:2], "consecutive registers"),
    ],
)
def test_what_cannot_be_read_is_said(read, words):
    with pytest.raises(ValueError, match=words):
        read(registers(torch.zeros(4, 64, dtype=torch.int32)))
