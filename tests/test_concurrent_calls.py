# SPDX-License-Identifier: MIT
"""Operators called from several Python threads at once: the first use of each kernel, and later ones.

`python tools/sanitized_tests.py thread tests/test_concurrent_calls.py` runs it under ThreadSanitizer.
"""

import subprocess
import sys
from pathlib import Path

import torch

import hipkittens
from tests.python_threads import at_once

ROOT = Path(__file__).resolve().parent.parent
THREADS, ROUNDS = 4, 3


def calls(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(33, 64, generator=generator).bfloat16()
    weight = torch.randn(64, generator=generator).bfloat16()
    other = torch.randn(64, 48, generator=generator).bfloat16()
    return [
        hipkittens.rms_norm(x, weight),
        hipkittens.layer_norm(x, weight, weight),
        hipkittens.matmul(x, other),
    ]


def main():
    results = {}

    def work(thread):
        for turn in range(ROUNDS):
            results[thread, turn] = calls(thread * ROUNDS + turn)

    at_once(THREADS, work)
    for (thread, turn), got in results.items():
        for one, alone in zip(got, calls(thread * ROUNDS + turn), strict=True):
            assert torch.equal(one, alone), (thread, turn)
    print(len(results))


def test_threads_get_the_results_of_one_thread():
    """In a separate process, where no kernel has been loaded yet."""
    command = [sys.executable, "-m", "tests.test_concurrent_calls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) == THREADS * ROUNDS


if __name__ == "__main__":
    main()
