# SPDX-License-Identifier: MIT
"""Sampling the next token of each row of logits, greedily or at random."""

from __future__ import annotations

import math

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number, number
from ._call import call
from .selection import DTYPES, MOST, topk

# The least temperature above 0, from csrc/kernels/sample/kinds.h.
LEAST_TEMPERATURE = 1e-5


@_backend.interruptible
def sample(
    logits: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | torch.Tensor | None = None,
    exponentials: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
    eps: float = 1e-10,
) -> torch.Tensor:
    """Sample a column index for each row with the probabilities softmax(logits / temperature); int64.

    The index is argmax over j of p[j] / (e[j] + eps), with p the softmax and e drawn from an exponential distribution of rate 1. It is
    computed as the argmax of logits[j] / temperature - log(e[j] + eps) in float32, which reads the row once and does not overflow. Ties go
    to the lower index, and a NaN is greater than everything, as in torch.argmax.

    - `logits`: (..., columns), bfloat16, float16 or float32; any strides.
    - `temperature`: a number, or float32 in the shape of the rows. 0 selects the largest logit; any other value below 1e-5 counts as 1e-5.
    - `exponentials`: e, float32 in the shape of logits; by default drawn by torch with `generator`, if any row is sampled at random.
    - `top_k`: sample only from the top_k largest logits of a row (up to 2048; of equal ones the first), by `hipkittens.topk`.
    - `top_p`: a number, or float32 in the shape of the rows, above 0 and up to 1: after top_k, sample only from the smallest set of most
      probable columns whose probabilities add up to top_p. With top_k up to 2048 they are sorted by `hipkittens.topk`, without it whole
      rows by torch.sort; probabilities are added by PyTorch operations.
    - `eps`: see above.

    Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that are not allowed.
    """
    where = "hipkittens.sample"
    check_tensor(where, "logits", logits)
    check_dtype_and_device(where, "logits", logits, DTYPES, "logits", logits)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"{where}: logits has shape {tuple(logits.shape)}; rows need 1 column or more")
    columns, rows = logits.shape[-1], logits.shape[:-1]
    greedy = not isinstance(temperature, torch.Tensor) and number(where, "temperature", temperature) == 0.0
    temperature = _of_rows(where, "temperature", temperature, logits, 0.0, math.inf)
    if not number(where, "eps", eps) >= 0.0:
        raise ValueError(f"{where}: eps is {eps}; it must be 0 or more")
    if top_k is not None:
        check_whole_number(where, "top_k", top_k)
        if not 1 <= top_k <= min(columns, MOST):
            raise ValueError(f"{where}: top_k is {top_k}; allowed: 1 to {min(columns, MOST)}, or None")
    if top_p is not None:
        if not isinstance(top_p, torch.Tensor) and number(where, "top_p", top_p) == 0.0:
            raise ValueError(f"{where}: top_p is {top_p}; it must be above 0, up to 1")
        top_p = _of_rows(where, "top_p", top_p, logits, 0.0, 1.0)
    if exponentials is not None:
        check_tensor(where, "exponentials", exponentials)
        check_dtype_and_device(where, "exponentials", exponentials, (torch.float32,), "logits", logits)
        if exponentials.shape != logits.shape:
            raise ValueError(
                f"{where}: exponentials has shape {tuple(exponentials.shape)} and logits {tuple(logits.shape)}; they must be equal"
            )
        if generator is not None:
            raise ValueError(
                f"{where}: exponentials and generator are both given; one draws, the other is drawn"
            )
    _backend.check_device(where, "logits", logits)
    if torch.is_grad_enabled() and logits.requires_grad:
        raise NotImplementedError(
            f"{where.replace('.', ': ', 1)} has no derivative; call it with logits.detach()"
        )
    if greedy:
        return _chosen(logits, None, None, eps)
    if exponentials is None:
        exponentials = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).exponential_(
            generator=generator
        )
    if top_k is None and top_p is None:
        return _chosen(logits, exponentials, temperature, eps)
    # Candidates, the largest first; the first of equal ones.
    if top_k is not None:
        candidates, numbers = topk(logits, top_k)
    else:
        candidates, numbers = logits.sort(dim=-1, descending=True, stable=True)
    if top_p is not None:
        probabilities = torch.softmax(
            candidates.float() / temperature.clamp(min=LEAST_TEMPERATURE)[..., None], -1
        )
        before = probabilities.cumsum(-1) - probabilities
        # The first is kept, and rows with NaN, whose sums are NaN, are kept whole.
        outside = before >= top_p[..., None]
        outside[..., 0] = False
        candidates = candidates.masked_fill(outside, -math.inf)
    chosen = _chosen(candidates, exponentials.gather(-1, numbers), temperature, eps)
    return numbers.gather(-1, chosen[..., None]).reshape(rows)


def _chosen(logits, exponentials, temperature, eps):
    if _backend.uses_torch():
        return in_torch(logits, exponentials, temperature, eps)
    if exponentials is not None:
        exponentials = exponentials.reshape(-1, logits.shape[-1])
        exponentials = exponentials if exponentials.stride(-1) == 1 else exponentials.contiguous()
        temperature = temperature.reshape(-1)
    return call("sample", logits, exponentials, temperature, float(eps))


def in_torch(logits, exponentials, temperature, eps):
    """The operator's choice by PyTorch operations."""
    values = logits.float()
    if exponentials is not None:
        scaled = values / temperature.clamp(min=LEAST_TEMPERATURE)[..., None] - (exponentials + eps).log()
        values = torch.where(temperature[..., None] == 0, values, scaled)
    return values.argmax(-1)


def _of_rows(where, name, value, logits, least, most) -> torch.Tensor:
    """A float32 value for each row."""
    rows = logits.shape[:-1]
    if isinstance(value, torch.Tensor):
        check_dtype_and_device(where, name, value, (torch.float32,), "logits", logits)
        if value.shape != rows:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs {tuple(rows)}, one for each row"
            )
        return value
    if not least <= number(where, name, value) <= most or value == math.inf:
        raise ValueError(
            f"{where}: {name} is {value}; it must be {'0 or more, and finite' if most > 1 else 'above 0, up to 1'}"
        )
    return torch.full(rows, float(value), dtype=torch.float32, device=logits.device)
