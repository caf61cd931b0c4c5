# SPDX-License-Identifier: MIT
"""Proofs that an s_nop is not needed require as many wait states as the manual's tables do."""

from types import SimpleNamespace

import pytest
from mutation_code import Line, Mutant
from mutation_proof import ALWAYS, ON_THIS_PROBLEM, proof


def proof_of_nop(*texts, executed=None):
    """The proof for the only s_nop of a program without branches; `executed`: indices of lines, by default all."""
    lines = [Line(4 * index, bytes(4), text) for index, text in enumerate(texts)]
    addresses = frozenset(line.address for line in lines)
    if executed is not None:
        addresses = frozenset(4 * index for index in executed)
    mutations = SimpleNamespace(lines=lines, executed=addresses, targets=frozenset())
    (nop,) = (line for line in lines if line.mnemonic == "s_nop")
    found = proof(Mutant("nop", "deleted", nop.address, nop.text, b""), mutations, None)
    return found and found.holds


@pytest.mark.parametrize(
    "before",
    [
        ("v_cmp_gt_u32_e32 vcc, s0, v1",),
        # A multiplication's carry-out is also written by the vector unit.
        ("v_mad_u64_u32 v[4:5], vcc, v1, s8, 0",),
        # The table makes no exception for a scalar result between the two.
        ("v_cmp_gt_u32_e32 vcc, s0, v1", "s_or_b64 vcc, s[6:7], vcc"),
    ],
)
def test_a_vector_instruction_takes_a_scalar_that_another_one_wrote(before):
    assert proof_of_nop(*before, "s_nop 0", "v_cndmask_b32_e32 v3, 0, v2, vcc", "s_endpgm") is None


def test_what_a_plain_instruction_wrote_needs_no_states():
    assert proof_of_nop("v_add_u32_e32 v1, v2, v3", "s_nop 0", "v_mov_b32_e32 v4, v1", "s_endpgm") == ALWAYS


@pytest.mark.parametrize(("executed", "holds"), [((0, 1, 2, 3), None), ((1, 2, 3), ON_THIS_PROBLEM)])
def test_code_that_the_problem_does_not_run(executed, holds):
    """A store of more than 64 bits reads its data late."""
    program = "global_store_dwordx4 v[8:9], v[4:7], off", "s_nop 1", "v_mov_b32_e32 v4, v1", "s_endpgm"
    assert proof_of_nop(*program, executed=executed) == holds
