# SPDX-License-Identifier: MIT
"""`hipkittens probe`: every fact holds in the simulator, violations are detected, and what a file to send back contains."""

import base64
import dataclasses
import itertools
import json
import re
import zlib
from pathlib import Path

import pytest
import torch

import hipkittens
from hipkittens import _backend, _installation, _representative, _timing, cli, operations, probes
from hipkittens.probes import _arithmetic, _clocks, _device, _examine, _lds
from tests.oracles.matrix_rounding import cdna3_dot, cdna3_dot_of_bytes, sequential_dot

ROOT = Path(__file__).resolve().parent.parent
TARGETS = _installation.TARGETS
FACTS = probes.every()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The file that the command writes on this machine, with simulated GPUs' answers, and what it launched."""
    path = tmp_path_factory.mktemp("probe") / "report.json"
    launched = set()
    launch = _device.Device.launch

    def remember(self, row, *arguments, **named):
        launched.add((self.target, row))
        return launch(self, row, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backend, "hip_device_count", lambda: 0)
        patch.setattr(_device.Device, "launch", remember)
        assert cli.main(["probe", "--report", str(path)]) == 0
    return json.loads(path.read_text()), launched


def test_every_fact_holds_in_the_simulator(report):
    runs = report[0]["runs"]
    assert [run["device"]["arch"] for run in runs] == list(TARGETS)
    for run in runs:
        of_target = [name for name, fact in FACTS.items() if run["device"]["arch"] in fact.targets]
        assert [fact["name"] for fact in run["facts"]] == of_target
        for fact in run["facts"]:
            expects = FACTS[fact["name"]].expected is not None
            assert fact["verdict"] == ("agree" if expects else "needs a GPU"), fact
            assert not fact["findings"] and fact["error"] is None, fact
        assert run["verdicts"] == {
            "agree": sum(FACTS[name].expected is not None for name in of_target),
            "needs a GPU": sum(FACTS[name].expected is None for name in of_target),
        }


def test_what_the_file_has_in_it(report):
    written = report[0]
    assert written["format"] == 1 and written["hipkittens"] == hipkittens.__version__
    assert (
        written["torch"] == torch.__version__ and {"python", "torch_hip", "system", "hip"} <= written.keys()
    )
    for run in written["runs"]:
        assert run["device"]["simulated"] and run["device"]["name"].endswith(run["device"]["arch"])
        rows = {row for target, row in report[1] if target == run["device"]["arch"]}
        assert run["code_objects"].keys() == rows and all(
            len(sha) == 64 for sha in run["code_objects"].values()
        )
        for fact in run["facts"]:
            assert fact.keys() == {
                "name", "statement", "used_by", "verdict", "expected", "found", "assumed", "mismatch_count", "mismatches",
                "error", "notes", "findings", "seconds",
            }  # fmt: skip
            assert fact["found"] is None and fact["mismatches"] == [] and fact["mismatch_count"] == 0
            if fact["verdict"] == "needs a GPU":
                assert fact["expected"] is None and fact["assumed"]
                assert all({"value", "unit", "source"} == each.keys() for each in fact["assumed"].values())
    (codes,) = (fact for fact in written["runs"][1]["facts"] if fact["name"] == "convert_from_fp8")
    assert codes["expected"]["shape"] == [256] and codes["expected"]["dtype"] == "int32"
    data = bytearray(zlib.decompress(base64.b64decode(codes["expected"]["zlib_base64"])))
    assert torch.frombuffer(data, dtype=torch.float32)[:128].nan_to_num(0).max() == 448


def test_every_row_of_the_folder_is_launched(report):
    rows = {
        (target, entry["variant"])
        for target in TARGETS
        for entry in _installation.pack(target).entries
        if entry["operation"] == _installation.PROBES
    }
    assert report[1] == rows


def altered(value):
    if isinstance(value, torch.Tensor):
        value = value.clone()
        value.view(-1)[-1] ^= 1
        return value
    first = next(iter(value))
    return {**value, first: -1}


