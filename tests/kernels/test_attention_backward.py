"""Every prebuilt attention backward kernel against float64, with the simulator's checkers on."""

import ctypes
import json
import re

import numpy as np
import pytest

from hipkittens._installation import pack
from tests.kernels.attention_forward import (
    VARIANTS,
    Forward,
    Layout,
    PlanError,
    Shared,
    kernel,
    probe,
    round_to,
)
from tests.kernels.gemm_plan import from_bits
from tests.simulated_device import TARGETS

CHECKS = {"poison": 1, "count_lds_conflicts": 1}
LENGTHS = (1, 2, 17, 255, 257)
ELEMENTS = ("bf16", "f16")
ROWS = [
    (row, target)
    for row, targets in re.findall(r"^ROW\((?:backward|delta|convert|sinks), (\w+), (\w+),", VARIANTS, re.M)
    for target in TARGETS
    if targets in (target, "both")
]
# Head sizes of Q and K, and of V, of the tiles: each with both elements and with every one of these options runs every row.
SIZES = ((64, 64), (128, 128), (192, 128), (256, 256))
OPTIONS = {
    "plain": {},
    "dropout": {"dropout_p": 0.3},
    "alibi": {"terms": "alibi"},
    "softcap": {"terms": "softcap"},
}


class Problem(ctypes.Structure):
    """attention::BackwardProblem of csrc/kernels/attention/plan.h."""

    TENSORS = ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")
    _fields_ = [("shared", Shared), *((name, Layout) for name in TENSORS),
                *((name, ctypes.c_void_p) for name in ("lse", "grad_lse", "grad_sinks", "workspace"))]  # fmt: skip


