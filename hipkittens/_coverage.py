# SPDX-License-Identifier: MIT
"""Which instructions code objects use, and which of them the simulator can run: `hipkittens sim coverage`."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import pathlib
import sys
import zipfile
from collections.abc import Iterable, Iterator

from . import _disassembly, _simulator

# e_flags & EF_AMDGPU_MACH of ELF for AMDGPU (LLVM's AMDGPUUsage).
_MACHINES = {0x4C: "gfx942", 0x4F: "gfx950"}
_ELF = b"\x7fELF"
_SUFFIXES = (".co", ".hsaco", ".hipfb")


class CoverageError(Exception):
    """An input that is not a code object for a target of the simulator."""


@dataclasses.dataclass
class Mnemonic:
    row: str
    count: int = 0
    implemented: int = 0


@dataclasses.dataclass
class Coverage:
    """Instruction counts over code objects."""

    code_objects: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)  # of targets the simulator does not have
    mnemonics: dict[str, Mnemonic] = dataclasses.field(default_factory=dict)

    @property
    def instructions(self) -> int:
        return sum(entry.count for entry in self.mnemonics.values())

    @property
    def implemented(self) -> int:
        return sum(entry.implemented for entry in self.mnemonics.values())

    @property
    def missing(self) -> dict[str, int]:
        return {
            name: entry.count - entry.implemented
            for name, entry in sorted(self.mnemonics.items())
            if entry.implemented < entry.count
        }

    def add(self, name: str, image: bytes) -> None:
        """Counts the instructions in the executable sections of one code object."""
        target = target_of(name, image)
        if target is None:
            self.skipped.append(name)
            return
        self.code_objects += 1
        for _, code in _disassembly.code(image):
            for mnemonic, (row, count, implemented) in _simulator.survey(int(target[3:]), code).items():
                entry = self.mnemonics.setdefault(mnemonic, Mnemonic(row))
                entry.count += count
                entry.implemented += implemented


def target_of(name: str, image: bytes) -> str | None:
    if image[:4] != _ELF or len(image) < 64:
        raise CoverageError(f"{name}: not an ELF code object")
    if int.from_bytes(image[18:20], "little") != 224:  # EM_AMDGPU
        raise CoverageError(f"{name}: an ELF file, but not for an AMD GPU")
    return _MACHINES.get(int.from_bytes(image[48:52], "little") & 0xFF)


def code_objects(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """The code objects in a file, folder, wheel or other zip. In the latter three, only files with a suffix in _SUFFIXES are read."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in _SUFFIXES:
                yield from _in_file(str(file), file.read_bytes())
        return
    data = path.read_bytes()
    if data[:4] != _ELF and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(_SUFFIXES):
                    yield from _in_file(f"{path}:{name}", archive.read(name))
    else:
        yield from _in_file(str(path), data)


def _in_file(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """The file itself, or the code objects of a bundle."""
    if data[:4] == _ELF:
        yield name, data
        return
    try:
        bundled = _simulator.bundled_code_objects(data)
    except ValueError as error:
        raise CoverageError(
            f"{name}: neither a code object, nor a folder or zip file of them, nor an offload bundle ({error})"
        ) from None
    for entry, image in bundled.items():
        yield f"{name}:{entry}", image


def measure(paths: Iterable[pathlib.Path]) -> Coverage:
    coverage = Coverage()
    for path in paths:
        try:
            for name, image in code_objects(path):
                coverage.add(name, image)
        except OSError as error:
            raise CoverageError(f"{path}: {error.strerror}") from None
    if not coverage.code_objects:
        raise CoverageError("no code object for gfx942 or gfx950 there")
    return coverage


@functools.cache
def _evidence() -> dict[str, dict[str, str]]:
    return json.loads(pathlib.Path(__file__).with_name("_isa_evidence.json").read_text())


def evidence_of(row: str) -> list[str]:
    """The evidence that the simulator executes a row correctly; "manual only" if nothing but its encoding was checked."""
    data = _evidence()
    found = [data["kinds"][letter] for letter in data["rows"].get(row, "")]
    return [*found, "manual only"] if len(found) == 1 else found


def as_json(coverage: Coverage) -> dict[str, object]:
    return {
        "instructions": coverage.instructions,
        "implemented": coverage.implemented,
        "missing": coverage.missing,
        "code_objects": coverage.code_objects,
        "skipped": coverage.skipped,
        "mnemonics": {
            name: {
                "count": entry.count,
                "implemented": entry.implemented,
                "evidence": evidence_of(entry.row),
            }
            for name, entry in sorted(coverage.mnemonics.items())
        },
    }


def main(files: Iterable[str], as_json_text: bool) -> int:
    """Prints the coverage of `files`; returns 1 if an instruction is missing, 2 if there is nothing to examine."""
    try:
        coverage = measure([pathlib.Path(file) for file in files])
    except CoverageError as error:
        print(f"hipkittens sim coverage: {error}", file=sys.stderr)
        return 2
    if as_json_text:
        json.dump(as_json(coverage), sys.stdout, indent=2)
        print()
        return int(bool(coverage.missing))
    for name, entry in sorted(coverage.mnemonics.items(), key=lambda item: (-item[1].count, item[0])):
        missing = entry.count - entry.implemented
        letters = _evidence()["rows"].get(entry.row, "")
        print(
            f"{entry.count:>10}  {letters:<4} {name}" + (f"  ({missing} not implemented)" if missing else "")
        )
    print("; ".join(f"{letter} {meaning}" for letter, meaning in _evidence()["kinds"].items()))
    share = 100 * coverage.implemented / coverage.instructions
    print(
        f"{coverage.code_objects} code objects, {len(coverage.mnemonics)} mnemonics, {coverage.instructions} "
        f"instructions, {coverage.implemented} implemented ({share:.4g} %)"
    )
    for name in coverage.skipped:
        print(f"skipped: {name} is for another GPU")
    return int(bool(coverage.missing))
