# SPDX-License-Identifier: MIT
"""Gated delta rules by PyTorch operations: for HIPKITTENS_BACKEND=torch, and as the reference for kernels."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F


def gates(g, beta, A_log, dt_bias, beta_logits, factor=1.0, lower_bound=None):
    """ln of the decays, and beta, in float32; float64 is kept. g: (batch, tokens, heads), or with a trailing dimension of channels."""
    wide = torch.promote_types(g.dtype, torch.float32)
    g, beta = g.to(wide), beta.to(wide)
    if A_log is not None:
        rate, x = A_log.to(wide).exp(), g + dt_bias.to(wide)
        if g.dim() == 4:
            rate = rate[:, None]
        g = -rate * F.softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(rate * x)
    if beta_logits:
        beta = beta.sigmoid()
    return g, beta if factor == 1.0 else beta * factor


def unit_vectors(x):
    """x divided by the square root of 1e-6 + the sum of its squares over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _recurrence(q, k, v, g, beta, scale, state):
    """For a batch of sequences, token by token: outputs and the states after each."""
    group = v.shape[2] // q.shape[2]
    q, k = (tensor.repeat_interleave(group, 2) for tensor in (q, k))
    outputs, states = [], []
    for t in range(v.shape[1]):
        kept = g[:, t].exp()
        state = state * kept.reshape(*kept.shape[:2], -1, 1)
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * change[:, :, None]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        states.append(state)
    return torch.stack(outputs, 1) if outputs else v, states


def _decayed_products(a, k, gamma, product, block=16):
    """For rows i and j <= i of a chunk: the sum over c of a_ic k_jc e^(gamma_ic - gamma_jc), with no exponent above 0; otherwise 0.

    With per-head decays gamma has no c, and is a factor of the product. Per-channel ones are part of one operand: in blocks of rows,
    relative to the block's first row, and within a block element by element.
    """
    tokens = k.shape[-2]
    here = torch.ones(tokens, tokens, dtype=torch.bool, device=k.device).tril()
    if gamma.dim() < k.dim():
        # Masked before the exponential, which would overflow above the diagonal.
        decay = (gamma[..., :, None] - gamma[..., None, :]).masked_fill(~here, -torch.inf).exp()
        return product(a, k.transpose(-1, -2)) * decay
    rows = []
    for first in range(0, tokens, block):
        own, before = slice(first, first + block), slice(0, first)
        reference, within = gamma[..., first : first + 1, :], here[own, own, None]
        of_rows = a[..., own, :] * (gamma[..., own, :] - reference).exp()
        of_columns = k[..., before, :] * (reference - gamma[..., before, :]).exp()
        between = gamma[..., own, None, :] - gamma[..., None, own, :]
        decay = between.masked_fill(~within, -torch.inf).exp()
        diagonal = torch.einsum("...ic,...jc,...ijc->...ij", a[..., own, :], k[..., own, :], decay)
        parts = product(of_rows, of_columns.transpose(-1, -2)), diagonal
        rows.append(F.pad(torch.cat(parts, -1), (0, tokens - first - diagonal.shape[-1])))
    return torch.cat(rows, -2)


def _in_chunks(q, k, v, g, beta, scale, state, operand, chunk=64):
    """For a batch of sequences, as matrix products of chunks with operands rounded to the dtype `operand`: outputs and final states."""
    tokens, group = v.shape[1], v.shape[2] // q.shape[2]
    if not tokens:
        return v, state
    q, k = (tensor.repeat_interleave(group, 2) for tensor in (q, k))
    # (batch, heads, chunks, chunk, ..); tokens past the end change nothing.
    q, k, v, g, beta = (
        F.pad(tensor, (*[0, 0] * (tensor.dim() - 2), 0, -tokens % chunk))
        .unflatten(1, (-1, chunk))
        .movedim(3, 1)
        for tensor in (q, k, v, g, beta)
    )

    def product(a, b):
        return (a.to(operand) @ b.to(operand)).to(a.dtype)

    of_channels = g.dim() == k.dim()
    gamma = g.cumsum(3)
    system = (beta[..., None] * _decayed_products(k, k, gamma, product)).tril(-1)
    unit = torch.eye(chunk, dtype=v.dtype, device=v.device)
    inverse = torch.linalg.solve_triangular(system + unit, unit.expand_as(system), upper=False)
    scores = _decayed_products(q, k, gamma, product)
    kept, left = gamma.exp(), (gamma[:, :, :, -1:] - gamma).exp()
    if not of_channels:
        kept, left = kept[..., None], left[..., None]

    def from_state(x, kept):
        return product(kept * x, state) if of_channels else kept * product(x, state)

    def to_state(k, left, change):
        if of_channels:
            return product((left * k).transpose(-1, -2), change)
        return product(k.transpose(-1, -2), left * change)

    outputs = []
    for n in range(v.shape[2]):
        rest = v[:, :, n] - from_state(k[:, :, n], kept[:, :, n])
        change = product(inverse[:, :, n], beta[:, :, n, :, None] * rest)
        outputs.append(scale * (from_state(q[:, :, n], kept[:, :, n]) + product(scores[:, :, n], change)))
        ends = kept[:, :, n, -1:].transpose(-1, -2)
        state = ends * state + to_state(k[:, :, n], left[:, :, n], change)
    return torch.stack(outputs, 2).movedim(1, 3).flatten(1, 2)[:, :tokens], state


def in_torch(q, k, v, g, beta, scale, initial=None, l2norm=False, starts=None, operand=None, chunks=True):
    """`gated_delta_rule` with g and beta as they are, by PyTorch operations: in float32 or wider, outputs rounded once.

    operand  the dtype of the products' operands, by default that of the computation
    chunks   compute chunks as matrix products; otherwise token by token

    Tokens that belong to no sequence of `starts` have zero outputs, as in the kernels.
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
    ranges = list(pairwise(starts.tolist()))
    pieces = [
        run([tensor[:, first:past] for tensor in (q, k, v, g, beta)], initial[n : n + 1])
        for n, (first, past) in enumerate(ranges)
    ]
    # From v, so that it has a derivative without sequences as well.
    out = torch.where(torch.zeros((), dtype=torch.bool, device=v.device), v, 0.0)
    for (first, past), (piece, _) in zip(ranges, pieces, strict=True):
        out[:, first:past] = piece
    return out.to(dtype), torch.cat([initial[:0], *(state for _, state in pieces)])


def steps_in_torch(q, k, v, g, beta, state, slots, accepted, scale, l2norm, starts, layout):
    """`gated_delta_step` with g and beta as they are, by PyTorch operations in float32 or wider."""
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
