"""`hipkittens sim coverage`: counts for a known code object, for folders and zip files, and refused inputs."""

import io
import json
import zipfile

import pytest

from hipkittens.cli import main
from tests.device_compiler import assemble
from tests.offload_bundles import COMPRESSORS, compressed_bundle, offload_bundle

TEXT = """
.text
.globl name
.p2align 8
.type name,@function
name:
  s_load_dword s4, s[0:1], 0
  v_mov_b32_e32 v1, v2
  v_mov_b32_e32 v1, v3
  v_mov_b32_e64 v1, v3
  v_mov_b32_dpp v1, v3 row_shl:1 row_mask:0xf bank_mask:0xf
  ds_gws_barrier v2 gds
  s_endpgm
"""
WANTED = {"s_load_dword": 1, "v_mov_b32_e32": 2, "v_mov_b32_e64": 1, "v_mov_b32_dpp": 1, "s_endpgm": 1}


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def image(request):
    return assemble(f'.amdgcn_target "amdgcn-amd-amdhsa--{request.param}"\n' + TEXT, request.param)


def report(capsys, *files):
    status = main(["sim", "coverage", "--json", *map(str, files)])
    return status, json.loads(capsys.readouterr().out)


def test_instructions_are_counted_by_mnemonic(image, tmp_path, capsys):
    file = tmp_path / "kernel.co"
    file.write_bytes(image)
    status, answer = report(capsys, file)
    assert status == 1  # something is missing: GWS needs hardware that no simulated device has
    assert answer["instructions"] == 7 and answer["implemented"] == 6
    assert answer["missing"] == {"ds_gws_barrier": 1}
    counts = {name: entry["count"] for name, entry in answer["mnemonics"].items()}
    assert counts == WANTED | {"ds_gws_barrier": 1}
    assert "encoding and text checked by clang" in answer["mnemonics"]["v_mov_b32_dpp"]["evidence"]
    assert "refused by name" in answer["mnemonics"]["ds_gws_barrier"]["evidence"]


def test_folders_and_zip_files_are_looked_into(image, tmp_path, capsys):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "one.co").write_bytes(image)
    with zipfile.ZipFile(tmp_path / "two.whl", "w") as archive:
        archive.writestr("package/two.hsaco", image)
        archive.writestr("package/notes.txt", "nothing to run")
    _, answer = report(capsys, tmp_path / "deep", tmp_path / "two.whl")
    assert answer["code_objects"] == 2 and answer["instructions"] == 14


@pytest.mark.parametrize("method", [None, *COMPRESSORS], ids=["plain", "zlib", "zstd"])
def test_bundles_are_looked_into(image, method, tmp_path, capsys):
    other = bytearray(image)
    other[48] = 0x41  # gfx1100
    bundle = offload_bundle({"gfx1100": bytes(other), "gfx942:sramecc+:xnack-": image})
    if method is not None:
        bundle = compressed_bundle(bundle, 3, method)
    file = tmp_path / "kernels.hipfb"
    file.write_bytes(bundle)
    with zipfile.ZipFile(tmp_path / "two.whl", "w") as archive:
        archive.writestr("package/two.co", bundle)
    for inputs in ([file], [tmp_path, tmp_path / "two.whl"]):
        _, answer = report(capsys, *inputs)
        assert answer["code_objects"] == len(inputs) and answer["instructions"] == 7 * len(inputs)
        assert len(answer["skipped"]) == len(inputs)
    assert answer["skipped"][0] == f"{file}:hipv4-amdgcn-amd-amdhsa--gfx1100"

    for damaged in (
        bundle[:60],
        bundle[: len(bundle) - 4096] if method is None else bundle[:12] + bytes(8) + bundle[20:],
    ):
        file.write_bytes(damaged)
        assert main(["sim", "coverage", str(file)]) == 2
        assert "nor an offload bundle (hipkittens_bundled_code_objects: " in capsys.readouterr().err
    file.write_bytes(offload_bundle({}))
    assert main(["sim", "coverage", str(file)]) == 2


def test_the_listing_names_what_is_missing(image, tmp_path, capsys):
    file = tmp_path / "kernel.co"
    file.write_bytes(image)
    assert main(["sim", "coverage", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "         1  Ex   ds_gws_barrier  (1 not implemented)" in lines
    assert lines[-1].startswith("1 code objects, 6 mnemonics, 7 instructions, 6 implemented")


def test_bytes_that_are_no_instruction_are_missing(image, tmp_path, capsys):
    changed = bytearray(image)
    at = changed.index(bytes.fromhex("0203027e"))  # v_mov_b32_e32 v1, v2
    changed[at : at + 4] = b"\xff\xff\xff\xff"
    file = tmp_path / "kernel.co"
    file.write_bytes(changed)
    _, answer = report(capsys, file)
    assert answer["missing"][".long"] == 1


def test_other_gpus_are_skipped_and_other_files_refused(image, tmp_path, capsys):
    other = bytearray(image)
    other[48] = 0x41  # gfx1100
    file, mine = tmp_path / "other.co", tmp_path / "mine.co"
    file.write_bytes(other)
    mine.write_bytes(image)
    _, answer = report(capsys, mine, file)
    assert answer["code_objects"] == 1 and answer["skipped"] == [str(file)]
    for name, content in {"text": b"no code", "elf": b"\x7fELF" + bytes(80)}.items():
        (tmp_path / name).write_bytes(content)
        assert main(["sim", "coverage", str(tmp_path / name)]) == 2
    assert main(["sim", "coverage", str(tmp_path / "absent")]) == 2
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    (tmp_path / "empty.zip").write_bytes(buffer.getvalue())
    assert main(["sim", "coverage", str(tmp_path / "empty.zip")]) == 2
    assert "no code object" in capsys.readouterr().err
