# SPDX-License-Identifier: MIT
"""Resource use of the kernels: every one of them is run once, and checked against its limits.

The default run does that with the kernels of LISTED, which have specific requirements, with every checker on. The others run in
tests/test_parity_kernels.py, on the same problems; `-m slow` makes rows of them all.
"""

import ctypes
import dataclasses
import json
import math
import re
import subprocess
import sys

import pytest
import torch

from hipkittens import _backend, _disassembly, _installation, _representative, _resources, cli, operations
from tests.simulated_device import Module, library
from tests.worker_files import made_once

TARGETS = ("gfx942", "gfx950")
LISTED = ("gemm", "attention", "norm", "rotary")  # folders of csrc/kernels

# Kernels that read their input twice: two such rows of 65,536 elements do not fit into the registers of a workgroup.
READ_TWICE = {f"norm.backward_{dtype}_65536" for dtype in ("bf16", "f16", "f32")}
# For rows of any length, the first part of which is held in registers.
READ_AGAIN = {f"norm.fused_{dtype}_{rows}" for dtype in ("bf16", "f16", "f32") for rows in ("short", "long")}
# Read again for each row, or for each head, and found in a cache: a row of anything else is read where it is needed.
SHARED_BY_ROWS = {"weight", "bias", "mean", "rstd", "cos", "sin"}
# Least share of bytes that move 16 to a lane. Backward reads its statistics, 4 bytes a lane, for each row.
LEAST_WIDE = {
    "forward": 0.99,
    "fused": 0.99,
    "layer": 0.99,
    "rms": 0.99,
    "backward": 0.9,
    "columns": 0.99,
    "rotary": 0.99,
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """For each kernel, its measured row; all cores work on them."""

    def collect(folder):
        # In a separate process, which takes the translated code of every kernel with it when it ends.
        words = (word for name in LISTED for word in ("--folder", name))
        (folder / "rows.json").write_bytes(listed(*words))

    return json.loads((made_once(tmp_path_factory, "resources", collect) / "rows.json").read_text())


def listed(*options):
    command = [sys.executable, "-m", "hipkittens", "kernels", "list", "--resources", "--json", *options]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def of_operation(rows, *operations):
    found = [row for row in rows if row["name"].split(".")[0] in operations]
    assert {row["target"] for row in found} == set(TARGETS)
    return found


def kernels_of(target, folders=None):
    entries = _installation.kernels_of_operations(target)
    return {entry["name"] for entry in entries if folders is None or entry["operation"] in folders}


def not_run(rows):
    return [(row["target"], row["name"]) for row in rows if row["run"] is None]


def test_every_kernel_is_run(rows):
    for target in TARGETS:
        assert {row["name"] for row in rows if row["target"] == target} == kernels_of(target, LISTED)
    assert not not_run(rows), f"no problem of hipkittens._representative runs {not_run(rows)}"
    for wrong in ("findings", "not_finite"):
        assert not [(row["target"], row["name"], row["run"][wrong]) for row in rows if row["run"][wrong]]


def test_the_other_kernels_run_by_the_problems_that_run_with_every_checker():
    """benchmarks/parity_kernels.py launches each of them, which tests/test_parity_kernels.py requires."""
    others = {operation.folder for operation in operations.every()} - set(LISTED)
    assert kernels_of("gfx950") == kernels_of("gfx950", LISTED) | kernels_of("gfx950", others)
    for folder in others:
        problems, checked = (
            [problem.title for problem in chosen(folder)]
            for chosen in (_representative.problems, _representative.problems_of_every_kernel)
        )
        assert problems and set(problems) <= set(checked)


@pytest.mark.slow
def test_rows_of_all():
    rows = json.loads(listed())
    for target in TARGETS:
        assert {row["name"] for row in rows if row["target"] == target} == kernels_of(target)
    assert not not_run(rows), f"no problem of hipkittens._representative runs {not_run(rows)}"


def products_of_16_bits(row):
    """How many matrix instructions of 16-bit operands one of the kernel's corresponds to: those of 8 bits cover more of K."""
    if not re.search(r"(?<!bf16)_((mx)?fp[468]|i8)_|\.quantized_", row["name"]):
        return 1
    return 4 if row["target"] == "gfx950" and "_i8_" not in row["name"] else 2


def test_products_have_their_hot_loop_in_matrix_instructions(rows):
    for row in of_operation(rows, "gemm", "attention"):
        loop = row["run"]["hot_loop"]
        if row["name"].startswith("gemm.reduce") or any(
            word in row["name"] for word in ("delta", "convert", "combine", "backward_sinks")
        ):
            assert loop["per_turn"]["mfma"] == 0
            continue
        assert loop["is_loop"] and loop["turns_per_wave"] >= 3, row["name"]
        # Random bits double the vector instructions of the smallest heads; so does a tangent of each score, after a test whether any is
        # close to the cap.
        least = {"dropout": 0.018, "softcap": 0.03}.get(row["name"].rpartition("_")[2], 0.04)
        if ".pointwise_" in row["name"]:  # an exponential and a reciprocal of each score
            least = 0.025
        products = products_of_16_bits(row)
        assert loop["per_turn"]["mfma"] * products >= 4, (row["name"], loop)
        assert loop["mfma_share"] * products > least, (row["name"], loop)


def test_hot_loops_meet_no_lds_bank_twice(rows):
    found = {
        (row["target"], row["name"])
        for row in of_operation(rows, "gemm", "attention", "norm", "rotary")
        if row["run"]["hot_loop"]["lds_conflict_cycles"]
    }
    assert not found


def test_norms_and_rotary_move_every_byte_once(rows):
    twice = set()
    for row in of_operation(rows, "norm", "rotary"):
        if row["name"] in READ_AGAIN:
            continue
        tensors = {tensor["name"]: tensor for tensor in row["run"]["tensors"]}
        assert tensors.keys() - SHARED_BY_ROWS, row["name"]
        for name, tensor in tensors.items():
            assert tensor["bytes_stored"] == tensor["distinct_bytes_stored"], (row["name"], name)
            if name not in SHARED_BY_ROWS and tensor["bytes_loaded"] > tensor["distinct_bytes_loaded"]:
                assert tensor["bytes_loaded"] == 2 * tensor["distinct_bytes_loaded"], (row["name"], name)
                twice.add(row["name"])
    assert twice == READ_TWICE


def test_norms_and_rotary_move_sixteen_bytes_a_lane(rows):
    checked = 0
    for row in of_operation(rows, "norm", "rotary"):
        operation, variant = row["name"].split(".")
        if variant.startswith("odd") or row["name"] in READ_AGAIN:  # one element at a time
            continue
        if variant == "reduce":  # adds a column a lane: its input is partial sums, a hundredth of the rest
            continue
        kind = operation if operation == "rotary" else variant.split("_")[0]
        assert row["run"]["sixteen_byte_share"] >= LEAST_WIDE[kind], row["name"]
        checked += 1
    assert checked == 2 * (24 + 48 + 12 + 24 + 3 + 3 + 5 + 6 + 3)


def test_a_norm_moves_little_but_its_rows(rows):
    """The tensors are those of the problem: nothing is omitted, and nothing else is read."""
    (row,) = (row for row in rows if (row["target"], row["name"]) == ("gfx950", "norm.layer_bf16_8192"))
    tensors = {tensor["name"]: tensor for tensor in row["run"]["tensors"]}
    assert row["run"]["problem"] == "layer_norm 256x8192 bf16"
    assert tensors["x"]["distinct_bytes_loaded"] == tensors["y"]["distinct_bytes_stored"] == 256 * 8192 * 2
    assert tensors["weight"]["distinct_bytes_loaded"] == tensors["bias"]["distinct_bytes_loaded"] == 8192 * 2
    assert tensors["mean"]["distinct_bytes_stored"] == tensors["rstd"]["distinct_bytes_stored"] == 256 * 4
    assert tensors.keys() == {"x", "y", "weight", "bias", "mean", "rstd"}


@pytest.mark.parametrize("target", TARGETS)
def test_occupancy_is_what_the_driver_says(target):
    """The simulated driver counts workgroups per compute unit, ignoring scalar registers."""
    compared = 0
    for entry in _installation.pack(target).entries[::5]:
        (kernel,) = entry["kernels"]
        if kernel["sgprs"] > 100:
            continue
        module = Module(_installation.pack(target).image(entry), target)
        blocks = ctypes.c_int()
        library().hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks),
            module.kernel(kernel["symbol"]).function,
            kernel["workgroup_size"],
            ctypes.c_size_t(0),
        )
        waves, _ = _resources.occupancy(target, kernel)
        # What four SIMDs with equal loads hold: a workgroup of a probe has one wave.
        assert waves == blocks.value * (kernel["workgroup_size"] // 64) // 4, entry["name"]
        compared += 1
    assert compared > 10


def test_occupancy_of_known_kernels():
    def of(target="gfx942", vgprs=32, sgprs=32, lds_bytes=0, workgroup_size=256):
        return _resources.occupancy(
            target, {"vgprs": vgprs, "sgprs": sgprs, "lds_bytes": lds_bytes, "workgroup_size": workgroup_size}
        )

    assert of() == (8, "waves")
    assert of(vgprs=64) == (8, "waves") and of(vgprs=65) == (7, "vgprs")
    assert of(vgprs=256) == (2, "vgprs") and of(vgprs=257) == (1, "vgprs")
    assert of(vgprs=73, workgroup_size=1024) == (
        4,
        "vgprs",
    )  # six would fit, sixteen waves come four to a SIMD
    assert of(sgprs=101) == (7, "sgprs")
    assert of(lds_bytes=32 << 10) == (2, "lds") and of(lds_bytes=(32 << 10) + 1) == (1, "lds")
    assert of("gfx950", lds_bytes=32 << 10) == (4, "lds")  # 26 granules of 1280 bytes, four times in 160 KiB


@pytest.mark.parametrize("target", TARGETS)
def test_code_ends_with_the_kernel(target):
    pack = _installation.pack(target)
    for entry in pack.entries:
        image = pack.image(entry)
        ((_, text),) = _disassembly.code(image)
        size = _resources.code_bytes(image, entry["kernels"][0]["symbol"])
        assert 0 < size <= len(text), entry["name"]
        padding = {text[at : at + 4].hex() for at in range(size, len(text), 4)}
        assert padding <= {"000080bf"}, entry["name"]  # s_nop
    with pytest.raises(ValueError, match="no function of this name"):
        _resources.code_bytes(image, "absent")


def test_the_command(monkeypatch, capsys):
    chosen = [p for p in _representative.problems() if p.title == "matmul nt 64x512x768 bf16"]
    assert len(chosen) == 1
    monkeypatch.setattr(_representative, "problems", lambda folder: chosen)
    assert cli.main(["kernels", "list", "--resources", "--target", "gfx950", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(_installation.kernels_of_operations("gfx950"))
    (row,) = (row for row in rows if row["run"])
    assert row["name"] == "gemm.nt_bf16_32x64x64" and row["run"]["problem"] == chosen[0].title
    assert row["scratch_bytes"] == 0 and row["waves_per_simd"] > 0 and row["code_bytes"] > 0
    assert row["run"]["hot_loop"]["per_turn"]["mfma"] == 4
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["kernels", "list", "--resources", "--target", "gfx950"]) == 0
    text = capsys.readouterr().out
    assert row["name"] in text and "not run" in text and "gfx942" not in text


def test_what_is_wrong_is_in_the_row(monkeypatch):
    """For each problem that launches a kernel, although the row is of the longest launch."""
    (right,) = (p for p in _representative.problems("mul_add") if p.title.endswith("bf16"))
    broken = dataclasses.replace(right, title="broken", run=lambda: [*right.run(), torch.tensor([math.nan])])
    monkeypatch.setattr(_representative, "problems", lambda folder: [right, broken])
    monkeypatch.setattr(_backend.simulate, "findings", property(lambda self: ["a race"]))
    (run,) = (row["run"] for row in _resources.collect(("gfx950",), folders=("mul_add",)) if row["run"])
    assert run["problem"] == right.title
    assert run["findings"] == ["a race"] * 2 and run["not_finite"] == ["broken"]


def test_the_command_for_one_folder(monkeypatch, capsys):
    monkeypatch.setattr(_representative, "problems", lambda folder: [])
    of_loss = kernels_of("gfx950", {"loss"})
    for options in (["--resources"], []):
        assert (
            cli.main(["kernels", "list", "--folder", "loss", "--target", "gfx950", "--json", *options]) == 0
        )
        assert {row["name"] for row in json.loads(capsys.readouterr().out)} == of_loss
    with pytest.raises(
        SystemExit, match=r"kernels list: --folder gem: no kernel is of it; allowed: .*, gemm, "
    ):
        cli.main(["kernels", "list", "--folder", "gem"])
