# SPDX-License-Identifier: MIT
"""Fixtures that keep memory small in a process that runs thousands of tests."""

import ctypes
import gc

import pytest

_libc = ctypes.CDLL(None)


def pytest_collection_finish():
    """Exempt the collected tests, which live to the end, from garbage collection. Otherwise a full collection waits until the new objects
    amount to a quarter of the old ones: many results whose graphs are cycles."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back():
    """Return free memory to the system. Large and small blocks alternate in the heap, so what is free inside it stays resident
    otherwise."""
    yield
    if hasattr(_libc, "malloc_trim"):  # of glibc
        _libc.malloc_trim(0)


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def compile_backend(request):
    """Backends for torch.compile: one that only traces an operation and its derivatives; with `-m slow` also PyTorch's default, whose C++
    compiler takes most of such a test's time. For operations that mutate their arguments some tests always use the default."""
    return request.param
