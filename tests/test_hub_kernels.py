# SPDX-License-Identifier: MIT
"""tools/hub_kernels.py: the repository it builds, and Hugging Face's own `kernels` and Transformers 5 on it, on CPU tensors.

`./run test` installs both into a separate folder, .venv/hub_packages, since they need another huggingface_hub than the Transformers 4
that the other tests use. Nothing here accesses a network.
"""

import ast
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_packaging import tool

import hipkittens

PROGRAMS = Path(__file__).with_name("hub_programs.py")
PACKAGES = Path(sys.prefix) / "hub_packages"
needs_kernels = pytest.mark.skipif(
    not (PACKAGES / "kernels").is_dir(), reason="Hugging Face's kernels is not in .venv/hub_packages"
)
hub_kernels = tool("hub_kernels")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "repository"
    hub_kernels.build(folder, rocm=("7.1",))
    return folder


@pytest.fixture(scope="module")
def variants(repository):
    found = {path.name: path for path in (repository / "build").iterdir()}
    assert set(found) == {
        "torch-stable-abi210-rocm71-x86_64-linux",
        "torch-stable-abi210-cpu-x86_64-linux",
    }
    return found


def test_metadata(variants):
    identities = set()
    for name, folder in variants.items():
        metadata = json.loads((folder / "metadata.json").read_text())
        kind = "cpu" if "-cpu-" in name else "rocm"
        assert re.fullmatch(f"_hipkittens_{kind}_[0-9a-f]{{12}}", metadata["id"])
        assert metadata["backend"]["type"] == kind and metadata["python-depends"] == []
        assert metadata["backend"].get("archs", ["gfx942", "gfx950"]) == ["gfx942", "gfx950"]
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert set(metadata["digest"]["files"]) == files - {"metadata.json"}
        for file, digest in metadata["digest"]["files"].items():
            assert base64.b64decode(digest) == hashlib.sha256((folder / file).read_bytes()).digest()
        identities.add(metadata["id"])
    assert len(identities) == len(variants)


def test_a_variant_imports_torch_and_itself_alone(variants):
    """Function bodies count, too: whatever a call imports has to be present."""
    (folder, *_) = variants.values()
    package = folder / "hipkittens"
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            outside = {name.split(".")[0] for name in names} - {"torch", *sys.stdlib_module_names}
            assert not outside, f"{path.relative_to(package)} imports {outside}"


def test_the_same_checkout_gives_the_same_bytes(repository, tmp_path):
    hub_kernels.build(tmp_path / "again", rocm=("7.1",))
    for path in (tmp_path / "again").rglob("*"):
        first = repository / path.relative_to(tmp_path / "again")
        assert path.is_dir() or path.read_bytes() == first.read_bytes()


def test_the_card_names_layers_and_builds_and_what_never_ran(repository, variants):
    card = (repository / "README.md").read_text()
    for name in (*hipkittens.layers.__all__, *variants):
        assert f"* `{name}`" in card
    assert "No AMD GPU has run these kernels yet" in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{full}"], "it is there already and not empty; name a new folder"),
        (["{new}", "--rocm", "seven"], "ROCm version 'seven'; write it as torch.version.hip begins: 7.1"),
        (["{new}", "--rocm", "--no-cpu"], "no variants are left to build"),
        (["{new}", "--version", "0"], "version 0; it must be at least 1"),
    ],
)
def test_what_is_refused(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    places = {"full": tmp_path / "full", "new": tmp_path / "new"}
    monkeypatch.setattr(sys, "argv", ["hub_kernels", *(each.format(**places) for each in arguments)])
    assert hub_kernels.main() == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_library_without_its_namespace_is_refused():
    with pytest.raises(hub_kernels.HubError, match="its namespace is not found once; rebuild"):
        hub_kernels._renamed(b"no library", "_hipkittens_cpu_0")


def run(program, repository, **environment):
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, PROGRAMS, program, repository],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kernels
def test_kernels_loads_a_build_that_is_whole_and_alone(repository):
    run("loads", repository)


@needs_kernels
def test_links_of_a_cache_are_not_followed(repository):
    assert float(run("links", repository)) != 0


@needs_kernels
def test_kernelize(repository):
    run("kernelizes", repository)


@needs_kernels
def test_transformers_takes_layers_and_attention(repository):
    run("transformers", repository, LOCAL_KERNELS=f"hipkittens/hipkittens={repository}")
