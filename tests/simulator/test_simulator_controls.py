# SPDX-License-Identifier: MIT
"""hipkittens/_simulator.py, the Python side of simulator.h."""

import concurrent.futures
import ctypes
import json
import re
import subprocess
import threading

import pytest
import torch

import hipkittens
from hipkittens import _library, _simulator
from tests.host_build import ROOT, build

HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "csrc" / "simulator" / "simulator.h").read_text(), flags=re.S)
STRUCTURES = {
    "HipkittensSettings": _simulator.Settings,
    "HipkittensReport": _simulator.Report,
    "HipkittensInstructionRecord": _simulator.InstructionRecord,
    "HipkittensRegionRecord": _simulator.RegionRecord,
    "HipkittensLaunchRecord": _simulator.LaunchRecord,
    "HipkittensTiming": _simulator.Timing,
    "HipkittensTimelineEvent": _simulator.TimelineEvent,
}


def test_structures_are_those_of_the_header(tmp_path):
    """The compiler reports where each member is; the header lists which members there are."""
    lines, expected = [], {}
    for name, structure in STRUCTURES.items():
        lines.append(f'std::printf("\\"{name}\\": %zu,\\n", sizeof({name}));')
        expected[name] = ctypes.sizeof(structure)
        for member, *_ in structure._fields_:
            lines.append(f'std::printf("\\"{name}.{member}\\": %zu,\\n", offsetof({name}, {member}));')
            expected[f"{name}.{member}"] = getattr(structure, member).offset
    source = tmp_path / "layout.cpp"
    source.write_text(
        '#include <cstdio>\n#include "simulator/simulator.h"\nint main() {\nstd::puts("{");\n'
        + "\n".join(lines)
        + 'std::puts("\\"end\\": 0}");\n}\n'
    )
    printed = subprocess.run([build(tmp_path / "layout", [source])], capture_output=True, text=True).stdout
    assert json.loads(printed) == {**expected, "end": 0}
    for name, structure in STRUCTURES.items():
        body = HEADER.partition(f"}} {name};")[0].rpartition("typedef struct {")[2]
        assert re.findall(r"(\w+)\s*[,;]", body) == [member for member, *_ in structure._fields_], name


def test_every_function_is_declared_in_the_header():
    for name, (_, parameters) in _simulator._SIGNATURES.items():
        (declared,) = re.findall(rf"\b{name}\(([^)]*)\)", HEADER)
        assert len([part for part in declared.split(",") if part.strip() != "void"]) == len(parameters), name


@pytest.fixture
def settings():
    before = _simulator.get_settings()
    yield before
    _simulator.set_settings(before)


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"arithmetics": 1}, KeyError, "no simulator setting is called arithmetics"),
        ({"threads": -1}, ValueError, "the simulator's setting threads is -1, which is out of range"),
        ({"wave_order_seed": 1 << 64}, ValueError, "wave_order_seed"),
        ({"threads": 5000}, ValueError, "threads is 5000; allowed are 0 to 1024"),
        ({"arithmetic": 7}, ValueError, "arithmetic is 7; allowed are 0 to 2"),
        ({"threads": "two"}, TypeError, "int"),
    ],
)
def test_wrong_settings_change_nothing(settings, values, error, text):
    with pytest.raises(error, match=re.escape(text)):
        _simulator.set_settings({"poison": not settings["poison"], **values})
    assert _simulator.get_settings() == settings


def test_settings_hold_for_every_thread(settings):
    """Also for threads that were started before, such as those of autograd."""
    seen = []

    def launch():
        changed.wait()
        hipkittens.matmul(*[torch.ones(64, 64, dtype=torch.bfloat16)] * 2)
        of_thread = _simulator.Settings()
        _simulator._simulator().hipkittens_get_settings(ctypes.byref(of_thread))
        seen.append(of_thread.wave_order_seed)

    changed = threading.Event()
    thread = threading.Thread(target=launch)
    thread.start()
    _library.configure_simulator("gfx942", {**settings, "wave_order_seed": 77})
    changed.set()
    thread.join()
    assert seen == [77]


def test_disassembly_and_survey():
    code = bytes.fromhex("000081bf") + bytes.fromhex("ffffffff") * 2  # s_endpgm, then nothing
    assert _simulator.disassemble(942, code) == (4, "s_endpgm")
    assert _simulator.disassemble(942, code[4:]) == (0, None)
    assert _simulator.disassemble(900, code) == (0, None)
    found = _simulator.survey(942, code)
    assert found["s_endpgm"][1:] == (1, 1)
    assert found[".long"][1] == 2
    with pytest.raises(ValueError, match="neither 942 nor 950"):
        _simulator.survey(900, code)


@pytest.mark.parametrize(("target", "compute_units"), [("gfx942", 304), ("gfx950", 256)])
def test_partition_modes(target, compute_units):
    """The partition is visible as the device in every thread, and plans are made for it; after the context it is whole again."""
    device = ("gfx942", "gfx950").index(target)
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (256, 2048))
    exact = a.double() @ b.double().T

    def shown():
        value, found = ctypes.c_int(), []
        for attribute in (63, 10018):  # hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeNumberOfXccs
            assert _simulator._simulator().hipDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0
            found.append(value.value)
        return tuple(found)

    def chosen():
        assert torch.allclose(hipkittens.matmul(a, b.T).double(), exact, rtol=2**-8, atol=1e-3)
        return _library.last_kernel()

    kernels = {}
    for mode, parts in {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}.items():
        with hipkittens.simulate(target, partition=mode):
            assert shown() == (compute_units // parts, 8 // parts)
            kernels[mode] = chosen()
            with hipkittens.simulate(target):
                assert shown() == (compute_units, 8) and chosen() == kernels["SPX"]
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                assert thread.submit(shown).result() == shown()
                assert thread.submit(chosen).result() == kernels[mode]
        assert shown() == (compute_units, 8)
    assert "_128x128x64_" in kernels["CPX"] != kernels["SPX"]


def test_a_model_has_its_own_parts():
    with (
        hipkittens.simulate("gfx942", partition="QPX"),
        pytest.raises(ValueError, match=r'partition=\.\.\..*parameters=\{"xcds": 2\}'),
        hipkittens.timing("MI300X"),
    ):
        pass


def test_a_number_of_parts_that_there_is_not():
    with pytest.raises(ValueError, match="partitions are 3; allowed are 1, 2, 4 and 8"):
        _simulator.set_partitions(3)
    assert _simulator.partitions() == 1
