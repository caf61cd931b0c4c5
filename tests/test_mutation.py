# SPDX-License-Identifier: MIT
"""Small mutations of the shipped kernels are detected: benchmarks/mutation.py on a few of them, and all of it under -m slow."""

import mutation
import mutation_run
import pytest
from mutation_code import KINDS, Mutations, counts, listing, mutated
from mutation_order import Order
from mutation_proof import proof
from mutation_registers import registers

from hipkittens import _installation

TARGETS = _installation.TARGETS
PING_PONG = "gemm_nt_bf16_256x256x64"
SAMPLED = (
    (PING_PONG, "gfx942"), (PING_PONG, "gfx950"), ("attention_forward_bf16_d128_interleaved", "gfx950"),
    ("attention_backward_one_pass_bf16_d128_32_queries", "gfx942"), ("norm_backward_bf16_2048", "gfx950"), ("rotary_bf16", "gfx942"),
)  # fmt: skip
# Missed in the samples, each by its name, and why no checker is at fault: kernel, target, kind, instruction, change.
NO_MISTAKE: dict[tuple[str, str, str, str, str], str] = {}


def unexplained(row):
    name = row["kernel"], row["target"]
    return [
        mutant
        for mutant in row["missed_mutants"]
        if (*name, mutant["kind"], mutant["instruction"], mutant["change"]) not in NO_MISTAKE
    ]


@pytest.fixture(scope="module", params=TARGETS)
def gemm(request):
    return mutation.subject(request.param, PING_PONG)


def mutants(shipped, *kinds):
    mutations = Mutations(shipped.launch.target, shipped.image, shipped.executed)
    return mutations, list(mutations.of(kinds))


def test_the_barrier_in_the_prologue_of_an_eight_wave_gemm(gemm):
    """Results alone would not show it: whether the second half of the waves starts late enough is a matter of chance."""
    _, barriers = mutants(gemm, "barrier")
    assert gemm.launch.block[0] == 8 * 64
    assert gemm.noticed(gemm.image) is None
    # On gfx950 the one before it keeps loads in order, which affects timing only.
    in_prologue = barriers[1 if gemm.launch.target == "gfx950" else 0]
    assert gemm.noticed(mutated(gemm.image, in_prologue)) == "racecheck"


def test_every_kind_of_mutant_is_made(gemm):
    mutations, made = mutants(gemm, *KINDS)
    assert {mutant.kind for mutant in made} == set(KINDS)
    for mutant in made[::9]:
        image = mutated(gemm.image, mutant)
        assert image != gemm.image and len(image) == len(gemm.image), mutant
        changed = [
            line.address
            for line, before in zip(listing(gemm.launch.target, image), mutations.lines, strict=True)
            if line != before
        ] if mutant.kind not in ("nop", "swap") else [mutant.address]  # fmt: skip
        assert changed == [mutant.address], mutant


def test_a_wait_is_weakened_in_each_of_its_counters(gemm):
    mutations, waits = mutants(gemm, "wait")
    lines = {line.address: line for line in mutations.lines}
    for mutant in waits:
        after = {line.address: line for line in listing(gemm.launch.target, mutated(gemm.image, mutant))}
        before, now = counts(lines[mutant.address]), after[mutant.address]
        if mutant.what == "deleted":
            assert now.text == "s_nop 0" and dict(mutant.relaxed) == before
        else:
            ((counter, count),) = mutant.relaxed
            full = {"vmcnt": 63, "lgkmcnt": 15}[counter]
            expected = {
                name: value
                for name, value in (before | {counter: count + 1}).items()
                if value < full or name != counter
            }
            assert counts(now) == expected


def test_a_wait_that_finds_too_much_in_flight_is_not_proved_equivalent(gemm):
    mutations, waits = mutants(gemm, "wait")
    proved = [mutant for mutant in waits if proof(mutant, mutations, gemm)]
    assert len(proved) < len(waits) / 2
    for mutant in proved:
        assert gemm.noticed(mutated(gemm.image, mutant)) is None, mutant


def test_the_replay_and_the_race_checker_agree(gemm):
    """Two implementations of the ordering of LDS accesses, one from a recorded trace and one while waves run."""
    mutations, barriers = mutants(gemm, "barrier")
    order = Order(gemm.trace, mutations)
    kept = [mutant for mutant in barriers if order.keeps(mutant)]
    assert 0 < len(kept) < len(barriers)
    for mutant in barriers:
        assert (gemm.noticed(mutated(gemm.image, mutant)) is None) == (mutant in kept), mutant


def test_a_later_launch_shows_what_the_first_one_hides():
    """The first one merges four parts of a row, and a later one more parts than a wave has lanes."""
    trials = mutation.Trials("gfx942", "sample_join")
    first = mutation.subject("gfx942", "sample_join")
    steps = [mutant for mutant in trials.mutations.of(["swizzle"]) if mutant.text.startswith("v_xor_b32")]
    hidden = [mutant for mutant in steps if first.noticed(mutated(first.image, mutant)) is None]
    assert len(steps) == 6 and 0 < len(hidden) < 6
    assert [trials.noticed(mutant) for mutant in hidden] == ["result"] * len(hidden)


