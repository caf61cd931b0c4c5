# SPDX-License-Identifier: MIT
"""FlashMLA's own tests of dense and sparse decoding, unchanged, with hipkittens.integrations.flash_mla as its flash_mla and all checkers
on.

It has 2,352 cases of dense decoding and 4,748 of sparse decoding. The subset run here was chosen before any was run: it covers every
pair of values of any two parameters, among the cases with up to 8 GFLOP and 0.7 GB of keys. The others take the host hours, or are 16
and 32 cases that time kernels with CUPTI, which does not support AMD GPUs.
"""

import dataclasses

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import flash_mla, rocm
from tests.oracles import flash_mla_source as source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(source.missing()), reason=source.missing()),
]
TARGETS = ("gfx942", "gfx950")
MOST_OPERATIONS, MOST_BYTES = 8e9, 0.7e9
OF_A_SCORE = 2 * (576 + 512)


def is_affordable_dense(case):
    operations = case.b * case.s_q * case.h_q * case.s_k * OF_A_SCORE
    cache = case.b * case.s_k * case.h_kv * case.d * 2
    return not case.test_performance and operations <= MOST_OPERATIONS and cache <= MOST_BYTES


def is_affordable_sparse(case):
    keys = case.topk + (case.decode.extra_topk or 0)
    return case.num_runs == 0 and case.decode.b * case.s_q * case.h_q * keys * OF_A_SCORE <= MOST_OPERATIONS


def named(place, case):
    """The index in their list, and the parameters that differ from most cases."""
    short = [f"{name}={value}" for name, value in source.values(case) if value not in (None, False)]
    plain = {"num_runs=0", "check_correctness=True", "h_kv=1", "d=576", "dv=512", "d_v=512"}
    return " ".join([f"{place}", *(each for each in short if each not in plain)])


def cases():
    """(FlashMLA's file, target, place, case), and the ids."""
    if source.missing():
        return [], []
    found, ids = [], []
    with source.importable() as modules:
        lists = {
            source.DENSE: (source.dense_cases(modules[source.DENSE]), is_affordable_dense),
            source.SPARSE: (source.sparse_cases(modules[source.SPARSE]), is_affordable_sparse),
        }
        for name, (every, takes) in lists.items():
            for target in TARGETS:
                for place in source.chosen(every, takes):
                    found.append((name, target, place))
                    ids.append(
                        f"{name.removeprefix('test_flash_mla_')}-{target}-{named(place, every[place])}"
                    )
    return found, ids


CASES, IDS = cases()


@pytest.fixture(scope="module")
def theirs():
    """FlashMLA's modules, and the lists of their cases."""
    with source.importable() as modules:
        yield (
            modules,
            {
                source.DENSE: source.dense_cases(modules[source.DENSE]),
                source.SPARSE: source.sparse_cases(modules[source.SPARSE]),
            },
        )


def run(theirs, name, target, place):
    """The verdict of FlashMLA's test on the results, and the checkers' findings."""
    modules, every = theirs
    case = every[name][place]
    if name == source.SPARSE:
        case = dataclasses.replace(case, seed=place)  # as when all of them run
    with (
        rocm.active(),
        hipkittens.simulate(target, checks="all") as run,
        source.defaults(torch.bfloat16),
    ):
        found = modules[name].test_flash_mla(case)
    return found is None or found.is_correct, [str(finding) for finding in run.findings]


@pytest.mark.parametrize(("name", "target", "place"), CASES, ids=IDS)
def test_decoding(theirs, name, target, place):
    assert run(theirs, name, target, place) == (True, [])


@pytest.mark.parametrize("name", [source.DENSE, source.SPARSE])
def test_its_bar_sees_a_wrong_result(theirs, monkeypatch, name):
    """Scores twice as large fail its bar."""
    right = flash_mla.flash_mla_with_kvcache

    def off(q, *given, **options):
        return right(q * 2, *given, **options)

    monkeypatch.setattr(flash_mla, "flash_mla_with_kvcache", off)
    place = next(place for each, _, place in CASES if each == name)
    try:
        passes, _ = run(theirs, name, "gfx950", place)
    except AssertionError:  # which one of both raises
        passes = False
    assert not passes
