# SPDX-License-Identifier: MIT
"""torch.nn.MultiheadAttention using linear, attention and attention_varlen."""

from __future__ import annotations

import torch

from ._masked_attention import attend
from .gemm import linear

WHERE = "hipkittens.nn.MultiheadAttention"


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention: its constructor, its state_dict and its forward, which returns (output, None).

    need_weights     must be False: the kernels never store the weights (torch's default is True)
    attn_mask        must be None, or (L, S) and mask exactly the keys after a diagonal, as a causal mask does. Reading its values waits
                     for the device; is_causal=True expresses the same without reading
    is_causal        query i sees keys 0 to i. attn_mask may then be None
    key_padding_mask (B, S), any keys masked: nothing waits for the device. Together with a causal mask the masked keys must be the
                     first ones of each sequence or the last ones of each, and checking this waits for the device

    A query for which every key is masked gives the output's bias, where torch gives NaN.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        if need_weights:
            raise NotImplementedError(
                f"{WHERE}: need_weights is True; the kernels never hold the weights, pass need_weights=False"
            )
        alone = self._check(query, key, value, key_padding_mask)
        if alone:
            axis = 0 if self.batch_first else 1
            batches = {id(tensor): tensor.unsqueeze(axis) for tensor in (query, key, value)}
            query, key, value = (batches[id(tensor)] for tensor in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        q, k, v = self._project(query, key, value)
        hidden = None if key_padding_mask is None else _hidden(key_padding_mask, "key_padding_mask")
        diagonal = _diagonal(attn_mask, q.shape[1], k.shape[1], is_causal)
        k, v, hidden = self._with_extra_keys(k, v, hidden)
        extra = k.shape[1] - key.shape[1 if self.batch_first else 0]
        diagonal = None if diagonal is None else diagonal + extra
        dropout_p = self.dropout if self.training else 0.0
        try:
            out = attend(q, k, v, diagonal, hidden, extra, dropout_p=dropout_p)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{WHERE}: key_padding_mask together with an attn_mask: {error}"
            ) from None
        out = out.flatten(-2)
        out = linear(
            out if self.batch_first else out.transpose(0, 1), self.out_proj.weight, self.out_proj.bias
        )
        return out.squeeze(axis) if alone else out, None

    def _check(self, query, key, value, key_padding_mask) -> bool:
        """Raises for shapes that do not match; returns True for a sequence without a batch dimension."""
        sizes = self.embed_dim, self.kdim, self.vdim
        for name, tensor, size in zip(("query", "key", "value"), (query, key, value), sizes, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{WHERE}: {name} is {type(tensor).__name__}; it must be a torch.Tensor")
            if tensor.is_nested:
                raise NotImplementedError(
                    f"{WHERE}: {name} is a nested tensor; pad it and pass key_padding_mask"
                )
            if tensor.dim() not in (2, 3) or tensor.dim() != query.dim() or tensor.shape[-1] != size:
                form = f"(batch, length, {size})" if self.batch_first else f"(length, batch, {size})"
                raise ValueError(
                    f"{WHERE}: {name} has shape {tuple(tensor.shape)}; all three must be {form} or (length, {size})"
                )
        alone = query.dim() == 2
        batch_axis = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or (
            not alone and query.shape[batch_axis] != key.shape[batch_axis]
        ):
            raise ValueError(
                f"{WHERE}: query has shape {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}; key "
                "and value must have one length, and all three one batch"
            )
        if key_padding_mask is not None:
            length = key.shape[0] if alone or not self.batch_first else key.shape[1]
            expected = (length,) if alone else (key.shape[batch_axis], length)
            if tuple(key_padding_mask.shape) != expected:
                raise ValueError(
                    f"{WHERE}: key_padding_mask has shape {tuple(key_padding_mask.shape)}; it must be {expected}"
                )
        return alone

    def _project(self, query, key, value):
        """q, k and v as views of (batch, length, heads, head size)."""
        size, bias = self.embed_dim, self.in_proj_bias
        if not self._qkv_same_embed_dim:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            parts = [linear(*given) for given in zip((query, key, value), weights, biases, strict=True)]
        elif query is key and key is value:
            parts = linear(query, self.in_proj_weight, bias).chunk(3, -1)
        elif key is value:
            weights = self.in_proj_weight.split((size, 2 * size))
            biases = (None, None) if bias is None else bias.split((size, 2 * size))
            parts = linear(query, weights[0], biases[0]), *linear(key, weights[1], biases[1]).chunk(2, -1)
        else:
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            given = zip((query, key, value), self.in_proj_weight.chunk(3), biases, strict=True)
            parts = [linear(*each) for each in given]
        split = [part.unflatten(-1, (self.num_heads, self.head_dim)) for part in parts]
        return split if self.batch_first else [part.transpose(0, 1) for part in split]

    def _with_extra_keys(self, k, v, hidden):
        """bias_k, bias_v and the zeros of add_zero_attn precede the keys, so that every causal query sees them."""
        fronts = []
        one = (k.shape[0], 1, self.num_heads, self.head_dim)
        if self.bias_k is not None:
            fronts.append(
                [bias.to(k.dtype).view(1, *one[1:]).expand(one) for bias in (self.bias_k, self.bias_v)]
            )
        if self.add_zero_attn:
            fronts.append([k.new_zeros(one)] * 2)
        if fronts:
            k, v = (
                torch.cat((*front, own), 1)
                for front, own in zip(zip(*fronts, strict=True), (k, v), strict=True)
            )
            if hidden is not None:
                hidden = torch.nn.functional.pad(hidden, (len(fronts), 0), value=False)
        return k, v, hidden


def _hidden(mask: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"{WHERE}: {name} is {type(mask).__name__}; it must be a torch.Tensor")
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise TypeError(
            f"{WHERE}: {name} is {mask.dtype}; allowed: torch.bool, or floating point of 0 and -inf"
        )
    hidden = mask == float("-inf")
    if not bool((hidden | (mask == 0)).all()):
        raise NotImplementedError(
            f"{WHERE}: {name} adds values other than 0 and -inf to the scores; no kernel takes them, use "
            "torch.nn.MultiheadAttention"
        )
    return hidden


def _diagonal(mask, length: int, keys: int, is_causal: bool) -> int | None:
    """d if query i sees exactly the keys up to i + d; None if it sees all."""
    if is_causal:
        return 0
    if mask is None:
        return None
    hidden = _hidden(mask, "attn_mask")
    if tuple(hidden.shape) == (length, keys):
        if not length or not keys:
            return None
        diagonal = int((~hidden[0]).sum()) - 1
        row = torch.arange(length, device=hidden.device)[:, None]
        if torch.equal(hidden, torch.arange(keys, device=hidden.device)[None] > row + diagonal):
            return diagonal
    raise NotImplementedError(
        f"{WHERE}: attn_mask of shape {tuple(hidden.shape)} does not hide exactly the keys behind a diagonal of "
        f"({length}, {keys}); other masks have no kernel, use key_padding_mask or torch.nn.MultiheadAttention"
    )
