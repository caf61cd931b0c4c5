# SPDX-License-Identifier: MIT
"""tools/foreign_programs.py: what it counts in a run, and that the page is generated from its recorded results."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORACLES = ROOT / "tests" / "oracles"
SOURCE = """
import pytest
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_right(target): pass
@pytest.mark.slow
def test_wrong(): assert False
def test_not_here(): pytest.skip("nothing to test")
@pytest.mark.parametrize("target", ["gfx950"])
def test_theirs(target, record_property): record_property("client_fault", "reads past its tensor")
def test_of_both(): pass
def test_of_another_client(): raise SystemExit("is not run")
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    yield importlib.import_module("foreign_programs")
    for name in ("foreign_programs", "slow_tests"):
        sys.modules.pop(name, None)


@pytest.fixture
def elsewhere(tool, monkeypatch, tmp_path):
    """The tool with one client, defined by the tests above, and its results and page in an empty folder."""
    file = tmp_path / "test_some.py"
    file.write_text(SOURCE)
    places = (f"{file}::test_right", f"{tmp_path / 'test_others.py'}")
    (tmp_path / "test_others.py").write_text(
        SOURCE.partition("def test_of_another")[0].replace("test_right", "test_also")
    )
    client = tool.Client("Some", places, ("pytest", "nobody-has-this"))
    monkeypatch.setattr(tool, "CLIENTS", (client,))
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(tool, "PAGE", tmp_path / "page.md")
    return tool


def test_what_a_run_counts(elsewhere, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["foreign_programs.py", "Some"])
    assert elsewhere.main() == 1
    page = elsewhere.PAGE.read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| Some | pytest"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == f"pytest {pytest.__version__}, nobody-has-this not installed"
    assert cells[2:7] == ["2 / 2 / 0", "3 / 2 / 1", "2 / 1 / 0", "1", "1"]
    assert re.search(r"\| Some \| reads past its tensor \| `\S+::test_theirs\[gfx950\]` \|", page)

    monkeypatch.setattr(sys, "argv", ["foreign_programs.py", "--page"])
    kept = elsewhere.RESULTS.read_text()
    elsewhere.PAGE.unlink()
    assert (
        elsewhere.main() == 1 and elsewhere.PAGE.read_text() == page and elsewhere.RESULTS.read_text() == kept
    )


def test_of_many_names_a_cell_has_the_first(tool):
    names = [f"test_{number}" for number in range(9)]
    assert tool.some(names[:6]) == "<br>".join(f"`{name}`" for name in names[:6])
    assert tool.some(names) == "<br>".join([*(f"`{name}`" for name in names[:5]), "and 4 others"])


def test_an_unknown_client_is_refused(elsewhere, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["foreign_programs.py", "Another"])
    with pytest.raises(SystemExit, match="no client Another; there are Some"):
        elsewhere.main()


def test_the_page_is_what_the_results_make(tool):
    assert tool.PAGE.read_text() == tool.text(tool.read())


def test_the_results_are_of_tests_that_exist(tool):
    results = json.loads(tool.RESULTS.read_text())
    assert list(results) == [client.name for client in tool.CLIENTS]
    for client in tool.CLIENTS:
        recorded = results[client.name]["cases"]
        for place in client.tests:
            file, _, beginning = place.partition("::")
            assert re.search(rf"^def {beginning or 'test_'}", (ORACLES / file).read_text(), re.M), place
            assert any(case.startswith(f"{file}::{beginning}") for case in recorded), place
        for case in recorded:
            file, _, test = case.partition("::")
            assert re.search(
                rf"^def {re.escape(test.partition('[')[0])}\(", (ORACLES / file).read_text(), re.M
            ), case
        assert "wrong" not in recorded.values()
        assert "not installed" not in results[client.name]["versions"].values()