@pytest.mark.parametrize("target", TARGETS)
def test_another_expectation_differs(target):
    """For every fact, the one value that was altered and no other."""
    for fact in FACTS.values():
        if fact.expected is None or target not in fact.targets or fact.name.startswith("lds_banks"):
            continue
        wrong = dataclasses.replace(fact, expected=lambda of, fact=fact: altered(fact.expected(of)))
        answer = _examine.ask(_device.Device(target), wrong)
        assert answer.verdict == "differ" and answer.mismatch_count == 1, fact.name
        assert answer.found is not None and answer.found != answer.expected


def test_the_command_says_what_differs(monkeypatch, capsys):
    fact = FACTS["buffer_load_beyond"]
    wrong = dataclasses.replace(fact, expected=lambda target: altered(fact.expected(target)))
    monkeypatch.setattr("hipkittens.probes._command.every", lambda: FACTS | {fact.name: wrong})
    assert cli.main(["probe", "--target", "gfx942", "--only", fact.name]) == 1
    text = capsys.readouterr().out
    assert "DIFFER" in text and "1 places; at [255] expected 1, found 0" in text
    assert "simulated gfx942: 1 differ" in text
    assert cli.main(["probe", "--target", "gfx942", "--only", fact.name, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["runs"][0]["facts"]
    assert found["mismatches"] == [{"at": [255], "expected": 1, "found": 0}]


def test_a_launch_that_fails_is_an_answer_and_the_next_fact_is_asked():
    beyond = dataclasses.replace(
        FACTS["buffer_load_beyond"],
        find=lambda device: device.launch("buffer_range", torch.zeros(16), 256, input_bytes=1024),
    )
    answers = _examine.examine(_device.Device("gfx950"), [beyond, FACTS["buffer_load_beyond"]])
    assert [answer.verdict for answer in answers] == ["failed", "agree"]
    assert "probe_buffer_range" in answers[0].error


def test_the_file_has_what_was_found_before_the_process_ended(monkeypatch, tmp_path):
    """A memory fault on a GPU ends the process, as nothing in the simulator does."""
    good, fatal = FACTS["buffer_load_beyond"], FACTS["preloaded_arguments"]

    def end(device):
        raise SystemExit("gone")

    facts = {good.name: good, fatal.name: dataclasses.replace(fatal, find=end)}
    monkeypatch.setattr("hipkittens.probes._command.every", lambda: facts)
    path = tmp_path / "report.json"
    with pytest.raises(SystemExit, match="gone"):
        cli.main(["probe", "--target", "gfx942", "--report", str(path)])
    written = json.loads(path.read_text())
    assert written["asking"] == "simulated gfx942: preloaded_arguments"
    assert [fact["name"] for fact in written["runs"][0]["facts"]] == [good.name]


def test_findings_of_the_checkers_are_told():
    """A wave that reads LDS which nothing has written: an address past what the kernel fills."""
    one = torch.full((1, 64), 8192, dtype=torch.int32)
    reads = dataclasses.replace(
        FACTS["lds_banks_read_b32"],
        find=lambda device: {"cycles": int(device.launch("lds_access", one, 1, steps=1)[0] * 0)},
        expected=lambda target: {"cycles": 0},
    )
    answer = _examine.ask(_device.Device("gfx942"), reads)
    assert answer.verdict == "agree" and any("ds_read_b32" in finding for finding in answer.findings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "gravity"], "--only is gravity; allowed: buffer_load_beyond, "),
        (["--gpu", "0"], "--gpu is 0; allowed: the number of an AMD GPU, of which 0 can be asked here"),
        (["--gpu", "0", "--target", "gfx942"], "leave one of them out"),
        (["--target", "gfx942", "--only", "transposed_read_8"], "--only names no fact of gfx942"),
        (["--report", "no/such/folder/report.json"], "--report: there is no folder"),
    ],
)
def test_options_that_cannot_be(options, message, monkeypatch):
    monkeypatch.setattr(_backend, "hip_device_count", lambda: 0)
    with pytest.raises(SystemExit, match="hipkittens probe: .*" + re.escape(message)):
        cli.main(["probe", *options])


