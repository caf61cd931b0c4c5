# SPDX-License-Identifier: MIT
"""Argument checks of gated delta rules, with per-head or per-channel decays."""

from __future__ import annotations

import torch

from ._arguments import check_dtype_and_device, check_flag, check_tensor, number

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
STATE_DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = ("kv", "vk")
LARGEST_KEY = 256  # largest_key of csrc/kernels/delta_rule/plan.h
_INDICES = (torch.int32, torch.int64)
_REACH = 1 << 31  # bytes of a head's state: delta_rule_reach of csrc/torch/delta_rule_problem.h


def check_inputs(where, q, k, v, g, beta, channels=False) -> None:
    """channels: g has an element for each element of k."""
    check_tensor(where, "q", q)
    check_dtype_and_device(where, "q", q, DTYPES, "q", q)
    for name, tensor in (("k", k), ("v", v)):
        check_tensor(where, name, tensor)
        check_dtype_and_device(where, name, tensor, (q.dtype,), "q", q)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{where}: {name} has shape {tuple(tensor.shape)}; it needs 4 dimensions, (batch, tokens, heads, elements)"
            )
    if k.shape != q.shape:
        raise ValueError(f"{where}: k has shape {tuple(k.shape)} and q {tuple(q.shape)}; they need one shape")
    (batch, tokens, heads, key), value_heads = q.shape, v.shape[2]
    if v.shape[:2] != (batch, tokens):
        raise ValueError(
            f"{where}: v has shape {tuple(v.shape)}; it needs the batch and tokens of q, ({batch}, {tokens}, ..)"
        )
    if heads < 1 or value_heads < 1 or value_heads % heads:
        raise ValueError(
            f"{where}: v has {value_heads} heads and q {heads}; allowed: a multiple of those of q"
        )
    if not 1 <= key <= LARGEST_KEY:
        raise ValueError(
            f"{where}: q and k have {key} elements; kernels have 1 to {LARGEST_KEY}; split heads, or use PyTorch"
        )
    if v.shape[3] < 1:
        raise ValueError(f"{where}: v has heads of 0 elements; at least 1 is needed")
    of_heads = (batch, tokens, value_heads), "(batch, tokens, heads of v)"
    of_channels = (*of_heads[0], key), "(batch, tokens, heads of v, elements of k)"
    for name, tensor, (shape, meaning) in (
        ("g", g, of_channels if channels else of_heads),
        ("beta", beta, of_heads),
    ):
        check_tensor(where, name, tensor)
        check_dtype_and_device(where, name, tensor, DTYPES, "q", q)
        if tensor.shape != shape:
            raise ValueError(f"{where}: {name} has shape {tuple(tensor.shape)}; it needs {shape}, {meaning}")


def check_gate(where, g, A_log, dt_bias) -> None:
    """Checks the parameters for a g that is checked already: one for each head, and one for each of its decays."""
    if (A_log is None) != (dt_bias is None):
        name, missing = ("dt_bias", "A_log") if A_log is None else ("A_log", "dt_bias")
        raise ValueError(f"{where}: {name} is given without {missing}; pass both, or g as it is")
    if A_log is None:
        return
    one = "one for each head of v"
    of_decays = one if g.dim() == 3 else "(heads of v, elements of k)"
    for name, tensor, shape, meaning in (
        ("A_log", A_log, (g.shape[2],), one),
        ("dt_bias", dt_bias, tuple(g.shape[2:]), of_decays),
    ):
        check_tensor(where, name, tensor)
        check_dtype_and_device(where, name, tensor, DTYPES, "g", g)
        if tensor.shape != shape:
            raise ValueError(f"{where}: {name} has shape {tuple(tensor.shape)}; it needs {shape}, {meaning}")


def checked_lower_bound(where, value, A_log) -> float | None:
    if value is None:
        return None
    if A_log is None:
        raise ValueError(f"{where}: lower_bound is given without A_log and dt_bias; pass both, or g as it is")
    bound = number(where, "lower_bound", value)
    if not -float("inf") < bound < 0.0:
        raise ValueError(f"{where}: lower_bound is {bound}; it must be below 0 and finite, such as -5.0")
    return bound


def check_options(where, *, state_layout, **flags) -> None:
    for name, value in flags.items():
        check_flag(where, name, value)
    if state_layout not in LAYOUTS:
        raise ValueError(
            f"{where}: state_layout is {state_layout!r}; allowed: {', '.join(map(repr, LAYOUTS))}"
        )


