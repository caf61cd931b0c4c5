# SPDX-License-Identifier: MIT
"""Attention forward with the keys divided into splits, one workgroup each, against float64; and when the plan splits."""

import numpy as np
import pytest

from hipkittens._installation import pack
from tests.kernels.attention_forward import (
    CASE_NAMES,
    CASES,
    ROWS,
    Forward,
    PlanError,
    make_plan,
    places,
    run,
)
from tests.simulated_device import TARGETS


@pytest.mark.parametrize(("row", "target"), CASES, ids=CASE_NAMES)
def test_row(row, target):
    """Splits of whole tiles; splits some of which see no key; odd lengths, a window, and more splits than tiles."""
    of = ROWS[row]
    tiles = {"value_dim": of.value_dim, **of.options}
    run(Forward(target, of.element, of.head_dim, 32 * of.waves, 384, **tiles), row, 3)
    broken = Forward(target, of.element, of.head_dim - 24, 32 * of.waves + 19, 333, value_dim=of.value_dim - 24, batch=2,
                     heads=4, key_heads=2, causal=True, padding=6, sinks=True, **of.options)  # fmt: skip
    for splits in (2, 7):
        run(broken, row, splits, wave_order_seed=splits)
    run(Forward(target, of.element, of.head_dim, 70, 461, window=(100, 60), **tiles), row, 3)


@pytest.mark.parametrize("target", TARGETS)
def test_the_kernels_that_join_use_no_scratch(target):
    for element in ("bf16", "f16"):
        (kernel,) = pack(target).entry(f"hipkittens_attention_forward_combine_{element}_{target}")["kernels"]
        assert kernel["scratch_bytes"] == kernel["sgpr_spills"] == kernel["vgpr_spills"] == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n_k", [1, 63, 64, 65, 129, 320, 449])
def test_lengths(target, n_k):
    for splits in (2, 3, 7):
        run(Forward(target, "bf16", 64, 40, n_k, causal=splits == 3, heads=2, key_heads=1), splits=splits)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [8, 40, 72, 136, 256])
def test_head_sizes(target, head_dim):
    run(Forward(target, "f16", head_dim, 33, 200, heads=2), splits=3)


@pytest.mark.parametrize("target", TARGETS)
def test_queries_that_see_nothing(target):
    for problem in (
        Forward(target, "bf16", 64, 300, 140, causal=True),
        Forward(target, "f16", 64, 9, 0),
        Forward(target, "bf16", 64, 500, 20, window=(2, 2)),
    ):
        run(problem, splits=3)
        blind = ~problem.seen.any(axis=1)
        assert not problem.out[:, blind].any() and np.isneginf(problem.lse[:, :, blind]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", [1, 6, 60, -60])
def test_scores_that_grow_from_part_to_part(target, step):
    """Up to 200 in natural units from one part to the next: a weight of the combination may be zero, never infinite."""
    run(Forward(target, "bf16", 64, 70, 640, bias=np.arange(640) // 64 * float(step)), splits=3)


@pytest.mark.parametrize("target", TARGETS)
def test_one_part_that_sees_keys_is_passed_on_unchanged(target):
    problem = Forward(target, "bf16", 64, 50, 60)
    run(problem, splits=1)
    out, lse = problem.out.copy(), problem.lse.copy()
    run(problem, splits=5)
    assert np.array_equal(out, problem.out) and np.array_equal(lse, problem.lse)


@pytest.mark.parametrize("target", TARGETS)
def test_every_run_gives_the_same_bits(target):
    problem, results = Forward(target, "bf16", 64, 70, 700, heads=2), []
    for seed in (0, 5, 6):
        run(problem, splits=4, wave_order_seed=seed, threads=1 + seed % 2)
        results.append((problem.out.copy(), problem.lse.copy()))
    for out, lse in results[1:]:
        assert np.array_equal(out, results[0][0]) and np.array_equal(lse, results[0][1])


def splits_chosen(target, n_q, n_k, **options):
    problem = Forward(target, "bf16", 128, 1, 1, causal=options.pop("causal", False),
                      window=options.pop("window", (-1, -1))).problem  # fmt: skip
    sizes = {"batch": 1, "heads": 1, "n_q": n_q, "n_k": n_k, **options}
    for name, value in {"key_heads": sizes["heads"], **sizes}.items():
        setattr(problem.shared, name, value)
    problem.workspace = 1 << 20
    launches = make_plan(problem)
    taken = places(bytes.fromhex(launches[0]["arguments"]), launches[0]["grid"][0])
    assert len({tuple(place) for place in taken}) == len(taken)
    splits = int(taken[:, 3].max()) + 1
    assert len(launches) == (1 if splits == 1 else 2)
    return splits


@pytest.mark.parametrize(("target", "units"), [("gfx942", 304), ("gfx950", 256)])
def test_the_plan_splits_what_would_leave_compute_units_idle(target, units):
    assert splits_chosen(target, 1, 4096, heads=32, key_heads=8) * 8 in range(units // 2, units + 1)
    assert splits_chosen(target, 1, 8192, batch=2, heads=8) > 4
    assert splits_chosen(target, 128, 4096, heads=4, causal=True) > 4
    # Too few keys for a second launch to pay off, or a window over few keys.
    assert splits_chosen(target, 1, 512) == 1
    assert splits_chosen(target, 1, 4096, window=(200, 0)) == 1
    # Enough workgroups without splits.
    assert splits_chosen(target, 1, 4096, batch=units // 8, heads=8) == 1
    assert splits_chosen(target, 300, 2048, batch=4, heads=64, key_heads=8) == 1
    assert splits_chosen(target, 1, 4096, compute_units=1) == 1
    # The same problem, the same splits.
    assert len({splits_chosen(target, 7, 3000, heads=3) for _ in range(3)}) == 1


def test_splits_are_whole_tiles_and_as_equal_as_can_be():
    splits = splits_chosen("gfx942", 1, 64 * 100, heads=2)
    tiles = -(-100 // splits)
    assert 2 <= tiles <= 4 and splits * 2 <= 304


def test_a_workspace_is_asked_for():
    with pytest.raises(PlanError, match="workspace has no data"):
        make_plan(Forward("gfx942", "bf16", 128, 1, 4096, heads=32, key_heads=8).problem)


@pytest.mark.parametrize("target", TARGETS)
def test_a_split_that_begins_beyond_4_gib(target):
    problem = Forward(target, "bf16", 64, 5, 300)
    stride = 9 << 20
    for name, layout in (("k", problem.problem.k), ("v", problem.problem.v)):
        far = np.zeros(299 * stride + 64, np.uint16)  # mapped, not touched
        for row, values in enumerate(problem.regions[name].reshape(-1, 64)):
            far[row * stride : row * stride + 64] = values
        problem.regions[name] = far
        layout.data, layout.row_stride = far.ctypes.data, stride
    assert 256 * stride * 2 > 1 << 32
    run(problem, splits=5)
