# SPDX-License-Identifier: MIT
"""The loss of Transformers' causal language models by hipkittens.cross_entropy."""

from __future__ import annotations

from typing import Any

import torch

from .._function_globals import names_in
from ..loss import cross_entropy


def causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """transformers.loss.loss_utils.ForCausalLMLoss without a float32 copy of the logits; the loss is float32, as there."""
    target = next_tokens(labels, shift_labels, ignore_index).reshape(-1).to(logits.device)
    total = cross_entropy(
        logits.reshape(-1, vocab_size),
        target,
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
    )
    return per_item(total, num_items_in_batch)


def next_tokens(
    labels: torch.Tensor | None, shift_labels: torch.Tensor | None, ignore_index: int
) -> torch.Tensor:
    """The target of each token: shift_labels, or the label of the next token."""
    if shift_labels is not None:
        return shift_labels
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]


def per_item(loss: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
    """A sum divided by the number of items of all gradient accumulation steps; a mean, for which items is None, unchanged."""
    if items is None:
        return loss
    return loss / (items.to(loss.device) if isinstance(items, torch.Tensor) else items)


class LossSwitch:
    """Gives a model another loss function, until `restore`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before = vars(model).get("_loss_function")
        model._loss_function = causal_loss

    def restore(self) -> None:
        if vars(self._model).get("_loss_function") is not causal_loss:
            return
        if self._before is None:
            del self._model._loss_function
        else:
            self._model._loss_function = self._before


def refusal(model: torch.nn.Module) -> str | None:
    """Why a model's loss is not replaced, "" if it can be, None for a model that has none."""
    if not isinstance(getattr(type(model), "loss_function", None), property):
        return None
    if "loss_function" not in names_in(
        type(model).forward
    ):  # every Transformers model has it, but few compute a loss
        return None
    function = model.loss_function
    if function is causal_loss:
        return "it has been replaced before, by hipkittens.cross_entropy"
    name = getattr(function, "__name__", type(function).__name__)
    if name != "ForCausalLMLoss":
        return f"its loss is {name}; ForCausalLMLoss is replaced"
    return ""
