# SPDX-License-Identifier: MIT
"""Devices and sizes of the tables of docs/performance.md."""

from __future__ import annotations

DEVICES = ("MI300X", "MI325X", "MI350X", "MI355X")
MEMORY_BOUND_SIZES = {
    "MI300X": (1024, 2048, 4096),
    "MI325X": (1024, 4096),
    "MI350X": (1024, 4096),
    "MI355X": (1024, 2048, 4096, 8192),
}
# Numbers of tokens that are decoded together, and of a prompt.
TOKEN_SIZES = {"MI325X": (64, 8192), "MI355X": (64, 8192)}
DECODED_SIZES = {"MI325X": (1, 64), "MI355X": (1, 64)}
PROMPT_SIZES = {"MI325X": (1024, 4096), "MI355X": (1024, 4096)}


# Numbers of sequences that are decoded together.
def of_batches(*sizes: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("MI300X", "MI355X"), sizes)


TOKEN_PEERS = {"triton": {"MI325X": 8192, "MI355X": 8192}}
MEMORY_BOUND_PEERS = {"triton": {"MI300X": 4096, "MI355X": 8192}}
# For delta rules and their convolutions, whose published figures and targets are for these two devices.
DELTA_DEVICES = ("MI300X", "MI355X")


def at_delta_sizes(*sizes: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(DELTA_DEVICES, sizes)


DELTA_PEERS = {"triton": dict.fromkeys(DELTA_DEVICES, 1 << 24)}
