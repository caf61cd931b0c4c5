# SPDX-License-Identifier: MIT
"""The include rules of csrc/README.md, and other conventions of the sources that a reader relies on."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from hipkittens import operations

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".def"))
PYTHON = sorted(
    path
    for folder in ("hipkittens", "tools", "benchmarks", "examples")
    for path in (ROOT / folder).glob("*.py")
)
LINE_CAP = 600

# folder: the folders (or single files) it may include in addition to its own
ALLOWED = {
    "isa": [],
    "code_object": [],
    "hip": [],
    "tiles": [],
    "simulator": ["isa/", "code_object/", "hip/"],
    "runtime": ["hip/", "code_object/"],
    "kernels": ["tiles/"],
    "torch": [
        "runtime/",
        "kernels/*/plan.h",
        "kernels/*/plan_*.h",
        "kernels/*/arguments.h",
        "kernels/device_shape.h",
        "kernels/launch.h",
        "kernels/element_type.h",
        "kernels/strided_rows.h",
        "kernels/cache_slots.h",
    ],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def included_files(path: Path):
    """Paths below csrc/ that a source includes, resolved as the compiler resolves them."""
    for name in INCLUDE.findall(path.read_text()):
        beside, from_root = (path.parent / name).resolve(), (CSRC / name).resolve()
        target = beside if beside.exists() else from_root
        assert target.exists(), f"{path.relative_to(ROOT)} includes {name}, which is nowhere"
        yield target.relative_to(CSRC)


def may_include(folder: str, target: Path) -> bool:
    return target.parts[0] == folder or any(
        target.match(pattern) if pattern.endswith(".h") else target.as_posix().startswith(pattern)
        for pattern in ALLOWED[folder]
    )


def test_every_folder_is_known():
    folders = {path.relative_to(CSRC).parts[0] for path in SOURCES}
    assert folders <= ALLOWED.keys()
    described = (CSRC / "README.md").read_text()
    assert not [folder for folder in ALLOWED if f"{folder}/" not in described]


@pytest.mark.parametrize("folder", ALLOWED)
def test_includes_follow_the_arrows(folder):
    wrong = [
        f"{path.relative_to(CSRC)} includes {target}"
        for path in SOURCES
        if path.relative_to(CSRC).parts[0] == folder
        for target in included_files(path)
        if not may_include(folder, target)
    ]
    assert not wrong


def test_the_machine_knows_no_cycle_model():
    """machine/launch_trace.h is the interface: simulator/timing/ follows what waves do, and nothing below it includes it."""
    allowed = (
        "isa/",
        "code_object/",
        "simulator/machine/",
        "simulator/memory/",
        "simulator/json_text.h",
        "simulator/checks/hazards.def",
    )
    for path in SOURCES:
        folder = path.relative_to(CSRC).as_posix().split("/")
        for target in included_files(path):
            name = target.as_posix()
            if folder[:2] == ["simulator", "timing"]:
                assert name.startswith(("simulator/timing/", *allowed)), f"{path.name} includes {name}"
            elif len(folder) > 2 and folder[0] == "simulator":
                assert not name.startswith("simulator/timing/"), f"{path.name} includes {name}"


def test_the_arrows_can_be_broken():
    assert not may_include("isa", Path("simulator/simulator.h"))
    assert not may_include("torch", Path("simulator/simulator.h"))
    assert not may_include("torch", Path("kernels/gemm/gemm.h"))
    assert may_include("torch", Path("kernels/gemm/plan.h"))


def test_operations_do_not_include_each_other():
    """The build finds their folders and their bindings; nothing else refers to an operation."""
    for folder in {operation.folder for operation in operations.every()}:
        names = {folder, *(operation.name for operation in operations.every() if operation.folder == folder)}
        own = (f"kernels/{folder}/", f"torch/{folder}_", *(f"torch/{name}." for name in names))
        for path in SOURCES:
            name = path.relative_to(CSRC).as_posix()
            wrong = [target for target in included_files(path) if target.as_posix().startswith(own)]
            assert name.startswith(own) or not wrong, f"{name} includes {wrong[0]}"


def test_no_file_for_leftovers():
    words = {"util", "utils", "misc", "common", "helper", "helpers", "stuff", "v2", "new", "old", "tmp"}
    wrong = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *PYTHON]
        if words & set(re.split(r"[_./]", path.relative_to(ROOT).as_posix().lower()))
    ]
    assert not wrong


def test_device_code_is_in_files_of_300_lines():
    long = {
        path.relative_to(CSRC).as_posix(): length
        for folder in ("tiles", "kernels")
        for path in (CSRC / folder).rglob("*.h")
        if (length := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_builtins_stay_in_the_files_of_intrinsics():
    users = [path.relative_to(CSRC).as_posix() for path in SOURCES if "__builtin_amdgcn" in path.read_text()]
    kinds = ("lane", "matrix", "memory", "scan", "wave")
    assert users == [f"tiles/{kind}_intrinsics.h" for kind in kinds]


def test_no_source_uses_a_header_of_torch_or_python():
    wrong = [
        str(path.relative_to(CSRC))
        for path in SOURCES
        if re.search(r"#\s*include\s*<(torch|ATen|c10)/", path.read_text())
        or re.search(r"#\s*include\s*[<\"](Python\.h|pybind11)", path.read_text())
    ]
    assert not wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(CSRC).as_posix())
def test_a_source_says_what_it_is_for(path):
    lines = path.read_text().splitlines()
    name = path.relative_to(CSRC).as_posix()
    opening = re.match(r"(?://|/\*) (\S+): \S", lines[0])
    assert opening and opening[1] == name, f"the first line is '// {name}: purpose.'"
    assert any("SPDX-License-Identifier: MIT" in line for line in lines[:5])
    assert len(lines) <= LINE_CAP or path.suffix == ".def", f"{len(lines)} lines: a file is one concept"


def test_python_carries_the_licence_and_stays_short():
    for path in PYTHON:
        text = path.read_text()
        assert "SPDX-License-Identifier: MIT" in "\n".join(text.splitlines()[:3]), path
        assert len(text.splitlines()) <= LINE_CAP, path


def test_nothing_names_the_machine_it_was_written_on():
    marks = ["/" + "work/", "/" + "tmp/", "/" + "root/"]
    wrong = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in [*SOURCES, *PYTHON, ROOT / "README.md", ROOT / "run"]
        for mark in marks
        if mark in path.read_text()
    ]
    assert not wrong


def test_no_two_test_files_share_a_name():
    """pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def _imported(path: Path, modules: dict[str, Path]) -> set[Path]:
    """The files of `modules`, by dotted name, that a Python file imports, at the top level or inside a function."""
    package = next((name for name, where in modules.items() if where == path), "").split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {modules[name] for name in found if name in modules} - {path}


def test_no_python_files_import_each_other_in_a_circle():
    modules = {path.stem: path for path in PYTHON if path.parent.name != "hipkittens"}
    for path in (ROOT / "hipkittens").rglob("*.py"):
        if path.name != "__init__.py":  # a facade module re-exports names of files that may import it
            modules[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    sorter = graphlib.TopologicalSorter({path: _imported(path, modules) for path in modules.values()})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(path.name for path in error.args[1]))
