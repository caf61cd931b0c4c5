# SPDX-License-Identifier: MIT
"""Fixtures that keep memory small in a process that runs thousands of tests."""

import ctypes
import gc

import pytest

_libc = ctypes.CDLL(None)


def pytest_collection_finish():
    """The collected tests stay to the end, and are no more looked at for garbage. A full collection otherwise waits until as much as a
    quarter of all that has come on top: many results whose graphs are cycles."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back():
    """Large and small blocks alternate in the heap: what is free inside it stays resident, unless asked for."""
    yield
    if hasattr(_libc, "malloc_trim"):  # of glibc
        _libc.malloc_trim(0)


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def compile_backend(request):
    """For torch.compile: what traces an operation and its derivatives; by `-m slow` also PyTorch's default, whose C++ compiler takes
    most of such a test's time. Of operations that change their arguments some tests take the default always."""
    return request.param
