# SPDX-License-Identifier: MIT
"""The process-wide cache of translated kernels: the most recently used stay, and evicted ones are translated again."""

import threading

import pytest
import torch

import hipkittens
from hipkittens import _simulator
from hipkittens._installation import TARGETS


@pytest.fixture(autouse=True)
def limit():
    """The usual limit, which is restored afterwards."""
    usual = _simulator.limit_kept_programs(0)
    _simulator.limit_kept_programs(usual)
    yield usual
    _simulator.limit_kept_programs(usual)


def launches():
    x = torch.linspace(-2, 2, 4 * 256).reshape(4, 256)
    return [hipkittens.softmax(x), hipkittens.rms_norm(x, x[0]), hipkittens.activation(x, "silu")]


@pytest.mark.parametrize("checks", [None, "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_results_do_not_depend_on_what_is_kept(target, checks, limit):
    with hipkittens.simulate(target, checks=checks) as run:
        expected = launches()
        kept = _simulator.kept_program_bytes()
        assert 0 < kept <= limit
        _simulator.limit_kept_programs(0)
        assert _simulator.kept_program_bytes() == 0
        for most in (0, 1 << 20, limit):
            _simulator.limit_kept_programs(most)
            for _ in range(2):
                assert all(torch.equal(*pair) for pair in zip(launches(), expected, strict=True))
                assert _simulator.kept_program_bytes() <= most
    assert checks is None or run.findings == []


def test_a_launch_holds_its_own():
    """Threads that launch while others' launches make the cache evict everything."""
    x = torch.randn(64, 4096)
    failed = []

    def work(dtype):
        y = x.to(dtype)
        for _ in range(10):
            if not torch.equal(hipkittens.softmax(y), results[dtype]):
                failed.append(dtype)

    with hipkittens.simulate("gfx950"):
        results = {dtype: hipkittens.softmax(x.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
        _simulator.limit_kept_programs(0)
        threads = [threading.Thread(target=work, args=(dtype,)) for dtype in results for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
