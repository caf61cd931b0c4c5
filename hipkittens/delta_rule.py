# SPDX-License-Identifier: MIT
"""Gated delta rules: linear attention whose state forgets and corrects itself, as Qwen3-Next and Qwen3.5 have it."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, overload

import torch
import torch.nn.functional as F

from . import _autocast, _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor, number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
STATE_DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = ("kv", "vk")
LARGEST_KEY = 256  # largest_key of csrc/kernels/delta_rule/plan.h
LARGEST_KEY_WITH_GRADIENT = 128  # of the rows of kind gradient
_INDICES = (torch.int32, torch.int64)
_UNIT = 8  # elements of q, k and v that are read at once


@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: Literal[False] = False,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor: ...
@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: Literal[True],
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: bool,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@_backend.interruptible
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: bool = False,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The outputs (batch, tokens, HV, V) of gated delta rules; with `return_state` also their states after the last token, float32.

    Each value head has a state S of K x V, and for each of its tokens

        S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = scale S^T q

    q, k (batch, tokens, H, K) and v (batch, tokens, HV, V) in bfloat16, float16 or float32, in any layout whose last dimension is
    contiguous; HV is a multiple of H, and value head i has the query and key of head i // (HV / H). K up to 256 (128 where a gradient
    is asked for). g, the natural logarithm of the decay, not positive, and beta: (batch, tokens, HV), any of these dtypes, computed
    with in float32. scale: K ** -0.5 by default.

    l2norm        q and k are divided by the square root of 1e-6 + the sum of their squares first.
    A_log, dt_bias  (HV). g is then x of the decay's logarithm -exp(A_log) softplus(x + dt_bias).
    beta_logits   beta is the sigmoid of what is passed.
    cu_seqlens    int32 or int64, (sequences + 1): where each sequence of a batch of one begins, and where the last one ends; tokens
                  behind that give 0. It is read on the device.
    initial_state (sequences, HV, K, V), zeros by default; (sequences, HV, V, K) if state_layout is "vk", which the returned one is then.

    From 17 tokens on they are computed in chunks of 64 as matrix products, in which floats that are not inputs are sums of two
    elements; fewer tokens, and float32 with K above 128, one after the other in float32. Either way states are float32, results are
    rounded once, two runs give the same bytes, and packed sequences those of separate calls. In float16, states and inverses of
    chunks' systems above 65504 overflow; keys that are unit vectors keep them small. Differentiable in all tensors but cu_seqlens.
    Under torch.autocast q, k and v are in its dtype.

    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.gated_delta_rule"
    check_tensor(where, "q", q)
    q, k, v = _autocast.to_autocast_dtype(q, k, v)
    _check(where, q, k, v, g, beta, A_log, dt_bias)
    _check_options(
        where, return_state=return_state, l2norm=l2norm, beta_logits=beta_logits, state_layout=state_layout
    )
    (batch, _, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = None
    if cu_seqlens is not None:
        starts = _starts(where, cu_seqlens, q, batch)
    sequences = batch if starts is None else starts.numel() - 1
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state)
    if key > LARGEST_KEY_WITH_GRADIENT and _asks_for_gradient(*tensors):
        raise NotImplementedError(
            f"{where}: K is {key}, and derivatives have kernels of up to {LARGEST_KEY_WITH_GRADIENT}; call it under torch.no_grad()"
        )
    if initial_state is not None:
        check_tensor(where, "initial_state", initial_state)
        check_dtype_and_device(where, "initial_state", initial_state, DTYPES, "q", q)
        wanted = (sequences, heads, key, value) if state_layout == "kv" else (sequences, heads, value, key)
        if initial_state.shape != wanted:
            raise ValueError(
                f"{where}: initial_state has shape {tuple(initial_state.shape)}; it needs {wanted}, (sequences, heads of v, "
                + ("K, V)" if state_layout == "kv" else "V, K)")
            )
        initial_state = initial_state.float()
        if state_layout == "vk":
            initial_state = initial_state.transpose(-1, -2)
    _backend.check_device(where, "q", q)
    g, beta = _gates(g, beta, A_log, dt_bias, beta_logits)
    if _backend.uses_torch():
        out, state = in_torch(q, k, v, g, beta, scale, initial_state, l2norm, starts)
    else:
        more_keys, more_values = -key % _UNIT, -value % _UNIT
        if more_keys:
            q, k = (F.pad(tensor, (0, more_keys)) for tensor in (q, k))
        if more_values:
            v = F.pad(v, (0, more_values))
        if initial_state is not None and (more_keys or more_values):
            initial_state = F.pad(initial_state, (0, more_values, 0, more_keys))
        out, state = call("gated_delta_rule", q, k, v, g, beta, initial_state, starts, scale, bool(l2norm))
        out, state = out[..., :value], state[..., :key, :value]
    if not return_state:
        return out
    return out, state if state_layout == "kv" else state.transpose(-1, -2)


@_backend.interruptible
def gated_delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    state_indices: torch.Tensor | None = None,
    accepted: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    allow_neg_eigval: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor:
    """`gated_delta_rule` of sequences that go on, whose states are changed in place. For decoding; gates are computed in the kernel.

    q, k, v, g, beta, scale, l2norm, A_log, dt_bias and beta_logits are `gated_delta_rule`'s.

    state: (slots, HV, K, V), or (slots, HV, V, K) if state_layout is "vk", in float32 or, with bfloat16 inputs, bfloat16 (rounded to
    nearest even after the last token); its last dimension is contiguous and, as its other strides, a multiple of 4.

    state_indices  int32 or int64, (sequences), the slot of each sequence, by default its number; or (sequences, n), n slots of which
                   the state after token t goes to slot t. Slots that do not exist, such as -1: the outputs are 0 and no state
                   changes. No two sequences may share a slot.
    accepted       int32 or int64, (sequences), with n slots: how many tokens of the last call count, from 1. The sequence continues
                   the state of the last one of these: speculative decoding.
    allow_neg_eigval  beta is doubled.
    cu_seqlens     sequences packed one after the other in a batch of one; one without tokens keeps its state.

    No gradients. Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.gated_delta_step"
    check_tensor(where, "q", q)
    _check(where, q, k, v, g, beta, A_log, dt_bias)
    _check_options(
        where, l2norm=l2norm, beta_logits=beta_logits, allow_neg_eigval=allow_neg_eigval,
        state_layout=state_layout,
    )  # fmt: skip
    (batch, tokens, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = None if cu_seqlens is None else _starts(where, cu_seqlens, q, batch)
    sequences = batch if starts is None else starts.numel() - 1
    _check_state(where, state, q, heads, key, value, state_layout)
    tensors = (q, k, v, g, beta, state, A_log, dt_bias)
    if _asks_for_gradient(*tensors):
        raise NotImplementedError(
            "hipkittens: gated_delta_step has no derivative, since it writes its state in place; call it under torch.no_grad(), or "
            "gated_delta_rule"
        )
    slots = _slots(where, state_indices, state, q, sequences, tokens if starts is None else None)
    if accepted is not None:
        if slots is None or state_indices.dim() != 2:
            raise ValueError(
                f"{where}: accepted is given without slots of each token; pass state_indices (sequences, n)"
            )
        accepted = _indices(where, "accepted", accepted, q, (sequences,))
    _backend.check_device(where, "q", q)
    if _backend.uses_torch():
        return _steps_in_torch(
            q, k, v, g, beta, state, slots, accepted, scale, l2norm, A_log, dt_bias, beta_logits,
            allow_neg_eigval, starts, state_layout,
        )  # fmt: skip
    parameters = tuple(None if value is None else value.float().contiguous() for value in (A_log, dt_bias))
    g, beta = (tensor if tensor.dtype == q.dtype else tensor.float() for tensor in (g, beta))
    out = call(
        "gated_delta_step", q, k, v, g, beta, *parameters, state, slots, accepted, starts, scale,
        2.0 if allow_neg_eigval else 1.0, bool(l2norm), bool(beta_logits), state_layout == "vk",
    )  # fmt: skip
    torch.autograd.graph.increment_version(state)
    return out


def _asks_for_gradient(*tensors) -> bool:
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)


