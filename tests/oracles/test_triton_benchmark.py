# SPDX-License-Identifier: MIT
"""Triton's autotuning and benchmarks on the simulated devices: modelled times, which are repeatable and disappear when the context ends."""

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.testing import do_bench, do_bench_cudagraph  # by name, before anything is active

import hipkittens
from hipkittens.integrations import triton as simulated
from tests.oracles import triton_kernels as kernels

TARGETS = ("gfx942", "gfx950")


@triton.autotune(
    # One element to a workgroup of 16 waves, or sixteen to each lane.
    configs=[triton.Config({"BLOCK": 16}, num_warps=16), triton.Config({"BLOCK": 1024}, num_warps=1)],
    key=["n"],
)
@triton.jit
def tuned_add(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = place < n
    tl.store(out + place, tl.load(x + place, mask=within) + tl.load(y + place, mask=within), mask=within)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 4096}, num_warps=32), triton.Config({"BLOCK": 1024}, num_warps=4)],
    key=["n"],
    restore_value=["x"],
)
@triton.jit
def add_in_place(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = place < n
    tl.store(x + place, tl.load(x + place, mask=within) + tl.load(y + place, mask=within), mask=within)


def values(size=131072):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for _ in range(2)] + [torch.full((size,), float("nan"))]


def launch(x, y, out):
    tuned_add[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, y, out, len(x))


@pytest.mark.parametrize("target", TARGETS)
def test_autotuning_chooses_the_fewest_modelled_cycles(target):
    x, y, out = values()
    with simulated.active(), hipkittens.simulate(target, checks="all") as run:
        launch(x, y, out)
        timings = {config.kwargs["BLOCK"]: times for config, times in tuned_add.configs_timings.items()}
    assert torch.equal(out, x + y)
    assert tuned_add.best_config.kwargs["BLOCK"] == 1024
    assert timings[16][0] > 2 * timings[1024][0] > 0
    assert len(set(timings[16])) == 1  # all quantiles are equal
    assert [str(finding) for finding in run.findings] == []
    assert tuned_add.cache == {}  # a GPU's choice is its own


def test_each_target_has_its_own_choice():
    x, y, out = values(2048)
    seen = []
    with simulated.active():
        for target in TARGETS:
            with hipkittens.simulate(target):
                launch(x, y, out)
                seen.append(tuned_add.configs_timings)
    assert seen[0] is not seen[1]


@pytest.mark.parametrize("target", TARGETS)
def test_autotuning_passes_by_what_no_workgroup_holds(target):
    x, y, _ = values(5000)
    result = x.clone()
    with simulated.active(), hipkittens.simulate(target):
        add_in_place[lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)](result, y, 5000)
    assert add_in_place.best_config.num_warps == 4
    assert torch.equal(result, x + y)


@pytest.mark.parametrize("target", TARGETS)
def test_too_many_warps_are_refused_by_name(target):
    x, y, out = values(5000)
    with simulated.active(), hipkittens.simulate(target):
        for _ in range(2):
            with pytest.raises(simulated.TooManyWarps, match=r"kernel add has num_warps=32.*at most 1024"):
                kernels.add[(2,)](x, y, out, 5000, BLOCK=4096, num_warps=32)
        assert out.isnan().all()
        kernels.add[(2,)](x, y, out, 5000, BLOCK=4096, num_warps=16)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bench", (do_bench, do_bench_cudagraph))
def test_a_benchmark_is_modelled(target, bench):
    x, y, out = values(5000)
    calls = []

    def call():
        calls.append(1)
        kernels.add[(5,)](x, y, out, 5000, BLOCK=1024)

    with simulated.active(), hipkittens.simulate(target, checks="all"):
        one = bench(call)
        assert bench(call, rep=1, return_mode="median") == one and len(calls) == 2
        assert bench(call, quantiles=[0.5, 0.2]) == [one, one]
        assert bench(call, quantiles=[0.5]) == one
        assert bench(call, return_mode="all") == [one]
        assert bench(lambda: (call(), call())) == pytest.approx(2 * one, rel=0.2)
        with pytest.raises(ValueError, match="return_mode is 'best'"):
            bench(call, return_mode="best")
        with pytest.raises(RuntimeError, match=r"launched no kernel on the simulated MI3"):
            bench(lambda: x + y)
        assert triton.testing.do_bench is do_bench
    with hipkittens.timing({"gfx942": "MI300X", "gfx950": "MI355X"}[target]) as run, simulated.active():
        call()
    assert run.launches[0].microseconds / 1000 == one
    assert torch.equal(out, x + y)


def test_launches_of_tuning_are_no_part_of_a_benchmark():
    x, y, out = values(2048)
    with simulated.active(), hipkittens.simulate("gfx942"):
        assert do_bench(lambda: launch(x, y, out)) == do_bench(lambda: launch(x, y, out))


def test_benchmarks_come_back():
    before = Autotuner.run, do_bench.__code__, do_bench.__defaults__, do_bench.__kwdefaults__
    with simulated.active():
        with simulated.active():
            pass
        assert do_bench.__code__ is not before[1]
    assert (Autotuner.run, do_bench.__code__, do_bench.__defaults__, do_bench.__kwdefaults__) == before
    simulated.activate()
    simulated.restore()
    assert (Autotuner.run, do_bench.__code__, do_bench.__defaults__, do_bench.__kwdefaults__) == before
