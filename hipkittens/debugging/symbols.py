# SPDX-License-Identifier: MIT
"""What a code object's DWARF contains on its instructions: source lines, inlined calls, variables.

References: DWARF 5, sections 2.5 (expressions), 2.6 (location lists), 3.3.8 (inlined calls), 6.2 (lines); LLVM, "User Guide for AMDGPU
Backend", DWARF register numbers. Parsed by pyelftools.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import io
import posixpath
from collections.abc import Iterator

from .. import _disassembly

# DWARF registers of wave64: SGPRs 0 to 63 and 64 to 105, then VGPRs and AGPRs.
_SGPRS, _MORE_SGPRS, _VGPRS, _AGPRS = range(32, 96), range(1088, 1130), range(2560, 2816), range(3072, 3328)


@dataclasses.dataclass(frozen=True)
class SourceLine:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True)
class Frame:
    """A function that an instruction belongs to. `call` distinguishes two inlined calls of it; `line` is the current line in it."""

    function: str
    call: int
    line: SourceLine | None


@dataclasses.dataclass(frozen=True)
class Register:
    """A register that holds a variable. `kind` is "s", "v" or "a"."""

    kind: str
    number: int


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable in the scope of an instruction. `place` is None if DWARF gives no location for it."""

    name: str
    type: str
    bytes: int
    place: tuple[Register, ...] | int | None  # an int is the value itself
    function: str


@dataclasses.dataclass(frozen=True)
class Instruction:
    address: int
    bytes: bytes
    text: str

    @property
    def end(self) -> int:
        return self.address + len(self.bytes)


def _elffile():
    try:
        from elftools.elf import elffile
    except ImportError:
        raise ValueError(
            "hipkittens sim debug needs pyelftools, which reads DWARF; pip install 'hipkittens[debug]'"
        ) from None
    return elffile


