# SPDX-License-Identifier: MIT
"""Single small mistakes in the code of a kernel: the list of possible ones, and the bytes that make them.

Encodings: CDNA3 ISA manual, chapter 12 (microcode formats). No mutation changes the length of the code. A deleted wait or barrier
becomes `s_nop 0`. A deleted `s_nop` is exchanged with the following instruction, for which the compiler has inserted it: that
instruction is then issued as many wait states earlier.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hipkittens import _disassembly, _simulator

KINDS = ("wait", "barrier", "nop", "swap", "swizzle", "offset")
_S_NOP_0 = struct.pack("<I", 0xBF800000)
COUNTER_LIMITS = {"vmcnt": 63, "lgkmcnt": 15}
_CONSTANT_USERS = ("v_xor_b32", "v_and_b32", "v_or_b32", "v_lshlrev_b32", "v_lshrrev_b32", "v_lshl_or_b32",
                   "v_and_or_b32", "v_lshl_add_u32", "v_add_lshl_u32", "v_xad_u32", "v_bfe_u32", "v_bitop3_b32")  # fmt: skip
_ELEMENT_BYTES = {"byte": 1, "ubyte": 1, "sbyte": 1, "b8": 1, "u8": 1, "i8": 1, "short": 2, "ushort": 2, "sshort": 2,
                  "b16": 2, "u16": 2, "i16": 2}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One instruction: address from the start of the text, bytes, LLVM's text."""

    address: int
    code: bytes
    text: str

    @property
    def mnemonic(self) -> str:
        return self.text.split(maxsplit=1)[0]

    @property
    def operands(self) -> list[str]:
        return [operand.strip() for operand in self.text[len(self.mnemonic) :].split(",")]

    @property
    def is_memory(self) -> bool:
        return (
            self.mnemonic.startswith(("ds_", "buffer_", "global_", "flat_")) and "wbl2" not in self.mnemonic
        )

    @property
    def is_branch(self) -> bool:
        return self.mnemonic.startswith(
            ("s_branch", "s_cbranch", "s_endpgm", "s_setpc", "s_getpc", "s_swappc")
        )

    @property
    def target(self) -> int | None:
        """The target address of a direct branch."""
        if not self.mnemonic.startswith(("s_branch", "s_cbranch")):
            return None
        return self.address + 4 + 4 * struct.unpack_from("<h", self.code)[0]


