# SPDX-License-Identifier: MIT
"""The command line: its output, as JSON and as text, and its exit codes."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import hipkittens
from hipkittens import _installation, cli
from hipkittens._pack import Pack

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ("gfx942", "gfx950")


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    return status, capsys.readouterr().out


def run_json(capsys, *arguments):
    status, text = run(capsys, *arguments, "--json")
    return status, json.loads(text)


def test_info(capsys):
    status, report = run_json(capsys, "info")
    assert status == 0
    assert set(report["kernels"]) == set(TARGETS)
    assert report["simulator"]["host_level"]
    assert all(not pack["run_on_silicon"] for pack in report["kernels"].values())
    status, text = run(capsys, "info")
    assert status == 0 and "never run on silicon" in text and "HIPKITTENS_BACKEND" in text


def test_no_figure_is_cut_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, text = run(capsys, "kernels", "list", "--target", "gfx950")
    _, rows = run_json(capsys, "kernels", "list", "--target", "gfx950")
    assert "…" not in text and all(row["name"] in text for row in rows)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"hipkittens {hipkittens.__version__}\n"


def test_a_report_that_cannot_be_written_is_refused_at_once():
    with pytest.raises(SystemExit, match="hipkittens doctor: --report: there is no folder"):
        cli.main(["doctor", "--report", "no/such/folder/report.txt"])


def test_list_and_show(capsys):
    status, rows = run_json(capsys, "kernels", "list")
    assert status == 0
    assert {row["target"] for row in rows} == set(TARGETS)
    name = rows[0]["name"]
    _, text = run(capsys, "kernels", "list", "--target", rows[0]["target"])
    assert name in text
    status, shown = run_json(capsys, "kernels", "show", name, "--target", rows[0]["target"])
    assert status == 0 and shown[0]["sha256"] == rows[0]["sha256"] and shown[0]["sources"]
    status, by_symbol = run_json(capsys, "kernels", "show", rows[0]["symbol"])
    assert by_symbol == shown


def test_disassembly(capsys):
    name = min(_installation.pack("gfx950").entries, key=lambda entry: entry["bytes"])["name"]
    status, listings = run_json(capsys, "kernels", "disasm", name)
    assert status == 0 and {listing["target"] for listing in listings} == set(TARGETS)
    for listing in listings:
        texts = [line["text"] for line in listing["instructions"]]
        assert "s_endpgm" in texts
        assert sum(text.startswith(".long") for text in texts) <= 64  # the padding after the end
        ends = texts.index("s_endpgm")
        assert not any(text.startswith(".long") for text in texts[:ends])
    _, text = run(capsys, "kernels", "disasm", name, "--target", "gfx942")
    assert "s_endpgm" in text and "gfx950" not in text


def test_unknown_kernel(capsys):
    with pytest.raises(SystemExit, match="no kernel is called absent; `hipkittens kernels list` names them"):
        cli.main(["kernels", "show", "absent"])


def test_verify(capsys, monkeypatch, tmp_path):
    status, rows = run_json(capsys, "verify")
    assert status == 0 and all(row["code_objects"] > 0 and row["error"] is None for row in rows)
    data = bytearray(_installation.pack("gfx950").path.read_bytes())
    data[-100] ^= 1
    (tmp_path / "gfx950.hkpack").write_bytes(data)
    real = _installation.pack
    monkeypatch.setattr(
        _installation,
        "pack",
        lambda target: Pack(tmp_path / "gfx950.hkpack") if target == "gfx950" else real(target),
    )
    status, rows = run_json(capsys, "verify")
    assert status == 1
    assert rows[0]["error"] is None and "reinstall hipkittens" in rows[1]["error"]
    status, text = run(capsys, "verify")
    assert status == 1 and "reinstall hipkittens" in text


def test_demo():
    result = subprocess.run(
        [sys.executable, "-m", "hipkittens", "demo", "--json"],
        env=os.environ | {"HIPKITTENS_LOG": "debug"}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    listed = (ROOT / "csrc" / "kernels" / "demo_kernels.txt").read_text().splitlines()
    assert set(re.findall(r"loading (\S+) for", result.stderr)) == {
        f"hipkittens_{operation}_{variant}_{target}" for target, operation, variant in map(str.split, listed)
    }, "run tools/demo_kernels.py"
    assert report["ok"]
    assert {row["target"] for row in report["rows"]} == set(TARGETS)
    assert {"y", "dx", "dweight", "dbias"} <= {row["result"] for row in report["rows"]}
    for row in report["rows"]:
        assert row["ok"] and row["ratio_max"] <= 2 and row["ratio_rms"] <= 2
    assert any(row["instructions"] and row["instructions"] > 1_000_000 for row in report["rows"])


def test_demo_fails_when_a_result_is_wrong(monkeypatch, capsys):
    from hipkittens import _demo

    operation, example = _demo.examples()[0]
    small = {name: tuple(min(size, 16) for size in shape) for name, shape in example.inputs.items()}
    wrong = dataclasses.replace(example, inputs=small, ours=lambda *inputs: example.ours(*inputs) * 1.01)
    monkeypatch.setattr(_demo, "examples", lambda: [(operation, wrong)])
    assert cli.main(["demo", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and not report["rows"][0]["ok"]
    assert cli.main(["demo"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_usage_is_an_error(capsys):
    for arguments in ([], ["kernels"], ["info", "--target", "gfx942"], ["demo", "--target", "gfx90a"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 2