class Symbols:
    """The symbols of one code object. Addresses are the file's, as in DWARF. ValueError if pyelftools is not installed."""

    def __init__(self, code_object: bytes, target: str) -> None:
        self._target = target
        self._image = code_object
        elf = _elffile().ELFFile(io.BytesIO(code_object))
        self._dwarf = elf.get_dwarf_info() if elf.has_dwarf_info() else None
        self.functions = {
            symbol.name: (symbol["st_value"], symbol["st_size"])
            for section in elf.iter_sections("SHT_SYMTAB")
            for symbol in section.iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC"
        }

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        return [
            Instruction(address, code, text)
            for begin, section in _disassembly.code(self._image)
            for address, code, text in _disassembly.disassembled(self._target, begin, section)
        ]

    @functools.cached_property
    def addresses(self) -> list[int]:
        return [instruction.address for instruction in self.instructions]

    def index_of(self, address: int) -> int:
        """The index of the instruction that contains this address."""
        return max(bisect.bisect_right(self.addresses, address) - 1, 0)

    def instruction(self, address: int) -> Instruction:
        return self.instructions[self.index_of(address)]

    # Lines.

    @functools.cached_property
    def _rows(self) -> list[tuple[int, SourceLine | None, bool]]:
        """(address, line, whether a statement begins), by address; None ends a sequence."""
        rows = []
        for unit in self._units():
            program = self._dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            for entry in program.get_entries():
                state = entry.state
                if state is None:
                    continue
                line = (
                    None if state.end_sequence or not state.line else self._line(unit, state.file, state.line)
                )
                rows.append((state.address, line, bool(state.is_stmt)))
        rows.sort(key=lambda row: row[0])
        return rows

    @functools.cached_property
    def _row_addresses(self) -> list[int]:
        return [row[0] for row in self._rows]

    def line_at(self, address: int) -> SourceLine | None:
        index = bisect.bisect_right(self._row_addresses, address) - 1
        return self._rows[index][1] if index >= 0 else None

    @functools.cached_property
    def files(self) -> list[str]:
        return sorted({line.file for _, line, _ in self._rows if line})

    def addresses_of(self, file: str, line: int) -> tuple[int, list[int]]:
        """The line to which a breakpoint at `file`:`line` applies, and where its code begins.

        `file` is a whole path or its end. The line is that line, or the first one after it that has code; (line, []) if there is none.
        """
        by_line: dict[int, list[tuple[int, bool]]] = {}
        before = None
        for address, place, begins in self._rows:
            if place and place != before and place.line >= line and _is_file(place.file, file):
                by_line.setdefault(place.line, []).append((address, begins))
            before = place
        found = min(by_line, default=line)
        rows = by_line.get(found, [])
        # What the optimiser has moved away from its line is no beginning of a statement, but may be all that is left of it.
        beginnings = {address for address, begins in rows if begins}
        return found, sorted(beginnings or {address for address, _ in rows})

    # Inlined calls and variables.

    def _units(self) -> Iterator:
        return self._dwarf.iter_CUs() if self._dwarf else iter(())

    @functools.cache  # noqa: B019  one object for each code object, kept while it is debugged
    def _file(self, unit, index: int) -> str:
        header = self._dwarf.line_program_for_CU(unit).header
        first = 0 if header["version"] >= 5 else 1
        if not 0 <= index - first < len(header["file_entry"]):
            return "?"
        entry = header["file_entry"][index - first]
        folders = header["include_directory"]
        name, folder_index = entry.name.decode(errors="replace"), entry["dir_index"]
        folder = b""
        if header["version"] >= 5:
            folder = folders[folder_index] if folder_index < len(folders) else b""
        elif 0 < folder_index <= len(folders):
            folder = folders[folder_index - 1]
        if not folder.startswith(b"/") and not name.startswith("/"):
            top = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
            folder = posixpath.join(top.value, folder) if top else folder
        return posixpath.normpath(posixpath.join(folder.decode(errors="replace"), name))

    def _line(self, unit, file: int, line: int) -> SourceLine:
        return SourceLine(self._file(unit, file), line)

    @functools.cached_property
    def _scopes(self) -> list[tuple[list[tuple[int, int]], object]]:
        """(ranges, DIE) of functions and inlined calls, outer ones before inner ones."""
        found = []
        for unit in self._units():
            for die in unit.iter_DIEs():
                if die.tag in ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine"):
                    ranges = self._ranges(die)
                    if ranges:
                        found.append((ranges, die))
        return found

    def _ranges(self, die) -> list[tuple[int, int]]:
        attributes = die.attributes
        if "DW_AT_ranges" in attributes:
            lists = self._dwarf.range_lists()
            value = attributes["DW_AT_ranges"].value
            base = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
            base = base.value if base else 0
            found = []
            for entry in lists.get_range_list_at_offset(value, cu=die.cu):
                if hasattr(entry, "base_address"):
                    base = entry.base_address
                else:
                    offset = 0 if getattr(entry, "is_absolute", False) else base
                    found.append((entry.begin_offset + offset, entry.end_offset + offset))
            return found
        if "DW_AT_low_pc" not in attributes or "DW_AT_high_pc" not in attributes:
            return []
        low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        return [(low, high.value if high.form == "DW_FORM_addr" else low + high.value)]

    @functools.cached_property
    def _chains(self) -> list[list]:
        """For each instruction, the DIEs of the functions around it, the kernel first."""
        chains: list[list] = [[] for _ in self.instructions]
        for ranges, die in self._scopes:
            for begin, end in ranges:
                for index in range(
                    bisect.bisect_left(self.addresses, begin), bisect.bisect_left(self.addresses, end)
                ):
                    chains[index].append(die)
        return chains

    def frames(self, address: int) -> list[Frame]:
        """The functions around an instruction, the innermost first. One without a line if there is no DWARF."""
        chain = self._chains[self.index_of(address)]
        line = self.line_at(address)
        if not chain:
            names = [
                name for name, (begin, size) in self.functions.items() if begin <= address < begin + size
            ]
            return [Frame(names[0] if names else "?", 0, line)]
        frames = []
        for die in reversed(chain):
            frames.append(Frame(_name(die), die.offset, line))
            if "DW_AT_call_line" in die.attributes:
                call = die.attributes
                line = self._line(die.cu, call["DW_AT_call_file"].value, call["DW_AT_call_line"].value)
        return frames

    def variables(self, address: int) -> list[Variable]:
        """The variables in scope, those of the innermost function first."""
        found = []
        for die in reversed(self._chains[self.index_of(address)]):
            found += [self._variable(child, address, _name(die)) for child in self._in_scope(die, address)]
        return [variable for variable in found if variable.name]

    def _in_scope(self, die, address: int) -> Iterator:
        for child in die.iter_children():
            if child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                yield child
            elif child.tag == "DW_TAG_lexical_block" and any(
                begin <= address < end for begin, end in self._ranges(child)
            ):
                yield from self._in_scope(child, address)

    def _variable(self, die, address: int, function: str) -> Variable:
        origin = _origin(die)
        kind = origin.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in origin.attributes else None
        text, size = _type(kind)
        return Variable(_name(die), text, size, self._place(die, address), function)

    def _place(self, die, address: int) -> tuple[Register, ...] | int | None:
        from elftools.dwarf.dwarf_expr import DWARFExprParser
        from elftools.dwarf.locationlists import LocationExpr, LocationParser

        if "DW_AT_const_value" in die.attributes:
            value = die.attributes["DW_AT_const_value"].value
            return value if isinstance(value, int) else None
        if "DW_AT_location" not in die.attributes:
            return None
        parser = LocationParser(self._dwarf.location_lists())
        version = die.cu["version"]
        location = parser.parse_from_attribute(die.attributes["DW_AT_location"], version, die)
        if isinstance(location, LocationExpr):
            expressions = [location.loc_expr]
        else:
            base = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
            base = base.value if base else 0
            expressions = []
            for entry in location:
                if hasattr(entry, "base_address"):
                    base = entry.base_address
                    continue
                offset = 0 if getattr(entry, "is_absolute", False) else base
                if entry.begin_offset + offset <= address < entry.end_offset + offset:
                    expressions.append(entry.loc_expr)
        if not expressions:
            return None
        return _place_of(DWARFExprParser(die.cu.structs).parse_expr(expressions[0]))


