"""The decoder under test, through the one function that the simulator's library exports for it."""

from __future__ import annotations

import ctypes
import functools

from tests.simulated_device import library_path


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


def disassemble(data: bytes, target: str) -> tuple[int, str]:
    """Size and text of the instruction at the start of `data`; (0, "") if there is none."""
    text = ctypes.create_string_buffer(512)
    taken, room = ctypes.c_size_t(len(data)), ctypes.c_size_t(len(text))
    size = library().hipkittens_disassemble(int(target[3:]), data, taken, text, room)
    return size, text.value.decode() if size else ""
