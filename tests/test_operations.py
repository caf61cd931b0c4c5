# SPDX-License-Identifier: MIT
"""Everything the package declares about an operation is in its record, hipkittens/operations, and nowhere else."""

import ast
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

import hipkittens
from hipkittens import _installation, _representative, operations
from hipkittens._accuracy import BAR

ROOT = Path(__file__).resolve().parent.parent
# Where the name of an operation may occur, in addition to its record and the module of its functions.
ELSEWHERE = {
    "hipkittens/__init__.py": "type checkers find functions here",
    "hipkittens/operations/_*.py": "parts of a record",
    "hipkittens/nn.py": "modules of models",
    "hipkittens/_m*_attention.py": "modules of models",
    "hipkittens/_*_experts.py": "a layer of several operations, as the module of its function",
    "hipkittens/*patch*.py": "patterns of models and what replaces them",
    "hipkittens/cli.py": "the options of patch",
    "hipkittens/integrations/*.py": "other frameworks' names",
    "hipkittens/flash_attn/*.py": "flash-attn's names",
    "hipkittens/layers.py": "Transformers' names of layers",
    "hipkittens/fla.py": "flash-linear-attention's names",
    "benchmarks/peer_*.py": "other libraries' kernels",
    "benchmarks/parity_*.py": "cases that a record names, and other libraries'",
    "benchmarks/calibration_*.py": "measured kernels of others",
    "benchmarks/simulator*.py": "how fast the simulator is, on matrix products",
    "benchmarks/performance_traces.py": "two kernels to look at",
    "benchmarks/performance_rows.py": "plain_loads is a library of matrix products alone",
    "benchmarks/performance_page.py": "whose publisher's kernels run in the model, too",
    "hipkittens/profiling/model_error.py": "whose measurements name the chip",
    "benchmarks/attention.py": "a study of one operation",
    "benchmarks/linear_cross_entropy.py": "a study of one operation",
    "benchmarks/launch.py": "calls with PyTorch's own beside them",
    "benchmarks/row_operations.py": "a table that others published",
    "tools/wheel_probe.py": "a model to be compiled",
    "benchmarks/mutation.py": "random.sample",
    "benchmarks/calibration.py": "a sample of measurements",
    "hipkittens/aiter/*.py": "AITER's names",
}


