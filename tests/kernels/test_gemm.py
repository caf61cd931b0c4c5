"""Every prebuilt GEMM kernel against a float64 product, with every checker of the simulator on."""

import numpy as np
import pytest

from tests.kernels.gemm_plan import IN_FLIGHT, ROWS, Gemm, PlanError, make_plan
from tests.simulated_device import TARGETS

CHECKS = {"poison": 1, "count_lds_conflicts": 1}
CASES = [
    (row, target) for row, (targets, *_) in ROWS.items() for target in TARGETS if targets in ("both", target)
]
CASE_NAMES = [f"{row}-{target}" for row, target in CASES]


def run(gemm, variant="", splits=1, **settings):
    plan, reports = gemm.run(variant, splits, **{**CHECKS, **settings})
    gemm.check()
    return plan, reports


@pytest.mark.parametrize(("row", "target"), CASES, ids=CASE_NAMES)
def test_row(row, target):
    """Whole tiles without bank conflicts; then partial tiles in every direction, batches, padding, bias, rounding."""
    _, orientation, element, tile_m, tile_n, tile_k = ROWS[row]
    conflict_free = Gemm(target, orientation, element, tile_m, tile_n, 2 * tile_k)
    _, reports = run(conflict_free, row)
    assert reports[0].lds_conflict_cycles == 0
    unaligned = row.endswith("unaligned")
    ragged = Gemm(
        target,
        orientation,
        element,
        tile_m + 22,
        tile_n + 14,
        2 * tile_k + 26,
        batch=2,
        output=element,
        bias="f32",
        padding=3 if unaligned else 2,
        offset=1 if unaligned else 2,
    )
    run(ragged, row, wave_order_seed=11)
    if unaligned:
        run(Gemm(target, orientation, element, 61, 5, 1, padding=1), row, wave_order_seed=12)
        run(Gemm(target, orientation, element, 1, 1, 65), row)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("orientation", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (2, 3, 5), (17, 130, 33), (40, 8, 1000), (255, 257, 66)]
)
def test_the_plans_own_choice(target, orientation, m, n, k):
    for output, bias in (("f32", None), ("bf16", "bf16"), ("f16", "f16")):
        run(Gemm(target, orientation, "bf16", m, n, k, output=output, bias=bias))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("splits", [2, 3, 7])
def test_split_k(target, splits):
    gemm = Gemm(target, "nt", "f16", 70, 90, 64 * 9 + 10, batch=2, output="f16", bias="f16", padding=2)
    plan, _ = run(gemm, "nt_f16_64x64x64", splits)
    assert plan["splits"] > 1 and [launch["variant"] for launch in plan["launches"]] == [
        "nt_f16_64x64x64",
        "reduce",
    ]
    first = gemm.c.copy()
    run(gemm, "nt_f16_64x64x64", splits, wave_order_seed=5, threads=1)
    assert np.array_equal(gemm.c, first)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_ping_pong_does_not_depend_on_the_order_of_waves(target, seed):
    for orientation in ("nt", "tn"):
        for k in (64, 128, 200, 448):  # fewer K tiles than buffers, odd and even numbers of them
            run(
                Gemm(target, orientation, "bf16", 256, 256, k),
                f"{orientation}_bf16_256x256x64",
                wave_order_seed=seed,
            )


@pytest.mark.parametrize(
    ("row", "target"),
    [case for case in CASES if case[0] in IN_FLIGHT and case[0].startswith(("nt_bf16", "tn_bf16"))],
)
def test_every_number_of_k_tiles_in_flight(row, target):
    """From fewer K tiles than are in flight to every remainder of whole loop iterations, with a partial last tile."""
    _, orientation, element, tile_m, tile_n, tile_k = ROWS[row]
    for k_tiles in range(1, 2 * max(IN_FLIGHT[row]) + 2):
        problem = Gemm(target, orientation, element, tile_m, tile_n, k_tiles * tile_k - 22)
        run(problem, row, wave_order_seed=k_tiles)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("orientation", ["nt", "tn"])
def test_a_matrix_of_more_than_4_gib(target, orientation):
    """Offsets between tiles have 64 bits, and the last rows are beyond the reach of 32 bits."""
    gemm = Gemm(target, orientation, "bf16", 130, 64, 200)
    rows, stride = (200, 12 << 20) if orientation[0] == "t" else (130, 18 << 20)
    cols = gemm.a.size // rows
    far = np.zeros((rows - 1) * stride + cols, np.uint16)  # mapped, not touched
    assert far.nbytes > 1 << 32
    for row in range(rows):
        far[row * stride : row * stride + cols] = gemm.a[row * cols : (row + 1) * cols]
    gemm.regions["a"] = far
    gemm.problem.a.data, gemm.problem.a.leading_stride = far.ctypes.data, stride
    plan, _ = run(gemm)
    assert "256x256" not in plan["variant"]
    if orientation == "nt":
        with pytest.raises(PlanError, match="cannot run"):
            make_plan(gemm.problem, "nt_bf16_256x256x64")


@pytest.mark.parametrize("target", TARGETS)
def test_broadcast_operands(target):
    """A leading stride of zero repeats a row, a batch stride of zero repeats a matrix."""
    gemm = Gemm(target, "nt", "bf16", 66, 70, 40, batch=3)
    a = gemm.a[:40]
    gemm.problem.a.leading_stride = gemm.problem.a.batch_stride = gemm.problem.b.batch_stride = 0
    values = (a.astype(np.uint32) << 16).view(np.float32)
    b = (gemm.b[: 70 * 40].astype(np.uint32) << 16).view(np.float32).reshape(70, 40)
    gemm.expected = np.broadcast_to(values @ b.T, (3, 66, 70)).astype(np.float32)
    run(gemm)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("arithmetic", ["strict", "exact"])
@pytest.mark.parametrize("orientation", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_every_row_adds_along_k_in_one_order(target, arithmetic, orientation, element):
    """With values whose sums are rounded: hipkittens.batch_invariant chooses among rows as usual."""
    results = {}
    for name, (_, of, type_of, *_) in ROWS.items():
        if (name, target) not in CASES or (of, type_of) != (orientation, element):
            continue
        gemm = Gemm(target, orientation, element, 70, 90, 328)
        generator = np.random.default_rng(1)
        for operand in (gemm.a, gemm.b):
            values = generator.standard_normal(operand.size).astype(np.float32)
            upper = (values.view(np.uint32) >> 16).astype(np.uint16)
            operand[:] = upper if element == "bf16" else values.astype(np.float16).view(np.uint16)
        gemm.run(name, 1, arithmetic=arithmetic)
        results[name] = gemm.c.copy()
    first, *others = results.values()
    assert len(others) >= 4 and np.isfinite(first).all() and (first % 1).any()
    assert all(np.array_equal(first, other) for other in others)