def as_initial_state(where, state, q, shape, layout) -> torch.Tensor | None:
    """The states before each sequence in float32, of shape (sequences, heads of v, K, V)."""
    if state is None:
        return None
    check_tensor(where, "initial_state", state)
    check_dtype_and_device(where, "initial_state", state, DTYPES, "q", q)
    sequences, heads, key, value = shape
    wanted = shape if layout == "kv" else (sequences, heads, value, key)
    if state.shape != wanted:
        raise ValueError(
            f"{where}: initial_state has shape {tuple(state.shape)}; it needs {wanted}, (sequences, heads of v, "
            + ("K, V)" if layout == "kv" else "V, K)")
        )
    state = state.float()
    return state if layout == "kv" else state.transpose(-1, -2)


def check_state(where, state, q, heads, key, value, layout, dtypes) -> None:
    """Checks a pool of states that is updated in place."""
    check_tensor(where, "state", state)
    check_dtype_and_device(where, "state", state, dtypes, "q", q)
    rows, columns = (key, value) if layout == "kv" else (value, key)
    if state.dim() != 4 or state.shape[1:] != (heads, rows, columns):
        raise ValueError(
            f"{where}: state has shape {tuple(state.shape)}; it needs (slots, {heads}, {rows}, {columns}), (slots, heads of v, "
            + ("K, V)" if layout == "kv" else "V, K)")
        )
    if columns % 4 or state.stride(3) != 1 or any(stride % 4 for stride in state.stride()[:3]):
        raise ValueError(
            f"{where}: state has rows of {columns} elements and strides {state.stride()}; rows need to be contiguous and these numbers "
            "multiples of 4; pad the pool"
        )
    if ((rows - 1) * state.stride(2) + columns) * state.element_size() > _REACH:
        raise ValueError(
            f"{where}: state has strides {state.stride()}; the {rows} rows of one head need to lie within 2 GiB"
        )


def _indices(where, name, value, q, shape) -> torch.Tensor:
    check_tensor(where, name, value)
    check_dtype_and_device(where, name, value, _INDICES, "q", q)
    if value.shape != shape:
        raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it needs {shape}")
    return value.to(torch.int32).contiguous()


def as_starts(where, value, q) -> torch.Tensor | None:
    """cu_seqlens in the form that kernels read."""
    if value is None:
        return None
    if q.shape[0] != 1:
        raise ValueError(
            f"{where}: cu_seqlens is given and q has a batch of {q.shape[0]}; packed sequences are a batch of 1"
        )
    check_tensor(where, "cu_seqlens", value)
    if value.dim() != 1 or value.numel() < 1:
        raise ValueError(f"{where}: cu_seqlens has shape {tuple(value.shape)}; it needs (sequences + 1,)")
    return _indices(where, "cu_seqlens", value, q, value.shape)


def as_slots(where, value, accepted, state, q, sequences, tokens):
    """state_indices as (sequences, n), and accepted, in the form that kernels read; tokens: of each sequence, None if they differ."""
    if value is None:
        if state.shape[0] < sequences:
            raise ValueError(
                f"{where}: there are {sequences} sequences and {state.shape[0]} slots of state; pass state_indices, or more slots"
            )
        slots = None
    else:
        check_tensor(where, "state_indices", value)
        if value.dim() not in (1, 2) or value.shape[0] != sequences or value.numel() < sequences:
            raise ValueError(
                f"{where}: state_indices has shape {tuple(value.shape)}; it needs ({sequences},), or ({sequences}, slots)"
            )
        if value.dim() == 2 and value.shape[1] > 1 and tokens is not None and value.shape[1] < tokens:
            raise ValueError(
                f"{where}: state_indices has {value.shape[1]} slots of each sequence and there are {tokens} tokens; pass one slot, or one for "
                "each token"
            )
        slots = value.view(sequences, -1)
        slots = _indices(where, "state_indices", slots, q, slots.shape)
    if accepted is None:
        return slots, None
    if slots is None or value.dim() != 2:
        raise ValueError(
            f"{where}: accepted is given without slots of each token; pass state_indices (sequences, n)"
        )
    return slots, _indices(where, "accepted", accepted, q, (sequences,))


def as_parameters(*parameters) -> tuple[torch.Tensor | None, ...]:
    """A gate's parameters in the form that kernels read."""
    return tuple(None if value is None else value.float().contiguous() for value in parameters)


def as_gates(q, *gates) -> tuple[torch.Tensor, ...]:
    """g and beta in the form that kernels read: in q's dtype, or float32."""
    return tuple(gate if gate.dtype == q.dtype else gate.float() for gate in gates)
