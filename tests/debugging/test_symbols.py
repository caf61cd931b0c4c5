# SPDX-License-Identifier: MIT
"""DWARF information about a kernel's instructions, compared with the compiler's listing."""

from __future__ import annotations

import re

import pytest
from debugged_kernels import KERNEL, line_of

from hipkittens._device_compiler import DeviceCompiler
from hipkittens.debugging.symbols import Register, Symbols
from hipkittens.kernel import include_directory

pytest.importorskip("elftools")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The code object and the compiler's listing, for each kind of debug information."""
    folder = tmp_path_factory.mktemp("symbols")
    (folder / "scale.cpp").write_text(KERNEL)
    found = {}
    for name, option in {
        "full": "-g",
        "lines": "-gline-tables-only",
        "dwarf4": "-gdwarf-4",
        "none": "-g0",
    }.items():
        output = folder / f"{name}.co"
        DeviceCompiler().compile("gfx942", folder / "scale.cpp", output, f"-I{include_directory()}", option)
        found[name] = Symbols(output.read_bytes(), "gfx942"), output.with_suffix(".s").read_text()
    return found


@pytest.mark.parametrize("kind", ["full", "lines", "dwarf4"])
def test_lines_are_those_of_the_listing(compiled, kind):
    symbols, listing = compiled[kind]
    # `.loc FILE LINE COLUMN ...` precedes the instructions of a line; line 0 is none.
    wanted, line = [], None
    files = dict(re.findall(r'\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"', listing))
    for text in listing[listing.index("scale:") : listing.index("s_endpgm")].splitlines():
        if location := re.match(r"\s+\.loc\s+(\d+)\s+(\d+)", text):
            line = (files[location[1]].split("/")[-1], int(location[2]))
        elif re.match(r"\s+[vsgdb][a-z0-9]*_\w+", text):
            wanted.append(line)
    begin, _ = symbols.functions["scale"]
    first = symbols.index_of(begin)
    found = [symbols.line_at(row.address) for row in symbols.instructions[first : first + len(wanted)]]
    assert [None if line is None or line[1] == 0 else line for line in wanted] == [
        None if line is None else (line.file.split("/")[-1], line.line) for line in found
    ]


@pytest.mark.parametrize("kind", ["full", "lines", "dwarf4"])
def test_an_inlined_call_is_a_frame_with_the_line_of_the_call(compiled, kind):
    symbols, _ = compiled[kind]
    line, addresses = symbols.addresses_of("scale.cpp", line_of("in the inlined call"))
    assert line == line_of("in the inlined call") and addresses
    frames = symbols.frames(addresses[0])
    assert [frame.function for frame in frames] == ["scaled", "scale"]
    assert [frame.line.line for frame in frames] == [line, line_of("in the loop")]


def test_a_line_without_code_means_the_next_one(compiled):
    symbols, _ = compiled["full"]
    assert symbols.addresses_of("scale.cpp", line_of("using namespace"))[0] > line_of("using namespace")
    assert symbols.addresses_of("scale.cpp", 1000) == (1000, [])
    assert symbols.addresses_of("another.cpp", line_of("the store"))[1] == []


def test_a_variable_is_where_the_code_uses_it(compiled):
    """The sum is in the register that the store of the last line stores."""
    symbols, _ = compiled["full"]
    store = next(row for row in symbols.instructions if row.text.startswith("global_store_dword"))
    stored = int(re.search(r", v(\d+), ", store.text)[1])
    variables = {variable.name: variable for variable in symbols.variables(store.address)}
    assert {"x", "out", "factor", "rounds", "item", "sum"} <= variables.keys()
    assert (variables["sum"].type, variables["x"].type) == ("float", "const float*")
    places = {symbols.instruction(row.address).address: next(v.place for v in symbols.variables(row.address) if v.name == "sum")
              for row in symbols.instructions if row.address <= store.address}  # fmt: skip
    assert (Register("v", stored),) in places.values()


def test_without_debug_information_there_are_instructions_and_functions(compiled):
    symbols, listing = compiled["none"]
    begin, size = symbols.functions["scale"]
    assert [frame.function for frame in symbols.frames(begin)] == ["scale"]
    assert symbols.line_at(begin) is None and symbols.variables(begin) == [] and symbols.files == []
    assert sum(begin <= row.address < begin + size for row in symbols.instructions) >= listing.count(
        "s_endpgm"
    )