class Backward(Forward):
    """A forward problem with the float64 output and LSE, rounded, and the gradients of both."""

    def __init__(self, *arguments, grad_lse: bool = False, compute_units: int = 0, **options):
        super().__init__(*arguments, **options)
        if compute_units:
            self.problem.shared.compute_units = compute_units
        rng = np.random.default_rng(17)
        exact, exact_lse, *_ = self.expected()
        forward, element = self.problem, self.element
        self.out[:], self.lse[:] = round_to(exact, element), exact_lse
        grad_out = round_to(rng.standard_normal(exact.shape), element)
        self.grad_out = from_bits(grad_out, element).astype(np.float64)
        self.grad_lse = rng.standard_normal(exact_lse.shape).astype(np.float32) * grad_lse
        library = probe()
        library.probe_backward.restype = ctypes.c_char_p
        library.probe_backward_workspace_floats.restype = ctypes.c_int64
        workspace = np.empty(
            library.probe_backward_workspace_floats(ctypes.byref(forward.shared)), np.float32
        )
        self.grads = {"grad_q": np.empty(self.q.shape, np.uint16), "grad_k": np.empty(self.k.shape, np.uint16),
                      "grad_v": np.empty(self.v.shape, np.uint16)}  # fmt: skip
        self.regions |= {"grad_out": grad_out, "workspace": workspace, **self.grads}
        layouts = [Layout(array.ctypes.data, *(stride // 2 for stride in array.strides[:3]))
                   for array in (grad_out, *self.grads.values())]  # fmt: skip
        self.problem = Problem(
            forward.shared, forward.q, forward.k, forward.v, forward.out, *layouts, lse=self.lse.ctypes.data,
            workspace=workspace.ctypes.data)  # fmt: skip
        if grad_lse:
            self.regions["grad_lse"] = self.grad_lse
            self.problem.grad_lse = self.grad_lse.ctypes.data
        if self.sinks is not None:
            self.regions["grad_sinks"] = self.grad_sinks = np.empty_like(self.sinks)
            self.problem.grad_sinks = self.grad_sinks.ctypes.data

    def plan(self) -> list[dict]:
        text = probe().probe_backward(ctypes.byref(self.problem)).decode()
        if text.startswith("error: "):
            raise PlanError(text.removeprefix("error: "))
        return json.loads(text)

    def run(self, **settings) -> dict:
        """The report of each launch by its variant."""
        for grad in self.grads.values():
            grad[:] = 0x7FFF
        self.regions["workspace"][:] = np.nan
        if self.sinks is not None:
            self.grad_sinks[:] = np.nan
        given = ("q", "k", "v", "seed", "slopes", "sinks", "out", "grad_out", "lse", "grad_lse")
        return {
            launch["variant"]: kernel(self.target, launch["kernel"]).launch(
                bytes.fromhex(launch["arguments"]), self.regions, grid=launch["grid"], block=launch["block"],
                read_only=given, **{**CHECKS, **settings})
            for launch in self.plan()
        }  # fmt: skip

    def check(self):
        """Check each gradient within the roundings of P and dS (and of the stored output, in delta) and its own."""
        group = self.q.shape[2] // self.k.shape[2]
        k, v = (np.repeat(tensor, group, axis=2) for tensor in (self.k, self.v))
        exact, lse, *_ = self.expected()
        scores, derivative = self.scores()
        with np.errstate(invalid="ignore"):
            p = np.where(self.seen, np.exp(np.where(self.seen, scores - lse[..., None], 0)), 0)
        ds = np.einsum("bqhd,bkhd->bhqk", self.grad_out, v) * self.factor
        delta = np.einsum("bqhd,bqhd->bhq", self.grad_out, exact) - self.grad_lse
        rough = np.einsum("bqhd,bqhd->bhq", np.abs(self.grad_out), np.abs(exact))
        if self.sinks is not None:
            of_sinks = self.weight_of_sinks(lse)
            p = p * (1 - of_sinks)[..., None]
            allowance = 2.0**-8 * np.einsum("bhq,bhq->h", of_sinks, rough) + 1e-6
            expected = -np.einsum("bhq,bhq->h", of_sinks, delta)
            assert np.all(np.abs(self.grad_sinks - expected) <= allowance), (self.grad_sinks, expected)
        ds = p * derivative * (ds - delta[..., None])
        rough = np.abs(ds) + p * rough[..., None]

        def over_groups(values):
            batch, rows, heads, size = values.shape
            return values.reshape(batch, rows, heads // group, group, size).sum(axis=3)

        def gradients(p, ds, q, k, grad_out):
            return (np.einsum("bhqk,bkhd->bqhd", ds, k) * abs(self.scale),
                    over_groups(np.einsum("bhqk,bqhd->bkhd", ds, q)) * abs(self.scale),
                    over_groups(np.einsum("bhqk,bqhd->bkhd", p * self.factor, grad_out)))  # fmt: skip

        signed = gradients(p, ds * np.sign(self.scale), self.q, k, self.grad_out)
        largest = gradients(p, rough, np.abs(self.q), np.abs(k), np.abs(self.grad_out))
        unit = 2.0**-8 if self.element == "bf16" else 2.0**-11
        for name, expected, sum_of_absolutes in zip(self.grads, signed, largest, strict=True):
            error = np.abs(from_bits(self.grads[name], self.element).astype(np.float64) - expected)
            allowance = unit * (np.abs(expected) + sum_of_absolutes) + 1e-6
            assert np.all(error <= allowance), (name, (error - allowance).max())


def run(problem, **settings):
    reports = problem.run(**settings)
    problem.check()
    return reports


def test_the_sizes_reach_every_row():
    reached = {(launch["variant"], target) for target in TARGETS for size, value in SIZES for element in ELEMENTS
               for options in OPTIONS.values() for heads in (1, 2)
               for launch in Backward(target, element, size, 4, 4, value_dim=value, heads=heads, sinks=heads == 2,
                                      **options).plan()}  # fmt: skip
    assert reached == set(ROWS) and len(ROWS) >= 48


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("size", "value"), SIZES)
@pytest.mark.parametrize("options", OPTIONS)
def test_row(target, element, size, value, options):
    """Whole tiles without bank conflicts; then partial ones, with groups of heads, gaps between rows and a short head."""
    whole = Backward(target, element, size, 128, 128, value_dim=value, **OPTIONS[options])
    longer = Backward(target, element, size, 256, 128, value_dim=value, **OPTIONS[options]).run()
    for variant, report in run(whole).items():
        if "one_pass" in variant:  # once for a tile of keys: the keys, and the gradients at the end
            assert report.lds_conflict_cycles == longer[variant].lds_conflict_cycles
            continue
        # gfx942 writes transposed tiles of 32 rows in runs with a two-way bank conflict; with heads of 256 no others fit.
        assert report.lds_conflict_cycles == 0 or ("d256" in variant and target == "gfx942"), variant
    for last in ({"grad_lse": True, "value_dim": value - 24}, {"sinks": True, "value_dim": value - 40}):
        short = Backward(target, element, size - 24, 147, 141, batch=2, heads=6, key_heads=2, causal=True, padding=6,
                         **last, **OPTIONS[options])  # fmt: skip
        results = []
        for seed in (0, 11, 12):
            run(short, wave_order_seed=seed)
            results.append([grad.copy() for grad in short.grads.values()])
        for other in results[1:]:
            assert all(np.array_equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize(("row", "target"), ROWS)
def test_registers_hold_everything(row, target):
    (entry,) = pack(target).entry(f"hipkittens_attention_{row}_{target}")["kernels"]
    assert entry["vgpr_spills"] == entry["sgpr_spills"] == entry["scratch_bytes"] == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n_q", LENGTHS)
@pytest.mark.parametrize("n_k", LENGTHS)
def test_lengths(target, n_q, n_k):
    for causal in (False, True):
        run(Backward(target, "bf16", 64, n_q, n_k, causal=causal))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("window", [(0, 0), (5, -1), (-1, 9), (40, 30), (200, 0), (1000, 1000)])
def test_windows(target, window):
    for n_q, n_k, causal in ((150, 300, False), (300, 150, True), (65, 64, False)):
        run(Backward(target, "f16", 40, n_q, n_k, causal=causal, window=window, heads=3, key_heads=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (3, 1), (4, 1), (5, 1), (8, 1), (12, 4), (10, 2)])
def test_head_groups(target, heads, key_heads):
    run(Backward(target, "f16", 16, 40, 70, batch=2, heads=heads, key_heads=key_heads, causal=True))


def launch_over_keys(problem) -> dict:
    (launch,) = (launch for launch in problem.plan() if re.search("one_pass", launch["variant"]))
    return launch


def workgroups(target="gfx950", **sizes) -> int:
    """For the kernel over tiles of keys, per tile of keys, key head and batch: the number of parts that a group of heads is split into."""
    units = sizes.pop("compute_units", 0)
    problem = Backward(target, "bf16", 128, 1, 1, compute_units=units, causal=sizes.pop("causal", False))
    for name, value in {"batch": 1, **sizes}.items():
        setattr(problem.problem.shared, name, value)
    problem.problem.workspace = 1 << 20
    launch = launch_over_keys(problem)
    splits, rest = divmod(
        launch["grid"][0], -(-sizes["n_k"] // 128) * sizes["key_heads"] * sizes.get("batch", 1)
    )
    assert rest == 0 and splits * launch["block"][0] > 0
    return splits


def test_groups_are_split_where_compute_units_would_idle():
    few = {"heads": 64, "key_heads": 8, "n_q": 2048, "n_k": 2048}
    assert workgroups(**few) == 2  # 128 workgroups for 256 compute units
    assert workgroups(**few, causal=True) >= 4  # of unequal length
    assert workgroups(**few, compute_units=128) == workgroups(**few, batch=2) == 1
    assert workgroups(heads=64, key_heads=64, n_q=256, n_k=256) == 1
    assert workgroups(heads=5, key_heads=1, n_q=4096, n_k=4096) == 5
    # Three heads as two and one: one by one they would need a second round.
    assert workgroups(heads=24, key_heads=8, n_q=2048, n_k=2048) == 2
    assert workgroups(heads=64, key_heads=8, n_q=2048, n_k=2048, batch=64, causal=True) == 1
    assert workgroups(target="gfx942", **few) == 2 and workgroups(target="gfx942", **few, batch=10) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("element", "dropout_p", "causal"), [("bf16", 0.0, True), ("f16", 0.3, False)])
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 1), (4, 1), (5, 1), (8, 1), (10, 2)])
def test_splits_of_a_group(target, element, dropout_p, causal, heads, key_heads):
    """Every number of splits, some with fewer heads: dQ is bitwise equal to that of one split, and everything is the same in any order."""
    group, results = heads // key_heads, {}
    for units in (1, 2, 3, 4, 6, 8, 12, 256):
        problem = Backward(target, element, 56, 150, 140, heads=heads, key_heads=key_heads, causal=causal,
                           window=(100, -1), dropout_p=dropout_p, grad_lse=True, padding=2, compute_units=units)  # fmt: skip
        splits = launch_over_keys(problem)["grid"][0] // (2 * key_heads)
        if splits not in results:
            run(problem)
            results[splits] = {name: grad.copy() for name, grad in problem.grads.items()}
    assert {1, group} <= results.keys() and (group < 4 or len(results) > 2)
    for grads in results.values():
        assert np.array_equal(grads["grad_q"], results[1]["grad_q"])
    problem.run(wave_order_seed=7, threads=2)
    for name, grad in problem.grads.items():
        assert np.array_equal(grad, results[splits][name])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [56, 128])
