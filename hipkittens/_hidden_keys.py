# SPDX-License-Identifier: MIT
"""Which keys a causal mask and a window hide, in PyTorch: the counterpart of the kernels' csrc/kernels/attention/mask.h."""

from __future__ import annotations

import torch


def distances(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """(queries, keys): the signed distance between a query's position and a key. The last query has the position of the last key."""
    place = torch.arange(queries, device=device)[:, None] + keys - queries
    return place - torch.arange(keys, device=device)[None, :]


def hidden_keys(distance: torch.Tensor, causal: bool, left: int, right: int) -> torch.Tensor:
    """For `distances`, whether the mask hides the key: windows extend `left` keys back and `right` ahead, without limit if negative."""
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if causal or right >= 0:
        hidden |= distance < (0 if causal else -right)
    return hidden