def test_which_device_is_asked(monkeypatch):
    properties = type("Properties", (), {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+", "multi_processor_count": 304, "total_memory": 1})  # fmt: skip
    monkeypatch.setattr(_backend, "hip_device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(_backend._State, "backend", "auto")
    (asked,) = _examine.devices(None, 1)
    assert not asked.simulated and asked.target == "gfx942" and str(asked.torch_device) == "cuda:1"
    assert asked.compute_units == 304 and _clocks.product_of(asked) == "MI300X"
    assert [device.simulated for device in _examine.devices("gfx950", None)] == [True]
    with pytest.raises(ValueError, match=r"--gpu is 2; allowed: .* of which 2"):
        _examine.devices(None, 2)
    monkeypatch.setattr(_backend._State, "backend", "sim")
    assert [device.target for device in _examine.devices(None, None)] == list(TARGETS)
    monkeypatch.setattr(_backend._State, "backend", "auto")
    properties.gcnArchName = "gfx90a"
    with pytest.raises(ValueError, match="GPU 0 is a gfx90a; allowed: gfx942, gfx950"):
        _examine.devices(None, None)


# --- what is expected, and how a GPU is read -----------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", _arithmetic.FORMATS)
def test_expected_products_follow_the_oracle(name, target):
    form = _arithmetic.FORMATS[name]
    compared = 0
    for cases, _ in _arithmetic._STATEMENTS.values():
        for case in cases(name, target):
            depth = 4 * form.run[target]
            a, b = [0.0] * depth, [0.0] * depth
            for k, (x, y) in zip(case.places or range(len(case.products)), case.products, strict=True):
                a[k], b[k] = x, y
            if name == "f32":
                found = sequential_dot(a, b, case.c)
            elif name == "fp8":
                smallest = -7 if target == "gfx942" else -6
                found = cdna3_dot_of_bytes(a, b, case.c, smallest_of_a=smallest, smallest_of_b=smallest)
            else:
                found = cdna3_dot(a, b, case.c, group=8, smallest_exponent=-14 if name == "f16" else -126)
            assert found == case.expected or (found != found and case.expected != case.expected), case
            compared += 1
    assert compared > 10


class Clocked:
    """A GPU as seen by facts about LDS: accesses with its own phases and banks, timed with some noise."""

    simulated, target = False, "gfx942"

    def __init__(self, banks, phases, dwords):
        self.banks, self.phases, self.dwords, self.notes = banks, phases, dwords, {}
        self.draws = itertools.cycle((0, 9, 3, 27, 1))

    def note(self, name, value):
        self.notes[name] = value

    def launch(self, row, rows, outputs, *, workgroups, which, steps):
        assert row == "lds_access" and len(rows) == outputs == workgroups
        return torch.tensor(
            [2304 + 16 * steps * self.conflicts(row) + next(self.draws) for row in rows.tolist()]
        )

    def conflicts(self, addresses):
        extra = 0
        for phase in self.phases:
            wanted = {}
            for lane in phase:
                if addresses[lane] >= 0:
                    for dword in range(addresses[lane] // 4, addresses[lane] // 4 + self.dwords):
                        wanted.setdefault(dword % self.banks, set()).add(dword)
            extra += max((len(dwords) for dwords in wanted.values()), default=1) - 1
        return extra


@pytest.mark.parametrize(("name", "dwords"), [("read_b128", 4), ("write_b32", 1)])
@pytest.mark.parametrize(
    ("banks", "phases"),
    [(32, _lds._EIGHT), (64, _lds._SIXTEEN), (32, _lds._consecutive(16)), (64, _lds._consecutive(64))],
)
def test_phases_are_read_from_clocks(name, dwords, banks, phases):
    device = Clocked(banks, phases, dwords)
    found = FACTS[f"lds_banks_{name}"].find(device)
    assert found == {"banks": banks, "phases": sorted(phases), "pairs_beside_phases": []}
    assert sum(device.notes["clocks"].values()) == len(_lds._BANKS) + 1


@pytest.mark.parametrize(("product", "target"), [("MI300X", "gfx942"), ("MI355X", "gfx950")])
@pytest.mark.parametrize("access", _lds._ACCESSES)
def test_a_conflict_shows_in_clocks(access, product, target):
    """In the cycle model, which has ports that hide a clock of the banks: as many clocks as accesses."""
    if target not in _lds._ACCESSES[access]:
        return
    phases = _lds._ACCESSES[access][target][1]
    same, other = (phases[0][0], phases[0][1]), (phases[0][0], phases[1][0])
    others = 0 if "_tr_" in access else _lds._NONE

    def clocks(pair, apart):
        with hipkittens.timing(product) as run:
            addresses = _lds._addresses([pair], apart, others)
            which = list(_lds._ACCESSES).index(access)
            _device.Device(target).launch("lds_access", addresses, 1, which=which, steps=_lds._WAVES)
        return run.launches[0].cycles

    free, two_turns = clocks(same, _lds._BESIDE), 2 * _lds._ACCESSES_OF_WAVE * _lds._WAVES
    assert clocks(same, _lds._FAR) - free > 0.85 * two_turns
    assert abs(clocks(other, _lds._FAR) - free) < 0.1 * two_turns


@pytest.mark.parametrize("product", ["MI300X", "MI355X"])
def test_chains_measure_what_the_model_has(product):
    """The loop around a chain costs next to nothing."""
    values = {row["name"]: row["value"] for row in _timing.parameters(product)}
    device = _device.Device(_timing.DEVICES[product])

    def clocks(which, level=None):
        lines = None if level is None else _clocks._cycle_of_lines(level.bytes // 128, device)
        return _clocks.modelled_clocks(product, which, lines, 1 if level is None else level._turns)

    for which, least, most in (
        (_clocks._VECTOR, values["vector_operation"], 1.02),
        (_clocks._TRANSCENDENTAL, values["transcendental_f32"], 1.02),
        (_clocks._MATRIX, 4 * values["matrix_pass"], 1.02),
        (_clocks._MATRIX_INDEPENDENT, 4 * values["matrix_pass"], 1.02),
        (_clocks._BARRIER, values["barrier"], 1.6),  # and the issue of an instruction
        (_clocks._LDS, values["lds_latency"], 1.35),  # and ports and banks
    ):
        assert least <= clocks(which) <= most * least, which
    for level, latency in ((_clocks._VECTOR_CACHE, "vector_cache_hit"), (_clocks._L2, "l2_hit")):
        assert values[latency] <= clocks(_clocks._MEMORY, level) <= 1.05 * values[latency]


def test_a_gpu_measures(monkeypatch):
    """The code path of a GPU, with a simulated one in its place."""
    device = _device.Device("gfx942")
    device.simulated, device.name, device.facts = False, "AMD Instinct MI325X", {"compute_units": 1}
    with hipkittens.simulate("gfx942"):
        answer = _examine.ask(device, FACTS["latency_vector"])
        assert _examine.ask(device, FACTS["wait_direct_to_lds"]).verdict == "agree"
    assert answer.verdict == "measured" and answer.found.keys() == {"clocks", "core_mhz"}
    assert answer.assumed["clocks"]["source"].endswith("MI325X")


# --- the table ------------------------------------------------------------------------------------------------------


def test_files_that_rely_on_facts_are_there():
    for fact in FACTS.values():
        assert fact.used_by and fact.statement
        for user in fact.used_by:
            assert (ROOT / user.partition(":")[0]).is_file(), (fact.name, user)


def test_cases_have_the_numbers_of_the_kernels():
    text = (ROOT / "csrc/kernels/probe/kinds.h").read_text()

    def names(enumeration):
        body = re.search(rf"enum class {enumeration} : uint32_t {{(.*?)}}", text, re.S)[1]
        return [name.strip() for name in body.split(",")]

    assert [name.replace("read_transposed", "read_b64_tr_b16") for name in names("LdsAccess")] == list(
        _lds._ACCESSES
    )
    assert names("MatrixFormat") == list(_arithmetic.FORMATS)
    assert [f"wait_{name}" for name in names("WaitOrder")] == [
        name for name in FACTS if name.startswith("wait_")
    ]
    for number, name in enumerate(names("Chain")):
        assert getattr(_clocks, f"_{name.upper()}") == number
    assert names("BufferAccess") == ["load_b128", "store_b128"]


def test_probes_are_no_operation():
    assert _installation.PROBES not in {operation.folder for operation in operations.every()}
    for target in TARGETS:
        of_operations = {kernel.symbol for kernel in _representative.kernels(target)}
        entries = _installation.pack(target).entries
        rest = {entry["operation"] for entry in entries if entry["kernels"][0]["symbol"] not in of_operations}
        assert rest == {_installation.PROBES}
