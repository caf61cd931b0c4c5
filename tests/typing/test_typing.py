# SPDX-License-Identifier: MIT
"""The types of the public interface, as a strict checker sees them from outside."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hipkittens
from hipkittens import flash_attn, kernel, nn, operations

pytest.importorskip("mypy")
ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = Path(__file__).with_name("client.py")


def mypy(*arguments, tool="mypy"):
    # Only the client is checked, and what it sees of us: not the bodies of torch or of the package.
    return subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def check(path, cache):
    options = ["--strict", "--python-version", "3.12", "--follow-imports", "silent", "--cache-dir", cache]
    return mypy(*options, path)


def test_a_strict_client(cache, tmp_path):
    """And the same client with mistakes in it, so that the absence of errors means something."""
    done = check(CLIENT, cache)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch\nimport hipkittens\n"
        "x = torch.zeros(2)\n"
        "a: int = hipkittens.matmul(x, x)\n"
        "b: torch.Tensor = hipkittens.attention(x, x, x, return_lse=True)\n"
        "hipkittens.rotary(x, x, x, intreleaved=True)\n"
        "hipkittens.linear(x, 'weight')\n"
        "hipkittens.simulate(threads='all')\n"
    )
    done = check(wrong, cache)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if " error: " in line] == list("45678")


def test_a_strict_client_finds_every_operation(cache, tmp_path):
    names = sorted(operations.functions())
    client = tmp_path / "every_operation.py"
    client.write_text("import hipkittens\n" + "".join(f"reveal_type(hipkittens.{name})\n" for name in names))
    done = check(client, cache)
    revealed = [line for line in done.stdout.splitlines() if "Revealed type is" in line]
    assert done.returncode == 0 and len(revealed) == len(names), done.stdout
    assert not [line for line in revealed if "Any" in line or "Tensor" not in line]


def test_the_client_uses_everything():
    """Operations in a file of their own are left to the test above."""
    text = CLIENT.read_text()
    own_file = {
        name for name, function in operations.functions().items() if ".operations." in function.__module__
    }
    names = [f"hipkittens.{name}" for name in hipkittens.__all__ if name not in {"Support", *own_file}]
    names += (
        [f"nn.{name}" for name in nn.__all__] + list(flash_attn.__all__) + ["kernel.compile", "kernel.load"]
    )
    assert not [name for name in names if name + "(" not in text and name + "." not in text]


def test_every_public_function_is_annotated():
    functions = [getattr(hipkittens, name) for name in hipkittens.__all__]
    functions += [kernel.compile, kernel.load, kernel.Kernel, *(getattr(nn, name) for name in nn.__all__)]
    members = []
    for function in functions:
        if inspect.isclass(function):
            members += [
                value
                for name, value in vars(function).items()
                if inspect.isfunction(value)
                and (not name.startswith("_") or name in ("__init__", "__call__"))
            ]
        else:
            members.append(function)
    missing = [
        f"{member.__qualname__}: {name}"
        for member in members
        for name in [*inspect.signature(member).parameters, "return"]
        if name not in ("self",) and name not in member.__annotations__
    ]
    assert members and not missing


@pytest.mark.slow
def test_the_stub_has_the_functions_of_the_source(cache):
    done = mypy("hipkittens.flash_attn.flash_attn_interface", tool="mypy.stubtest")
    assert done.returncode == 0, done.stdout + done.stderr