def words_of_code(path):
    """Identifiers, and strings that are one word."""
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("value", "id", "attr", "name", "arg"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word


def names(operation):
    return {operation.name, *(each.name for each in operation.functions)}


@pytest.fixture(scope="module")
def files():
    """By name, the files whose code contains it."""
    found = defaultdict(set)
    known = set().union(*map(names, operations.every()))
    for folder in ("hipkittens", "benchmarks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for word in known & set(words_of_code(path)):
                found[word].add(path.relative_to(ROOT).as_posix())
    return found


def of_record(operation):
    modules = {f"hipkittens.operations.{operation.name}"}
    modules |= {each.function.__module__ for each in operation.functions}
    return {module.replace(".", "/") + ".py" for module in modules}


@pytest.mark.parametrize("operation", operations.every(), ids=lambda operation: operation.name)
def test_no_list_names_an_operation(operation, files):
    places = set().union(
        *map(of_record, operations.every())
    )  # records may share words, and name each other's functions
    for name in names(operation):
        elsewhere = files[name] - places
        unknown = {
            path for path in elsewhere if not any(fnmatch.fnmatchcase(path, each) for each in ELSEWHERE)
        }
        assert not unknown, f"{name} is named in {sorted(unknown)}"


def test_every_place_that_may_name_one_does(files):
    found = set().union(*files.values())
    assert not [pattern for pattern in ELSEWHERE if not fnmatch.filter(found, pattern)]


def test_a_record_and_its_parts_stay_short():
    for path in (ROOT / "hipkittens" / "operations").glob("*.py"):
        lines = path.read_text().splitlines()
        assert lines[0] == "# SPDX-License-Identifier: MIT" and len(lines) <= 300, path


def test_functions_are_exported():
    for name, function in operations.functions().items():
        assert getattr(hipkittens, name) is function and name in hipkittens.__all__


def test_operators_are_those_of_the_library():
    import torch

    registered = {
        name.removeprefix("hipkittens::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("hipkittens::") and not name.endswith("_out")
    }
    known = [each.name for operation in operations.every() for each in operation.operators]
    assert sorted(known) == sorted(registered)


@pytest.mark.parametrize("target", _installation.TARGETS)
def test_every_kernel_has_a_trial(target):
    for kernel in _representative.kernels(target):
        trial = _representative.trial(kernel)
        assert trial.title and trial.workgroups > 0
        assert not trial.shared_by or trial.shared_by in {each["name"] for each in kernel.arguments}


def test_checks_are_not_built_by_an_import():
    program = (
        "import sys, hipkittens; from hipkittens import operations; assert not operations.checks.cache_info().currsize; "
        "print(*[name for name in sys.modules if name.startswith('hipkittens.operations._')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not [
        name for name in done.stdout.split() if name.endswith(("_checks", "_benchmarks", "_markdown"))
    ]


def test_the_lists_are_current():
    tool = ROOT / "tools" / "operation_lists.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OPERATORS = """
import torch

library = torch.library.Library("hipkittens", "FRAGMENT")
library.define("scaled_square(Tensor x, float scale) -> Tensor")
library.define("scaled_square_backward(Tensor grad, Tensor x, float scale) -> Tensor")
library.impl("scaled_square", lambda x, scale: (scale * x.float() ** 2).to(x.dtype), "CPU")
library.impl(
    "scaled_square_backward", lambda grad, x, scale: (2 * scale * x.float() * grad.float()).to(x.dtype), "CPU"
)
"""
SEEN = """
import json, sys
# An editable installation would answer for the copy.
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
import torch
import hipkittens
from hipkittens import _examples, _doctor_kernels, operations
from hipkittens.profiling import options, problems

sys.path[:0] = sys.argv[1:]
import operation_lists, parity, performance_rows, support_matrix, wheel_probe

x = torch.randn(3, 40, requires_grad=True)
(gradient,) = torch.autograd.grad(hipkittens.scaled_square(x, 0.5).sum(), x)
torch.testing.assert_close(gradient, x.detach())
compiled = torch.compile(hipkittens.scaled_square, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(x), x * x)
(example,) = [(one, other) for one, other in _examples.examples() if one.name == "scaled_square"]
(problem,) = problems.parse_shapes("scaled_square", "16x128")
problem.call()()
print(json.dumps({
    "supported": [
        hipkittens.supported("scaled_square", torch.empty(2, 2, dtype=dtype, device="meta")).reason
        for dtype in (torch.float32, torch.float64)
    ],
    "demo": [row["ok"] for row in _examples.run("gfx950", *example)],
    "doctor": _doctor_kernels.run_family("scaled_square", _doctor_kernels.families()["scaled_square"], "gfx942"),
    "bench": [options.operation("scaled_square"), problem.shape, problem.bytes],
    "parity": max(map(parity.ratio, sum(map(parity.run, parity.OPERATIONS["scaled_square"].cases(("gfx942",))), []))),
    "performance": [family.title for family in performance_rows.FAMILIES if family.operation == "scaled_square"],
    "page": support_matrix.options(),
    "opcheck": wheel_probe.opcheck_rows()["hipkittens::scaled_square"],
    "lists": [operation_lists.readme(), operation_lists.api()],
}))
"""


def test_the_example_of_the_docstring_is_an_operation(tmp_path):
    """In a copy of the package, with operators written in Python in place of kernels."""
    package, here = tmp_path / "hipkittens", ROOT / "hipkittens"
    shutil.copytree(here, package, ignore=shutil.ignore_patterns("lib", "_kernels", "__pycache__"))
    for folder in ("lib", "_kernels"):
        (package / folder).symlink_to(here / folder)
    example = operations.__doc__.partition("All of such a file:\n")[2].partition("\n_record.py says")[0]
    (package / "operations" / "scaled_square.py").write_text(textwrap.dedent(example))
    face = (package / "__init__.py").read_text()
    first = "from . import _prerequisites"
    assert first in face
    (package / "_toy_operators.py").write_text(OPERATORS)
    face = face.replace(first, f"from . import _toy_operators\n{first}", 1)
    (package / "__init__.py").write_text(
        face + "\nfrom .operations.scaled_square import scaled_square as scaled_square\n"
    )
    (tmp_path / "seen.py").write_text(SEEN)
    done = subprocess.run(
        [sys.executable, tmp_path / "seen.py", *map(str, (ROOT / "benchmarks", ROOT / "tools"))],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["supported"] == [
        "",
        "hipkittens.scaled_square: x is torch.float64; allowed: torch.bfloat16, torch.float16, torch.float32",
    ]
    assert seen["demo"] == [True, True] and seen["doctor"]["ok"]
    assert seen["bench"] == ["scaled_square", "16x128", 4 * 16 * 128]
    assert seen["parity"] <= BAR
    assert seen["performance"] == ["Scaled square of 2048 features"]
    assert "| `scaled_square` | a scale | yes |" in seen["page"] and "x is torch.float64" in seen["page"]
    assert seen["opcheck"] == "SUCCESS"
    assert all("scaled_square" in text for text in seen["lists"])
