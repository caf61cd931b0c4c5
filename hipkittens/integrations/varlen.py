# SPDX-License-Identifier: MIT
"""Sends torch.nn.attention.varlen.varlen_attn of unmodified programs to hipkittens.attention_varlen.

    from hipkittens.integrations import varlen

    with varlen.active():                # or varlen.activate() ... varlen.restore()
        loss = model(tokens, cu_seqlens) # TorchTitan's variable-length attention calls varlen_attn

PyTorch has no varlen_attn for CPU tensors; ours runs in the simulator. While active, torch_attn::_varlen_attn has a kernel of
ours for CPU tensors and, on a ROCm build of PyTorch, for GPU tensors, under torch.compile too. What no kernel has is refused
by name with NotImplementedError: a paged cache (block_table, seqused_k) and num_splits. varlen_attn_out stays PyTorch's.

PyTorch 2.10 and later. The state belongs to the process, not to a thread; see `sdpa`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.attention.varlen  # defines the operator

from ..attention import attention_varlen
from ._operator_switch import OperatorSwitch

WHERE = "hipkittens.integrations.varlen"
_operator = torch.ops.torch_attn._varlen_attn.default


def activate() -> None:
    """From now on varlen_attn of this process runs on hipkittens. Repeated calls do nothing more."""
    _switch.activate()


def restore() -> None:
    """PyTorch's own varlen_attn again, at once or, inside `active`, when that ends."""
    _switch.restore()


def active() -> contextlib.AbstractContextManager[None]:
    """activate() while open. Nests."""
    return _switch.active()


def is_active() -> bool:
    return _switch.is_active()


def _varlen_attn(*values: Any, **named: Any):
    # Versions of PyTorch differ in the operator's last arguments.
    arguments = {argument.name: argument.default_value for argument in _operator._schema.arguments}
    arguments.update(zip(arguments, values, strict=False), **named)
    for name in ("block_table", "seqused_k"):
        if arguments.get(name) is not None:
            raise NotImplementedError(
                f"{WHERE}: {name} is given; no kernel reads a paged or partly filled cache. Pack the keys, or restore() "
                "PyTorch's own varlen_attn"
            )
    if arguments.get("num_splits") is not None:
        raise NotImplementedError(
            f"{WHERE}: num_splits is {arguments['num_splits']}; the kernels choose it, pass None"
        )
    query, key, value, cu_seq_q, cu_seq_k = (
        arguments[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k")
    )
    if cu_seq_k is None:
        raise NotImplementedError(
            f"{WHERE}: cu_seq_k is None, which means a paged cache; no kernel reads one"
        )
    out, lse = attention_varlen(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        arguments["max_q"],
        arguments["max_k"],
        causal=arguments["is_causal"],
        scale=arguments.get("scale"),
        window_size=tuple(arguments.get("window_size") or (-1, -1)),
        return_lse=True,
    )
    # PyTorch's backward takes the state of a dropout that there is none of.
    return out, lse, torch.zeros(2, dtype=torch.uint64, device=query.device)


_switch = OperatorSwitch(_operator, _varlen_attn)