@dataclass(frozen=True)
class Mutant:
    """`code` in place of the bytes at `address`. `counter` and `count`: the counter that a wait still waits for, and its count."""

    kind: str
    what: str
    address: int
    text: str
    code: bytes
    relaxed: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.what} at text+{self.address:#x}: {self.text}"


def listing(target: str, image: bytes) -> list[Line]:
    ((_, text),) = _disassembly.code(image)
    number, lines, address = int(target[3:]), [], 0
    while address < len(text):
        size, line = _simulator.disassemble(number, text[address : address + 16])
        size = size or 4
        lines.append(Line(address, text[address : address + size], line or ".long"))
        address += size
    return lines


def mutated(image: bytes, mutant: Mutant) -> bytes:
    ((_, text),) = _disassembly.code(image)
    begin = image.index(text) + mutant.address
    return image[:begin] + mutant.code + image[begin + len(mutant.code) :]


def counts(line: Line) -> dict[str, int]:
    """The counters an s_waitcnt waits for, each with the count it waits for."""
    return {name: int(count) for name, count in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", line.text)}


def _wait_code(waits: dict[str, int]) -> bytes:
    vm, lgkm = (waits.get(name, full) for name, full in COUNTER_LIMITS.items())
    return struct.pack("<I", 0xBF8C0000 | (vm & 15) | 7 << 4 | lgkm << 8 | (vm >> 4) << 14)


class Mutations:
    """The mutants of a kernel among the instructions that a run executes."""

    def __init__(self, target: str, image: bytes, executed: Sequence[int]):
        self.number = int(target[3:])
        self.lines = listing(target, image)
        self.executed = frozenset(executed)
        self.targets = frozenset(line.target for line in self.lines)

    def of(self, kinds: Sequence[str] = KINDS) -> Iterator[Mutant]:
        for kind in kinds:
            for mutant in getattr(self, f"_{kind}")():
                self._check(mutant)
                yield mutant

    def _check(self, mutant: Mutant) -> None:
        """Checks that every byte of a mutant belongs to an instruction."""
        at = 0
        while at < len(mutant.code):
            size, text = _simulator.disassemble(self.number, mutant.code[at:] + bytes(16))
            assert size and at + size <= len(mutant.code), (mutant, mutant.code.hex(), text)
            at += size

    def _text(self, code: bytes) -> str:
        return _simulator.disassemble(self.number, code + bytes(8))[1]

    def _run(self, mnemonic: str) -> Iterator[tuple[int, Line]]:
        for index, line in enumerate(self.lines):
            if line.address in self.executed and line.mnemonic == mnemonic:
                yield index, line

    def _wait(self) -> Iterator[Mutant]:
        for _, line in self._run("s_waitcnt"):
            waits = counts(line)
            if not waits:
                continue
            yield Mutant("wait", "deleted", line.address, line.text, _S_NOP_0, tuple(waits.items()))
            for name, count in waits.items():
                code = _wait_code(waits | {name: count + 1})
                what = f"weakened to {self._text(code).split(maxsplit=1)[-1]}"
                yield Mutant("wait", what, line.address, line.text, code, ((name, count),))

    def _barrier(self) -> Iterator[Mutant]:
        for _, line in self._run("s_barrier"):
            yield Mutant("barrier", "deleted", line.address, line.text, _S_NOP_0)

    def _nop(self) -> Iterator[Mutant]:
        for index, line in self._run("s_nop"):
            behind = self.lines[index + 1]
            if behind.is_branch or behind.address in self.targets or behind.mnemonic == "s_nop":
                continue
            text = f"{line.text} before {behind.text}"
            yield Mutant("nop", "deleted", line.address, text, behind.code + line.code)

    def _swap(self) -> Iterator[Mutant]:
        """Swaps the memory instructions nearest to a barrier, with no branch between them."""
        seen = set()
        for index, _ in self._run("s_barrier"):
            before, after = self._nearest_memory(index, -1), self._nearest_memory(index, 1)
            if before is None or after is None:
                continue
            first, *between, last = self.lines[before : after + 1]
            if (
                first.code != last.code and first.address not in seen
            ):  # two barriers may have the same neighbours
                seen.add(first.address)
                code = last.code + b"".join(line.code for line in between) + first.code
                yield Mutant("swap", "swapped", first.address, f"{first.text} | {last.text}", code)

    def _nearest_memory(self, index: int, step: int) -> int | None:
        while True:
            if step > 0 and self.lines[index + 1].address in self.targets:
                return None
            if step < 0 and self.lines[index].address in self.targets:
                return None
            index += step
            if index < 0 or self.lines[index].is_branch:
                return None
            if self.lines[index].is_memory:
                return index

    def _offset(self) -> Iterator[Mutant]:
        """Not for scalar loads: they fetch arguments, many of which are equal in a problem of one size."""
        for line in self.lines:
            if line.address not in self.executed:
                continue
            if not line.is_memory or "permute" in line.mnemonic or "swizzle" in line.mnemonic:
                continue
            low, high = struct.unpack("<II", line.code)
            if line.mnemonic.startswith("ds_"):
                pair = any(name in line.mnemonic for name in ("read2", "write2"))
                element, mask = (1, 0xFF) if pair else (self._element(line), 0xFFFF)
            else:
                element, mask = self._element(line), 0xFFF if line.mnemonic[0] == "b" else 0x1FFF
            offset = low & mask
            # Upwards, unless that overflows into the sign bit or the next field.
            limit = 0xFFF if mask == 0x1FFF and offset <= 0xFFF else mask
            shifted = offset + element if offset + element <= limit else offset - element
            code = struct.pack("<II", low & ~mask | shifted & mask, high)
            yield Mutant("offset", f"shifted to {self._text(code)}", line.address, line.text, code)

    @staticmethod
    def _element(line: Line) -> int:
        """Bytes of one element of the access; two for a wide access, whose data may be bf16 or f16."""
        for word in line.mnemonic.split("_"):
            if word in _ELEMENT_BYTES:
                return _ELEMENT_BYTES[word]
        return 4 if line.mnemonic.endswith(("_dword", "_b32")) else 2

    def _swizzle(self) -> Iterator[Mutant]:
        for line in sorted(self._address_computation(), key=lambda line: line.address):
            if not line.mnemonic.startswith(_CONSTANT_USERS) or _rounds_ties(line) or self._quiets_nan(line):
                continue
            for where, code in _flipped(line):
                text = self._text(code)
                if text and text.split(maxsplit=1)[0] == line.mnemonic and text != line.text:
                    yield Mutant("swizzle", f"{where} flipped: {text}", line.address, line.text, code)

    def _quiets_nan(self, line: Line) -> bool:
        """Whether this sets the bit that quiets a NaN, in a register that is compared with itself nearby. Addresses are not computed so."""
        if line.mnemonic not in ("v_or_b32_e32", "v_or_b32") or line.operands[1] != "0x400000":
            return False
        index = next(i for i, each in enumerate(self.lines) if each.address == line.address)
        value = line.operands[2]
        return any(
            each.mnemonic.startswith("v_cmp_u_f32") and each.operands[1:] == [value, value]
            for each in self.lines[max(0, index - 16) : index + 17]
        )

    def _address_computation(self) -> set[Line]:
        """Executed vector instructions that compute an address of an executed memory instruction, found by going
        back from it in the order of the text."""
        found: set[Line] = set()
        for index, line in enumerate(self.lines):
            if not line.is_memory or line.address not in self.executed:
                continue
            wanted = _address_registers(line)
            for earlier in reversed(self.lines[:index]):
                if not wanted:
                    break
                if not earlier.mnemonic.startswith("v_") or earlier.address not in self.executed:
                    continue
                written = _registers(earlier.operands[0])
                if written & wanted:
                    found.add(earlier)
                    wanted -= written
                    for operand in earlier.operands[1:]:
                        wanted |= _registers(operand)
        return found


def _rounds_ties(line: Line) -> bool:
    """Whether this extracts the bit that rounds ties to bf16. Going back through reused registers reaches some of these."""
    return line.mnemonic == "v_bfe_u32" and line.operands[2:] == ["16", "1"]


def _registers(operand: str) -> set[str]:
    wide = re.fullmatch(r"v\[(\d+):(\d+)\]", operand.split(" ")[0])
    if wide:
        return {f"v{number}" for number in range(int(wide[1]), int(wide[2]) + 1)}
    return {operand.split(" ")[0]} if re.match(r"v\d+\b", operand) else set()


def _address_registers(line: Line) -> set[str]:
    operands = line.operands
    if line.mnemonic.startswith("ds_"):
        place = 1 if line.mnemonic.startswith(("ds_read", "ds_bpermute", "ds_permute")) else 0
    elif line.mnemonic.startswith(("global_store", "global_atomic", "flat_store")) or operands[-1].endswith(
        " lds"
    ):
        place = 0
    else:
        place = 1
    return _registers(operands[place]) if place < len(operands) else set()


def _flipped(line: Line) -> Iterator[tuple[str, bytes]]:
    """The instruction with the lowest set bit of one of its constants flipped."""
    words = list(struct.unpack(f"<{len(line.code) // 4}I", line.code))
    is_vop3 = words[0] >> 26 in (0x34, 0x33)
    fields = [(1, 0), (1, 9), (1, 18)] if is_vop3 else [(0, 0)]
    sources = len(line.operands) - 1
    for word, shift in fields[:sources]:
        code = words[word] >> shift & 0x1FF
        if 129 <= code <= 192:
            value = code - 128
            changed = list(words)
            changed[word] ^= (code ^ (128 + (value & (value - 1)))) << shift
            yield (
                f"bit {(value & -value).bit_length() - 1} of {value}",
                struct.pack(f"<{len(words)}I", *changed),
            )
        elif code == 255 and words[-1]:
            value = words[-1]
            yield (
                f"bit {(value & -value).bit_length() - 1} of {value:#x}",
                struct.pack(f"<{len(words)}I", *words[:-1], value & (value - 1)),
            )
