# SPDX-License-Identifier: MIT
"""Small mistakes in the shipped kernels are noticed: benchmarks/mutation.py on a few of them, and all of it under -m slow."""

import fnmatch
import re

import mutation
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
# Missed, and why that is no mistake of a checker: kernel, kind, instruction, and what was changed.
NO_MISTAKE = (
    ("*256x256x64", "swap|offset", "buffer_load.*|ds_write.*", ".*", "a prefetch beyond the last tile, which nobody reads"),
    ("gemm_*", "nop", r"s_nop 0 before v_mov_b32_e32 v\d+, 0", "deleted", "it waits for a 16-byte store on a path that the problem does not take"),
    ("attention_backward_one_pass*", "nop", r"s_nop 0 before v_bfe_u32 v\d+, v\d+, 16, 1", "deleted",
     "a rounding behind an empty asm, which the compiler takes for an instruction whose result gfx942 may not forward"),
)  # fmt: skip


def reason(kernel, mutant):
    for kernels, kinds, instruction, change, why in NO_MISTAKE:
        if (
            any(fnmatch.fnmatchcase(kernel, pattern) for pattern in kernels.split("|"))
            and mutant["kind"] in kinds.split("|")
            and re.fullmatch(instruction, mutant["instruction"])
            and re.fullmatch(change, mutant["change"])
        ):
            return why
    return None


@pytest.fixture(scope="module", params=TARGETS)
def gemm(request):
    return mutation.subject(request.param, PING_PONG)


def mutants(shipped, *kinds):
    mutations = Mutations(shipped.launch.target, shipped.image, shipped.executed)
    return mutations, list(mutations.of(kinds))


def test_the_barrier_in_the_prologue_of_an_eight_wave_gemm(gemm):
    """Hardware passes without it, time after time: the second half of the waves starts late enough by chance."""
    _, barriers = mutants(gemm, "barrier")
    assert gemm.launch.block[0] == 8 * 64
    assert gemm.noticed(gemm.image) is None
    # On gfx950 the one before it keeps loads in order, which is a matter of time alone.
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
    """Two implementations of which LDS accesses are ordered, one from a recorded trace and one while waves run."""
    mutations, barriers = mutants(gemm, "barrier")
    order = Order(gemm.trace, mutations)
    kept = [mutant for mutant in barriers if order.keeps(mutant)]
    assert 0 < len(kept) < len(barriers)
    for mutant in barriers:
        assert (gemm.noticed(mutated(gemm.image, mutant)) is None) == (mutant in kept), mutant


def test_registers_of_an_operand_list():
    assert registers("v[2:3], s4, vcc_lo, exec, 0x10, a7") == {"v2", "v3", "s4", "vcc", "exec", "a7"}


def test_names_that_fit_no_kernel_are_refused():
    with pytest.raises(SystemExit, match="no kernel of gfx942 is called 'gemm'"):
        mutation.chosen("gfx942", ["gemm"])


@pytest.mark.parametrize(("kernel", "target"), SAMPLED)
def test_sampled_mutants(kernel, target):
    row = mutation.measure(target, kernel, sample=30, seed=5)
    assert row["mutants"] == 30 == row["found"] + row["equivalent"] + row["missed"]
    assert row["found"] >= 20
    assert not [mutant for mutant in row["missed_mutants"] if not reason(kernel, mutant)]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernels", mutation.USUAL)
def test_all_mutants(kernels, target):
    for kernel in mutation.chosen(target, [kernels]):
        row = mutation.measure(target, kernel)
        assert row["missed"] <= 0.05 * row["mutants"], (kernel, row["missed_mutants"])
        assert row["found"] > 0.9 * (row["mutants"] - row["equivalent"]), kernel
