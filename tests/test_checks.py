# SPDX-License-Identifier: MIT
"""The checkers from Python: simulate(checks=...), the pytest fixture, and `hipkittens sim check`."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import hipkittens
from hipkittens import _findings, cli
from hipkittens.pytest_plugin import (
    checked_simulation as checked_simulation,  # also where it is not installed
)
from tests.device_compiler import assemble
from tests.simulated_device import Module
from tests.simulator.memory_kernels import HEADER, KERNEL, METADATA

TARGETS = ("gfx942", "gfx950")
ROOT = Path(__file__).resolve().parent.parent


def operations(target):
    """Every family once, forward and backward, including partial tiles."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    hipkittens.matmul(random(300, 200), random(264, 200).t())
    hipkittens.matmul(random(64, 4096), random(64, 4096).t())
    x, weight = random(33, 1000), random(1000)
    hipkittens.layer_norm(x, weight, random(1000)).sum().backward()
    hipkittens.rms_norm(x, weight, 1e-5).sum().backward()
    angles = torch.randn(70, 32, generator=generator)
    hipkittens.rotary(random(2, 70, 4, 64), angles.cos(), angles.sin()).sum().backward()
    for size, causal in ((64, True), (128, False)):
        q, k, v = random(1, 200, 4, size), random(1, 264, 2, size), random(1, 264, 2, size)
        hipkittens.attention(q, k, v, causal=causal).sum().backward()


@pytest.mark.parametrize("target", TARGETS)
def test_every_family_is_clean(target):
    with hipkittens.simulate(target, checks="all") as run:
        operations(target)
    assert [str(finding) for finding in run.findings] == []
    assert {note.checker for note in run.notes} <= {"notes"}


def test_the_fixture_opens_a_checked_simulation(checked_simulation):
    assert checked_simulation.settings["checks"] == 31
    hipkittens.matmul(torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16())
    assert checked_simulation.findings == []


def racing_module(target):
    """Two waves write and read LDS without any synchronization between them."""
    body = """
  v_lshlrev_b32_e32 v1, 2, v0
  v_xor_b32_e32 v2, 0x100, v1
  ds_write_b32 v1, v1
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
"""
    sizes = {"name": "racing", "lds_bytes": 1024, "private_bytes": 0, "tg_split": 0, "uses_private": 0}
    text = HEADER.format(target=target) + KERNEL.format(body=body, **sizes)
    text += ".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:" + METADATA.format(**sizes)
    return assemble(text + ".end_amdgpu_metadata\n", target)


def launch_racing(target, **settings):
    Module(racing_module(target), target).kernel("racing").launch(bytes(64), block=[128], **settings)


def test_findings_are_objects_counted_over_launches():
    with hipkittens.simulate("gfx942", checks="racecheck") as run:
        for _ in range(3):
            launch_racing("gfx942", checks=2, threads=1)
        findings = run.findings
        assert findings
        for finding in findings:
            assert (finding.checker, finding.kernel, finding.target) == ("racecheck", "racing", "gfx942")
            assert {finding.first.text, finding.second.text} == {"ds_write_b32 v1, v1", "ds_read_b32 v3, v2"}
            assert finding.count % 3 == 0
        with hipkittens.simulate("gfx942", checks="racecheck") as inner:
            pass
        assert inner.findings == []
    assert run.findings == findings
    assert "s_barrier" in str(findings[0]) and json.dumps(findings[0].to_dict())
    run.forget()
    assert run.findings == []


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match="checks names 'racechek'"):
        hipkittens.simulate(checks="memcheck,racechek")
    assert _findings.chosen("memcheck, racecheck") == 3 and _findings.chosen(True) == 0


def run_check(capfd, tmp_path, program, *options):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    status = cli.main(["sim", "check", *options, "--json", "--", sys.executable, str(script)])
    return status, json.loads(capfd.readouterr().out)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def test_the_command_reports_a_clean_program(capfd, tmp_path, importable):
    program = """
        import torch, hipkittens
        hipkittens.matmul(torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16())
        with hipkittens.simulate("gfx950") as run:
            hipkittens.rms_norm(torch.ones(4, 64), torch.ones(64), 1e-5)
        assert run.settings["checks"] == 31
    """
    status, report = run_check(capfd, tmp_path, program)
    assert (status, report["exit_status"], report["findings"]) == (0, 0, [])


def test_the_command_reports_a_race_and_the_status(capfd, tmp_path, importable):
    program = """
        from tests.test_checks import launch_racing
        launch_racing("gfx950")
    """
    status, report = run_check(capfd, tmp_path, program, "--checks", "racecheck")
    assert (status, report["exit_status"]) == (1, 0)
    assert {row["kernel"] for row in report["findings"]} == {"racing"}
    status, report = run_check(capfd, tmp_path, "raise SystemExit(7)")
    assert (status, report["findings"]) == (7, [])


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--", "no_such_program"], "cannot run 'no_such_program': No such file"),
        (["--checks", "lintcheck", "--", "python"], "checks names 'lintcheck'; allowed: "),
    ],
)
def test_the_command_names_what_it_cannot_do(arguments, text):
    with pytest.raises(SystemExit, match="hipkittens sim check: ") as refused:
        cli.main(["sim", "check", *arguments])
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "program, kernels",
    [
        (
            "from tests.test_checks import launch_racing; import hipkittens; launch_racing('gfx950')",
            ["racing"],
        ),
        ("import torch, hipkittens; hipkittens.rms_norm(torch.ones(4, 64), torch.ones(64))", []),
    ],
)
def test_the_environment_alone_tells_what_it_finds(importable, program, kernels):
    environment = os.environ | {"HIPKITTENS_CHECKS": "racecheck"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *findings, count = done.stderr.splitlines()
    assert count == f"hipkittens: {len(findings)} findings, 0 notes, by HIPKITTENS_CHECKS"
    assert sorted({line.split("kernel ")[1].split()[0] for line in findings}) == kernels


def test_a_program_that_launches_nothing_is_not_called_clean(capfd):
    assert cli.main(["sim", "check", "--", sys.executable, "-c", "pass"]) == 0
    assert "; no launch of it was checked" in capfd.readouterr().out


def test_the_command_in_words(tmp_path, importable):
    (tmp_path / "racing.py").write_text(
        "from tests.test_checks import launch_racing\nlaunch_racing('gfx942')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hipkittens", "sim", "check", "--", sys.executable, str(tmp_path / "racing.py")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "racecheck: lds_" in done.stdout and "the program ended with status 0" in done.stdout
