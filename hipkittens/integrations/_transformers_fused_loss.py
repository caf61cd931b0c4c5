# SPDX-License-Identifier: MIT
"""The loss of Transformers' causal language models computed from hidden states by hipkittens.linear_cross_entropy."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch

from .._function_globals import global_of, names_in
from ..loss import FEATURE_DTYPES, linear_cross_entropy
from ._transformers_loss import next_tokens, per_item

# Names that the forward of a causal language model may use if `_forward` below is to replace it: Llama's of Transformers 4.57 and 5.
_NAMES = frozenset(
    [
        "CausalLMOutputWithPast",
        "attentions",
        "config",
        "hasattr",
        "hidden_states",
        "int",
        "isinstance",
        "last_hidden_state",
        "lm_head",
        "loss_function",
        "model",
        "past_key_values",
        "pop",
        "return_dict",
        "slice",
        "to_tuple",
        "tuple",
        "vocab_size",
    ]
)
# And Gemma 2's, whose logits are softcap * tanh(logits / softcap).
_NAMES_OF_SOFTCAP = frozenset(
    ["final_logit_softcapping", "output_attentions", "output_hidden_states", "tanh", "torch"]
)


def refusal(model: torch.nn.Module, dtype: torch.dtype | None) -> str:
    """Why a model with a ForCausalLMLoss computes its logits, or ""."""
    more = names_in(type(model).forward) - _NAMES
    if "forward" in vars(model):
        return "its forward has been replaced on the module itself; undo that first"
    if "final_logit_softcapping" in more:
        more -= _NAMES_OF_SOFTCAP
    if more:
        return f"its forward does more than Llama's: {', '.join(sorted(more))}"
    head = model.lm_head
    if not isinstance(head, torch.nn.Linear) or head._forward_hooks or head._forward_pre_hooks:
        return f"its lm_head is a {type(head).__name__} with a forward or hooks of its own"
    called_with = head.weight.dtype if dtype is None else dtype
    if called_with not in FEATURE_DTYPES:
        return f"its hidden states are {called_with}; torch.bfloat16 and torch.float16 have kernels (autocast: pass dtype)"
    return ""


class FusedLossSwitch:
    """Gives a model another forward for training, until `restore`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        # A method, so that a copy of the model gets one bound to the copy.
        model.forward = types.MethodType(_forward, model)

    def restore(self) -> None:
        if getattr(vars(self._model).get("forward"), "__func__", None) is _forward:
            del self._model.forward


@functools.cache
def _signature(kind: type) -> inspect.Signature:
    return inspect.signature(kind.forward)


def _forward(self: Any, *arguments: Any, **options: Any) -> Any:
    """The model's own forward, except in training with labels: then the same without logits, which are None."""
    kind = type(self)
    bound = _signature(kind).bind(self, *arguments, **options).arguments
    given = {name: value for name, value in bound.items() if name not in ("self", "kwargs")}
    given |= bound.get("kwargs", {})
    labels = given.pop("labels", None)
    if labels is None or not self.training:
        return kind.forward(self, *arguments, **options)
    if not isinstance(kept := given.pop("logits_to_keep", 0), int) or kept:
        raise ValueError(
            f"hipkittens: logits_to_keep is {kept!r} for a loss of all tokens; leave it out, or patch without fused_loss"
        )
    return_dict = given.pop("return_dict", None)
    of_loss = {
        name: given[name]
        for name in ("shift_labels", "num_items_in_batch", "ignore_index")
        if given.get(name) is not None
    }
    outputs = self.model(**given)
    hidden = outputs.last_hidden_state
    ignore_index = of_loss.pop("ignore_index", -100)
    target = next_tokens(labels, of_loss.pop("shift_labels", None), ignore_index)
    items = of_loss.pop("num_items_in_batch", None)
    loss = linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        self.lm_head.weight,
        target.reshape(-1).to(hidden.device),
        self.lm_head.bias,
        ignore_index=ignore_index,
        softcap=getattr(self.config, "final_logit_softcapping", None),
        reduction="mean" if items is None else "sum",
    )
    result = global_of(kind.forward, "CausalLMOutputWithPast")(
        loss=per_item(loss, items),
        logits=None,
        past_key_values=outputs.past_key_values,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )
    as_dict = self.config.return_dict if return_dict is None else return_dict
    return result if as_dict else result.to_tuple()
