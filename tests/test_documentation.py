# SPDX-License-Identifier: MIT
"""The documentation: the site builds without broken links, and the commands that its pages show run."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import hipkittens
from hipkittens import cli
from hipkittens._installation import SIMULATOR

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ROOT / "docs"


def commands(program):
    """(page, command) for each command in the documentation that starts with this text, in shell blocks and in running text."""
    found = []
    for page in (ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(PAGES.glob("*.md"))):
        text = page.read_text()
        blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        lines = [line.strip() for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
        found += [(page.name, line) for line in lines if line.startswith(program + " ")]
    return sorted(set(found))


def refused(parse, arguments, capsys):
    try:
        parse(arguments)
    except SystemExit:
        return capsys.readouterr().err.splitlines()[-1]
    return None


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site):
    built = {path.parent.name for path in site.glob("*/index.html")}
    assert {page.stem for page in PAGES.glob("*.md")} - {"index"} <= built
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES.glob("*.md") if page.name not in navigation] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loads = re.findall(
            r'<(?:script|img|iframe)[^>]+src="([^"]+)"|<link[^>]+rel="stylesheet"[^>]+href="([^"]+)"',
            page.read_text(),
        )
        assert [pair for pair in loads if any("//" in address for address in pair)] == [], page


def test_the_api_page_has_every_public_name(site):
    text = (site / "api" / "index.html").read_text()
    assert [name for name in hipkittens.__all__ if f'id="hipkittens.{name}"' not in text] == []


def test_the_quickstart_runs():
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (PAGES / "quickstart.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 5
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/quickstart.md", "exec"), names)


@pytest.mark.parametrize("name", sorted(hipkittens.__all__))
def test_every_public_docstring_names_every_parameter(name):
    described = getattr(hipkittens, name)
    text = inspect.getdoc(described)
    missing = [
        parameter
        for parameter in inspect.signature(described).parameters
        if not re.search(rf"\b{parameter}\b", text)
    ]
    assert [each for each in missing if each not in ("arguments", "options")] == []


@pytest.mark.parametrize(
    "name",
    ["attention", "attention_varlen", "layer_norm", "linear", "matmul", "rms_norm", "rotary", "rotary_qk"],
)
def test_every_operation_says_what_it_takes_and_raises(name):
    text = inspect.getdoc(getattr(hipkittens, name))
    inherits = re.search(
        r"(dtypes|errors|what is raised).*(`attention`|layer_norm|`rotary`)", text, re.DOTALL
    )
    assert inherits or ("float16" in text and "Raises" in text), text


def test_every_command_of_the_pages_is_one(capsys):
    """The parser accepts it, unless it is only a command's name or an outline with words in capitals."""
    said = commands("hipkittens")
    assert len(said) > 20
    outline = re.compile(
        r"\.\.\.|\b(?:OP|MODEL|FILE|NAME|LIBRARIES)\b|[|]|^hipkittens (?:bench|profile|trace|patch|sim)( [a-z]+)?$"
    )
    names = (
        "bench",
        "demo",
        "doctor",
        "info",
        "kernels",
        "patch",
        "probe",
        "profile",
        "sim",
        "trace",
        "verify",
    )
    whole = [(page, line) for page, line in said if line.split()[1] in names and not outline.search(line)]
    assert len(whole) > 15
    problems = {
        (page, line): refused(cli._parser().parse_args, shlex.split(line, comments=True)[1:], capsys)
        for page, line in whole
    }
    assert not {where: why for where, why in problems.items() if why}


@pytest.mark.parametrize("name", ["train_llama", "train_bert"])
def test_every_command_of_the_examples_is_one(name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = [line for _, line in commands(f"python examples/{name}.py") if "cuda" not in line]
    assert said
    problems = {line: refused(module.parse, shlex.split(line, comments=True)[2:], capsys) for line in said}
    assert not {line: why for line, why in problems.items() if why}


def test_the_page_of_hip_programs_lists_what_the_library_exports():
    tool = ROOT / "tools" / "hip_functions.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", SIMULATOR], capture_output=True, text=True, check=True
    )
    exported = {name for name in re.findall(r" T (\S+)", symbols.stdout) if re.match("_*hip[A-Z]", name)}
    page = (PAGES / "hip_programs.md").read_text()
    listed = set(re.findall(r"`(_*hip[A-Z]\w+)`", page[page.index("## Functions") :]))
    assert listed == exported