@pytest.mark.parametrize(("heads", "key_heads"), [(2, 2), (6, 2)])
@pytest.mark.parametrize(
    "options", [{}, {"dropout_p": 0.3}, {"terms": "alibi"}], ids=["plain", "dropout", "alibi"]
)
def test_queries_from_either_end(target, head_dim, heads, key_heads, options):
    """Under a causal mask every second workgroup starts from the last queries, and a group's heads alternate."""
    results = []
    for invariant in (False, True):  # then all of them begin with the last queries
        problem = Backward(target, "bf16", head_dim, 300, 290, batch=2, heads=heads, key_heads=key_heads,
                           causal=True, padding=2, compute_units=1, **options)  # fmt: skip
        problem.problem.shared.batch_invariant = invariant
        run(problem)
        results.append((launch_over_keys(problem)["arguments"], problem.grads["grad_q"].copy()))
    (turning, one), (alike, other) = results
    assert turning != alike
    assert np.array_equal(one, other)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [8, 16, 72, 120, 136, 192, 248])
def test_head_sizes(target, head_dim):
    run(Backward(target, "bf16", head_dim, 33, 65, heads=2, key_heads=1))


@pytest.mark.parametrize("target", TARGETS)
def test_a_repeated_row(target):
    """A row stride of zero: rows past the last read as the same row."""
    problem = Backward(target, "bf16", 64, 70, 45)
    bits = problem.regions["grad_out"]
    bits[:] = bits[:, :1]
    problem.grad_out[:] = problem.grad_out[:, :1]
    problem.problem.grad_out.row_stride = 0
    run(problem)


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_without_a_visible_pair_are_skipped(target):
    whole = Backward(target, "bf16", 64, 512, 512).run()
    causal = Backward(target, "bf16", 64, 512, 512, causal=True).run()
    for variant, report in whole.items():
        if report.mfma_instructions:
            assert causal[variant].mfma_instructions < 0.66 * report.mfma_instructions


def test_the_plan_says_what_is_wrong():
    def refused(match, **changes):
        problem = Backward("gfx950", "bf16", 64, 4, 4, heads=2)
        for name, value in changes.items():
            owner, _, field = name.rpartition("__")
            target = getattr(problem.problem, owner) if owner else problem.problem
            setattr(target, field, value)
        with pytest.raises(PlanError, match=match):
            problem.plan()

    refused("target gfx90 has no kernels", shared__target=90)
    refused("grad_out: the stride of its rows is 127", grad_out__row_stride=127)
    refused("out does not begin on 4 bytes", out__data=0x1002)
    refused("within 4 GiB", grad_out__row_stride=1 << 26)
    refused("lse has no data", lse=None)
    refused("workspace has no data", workspace=None)
