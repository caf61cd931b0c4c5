# SPDX-License-Identifier: MIT
"""docs/kernel_authors.md: its instructions to the reader, carried out in an empty folder."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import hipkittens

GUIDE = pathlib.Path(__file__).parent.parent / "docs" / "kernel_authors.md"
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', GUIDE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (path / name).write_text(text)
    return path


def run(folder, *command):
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_kernel_has_at_most_60_lines():
    assert len(FILES["softmax.cpp"].splitlines()) <= 60


def test_running_it(folder):
    lines = run(folder, "run_softmax.py").splitlines()
    assert [line.split()[0] for line in lines] == ["gfx942", "gfx950"]
    assert all(float(line.split()[1]) < 1e-3 for line in lines)


def test_its_test(folder):
    assert "10 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_softmax.py")


def test_its_cost(folder):
    lines = run(folder, "cost_of_softmax.py").splitlines()
    assert "VGPRs" in lines[0] and "'instructions'" in lines[2] and "s_" in lines[3]


def test_its_profile(folder):
    lines = run(folder, "profile_of_softmax.py").splitlines()
    assert len(lines) == 6 and lines[0].endswith(".")
    assert all(" clocks for " in line and "softmax.cpp:" in line for line in lines[1:])


def test_the_profile_of_the_program_that_runs_it_on_both_targets(folder):
    command = ("-m", "hipkittens", "profile", "--device", "MI355X", "--top", "20", "--", sys.executable)
    said = run(folder, *command, "run_softmax.py")
    assert said.count("softmax on MI355X, modelled") == 1


def test_its_timeline(folder):
    run(
        folder,
        "-m",
        "hipkittens",
        "trace",
        "--device",
        "MI355X",
        "-o",
        "t.json",
        "--",
        sys.executable,
        "run_softmax.py",
    )
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    assert any(event["args"].get("called_from", "").startswith("softmax.cpp:") for event in events)


def test_a_fault_names_the_line_of_the_kernel(folder):
    kernel = hipkittens.kernel.compile(folder / "softmax.cpp", targets=["gfx950"])
    x, out = torch.zeros(70, 257, dtype=torch.bfloat16), torch.zeros(60, 257, dtype=torch.bfloat16)
    stored = (
        FILES["softmax.cpp"]
        .splitlines()
        .index("        store(to.window(first, col), to.row_bytes(), narrow, cols - col);")
    )
    with (
        hipkittens.simulate("gfx950"),
        pytest.raises(
            RuntimeError, match=rf"\(tiles/memory_intrinsics.h:\d+, called from softmax.cpp:{stored + 1}\)"
        ),
    ):
        kernel(x, out, 70, 257, x.stride(0), 1.0, grid=2, block=256)


def test_shipping_it_as_an_operator(folder, monkeypatch):
    run(folder, "build_softmax.py")
    monkeypatch.chdir(folder)
    spec = importlib.util.spec_from_file_location("softmax_operator", folder / "softmax_operator.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(9, 40, dtype=torch.bfloat16, requires_grad=True)
    with hipkittens.simulate("gfx950"):
        torch.library.opcheck(module.softmax, (x, 0.5))
        out = torch.compile(module.softmax, fullgraph=True, backend="aot_eager")(x, 0.5)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
    wide = x.detach().double().requires_grad_()
    (reference,) = torch.autograd.grad((0.5 * wide).softmax(-1).square().sum(), wide)
    (own,) = torch.autograd.grad((0.5 * x).softmax(-1).float().square().sum(), x)
    assert (gradient - reference).abs().max() <= 2 * (own - reference).abs().max()