def _check(where, q, k, v, g, beta, A_log, dt_bias) -> None:
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
    for name, tensor in (("g", g), ("beta", beta)):
        check_tensor(where, name, tensor)
        check_dtype_and_device(where, name, tensor, DTYPES, "q", q)
        if tensor.shape != (batch, tokens, value_heads):
            raise ValueError(
                f"{where}: {name} has shape {tuple(tensor.shape)}; it needs ({batch}, {tokens}, {value_heads}), (batch, tokens, "
                "heads of v)"
            )
    if (A_log is None) != (dt_bias is None):
        name, missing = ("dt_bias", "A_log") if A_log is None else ("A_log", "dt_bias")
        raise ValueError(f"{where}: {name} is given without {missing}; pass both, or g as it is")
    if A_log is not None:
        for name, tensor in (("A_log", A_log), ("dt_bias", dt_bias)):
            check_tensor(where, name, tensor)
            check_dtype_and_device(where, name, tensor, DTYPES, "q", q)
            if tensor.shape != (value_heads,):
                raise ValueError(
                    f"{where}: {name} has shape {tuple(tensor.shape)}; it needs ({value_heads},), one for each head of v"
                )


def _check_options(where, *, state_layout, **flags) -> None:
    for name, value in flags.items():
        check_flag(where, name, value)
    if state_layout not in LAYOUTS:
        raise ValueError(
            f"{where}: state_layout is {state_layout!r}; allowed: {', '.join(map(repr, LAYOUTS))}"
        )


