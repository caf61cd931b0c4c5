"""Attention forward below PyTorch: problems as numpy arrays, plans as dictionaries, launches in the simulator."""

from __future__ import annotations

import ctypes
import functools
import json
import pathlib
import re
import tempfile
from typing import NamedTuple

import numpy as np

from hipkittens._installation import pack
from tests.host_build import ROOT, build
from tests.kernels.gemm_plan import COMPUTE_UNITS, from_bits
from tests.oracles.philox import dropped_fraction, kept_weights
from tests.simulated_device import TARGETS, Module

VARIANTS = (ROOT / "csrc/kernels/attention/variants.def").read_text()


class Row(NamedTuple):
    """A row of variants.def of the kind `forward`."""

    targets: str
    element: str
    head_dim: int
    value_dim: int
    waves: int
    terms: str
    dropout: bool

    @property
    def options(self) -> dict:
        """Options of a problem that the row runs."""
        return {"terms": self.terms, "dropout_p": 0.3 * self.dropout}


ROWS = {
    name: Row(targets, element, int(head_dim), int(value_dim), int(waves), terms, dropout == "true")
    for name, targets, element, head_dim, value_dim, waves, terms, dropout in re.findall(
        r"^ROW\(forward, (\w+), (\w+), (\w+), (\d+), (\d+), (\d+), \w+, \w+, (\w+), (true|false)\)",
        VARIANTS,
        re.M,
    )
}
assert len(ROWS) == len(re.findall(r"^ROW\(forward,", VARIANTS, re.M))
CASES = [
    (name, target) for name, row in ROWS.items() for target in TARGETS if row.targets in ("both", target)
]
CASE_NAMES = [f"{row}-{target}" for row, target in CASES]


