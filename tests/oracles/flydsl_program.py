# SPDX-License-Identifier: MIT
"""Runs a file of FlyDSL's repository as on a ROCm build, under `hipkittens sim run`; tests/oracles/test_flydsl.py starts it.

    python flydsl_program.py TARGET RESULTS FILE [WORDS_OF_PYTEST ...]

Writes JSON to RESULTS: for an example its findings, and for a file of tests each test's outcome and findings. Kernels, examples and
tests are FlyDSL's own; only `run_perftest`, which repeats a call to time it, is replaced: here it makes one call.
"""

import json
import pathlib
import runpy
import sys
from unittest import mock

import pytest

import hipkittens
from hipkittens.integrations import _rocm_tensors, rocm
from hipkittens.integrations._simulated_device import SimulatedLibrary


class Memory(_rocm_tensors._Residents):
    """FlyDSL calls HIP itself: every allocation on the simulated GPU is registered as HIP memory, and stays so until the end."""

    def __init__(self):
        super().__init__()
        self.simulator, self.kept = SimulatedLibrary(), {}

    def add(self, tensor):
        super().add(tensor)
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self.kept:
            self.kept[storage.data_ptr()] = storage
            register = self.simulator.library.hipHostRegister
            self.simulator.check(register(storage.data_ptr(), storage.nbytes(), 0))


class Outcomes:
    """A pytest plugin that records the outcome of each test, and the checkers' findings in its launches."""

    def __init__(self, run):
        self.run, self.tests = run, {}

    def pytest_runtest_logreport(self, report):
        kept = self.tests.setdefault(report.nodeid.partition("::")[2], {"outcome": "passed", "findings": []})
        if report.outcome != "passed":
            kept["outcome"] = report.outcome
        kept["findings"] += [str(finding) for finding in self.run.findings]
        self.run.forget()


def one_call(
    function, *args, num_iters=0, num_warmup=0, testGraph=False, num_rotate_args=0, needTrace=False, **kwargs
):
    return function(*args, **kwargs), 1.0


def main(target, results, file, *words):
    _rocm_tensors._Residents = Memory
    with rocm.active(), hipkittens.simulate(target, checks="all") as run:
        SimulatedLibrary().enter_device(0)
        if "tests" in pathlib.Path(file).parts:
            with mock.patch.dict(sys.modules, pandas=mock.MagicMock()):  # for tables of profiles
                import tests.test_common
            tests.test_common.run_perftest = one_call
            found = Outcomes(run)
            pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not large_shape", "--tb=line", "--show-capture=no", file, *words],
                        plugins=[found])  # fmt: skip
            said = found.tests
        else:
            sys.argv = [file]
            runpy.run_path(file, run_name="__main__")
            said = [str(finding) for finding in run.findings]
    pathlib.Path(results).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
