"""docs/isa_evidence.md is up to date, and the claims of tests/isa/evidence.json are true."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import pathlib
import random

import pytest

from hipkittens import _disassembly, _simulator
from tests.isa.assembler import assemble
from tests.isa.row_writer import Writer, read_rows
from tests.oracles.aiter.wheel import needs_wheel, objects
from tests.simulated_device import TARGETS
from tests.simulator import test_matrix, test_matrix_float8

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVIDENCE = json.loads((ROOT / "tests" / "isa" / "evidence.json").read_text())
ROWS = {row.mnemonic: row for row in read_rows()}


def tool():
    spec = importlib.util.spec_from_file_location("isa_evidence", ROOT / "tools" / "isa_evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documents_are_up_to_date():
    current = tool()
    remedy = "run python tools/isa_evidence.py"
    assert current.DOCUMENT.read_text() == current.document(), remedy
    assert current.SUMMARY.read_text() == current.summary(), remedy


def test_everything_named_is_a_row_or_a_test():
    for kind in ("pseudocode", "mma_sim", "foreign", "pseudocode_differences"):
        assert set(EVIDENCE[kind]) <= set(ROWS), kind
    for file, names in EVIDENCE["reference"].items():
        assert (ROOT / file).exists(), file
        assert set(names) <= set(ROWS), file
    for reason, patterns in EVIDENCE["refused"].items():
        assert reason
        assert all(fnmatch.filter(ROWS, pattern) for pattern in patterns), patterns


def test_matrix_rules_are_the_ones_tested():
    """The rule was found on an MI300X: for gfx950's own shapes it is an assumption."""
    tested = {name for name, target in test_matrix.ROUNDED if "gfx942" in test_matrix.TARGETS_OF[name]}
    tested |= {
        f"v_mfma_f32_{shape}_{a}_{b}"
        for shape, a, b, target in test_matrix_float8.CASES
        if target == "gfx942"
    }
    assert sorted(tested) == EVIDENCE["mma_sim"]


@needs_wheel
def test_foreign_kernels_have_the_rows_they_are_said_to_have():
    from tests.oracles.aiter.catalog import cases

    found = set()
    for name in sorted({case.name for case in cases()}):
        for _, code in _disassembly.code(objects()[name].read_bytes()):
            found |= {row for row, _, _ in _simulator.survey(int(name[3:6]), code).values()}
    assert set(EVIDENCE["foreign"]) <= found


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_refused_is_what_is_said_to_be_refused(target):
    """Every row runs in at least one of its spellings, except those on the list."""
    refused = {
        name
        for patterns in EVIDENCE["refused"].values()
        for pattern in patterns
        for name in fnmatch.filter(ROWS, pattern)
    }
    generator = random.Random(target)
    missing = {name for name, row in ROWS.items() if target in row.targets}
    for rounds in (2, 8, 40):
        rows = [ROWS[name] for name in sorted(missing)]
        lines = [
            text for row in rows for _ in range(rounds) for text in Writer(row, target, generator).texts()
        ]
        for line in list(
            lines
        ):  # the writer invents modifiers of matrix instructions, most of which mean nothing
            if line.startswith("v_mfma"):
                lines.append(line.split(" cbsz")[0].split(" abid")[0].split(" blgp")[0].split(" neg")[0])
        for answer in assemble(lines, target):
            if isinstance(answer, str):
                continue
            for row, _, implemented in _simulator.survey(int(target[3:]), answer[1]).values():
                if implemented:
                    missing.discard(row)
    assert missing == {name for name in refused if target in ROWS[name].targets}


@needs_wheel
def test_every_instruction_of_aiter_can_run():
    wanted = {"gfx942": 1281, "gfx950": 1220}
    counted = dict.fromkeys(wanted, 0)
    missing: dict[str, int] = {}
    for name, path in objects().items():
        counted[name[:6]] += 1
        for _, code in _disassembly.code(path.read_bytes()):
            for mnemonic, (_, count, implemented) in _simulator.survey(int(name[3:6]), code).items():
                if implemented < count:
                    missing[mnemonic] = missing.get(mnemonic, 0) + count - implemented
    assert counted == wanted and not missing