class Layout(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_int64), ("row_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64)]  # fmt: skip


class Shared(ctypes.Structure):
    """attention::Problem of csrc/kernels/attention/plan.h."""

    _fields_ = [("target", ctypes.c_int), ("compute_units", ctypes.c_int), ("xcds", ctypes.c_int),
                ("batch_invariant", ctypes.c_bool),
                ("element", ctypes.c_int32),
                *((name, ctypes.c_int64)
                  for name in ("batch", "n_q", "n_k", "heads", "key_heads", "head_dim", "value_dim")),
                ("scale", ctypes.c_double), ("softcap", ctypes.c_double), ("slopes", ctypes.c_void_p),
                ("slopes_of_sequence", ctypes.c_int64), ("sinks", ctypes.c_void_p), ("causal", ctypes.c_bool),
                ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("first_q", ctypes.c_void_p), ("first_k", ctypes.c_void_p),
                ("rows_q", ctypes.c_int64), ("rows_k", ctypes.c_int64), ("dropout_p", ctypes.c_double),
                ("seed", ctypes.c_void_p)]  # fmt: skip


class Problem(ctypes.Structure):
    _fields_ = [
        ("shared", Shared),
        ("q", Layout),
        ("k", Layout),
        ("v", Layout),
        ("out", Layout),
        ("lse", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
    ]


@functools.cache
def probe() -> ctypes.CDLL:
    directory = pathlib.Path(tempfile.mkdtemp(prefix="attention_probe"))
    path = build(directory / "libattention_probe.so",
                 ["tests/kernels/attention_probe.cpp", *map(str, (ROOT / "csrc/kernels/attention").glob("plan_*.cpp"))], "-O1", "-shared")  # fmt: skip
    library = ctypes.CDLL(str(path))
    library.probe_forward.restype = ctypes.c_char_p
    library.probe_forward.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    library.probe_forward_workspace_floats.restype = ctypes.c_int64
    library.probe_forward_workspace_floats.argtypes = library.probe_forward.argtypes
    library.probe_places.restype = None
    return library


class PlanError(Exception):
    pass


def make_plan(problem: Problem, variant: str = "", splits: int = 0) -> list[dict]:
    """The plan; without a variant or splits, as the planner chooses."""
    text = probe().probe_forward(ctypes.byref(problem), variant.encode(), splits).decode()
    if text.startswith("error: "):
        raise PlanError(text.removeprefix("error: "))
    return json.loads(text)


def places(arguments: bytes, count: int) -> np.ndarray:
    """(tile, head, batch, split) of each workgroup."""
    result = np.empty((count, 4), np.int32)
    probe().probe_places(arguments, count, result.ctypes.data_as(ctypes.c_void_p))
    return result


@functools.cache
def kernel(target: str, symbol: str):
    chosen = pack(target)
    return Module(chosen.image(chosen.entry(symbol)), target).kernel(symbol)


def round_to(values: np.ndarray, element: str) -> np.ndarray:
    """Bit patterns of f32 values rounded to nearest, ties to even."""
    values = values.astype(np.float32)
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def visible(n_q: int, n_k: int, causal: bool, window: tuple[int, int]) -> np.ndarray:
    """The flash-attention masking rule, written out."""
    query, key = np.arange(n_q)[:, None] + n_k - n_q, np.arange(n_k)[None, :]
    seen = np.ones((n_q, n_k), bool)
    if causal:
        seen &= key <= query
    if window[0] >= 0:
        seen &= key >= query - window[0]
    if window[1] >= 0:
        seen &= key <= query + window[1]
    return seen


class Forward:
    """One problem: q, k, v of [batch, rows, heads, head_dim] inside wider storage that holds NaN between the rows.

    terms: score terms, as rows name them; those of `softcap` include ALiBi's. bias: added to the scaled scores of
    each key, through a column of q that holds 1 / scale.
    """

    def __init__(self, target: str, element: str, head_dim: int, n_q: int, n_k: int, *, value_dim: int | None = None,
                 batch: int = 1, heads: int = 1, key_heads: int = 1, causal: bool = False,
                 window: tuple[int, int] = (-1, -1), scale: float | None = None, padding: int = 0, seed: int = 3,
                 bias: np.ndarray | None = None, dropout_p: float = 0.0, terms: str = "none", sinks: bool = False):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.target, self.element = target, element
        self.scale = head_dim**-0.5 if scale is None else scale
        value_dim = value_dim or head_dim

        def tensor(
            rows: int, count: int, size: int, first: np.ndarray | None = None
        ) -> tuple[np.ndarray, np.ndarray, Layout]:
            values = rng.standard_normal((batch, rows, count, size))
            if first is not None:
                values[..., 0] = first
            wide = np.full((batch, rows, count, size + padding), np.nan, np.float32)
            wide[..., :size] = values
            bits = round_to(wide, element)
            exact = from_bits(bits, element)[..., :size].astype(np.float64)
            strides = [stride // 2 for stride in bits.strides]
            flat = bits.reshape(-1)
            flat = flat[: flat.size - padding]  # the tensor ends with its last element
            return exact, flat, Layout(flat.ctypes.data, strides[0], strides[1], strides[2])

        one_over_scale = None if bias is None else np.full((1, n_q, 1), 1 / self.scale)
        self.q, q_bits, q_layout = tensor(n_q, heads, head_dim, one_over_scale)
        self.k, k_bits, k_layout = tensor(
            n_k, key_heads, head_dim, None if bias is None else bias[None, :, None]
        )
        self.v, v_bits, v_layout = tensor(n_k, key_heads, value_dim)
        self.out = np.empty((batch, n_q, heads, value_dim), np.uint16)
        self.lse = np.empty((batch, heads, n_q), np.float32)
        self.regions = {"q": q_bits, "k": k_bits, "v": v_bits, "out": self.out, "lse": self.lse}
        self.seen = visible(n_q, n_k, causal, window)
        out_layout = Layout(self.out.ctypes.data, *(stride // 2 for stride in self.out.strides[:3]))
        shared = Shared(
            target=int(target[3:]), compute_units=COMPUTE_UNITS[target], xcds=8, element=0 if element == "bf16" else 1,
            batch=batch, n_q=n_q, n_k=n_k, heads=heads, key_heads=key_heads, head_dim=head_dim, value_dim=value_dim,
            scale=self.scale, causal=causal, window_left=window[0], window_right=window[1])  # fmt: skip
        self.factor: np.ndarray | float = 1.0  # of each weight
        if dropout_p:
            mask_seed = rng.integers(0, 1 << 64, 2, np.uint64)
            self.regions["seed"] = mask_seed
            shared.dropout_p, shared.seed = dropout_p, mask_seed.ctypes.data
            kept = kept_weights(mask_seed, dropout_p, batch * heads, n_q, n_k)
            self.factor = kept.reshape(batch, heads, n_q, n_k) / (1 - dropped_fraction(dropout_p))
        self.cap, self.slopes, self.sinks = 0.0, None, None
        if terms == "softcap":
            self.cap = shared.softcap = 1.5
        if terms != "none":
            self.regions["slopes"] = self.slopes = rng.uniform(0.01, 0.5, (batch, heads)).astype(np.float32)
            shared.slopes, shared.slopes_of_sequence = self.slopes.ctypes.data, heads
        if sinks:
            self.regions["sinks"] = self.sinks = rng.standard_normal(heads).astype(np.float32)
            self.sinks[0] += 4  # more than all keys of a short row together
            shared.sinks = self.sinks.ctypes.data
        self.problem = Problem(shared, q_layout, k_layout, v_layout, out_layout, self.lse.ctypes.data)

    def run(self, variant: str = "", splits: int = 0, **settings):
        """Run the plan; return its first launch and that launch's report."""
        self.out[:] = 0x7FFF
        self.lse[:] = np.nan
        floats = probe().probe_forward_workspace_floats(ctypes.byref(self.problem), variant.encode(), splits)
        if floats > 0:
            self.regions["workspace"] = workspace = np.full(floats, np.nan, np.float32)
            self.problem.workspace = workspace.ctypes.data
        launches = make_plan(self.problem, variant, splits)
        reports = [
            kernel(self.target, launch["kernel"]).launch(
                bytes.fromhex(launch["arguments"]), self.regions, grid=launch["grid"], block=launch["block"],
                read_only=("q", "k", "v", "seed", "slopes", "sinks"), **settings)
            for launch in launches
        ]  # fmt: skip
        return launches[0], reports[0]

    def scores(self) -> tuple[np.ndarray, np.ndarray | float]:
        """Scores in f64, and their derivative with respect to the scaled products."""
        group = self.q.shape[2] // self.k.shape[2]
        scores = np.einsum("bqhd,bkhd->bhqk", self.q, np.repeat(self.k, group, axis=2)) * self.scale
        derivative: np.ndarray | float = 1.0
        if self.cap:
            tanh = np.tanh(scores / self.cap)
            scores, derivative = self.cap * tanh, 1 - tanh**2
        if self.slopes is not None:
            n_q, n_k = self.q.shape[1], self.k.shape[1]
            distance = np.abs(np.arange(n_q)[:, None] + n_k - n_q - np.arange(n_k))
            scores = scores - self.slopes.astype(np.float64)[..., None, None] * distance
        return scores, derivative

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Output and LSE in f64, and how far independent roundings of the weights move each output (times the unit)."""
        v = np.repeat(self.v, self.q.shape[2] // self.k.shape[2], axis=2)
        scores = np.where(self.seen, self.scores()[0], -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isinf(largest), 0, largest))
        total = powers.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            lse = (np.where(np.isinf(largest), 0, largest) + np.log(total))[..., 0]
            weights = np.where(total > 0, powers / total, 0) * self.factor
        if self.sinks is not None:
            weights = weights * (1 - self.weight_of_sinks(lse))[..., None]
        spread = np.sqrt(np.einsum("bhqk,bkhd->bqhd", weights**2, v**2))
        return np.einsum("bhqk,bkhd->bqhd", weights, v), lse, spread

    def weight_of_sinks(self, lse: np.ndarray) -> np.ndarray:
        """The share of each query's weights that sinks take; without them the weights would sum to 1."""
        assert self.sinks is not None
        sinks = self.sinks.astype(np.float64)[:, None]
        return np.exp(sinks - np.logaddexp(sinks, lse))

    def check(self):
        """Check within one rounding of the result and those of the weights; the LSE within f32."""
        expected, lse, spread = self.expected()
        unit = 2.0**-8 if self.element == "bf16" else 2.0**-11
        error = np.abs(from_bits(self.out, self.element).astype(np.float64) - expected)
        allowance = unit * np.abs(expected) + 3 * unit * spread + 2.0**-18
        assert np.all(error <= allowance), (error - allowance).max()
        assert np.array_equal(np.isneginf(self.lse), np.isneginf(lse))
        finite = np.isfinite(lse)
        assert np.all(np.abs(self.lse[finite] - lse[finite]) <= 2e-6 * (4 + np.abs(lse[finite])))


def run(problem: Forward, variant: str = "", splits: int = 0, **settings):
    """One launch with poison and counted LDS conflicts, its results checked; (launch, report)."""
    launch, report = problem.run(variant, splits, **{"poison": 1, "count_lds_conflicts": 1, **settings})
    problem.check()
    return launch, report