@pytest.mark.parametrize("target", TARGETS)
def test_waits_of_a_kernel_that_reads_what_it_writes(target):
    """The waits of a state that belongs to one workgroup are judged by the accesses they order."""
    trials = mutation.Trials(target, "delta_rule_step_bf16_bf16_state_128")
    shipped = mutation.subject(target, "delta_rule_step_bf16_bf16_state_128")
    assert shipped.reads_what_it_writes
    by_proof = {True: 0, False: 0}
    for mutant in trials.mutations.of(["wait", "barrier"]):
        proved = proof(mutant, trials.mutations, shipped)
        by_proof[proved is not None] += 1
        assert not proved or shipped.noticed(mutated(shipped.image, mutant)) is None, mutant
    assert all(by_proof.values())


@pytest.mark.parametrize("target", TARGETS)
def test_constants_that_change_nothing_in_any_register(target):
    """Positions past a sequence's last chunk read as zeros, at any address."""
    shipped = mutation.subject(target, "delta_rule_scan_f16_64_16_columns")
    _, constants = mutants(shipped, "offset", "swizzle")
    same = {True: 0, False: 0}
    for mutant in constants[::12]:
        image = mutated(shipped.image, mutant)
        noticed = shipped.noticed(image)
        if noticed == "fault":
            continue
        finds_the_same = shipped.finds_the_same(image)
        same[finds_the_same] += 1
        assert noticed is None or not finds_the_same, (mutant, noticed)
    assert all(same.values()) and shipped.finds_the_same(shipped.image)


def test_bits_that_make_nans_quiet_are_no_mutants():
    shipped = mutation.subject("gfx942", "delta_rule_step_bf16_bf16_state_128")
    mutations, swizzles = mutants(shipped, "swizzle")
    quiet = [line for line in mutations.lines if "0x400000" in line.operands]
    assert quiet and swizzles and not {line.address for line in quiet} & {each.address for each in swizzles}


def test_registers_of_an_operand_list():
    assert registers("v[2:3], s4, vcc_lo, exec, 0x10, a7") == {"v2", "v3", "s4", "vcc", "exec", "a7"}


def test_names_that_fit_no_kernel_are_refused():
    with pytest.raises(SystemExit, match="no kernel of gfx942 is called 'gemm'"):
        mutation.chosen("gfx942", ["gemm"])


@pytest.mark.parametrize("target", TARGETS)
def test_the_default_is_one_kernel_of_each_kind(target):
    known = mutation.kernels(target)
    chosen = [known[name] for name in mutation.usual(target)]
    kinds = [(kernel.folder, kernel.kind) for kernel in chosen]
    assert len(set(kinds)) == len(kinds) and set(kinds) == {
        (each.folder, each.kind) for each in known.values()
    }


def test_each_kernel_draws_its_own_mutants():
    """Twins have the same code; one seed for all would try the same mutations in both."""
    rows = [mutation.measure("gfx942", f"rotary_{name}", ["offset"], sample=6) for name in ("bf16", "f16")]
    again = mutation.measure("gfx942", "rotary_f16", ["offset"], sample=6)
    assert rows[1] == again and rows[0]["drawn"] != rows[1]["drawn"]


def test_bits_are_compared_last(gemm, monkeypatch):
    """A mutant that a checker detects in a later order of the waves is not counted as detected by its bits."""
    reports = iter([False, True])
    monkeypatch.setattr(gemm, "_is_right", lambda: False)
    monkeypatch.setattr(mutation_run, "_take_findings", lambda: [FINDING] if next(reports, True) else [])
    assert gemm.noticed(gemm.image) == "made up"


FINDING = {"checker": "made up", "kind": "made up", "first": None, "second": None}


@pytest.mark.parametrize(
    "kernel", ["gemm_nt_bf16_256x256x64", "gemm_nt_bf16_128x128x64", "attention_backward_values_bf16_d256"]
)
@pytest.mark.parametrize("target", TARGETS)
def test_every_deleted_wait_or_barrier_is_found_or_proved(kernel, target):
    """All of them, not a sample: an unordered access need not show in any result."""
    row = mutation.measure(target, kernel, ["wait", "barrier"])
    assert row["mutants"] >= 20 and not unexplained(row)
    assert row["found"] + row["found_by_bits"] > 0.7 * row["mutants"]


def test_scores_count_what_one_problem_cannot_show():
    row = {
        "mutants": 10,
        "found": 4,
        "found_by_bits": 2,
        "equivalent": 2,
        "equivalent_on_this_problem": 1,
        "missed": 1,
    }
    assert list(mutation.scores([row, row]).values()) == pytest.approx([600 / 7, 75, 50])


@pytest.mark.parametrize(("kernel", "target"), SAMPLED)
def test_sampled_mutants(kernel, target):
    row = mutation.measure(target, kernel, sample=30, seed=5)
    assert row["mutants"] == 30 == sum(row[key] for key in mutation.NUMBERS if key != "mutants")
    assert row["found"] + row["found_by_bits"] >= 20
    assert not unexplained(row)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_more_mutants_of_a_kernel_of_each_kind(target):
    for kernel in mutation.usual(target):
        row = mutation.measure(target, kernel, sample=60)
        print(kernel, target, row["missed_mutants"])
        assert row["missed"] <= max(1, 0.05 * row["mutants"]), (kernel, row["missed_mutants"])
        assert not [mutant for mutant in unexplained(row) if mutant["kind"] in ("wait", "barrier")]