def _is_file(path: str, asked: str) -> bool:
    asked = posixpath.normpath(asked)
    return path == asked or path.endswith("/" + asked) or asked.endswith("/" + path)


def _origin(die):
    while True:
        for attribute in ("DW_AT_abstract_origin", "DW_AT_specification"):
            if attribute in die.attributes:
                die = die.get_DIE_from_attribute(attribute)
                break
        else:
            return die


def _name(die) -> str:
    name = _origin(die).attributes.get("DW_AT_name")
    return name.value.decode(errors="replace") if name else ""


def _type(die) -> tuple[str, int]:
    """Its name, as C++ writes it if that is simple, and its size in bytes (0: unknown)."""
    if die is None:
        return "void", 0
    attributes = die.attributes
    name = attributes["DW_AT_name"].value.decode(errors="replace") if "DW_AT_name" in attributes else ""
    size = attributes["DW_AT_byte_size"].value if "DW_AT_byte_size" in attributes else 0
    of = die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in attributes else None
    if die.tag == "DW_TAG_pointer_type":
        return f"{_type(of)[0]}*", size or 8
    if die.tag == "DW_TAG_const_type":
        text, size = _type(of)
        return f"const {text}", size
    if die.tag == "DW_TAG_array_type":
        text, size = _type(of)
        counts = [
            child.attributes["DW_AT_count"].value
            for child in die.iter_children()
            if "DW_AT_count" in child.attributes
        ]
        for count in counts:
            text, size = f"{text}[{count}]", size * count
        return text, size
    if of is not None and not size:
        inner, size = _type(of)
        return name or inner, size
    return name or "?", size


# Clang ends the place of every variable of a kernel so, as if it were in private memory (address space 1), and keeps that when the
# optimiser has moved it to a register: what the register holds is then the variable.
_PRIVATE = ["DW_OP_lit1", "DW_OP_swap", "DW_OP_xderef"]


def _place_of(operations) -> tuple[Register, ...] | int | None:
    """Only for expressions that name registers, whole or piece by piece, or give a value."""
    names = [operation.op_name for operation in operations]
    if names[-1:] == ["DW_OP_stack_value"]:
        operations, names = operations[:-1], names[:-1]
    is_private = names[-3:] == _PRIVATE
    registers, value = [], None
    for operation in operations[:-3] if is_private else operations:
        name = operation.op_name
        if name == "DW_OP_piece":
            continue
        if name == "DW_OP_regx" or (is_private and name == "DW_OP_bregx" and operation.args[1] == 0):
            registers.append(_register(operation.args[0]))
        elif name.startswith("DW_OP_reg"):
            registers.append(_register(operation.op - 0x50))
        elif name.startswith("DW_OP_lit"):
            value = operation.op - 0x30
        elif name.startswith("DW_OP_const"):
            value = operation.args[0]
        else:
            return None
    if None in registers:
        return None
    return tuple(registers) if registers else value


def _register(number: int) -> Register | None:
    for kind, numbers, first in (
        ("s", _SGPRS, 0),
        ("s", _MORE_SGPRS, 64),
        ("v", _VGPRS, 0),
        ("a", _AGPRS, 0),
    ):
        if number in numbers:
            return Register(kind, number - numbers.start + first)
    return None