def _check_state(where, state, q, heads, key, value, layout) -> None:
    check_tensor(where, "state", state)
    allowed = STATE_DTYPES if q.dtype == torch.bfloat16 else STATE_DTYPES[:1]
    check_dtype_and_device(where, "state", state, allowed, "q", q)
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


def _indices(where, name, value, q, shape) -> torch.Tensor:
    check_tensor(where, name, value)
    check_dtype_and_device(where, name, value, _INDICES, "q", q)
    if value.shape != shape:
        raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it needs {shape}")
    return value.to(torch.int32).contiguous()


def _starts(where, value, q, batch) -> torch.Tensor:
    if batch != 1:
        raise ValueError(
            f"{where}: cu_seqlens is given and q has a batch of {batch}; packed sequences are a batch of 1"
        )
    check_tensor(where, "cu_seqlens", value)
    if value.dim() != 1 or value.numel() < 1:
        raise ValueError(f"{where}: cu_seqlens has shape {tuple(value.shape)}; it needs (sequences + 1,)")
    return _indices(where, "cu_seqlens", value, q, value.shape)


def _slots(where, value, state, q, sequences, tokens) -> torch.Tensor | None:
    if value is None:
        if state.shape[0] < sequences:
            raise ValueError(
                f"{where}: there are {sequences} sequences and {state.shape[0]} slots of state; pass state_indices, or more slots"
            )
        return None
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
    value = value.view(sequences, -1)
    return _indices(where, "state_indices", value, q, value.shape)


def _gates(g, beta, A_log, dt_bias, beta_logits, factor=1.0):
    """ln of the decay, and beta, in float32; float64 stays."""
    wide = torch.promote_types(g.dtype, torch.float32)
    g, beta = g.to(wide), beta.to(wide)
    if A_log is not None:
        g = -A_log.to(wide).exp() * F.softplus(g + dt_bias.to(wide))
    if beta_logits:
        beta = beta.sigmoid()
    return g, beta if factor == 1.0 else beta * factor


