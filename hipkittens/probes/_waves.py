# SPDX-License-Identifier: MIT
"""Facts about where waves run, the initial contents of their registers, and the order in which their waits count down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._device import THREADS, Device
from ._fact import Fact

_WORKGROUPS, _WAVES = 256, THREADS["placement"] // 64


def _by_first_appearance(numbers: list[int]) -> list[int]:
    names: dict[int, int] = {}
    return [names.setdefault(number, len(names)) for number in numbers]


def _placement(device: Device) -> torch.Tensor:
    """[workgroup][wave][XCC_ID, HW_ID]"""
    found = device.launch("placement", None, _WORKGROUPS * _WAVES * 2, workgroups=_WORKGROUPS)
    return found.view(_WORKGROUPS, _WAVES, 2)


def _find_xcds(device: Device) -> dict[str, Any]:
    xcds = _placement(device)[..., 0]
    first = xcds[:, 0].tolist()
    order = _by_first_appearance(first)
    device.note("xcc_ids", first[: 2 * len(set(first))])
    device.note("xcds", len(set(first)))
    return {
        "workgroups_in_several": int((xcds != xcds[:, :1]).any(1).sum()),
        "workgroups_out_of_turn": sum(found != index % len(set(order)) for index, found in enumerate(order)),
    }


def _find_simds(device: Device) -> dict[str, Any]:
    simds = _placement(device)[..., 1] >> 4 & 3
    orders = [_by_first_appearance(row) for row in simds.tolist()]
    device.note("simds_of_workgroup_0", simds[0].tolist())
    return {"workgroups_out_of_turn": sum(order != [wave % 4 for wave in range(_WAVES)] for order in orders)}


_WORDS = [0x0123456789ABCDEF * (index + 1) % (1 << 64) for index in range(7)]


def _find_preloaded(device: Device) -> torch.Tensor:
    words = {f"words.{index}": word for index, word in enumerate(_WORDS)}
    return device.launch("preloaded", None, 2 * 7 * 2, **words).view(2, 7, 2)


def _expected_preloaded(target: str) -> torch.Tensor:
    halves = [[word & 0xFFFFFFFF, word >> 32] for word in _WORDS]
    return torch.tensor([halves, halves]).to(torch.int32)


# --- waits: the numbers of csrc/kernels/probe/kinds.h: WaitOrder ---
_ORDERS = {
    "loads": "of two loads the older has come when vmcnt is 1, however long it takes",
    "load_then_store": "a load has come when vmcnt is 1 and a store is behind it",
    "lds_reads": "of two LDS reads the older has come when lgkmcnt is 1, whatever conflicts it has",
    "direct_to_lds": "a load to LDS is in LDS when vmcnt is 1 and a load to a register is behind it",
}


def _find_missed(order: int) -> Callable[[Device], dict[str, Any]]:
    def find(device: Device) -> dict[str, Any]:
        # A GPU should be fully occupied; every step reads lines that no other step reads.
        workgroups, steps = (2, 3) if device.simulated else (16 * device.compute_units, 16)
        threads = workgroups * 64
        numbers = torch.arange(threads * (steps + 1), dtype=torch.int32, device=device.torch_device)
        found = device.launch(
            "wait_order", numbers, 2 * threads, workgroups=workgroups, which=order, steps=steps
        )
        device.note("waits", threads * steps)
        return {"missed": int(found[:threads].sum())}

    return find


def _none_missed(target: str) -> dict[str, Any]:
    return {"missed": 0}


FACTS = [
    Fact(
        "workgroups_go_round_the_xcds",
        "workgroup i is on XCD i mod as many as there are",
        ("csrc/kernels/workgroup_order.h", "csrc/simulator/timing/chip.cpp"),
        _find_xcds,
        lambda target: {"workgroups_in_several": 0, "workgroups_out_of_turn": 0},
    ),
    Fact(
        "waves_go_round_the_simds",
        "of a workgroup of eight waves, wave i shares a SIMD with wave i + 4 and no other",
        ("csrc/tiles/ping_pong.h", "csrc/simulator/timing/chip.cpp"),
        _find_simds,
        lambda target: {"workgroups_out_of_turn": 0},
    ),
    Fact(
        "preloaded_arguments",
        "the first arguments are in scalar registers when a wave starts, as the argument segment has them",
        ("csrc/kernels/preloaded_arguments.h", "tools/build_kernels.py"),
        _find_preloaded,
        _expected_preloaded,
    ),
    *(
        Fact(
            f"wait_{name}",
            statement,
            ("csrc/tiles/wait_counts.h", "csrc/simulator/memory/pending_queue.h"),
            _find_missed(number),
            _none_missed,
        )
        for number, (name, statement) in enumerate(_ORDERS.items())
    ),
]
