# SPDX-License-Identifier: MIT
"""Division implemented as multiplication gives the exact quotient for every 32-bit dividend."""

import ctypes

import numpy as np
import pytest

from tests.kernels.gemm_plan import probe

LARGEST = 2**32 - 1
VALUES = [
    1,
    2,
    3,
    5,
    7,
    8,
    255,
    256,
    257,
    641,
    65535,
    65537,
    2**31 - 1,
    2**31,
    2**31 + 1,
    LARGEST - 1,
    LARGEST,
]


def quotients(value, dividends):
    found = np.empty_like(dividends)
    pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in (dividends, found)]
    probe().probe_divisor(ctypes.c_uint32(value), ctypes.c_uint32(len(dividends)), *pointers)
    return found


@pytest.mark.parametrize("value", [*VALUES, *map(int, np.random.default_rng(0).integers(1, LARGEST, 40))])
def test_quotients(value):
    """Around multiples of the divisor, including the largest ones, and in between."""
    generator = np.random.default_rng(value)
    multiples = generator.integers(0, LARGEST // value + 1, 2000) * value
    multiples = np.concatenate([multiples, [0, LARGEST // value * value]])
    near = [np.clip(multiples + step, 0, LARGEST) for step in (-1, 0, 1)]
    dividends = np.concatenate([*near, generator.integers(0, LARGEST + 1, 5000), [LARGEST]]).astype(np.uint32)
    assert np.array_equal(quotients(value, dividends), dividends // np.uint32(value))