def unit_vectors(x):
    """x divided by the square root of 1e-6 + the sum of its squares over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _recurrence(q, k, v, g, beta, scale, state):
    """Of a batch of sequences, token after token: outputs and the states after each."""
    group = v.shape[2] // q.shape[2]
    q, k = (tensor.repeat_interleave(group, 2) for tensor in (q, k))
    outputs, states = [], []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * change[:, :, None]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        states.append(state)
    return torch.stack(outputs, 1) if outputs else v, states


def _in_chunks(q, k, v, g, beta, scale, state, operand, chunk=64):
    """Of a batch of sequences, as products of chunks, whose operands are rounded to the dtype `operand`: outputs and last states."""
    tokens, group = v.shape[1], v.shape[2] // q.shape[2]
    if not tokens:
        return v, state
    q, k = (tensor.repeat_interleave(group, 2) for tensor in (q, k))
    # (batch, heads, chunks, chunk, ..); tokens behind the end change nothing.
    q, k, v, g, beta = (
        F.pad(tensor, (*[0, 0] * (tensor.dim() - 2), 0, -tokens % chunk))
        .unflatten(1, (-1, chunk))
        .movedim(3, 1)
        for tensor in (q, k, v, g, beta)
    )

    def product(a, b):
        return (a.to(operand) @ b.to(operand)).to(a.dtype)

    gamma = g.cumsum(-1)
    here = torch.ones(chunk, chunk, dtype=torch.bool, device=g.device).tril()
    # Masked before the exponential, which would overflow above the diagonal.
    decay = (gamma[..., :, None] - gamma[..., None, :]).masked_fill(~here, -torch.inf).exp()
    system = (beta[..., None] * product(k, k.transpose(-1, -2)) * decay).tril(-1)
    unit = torch.eye(chunk, dtype=v.dtype, device=v.device)
    inverse = torch.linalg.solve_triangular(system + unit, unit.expand_as(system), upper=False)
    scores = product(q, k.transpose(-1, -2)) * decay
    kept, left = gamma.exp()[..., None], (gamma[..., -1:] - gamma).exp()[..., None]
    outputs = []
    for n in range(v.shape[2]):
        change = product(
            inverse[:, :, n],
            beta[:, :, n, :, None] * (v[:, :, n] - kept[:, :, n] * product(k[:, :, n], state)),
        )
        outputs.append(
            scale * (kept[:, :, n] * product(q[:, :, n], state) + product(scores[:, :, n], change))
        )
        state = kept[:, :, n, -1:] * state + product(k[:, :, n].transpose(-1, -2), left[:, :, n] * change)
    return torch.stack(outputs, 2).movedim(1, 3).flatten(1, 2)[:, :tokens], state


def in_torch(q, k, v, g, beta, scale, initial=None, l2norm=False, starts=None, operand=None, chunks=True):
    """`gated_delta_rule` of g and beta as they are, in PyTorch's operations: in float32 or wider, outputs rounded once.

    operand  the dtype of the products' operands, by default that of what is calculated with
    chunks   as products of chunks; else token after token
    """
    wide, dtype = torch.promote_types(v.dtype, torch.float32), v.dtype
    q, k, v, g, beta = (tensor.to(wide) for tensor in (q, k, v, g, beta))
    if l2norm:
        q, k = unit_vectors(q), unit_vectors(k)
    batch, _, heads, value = v.shape
    count = batch if starts is None else starts.numel() - 1
    if initial is None:
        initial = v.new_zeros(count, heads, k.shape[3], value)
    initial = initial.to(wide)

    def run(tensors, state):
        if chunks:
            return _in_chunks(*tensors, scale, state, operand or wide)
        out, states = _recurrence(*tensors, scale, state)
        return out, states[-1] if states else state

    if starts is None:
        out, state = run((q, k, v, g, beta), initial)
        return out.to(dtype), state
    pieces = [
        run([tensor[:, first:past] for tensor in (q, k, v, g, beta)], initial[n : n + 1])
        for n, (first, past) in enumerate(pairwise(starts.tolist()))
    ]
    if not pieces:
        return v.to(dtype), initial
    outputs, states = zip(*pieces, strict=True)
    return torch.cat(outputs, 1).to(dtype), torch.cat(states)


def _steps_in_torch(
    q, k, v, g, beta, state, slots, accepted, scale, l2norm, A_log, dt_bias, beta_logits, allow_neg_eigval,
    starts, layout,
):  # fmt: skip
    g, beta = _gates(g, beta, A_log, dt_bias, beta_logits, 2.0 if allow_neg_eigval else 1.0)
    pool, dtype = state if layout == "kv" else state.transpose(-1, -2), v.dtype
    q, k, v = (tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in (q, k, v))
    if l2norm:
        q, k = unit_vectors(q), unit_vectors(k)
    out = torch.zeros_like(v, dtype=q.dtype)
    tokens = v.shape[1]
    ranges = (
        [(n, 0, tokens) for n in range(v.shape[0])]
        if starts is None
        else [(0, first, past) for first, past in pairwise(starts.tolist())]
    )
    for n, (row, first, past) in enumerate(ranges):
        own = [n] if slots is None else slots[n].tolist()
        before = 1 if accepted is None else int(accepted[n])
        slot = own[before - 1] if 1 <= before <= len(own) else -1
        if not 0 <= slot < len(pool):
            continue
        parts = (tensor[row : row + 1, first:past] for tensor in (q, k, v, g, beta))
        result, states = _recurrence(*parts, scale, pool[slot : slot + 1].to(v.dtype))
        out[row, first:past] = result[0]
        for t, after in enumerate(states):
            if len(own) > 1 and t < len(own) and 0 <= own[t] < len(pool):
                pool[own[t]] = after[0].to(pool.dtype)
        if len(own) == 1 and states:
            pool[slot] = states[-1][0].to(pool.dtype)
    return out.to(dtype)
