"""Every vector instruction against an exact scalar meaning, at every host level."""

import numpy as np
import pytest

from tests.simulator import vector_kernels
from tests.simulator.vector_cases import ALL_CASES, Case, assembly, samples, width
from tests.simulator.vector_kernels import ALL, HOST_LEVELS, SPARSE, bits_of, load, run

OLD = np.uint64(0xDEADBEEF_CAFEF00D)


def name_of(case: Case) -> str:
    return case.name.replace(":", "_")


# gfx9's newer 16-bit instructions keep the other half of their register.
KEEPS_UPPER_HALF = {
    "v_fma_f16",
    "v_min3_f16",
    "v_max3_f16",
    "v_med3_f16",
    "v_ashr_pk_i8_i32",
    "v_ashr_pk_u8_i32",
}


@pytest.fixture(scope="module")
def module():
    return load({name_of(case): assembly(case) for case in ALL_CASES})


def launch(module, case: Case, values, **settings):
    sources = values[:-1] if case.accumulates else values
    old = values[-1] if case.accumulates else OLD
    return run(module, name_of(case), sources, old=old, **settings).destination


def expected(case: Case, values):
    result = case.expected(values)
    if width(case.result) == 64:
        return result
    old = np.full_like(result, OLD)
    if case.accumulates:
        old = values[-1]
    keep = np.uint64(0xFFFFFFFF_FFFF0000 if case.name in KEEPS_UPPER_HALF else 0xFFFFFFFF_00000000)
    return result & ~keep | old & keep


@pytest.mark.parametrize("case", ALL_CASES, ids=name_of)
def test_meaning(module, case):
    values = samples(case.sources)
    want = expected(case, values)
    for level in HOST_LEVELS:
        got = launch(module, case, values, host_level=level)
        wrong = np.argwhere(got != want)
        if len(wrong):
            at = tuple(wrong[0])
            given = ", ".join(
                f"{kind} {int(column[at]):#x}" for kind, column in zip(case.sources, values, strict=True)
            )
            pytest.fail(
                f"{case.name} {level}: {len(wrong)} wrong, first {given}: got {int(got[at]):#x}, want {int(want[at]):#x}"
            )


@pytest.mark.parametrize("case", ALL_CASES, ids=name_of)
def test_disabled_lanes_keep_their_value(module, case):
    values = samples(case.sources, 128, seed=2)
    old = values[-1] if case.accumulates else np.full((2, 64), OLD)
    whole = launch(module, case, values, exec_mask=ALL, host_level="best")
    some = launch(module, case, values, exec_mask=SPARSE, host_level=HOST_LEVELS[0])
    enabled = bits_of(SPARSE)
    assert (some[:, enabled] == whole[:, enabled]).all()
    assert (some[:, ~enabled] == old[:, ~enabled]).all()
    assert vector_kernels.SPARSE.bit_count() == enabled.sum()
