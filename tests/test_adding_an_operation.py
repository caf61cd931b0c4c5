# SPDX-License-Identifier: MIT
"""docs/adding_an_operation.md: the code it shows is the package's code, and its steps suffice to add an operation."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from hipkittens import _installation, operations

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adding_an_operation.md").read_text()
TOY = Path(__file__).parent / "toy_operation"
TOOLS = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))


def test_what_the_page_shows_is_in_the_files():
    shown = re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)```$", PAGE, re.M | re.S)
    assert len(shown) == PAGE.count("```") // 2 > 6
    for path, code in shown:
        assert code in (ROOT / path).read_text(), path


def test_the_page_names_eight_files():
    named = re.findall(r"^\| `(\S+)` \|", PAGE, re.M)
    assert len(named) == 8
    assert all((ROOT / name).is_file() for name in named)


class Checkout:
    """A copy of this checkout, from which commands import it and nothing else of ours."""

    def __init__(self, path):
        self.path = path
        names = ("CMakeLists.txt", "README.md", "benchmarks", "cmake", "csrc", "docs", "hipkittens",
                 "hipkittens_command", "tests", "tools")  # fmt: skip
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, path / name)

    def run(self, *command, **environment):
        # -S: otherwise an editable installation would provide the name hipkittens.
        places = os.pathsep.join((str(self.path), str(Path(torch.__file__).parents[1])))
        done = subprocess.run(
            [sys.executable, "-S", *command], cwd=self.path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": places, "PATH": TOOLS, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def add_the_toy(self):
        """The steps of the page, with the code that hipkittens/operations/__init__.py shows."""
        folder = self.path / "csrc" / "kernels" / "scaled_square"
        folder.mkdir()
        for name in ("kinds.h", "variants.def", "kernels.h", "plan.h"):
            shutil.copyfile(TOY / name, folder / name)
        shutil.copyfile(TOY / "scaled_square.cpp", self.path / "csrc" / "torch" / "scaled_square.cpp")
        record = re.search(r"All of such a file:\n\n(.*?)\n\n\S", inspect.getdoc(operations), re.S)[1]
        (self.path / "hipkittens" / "operations" / "scaled_square.py").write_text(textwrap.dedent(record))
        package = self.path / "hipkittens" / "__init__.py"
        text = package.read_text()
        text = text.replace(
            "\nfrom .rotary", "\nfrom .operations.scaled_square import scaled_square\nfrom .rotary", 1
        )
        package.write_text(text.replace('    "simulate",\n', '    "scaled_square",\n    "simulate",\n', 1))

    def build(self):
        """Build the operators, and the toy's kernels; the other kernels come from the packs that are present."""
        for target in _installation.TARGETS:
            objects = self.path / "objects" / target
            objects.mkdir(parents=True)
            pack = _installation.pack(target)
            for entry in pack.index["objects"]:
                image = objects / f"{entry['name']}.co"
                image.write_bytes(pack.image(entry))
                image.with_suffix(".json").write_text(json.dumps(entry))
            listed = self.run("tools/kernel_variants.py").splitlines()
            for operation, variant in (line.split()[1:] for line in listed if line.startswith(target)):
                if operation == "scaled_square":
                    output = objects / f"{operation}.{variant}.co"
                    self.run("tools/build_kernels.py", "--target", target, "--operation", operation, "--variant", variant,
                             "--output", str(output))  # fmt: skip
            (objects / "list").write_text("\n".join(map(str, objects.glob("*.co"))))
            self.run("tools/pack_kernels.py", "--target", target, "--objects", str(objects / "list"), "--output",
                     f"hipkittens/_kernels/{target}.hkpack")  # fmt: skip
        cmake, folder = shutil.which("cmake", path=TOOLS), self.path / "build"
        configure = [cmake, "-S", self.path, "-B", folder, "-DHIPKITTENS_KERNELS=OFF", "-DCMAKE_BUILD_TYPE=Debug",
                     f"-DPython_EXECUTABLE={sys.executable}"]  # fmt: skip
        build = [cmake, "--build", folder, "--target", "hipkittens_ops", "--parallel", "2"]
        for command in (configure, build):
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": TOOLS})
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    pytest.importorskip("ziglang")
    if not shutil.which("cmake", path=TOOLS):
        pytest.skip("no cmake on this machine")
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    made.add_the_toy()
    made.build()
    return made


@pytest.mark.slow
def test_a_toy_operation_is_everywhere(checkout):
    assert '"scaled_square' in checkout.run("-m", "hipkittens", "demo", "--json")
    assert "scaled_square" in checkout.run("-m", "hipkittens", "doctor")
    checkout.run("-c", SUPPORTED)
    assert "modelled" in checkout.run("-m", "hipkittens", "bench", "scaled_square", "--shapes", "512x1024")
    compared = checkout.run("benchmarks/parity.py", "--op", "scaled_square", "--target", "gfx950")
    assert re.search(r"scaled_square\.dx\s+gfx950\s+\d+ results", compared)
    checkout.run("tools/support_matrix.py")
    page = (checkout.path / "docs" / "support.md").read_text()
    for target in _installation.TARGETS:
        assert f"| `scaled_square` | {target} | forward, backward |" in page
    resources = json.loads(
        checkout.run("-m", "hipkittens", "kernels", "list", "--json", "--target", "gfx942")
    )
    assert "scaled_square.backward_f32" in json.dumps(resources)


SUPPORTED = """
import torch, hipkittens
x = torch.ones(4, 8, dtype=torch.bfloat16, device="meta")
assert hipkittens.supported("scaled_square", x, 0.5, target="gfx950")
refused = hipkittens.supported("scaled_square", x.double())
assert not refused and refused.reason.startswith("hipkittens.scaled_square: x is torch.float64")
with hipkittens.simulate("gfx942", checks="all"):
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    y = hipkittens.scaled_square(x, 0.5)
    assert y.tolist() == [0.5, 2.0, 4.5]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1.0, -2.0, 3.0]
"""
