# SPDX-License-Identifier: MIT
"""Redirects torch.nn.attention.varlen.varlen_attn of unmodified programs to hipkittens.attention_varlen and attention_paged.

    from hipkittens.integrations import varlen

    with varlen.active():                # or varlen.activate() ... varlen.restore()
        loss = model(tokens, cu_seqlens) # TorchTitan's variable-length attention calls varlen_attn

PyTorch has no varlen_attn for CPU tensors; ours runs in the simulator. While active, torch_attn::_varlen_attn has a kernel of ours for CPU
tensors and, on a ROCm build of PyTorch, for GPU tensors, under torch.compile too. A paged cache (block_table), or one that is partly
filled (seqused_k), uses `attention_paged`, for heads of 64, 128 and 256. num_splits=1, PyTorch's batch invariance, corresponds to
`hipkittens.batch_invariant`; any other number with packed sequences is refused with NotImplementedError. varlen_attn_out remains PyTorch's.

Requires PyTorch 2.10 or later. The state belongs to the process, not to a thread; see `sdpa`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.attention.varlen  # defines the operator

from ..attention import attention_varlen
from ..batch_invariance import batch_invariant
from ..paged_attention import attention_paged
from ._operator_switch import OperatorSwitch

WHERE = "hipkittens.integrations.varlen"
_operator = torch.ops.torch_attn._varlen_attn.default


def activate() -> None:
    """From now on varlen_attn of this process uses hipkittens. Repeated calls have no effect."""
    _switch.activate()


def restore() -> None:
    """Restores PyTorch's own varlen_attn, at once or, inside `active`, when that ends."""
    _switch.restore()


def active() -> contextlib.AbstractContextManager[None]:
    """Context manager for activate(); may be nested."""
    return _switch.active()


def is_active() -> bool:
    return _switch.is_active()


def _varlen_attn(*values: Any, **named: Any):
    # Versions of PyTorch differ in the operator's last arguments.
    arguments = {argument.name: argument.default_value for argument in _operator._schema.arguments}
    arguments.update(zip(arguments, values, strict=False), **named)
    splits = arguments.get("num_splits")
    if splits is not None and (isinstance(splits, bool) or splits < 1):
        raise ValueError(f"{WHERE}: num_splits is {splits}; it must be None or at least 1")
    with batch_invariant() if splits == 1 else contextlib.nullcontext():
        out, lse = _attend(arguments)
    # PyTorch's backward expects a dropout state, although there is no dropout.
    return out, lse, torch.zeros(2, dtype=torch.uint64, device=arguments["query"].device)


def _attend(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value, ends_q, ends_k = (
        arguments[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k")
    )
    table, used, splits = (arguments.get(name) for name in ("block_table", "seqused_k", "num_splits"))
    options = {
        "causal": arguments["is_causal"],
        "scale": arguments.get("scale"),
        "window_size": tuple(arguments.get("window_size") or (-1, -1)),
    }
    if table is None and ends_k is None:
        raise ValueError(f"{WHERE}: cu_seq_k is None; only with block_table, a cache in pages, may it be")
    if used is None:
        if table is not None:
            raise ValueError(f"{WHERE}: block_table is given without seqused_k, the lengths of its sequences")
        if splits not in (None, 1):
            raise NotImplementedError(
                f"{WHERE}: num_splits is {splits}; the kernels for packed keys choose it: pass None, or 1"
            )
        return attention_varlen(
            query,
            key,
            value,
            ends_q,
            ends_k,
            arguments["max_q"],
            arguments["max_k"],
            return_lse=True,
            **options,
        )
    if table is None:  # pages of one token each
        token = torch.arange(arguments["max_k"], dtype=torch.int32, device=key.device)
        table = (ends_k[:-1, None] + token).clamp(max=max(key.shape[0] - 1, 0))
        key, value = key.unsqueeze(1), value.unsqueeze(1)
    return attention_paged(
        query,
        key,
        value,
        table,
        used,
        ends_q,
        arguments["max_q"],
        num_splits=splits or 0,
        return_lse=True,
        **options,
    )


_switch = OperatorSwitch(_operator, _varlen_attn)
