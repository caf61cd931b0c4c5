"""Exponentials, logarithms, roots, sine and cosine: within 1 ulp everywhere, special values exact, levels identical."""

import numpy as np
import pytest

from tests.simulator.number_formats import F16, F32
from tests.simulator.vector_cases import float_edges
from tests.simulator.vector_kernels import HOST_LEVELS, load, run

NAN, INF = np.nan, np.inf


def turns(function):
    """sin or cos of 2 pi x, with x reduced exactly first."""

    def apply(x):
        with np.errstate(invalid="ignore"):
            rest = x - np.round(x)
            quarter = np.round(rest * 4)
            angle = (rest - quarter * 0.25) * (2 * np.pi)
        sine, cosine = np.sin(angle), np.cos(angle)
        step = np.nan_to_num(quarter + (function == "cos")).astype(int) & 3
        value = np.choose(step, [sine, cosine, -sine, -cosine])
        return np.where(np.isfinite(x), value, NAN)

    return apply


FUNCTIONS = {
    "exp": np.exp2,
    "log": np.log2,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sin": turns("sin"),
    "cos": turns("cos"),
}
# Where a value and what it maps to are both exact.
EXACT = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (1.0, 2.0), (-10.0, 2.0**-10), (INF, INF), (-INF, 0.0), (1000.0, INF), (-1000.0, 0.0),
            (-149.0, 2.0**-149), (-140.0, 2.0**-140), (127.0, 2.0**127), (128.0, INF), (3e38, INF), (-3e38, 0.0)],
    "log": [(1.0, 0.0), (2.0, 1.0), (0.5, -1.0), (2.0**-149, -149.0), (2.0**-126, -126.0), (INF, INF), (0.0, -INF),
            (-0.0, -INF), (-1.0, NAN), (-INF, NAN)],
    "rsq": [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (2.0**-148, 2.0**74)],
    "sin": [(0.0, 0.0), (0.25, 1.0), (0.5, 0.0), (0.75, -1.0), (1e30, 0.0), (INF, NAN)],
    "cos": [(0.0, 1.0), (0.25, 0.0), (0.5, -1.0), (1.0, 1.0), (1e30, 1.0), (-INF, NAN)],
}  # fmt: skip


@pytest.fixture(scope="module")
def module():
    return load({f"{name}_{kind}": f"v_{name}_{kind}_e32 v32, v16" for name in FUNCTIONS for kind in ("f32", "f16")}
                | {"exp_legacy_f32": "v_exp_legacy_f32_e32 v32, v16", "log_legacy_f32": "v_log_legacy_f32_e32 v32, v16"})  # fmt: skip


def evaluate(module, name, bits: np.ndarray, level: str) -> np.ndarray:
    padded = np.resize(bits, -(-len(bits) // 64) * 64).reshape(-1, 64)
    return run(module, name, [padded], host_level=level).destination.astype(np.uint32).ravel()[: len(bits)]


def inputs(name: str) -> np.ndarray:
    random = np.random.default_rng(11)
    wide = random.integers(0, 1 << 32, 20000, dtype=np.uint32)
    spans = {"exp": (-151, 129), "log": (0, 4), "rsq": (0, 8), "sin": (-3, 3), "cos": (-3, 3)}[name]
    near = random.uniform(*spans, 40000).astype(np.float32).view(np.uint32)
    small = (random.uniform(-1, 1, 5000) * 1e-3).astype(np.float32)
    around_one = (1 + random.uniform(-1, 1, 5000) * 2.0 ** -random.uniform(1, 22, 5000)).astype(np.float32)
    return np.concatenate(
        [
            np.array(float_edges("f32"), np.uint32),
            wide,
            near,
            small.view(np.uint32),
            around_one.view(np.uint32),
        ]
    )


def ulps(got: np.ndarray, want: np.ndarray, smallest_exponent: int, mantissa_bits: int) -> np.ndarray:
    """Distance in units of the last place of the exact value."""
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(want))), smallest_exponent)
    return np.abs(got - want) / 2.0 ** (exponent - mantissa_bits)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_one_ulp(module, name):
    bits = inputs(name)
    with np.errstate(all="ignore"):
        x = bits.view(np.float32).astype(np.float64)
        want = FUNCTIONS[name](x)
    results = {level: evaluate(module, f"{name}_f32", bits, level) for level in HOST_LEVELS}
    for level in HOST_LEVELS:
        assert (results[level] == results["portable"]).all(), level
    got = results["portable"].view(np.float32).astype(np.float64)
    assert (np.isnan(got) == np.isnan(want)).all()
    largest = float(np.finfo(np.float32).max)
    finite = np.isfinite(want) & (np.abs(want) <= largest) & (want != 0) & np.isfinite(got)
    assert finite.sum() > 10000
    assert ulps(got[finite], want[finite], -126, 23).max() <= 1.0
    overflow = np.abs(want) > largest * (1 + 2.0**-25)
    assert np.isinf(got[overflow & ~np.isnan(want)]).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_values(module, name):
    x, want = (np.array(column, np.float32) for column in zip(*EXACT[name], strict=True))
    for level in HOST_LEVELS:
        got = evaluate(module, f"{name}_f32", x.view(np.uint32), level).view(np.float32)
        assert ((got == want) | (np.isnan(got) & np.isnan(want))).all(), (level, x, got, want)
        signs = np.signbit(got) == np.signbit(want)
        assert (signs | np.isnan(want) | (want == 0)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nans_keep_their_payload(module, name):
    bits = np.array([0x7F800001, 0x7FC00000, 0xFFC12345, 0xFF800020], np.uint32)
    for level in HOST_LEVELS:
        assert (evaluate(module, f"{name}_f32", bits, level) == [F32.quiet(int(b)) for b in bits]).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_f16(module, name):
    bits = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(all="ignore"):
        x = bits.astype(np.uint16).view(np.float16).astype(np.float64)
        want = FUNCTIONS[name](x)
    results = {level: evaluate(module, f"{name}_f16", bits, level) for level in HOST_LEVELS}
    for level in HOST_LEVELS:
        assert (results[level] == results["portable"]).all(), level
    got = results["portable"].astype(np.uint16).view(np.float16).astype(np.float64)
    assert (np.isnan(got) == np.isnan(want)).all()
    finite = np.isfinite(want) & (np.abs(want) <= 65504) & (want != 0) & np.isfinite(got)
    assert ulps(got[finite], want[finite], 1 - F16.bias, 10).max() <= 1.0
    assert np.isinf(got[(np.abs(want) >= 65520) & ~np.isnan(want)]).all()


def test_legacy_forms_are_the_same(module):
    bits = np.random.default_rng(2).integers(0, 1 << 32, 4096, dtype=np.uint32)
    for name in ("exp", "log"):
        assert (
            evaluate(module, f"{name}_legacy_f32", bits, "best")
            == evaluate(module, f"{name}_f32", bits, "best")
        ).all()
