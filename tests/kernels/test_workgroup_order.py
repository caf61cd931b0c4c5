"""Every tile has exactly one workgroup for any grid, and the order has the locality it is meant to have."""

import ctypes

import numpy as np
import pytest

from tests.kernels.gemm_plan import Order, probe


def positions(tiles_m, tiles_n, xcd_chunk, window_rows, xcds=8):
    found = np.zeros((tiles_m * tiles_n, 2), np.uint32)
    order = Order(tiles_m, tiles_n, xcds, xcd_chunk, window_rows)
    probe().probe_order(ctypes.byref(order), found.ctypes.data_as(ctypes.c_void_p))
    return found


XCDS = [1, 2, 4, 6, 8]  # partition modes, MI308X, MI300A


@pytest.mark.parametrize("xcds", XCDS)
@pytest.mark.parametrize("chunk", [1, 4, 16, 25, 64, 216])
def test_every_number_of_tiles_is_a_permutation(chunk, xcds):
    for count in range(1, 700):
        found = positions(count, 1, chunk, 8, xcds)
        assert np.array_equal(np.sort(found[:, 0]), np.arange(count)), count


@pytest.mark.parametrize("window", [1, 3, 4, 8])
@pytest.mark.parametrize("xcds", XCDS)
def test_every_shape_of_grid_is_a_permutation(window, xcds):
    for tiles_m in (1, 2, 3, 7, 8, 9, 31, 57, 64):
        for tiles_n in (1, 2, 5, 8, 13, 57, 64):
            found = positions(tiles_m, tiles_n, 16, min(window, tiles_m), xcds)
            index = np.sort(found[:, 0] * tiles_n + found[:, 1])
            assert np.array_equal(index, np.arange(tiles_m * tiles_n)), (tiles_m, tiles_n)


@pytest.mark.parametrize("xcds", XCDS)
def test_an_xcd_takes_neighbouring_tiles(xcds):
    # Workgroup i runs on XCD i % xcds. Its 64 tiles of the first round are in one window: few rows of A, few columns of B.
    found = positions(32, 32, 64, 8, xcds)
    for xcd in range(xcds):
        mine = found[xcd : xcds * 64 : xcds]
        assert len(np.unique(mine[:, 0])) + len(np.unique(mine[:, 1])) <= 16


def test_without_chunks_the_tiles_of_an_xcd_are_far_apart():
    spread = positions(32, 32, 1, 8)[0 : 8 * 64 : 8]
    assert len(np.unique(spread[:, 0])) + len(np.unique(spread[:, 1])) > 16
