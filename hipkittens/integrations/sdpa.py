# SPDX-License-Identifier: MIT
"""Redirects torch.nn.functional.scaled_dot_product_attention of unmodified programs to hipkittens.attention.

    from hipkittens.integrations import sdpa

    with sdpa.active():                # or sdpa.activate() ... sdpa.restore()
        model(x).sum().backward()      # torch.nn.MultiheadAttention, TransformerEncoderLayer, Transformers, diffusers, ...

While active, aten::scaled_dot_product_attention has a kernel of ours for CPU tensors and, on a ROCm build of PyTorch, for GPU tensors. It
covers every caller, in Python and in C++, with or without gradients, under autocast, checkpointing and torch.compile(fullgraph=True).
PyTorch's own registry of flash attention providers offers the same switch under the name "hipkittens"
(torch.nn.attention.activate_flash_attention_impl). Its hooks alone would not suffice: PyTorch calls them after choosing a kernel, which on
a CPU is another operator, without dropout.

Calls that no kernel supports fall back to PyTorch's own implementation, with one line per reason to logging.getLogger("hipkittens"), level
WARNING; `passed_on` lists the reasons.

The state belongs to the process, not to a thread. Change it while no other thread calls attention or compiles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.autograd import forward_ad
from torch.nn import attention as torch_attention

from .. import _backend
from .._masked_attention import attend
from ..attention import DTYPES, LARGEST_HEAD
from ._operator_switch import OperatorSwitch
from ._passing_on import REFUSALS, PassOn, Reasons

NAME = "hipkittens"

_reasons = Reasons("hipkittens.integrations.sdpa")
_operator = torch.ops.aten.scaled_dot_product_attention.default


class _State:
    read_masks = True
    fastpath = True


def activate(*, read_masks: bool = True) -> None:
    """From now on F.scaled_dot_product_attention of this process uses hipkittens where possible. Repeated calls have no effect.

    read_masks   Inspect the values of masks that are not key padding by their shape: a diagonal, or padding with a diagonal, has kernels.
    On
                 a GPU this waits for the device; False makes such calls fall back to PyTorch unread.

    PyTorch's fused inference path of torch.nn.MultiheadAttention and TransformerEncoderLayer, which calls no attention operator, is off
    meanwhile (torch.backends.mha). Programs that torch.compile compiled before are compiled again.
    """
    _State.read_masks = read_masks
    _switch.activate()


def restore() -> None:
    """Restores PyTorch's own attention, at once or, inside `active`, when that ends. Repeated calls have no effect."""
    _switch.restore()
    if torch_attention.current_flash_attention_impl() == NAME and hasattr(
        torch_attention, "restore_flash_attention_impl"
    ):
        torch_attention.restore_flash_attention_impl()


@contextlib.contextmanager
def active(*, read_masks: bool = True) -> Iterator[None]:
    """Context manager for activate(). May be nested; the outermost one restores, unless activate() was called on its own."""
    before, _State.read_masks = _State.read_masks, read_masks
    try:
        with _switch.active():
            yield
    finally:
        _State.read_masks = before


def is_active() -> bool:
    return _switch.is_active()


def passed_on() -> list[str]:
    """Why calls fell back to PyTorch's own implementation since the last activation; each reason once."""
    return _reasons()


def _enter() -> None:
    _reasons.clear()
    _State.fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)


def _leave() -> None:
    torch.backends.mha.set_fastpath_enabled(_State.fastpath)


class _Provider:
    """The entry in PyTorch's registry of flash attention providers while we are active there."""

    def remove(self) -> None:
        _switch.restore()


def _activate_as_provider() -> _Provider:
    activate()
    return _Provider()


torch_attention.register_flash_attention_impl(NAME, register_fn=_activate_as_provider)


def _scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    try:
        return _ours(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (PassOn, *REFUSALS) as error:
        _reasons.note("scaled_dot_product_attention", str(error))
    return _operator.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _ours(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    _check_surroundings()
    _check(query, key, value, attn_mask, dropout_p, is_causal)
    lead = query.shape[:-3]
    _check_heads(query, key, value, enable_gqa)
    size, value_size = query.shape[-1], value.shape[-1]
    scale = size**-0.5 if scale is None else scale
    q, k, v = (_with_four_dimensions(tensor, -(-tensor.shape[-1] // 8) * 8) for tensor in (query, key, value))
    diagonal, hidden = (0 if is_causal else None), None
    if attn_mask is not None:
        diagonal, hidden = _read(attn_mask, lead, q.shape[2], q.shape[1], k.shape[1])
    out = attend(q, k, v, diagonal, hidden, scale=scale, dropout_p=dropout_p)
    out = out[..., :value_size].transpose(1, 2)
    if query.dim() <= 3:
        return out[0] if query.dim() == 3 else out[0, 0]
    return out.unflatten(0, lead) if len(lead) != 1 else out


def _check_surroundings() -> None:
    if _backend.uses_torch():
        raise PassOn("HIPKITTENS_BACKEND is torch")
    if not torch.backends.cuda.flash_sdp_enabled():
        raise PassOn("torch.nn.attention.sdpa_kernel is open without SDPBackend.FLASH_ATTENTION")
    if torch._C._are_functorch_transforms_active():
        raise PassOn("a torch.func transform is at work")
    if forward_ad._current_level >= 0:
        raise PassOn("forward-mode differentiation is at work")


def _check(query, key, value, attn_mask, dropout_p, is_causal) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dtype not in DTYPES:
            raise PassOn(
                f"{name} is {tensor.dtype}; kernels take torch.bfloat16 and torch.float16 "
                "(convert it, or run under torch.autocast)"
            )
        if tensor.dtype != query.dtype or tensor.dim() != query.dim():
            raise PassOn(f"query and {name} differ in dtype or number of dimensions")
        if tensor.layout != torch.strided or tensor.is_nested or tensor.dim() < 2:
            raise PassOn(f"{name} is no dense tensor of at least 2 dimensions")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise PassOn("the sizes of query, key and value do not fit")
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        # An expanded key would have its gradients rounded, batch by batch, before they are summed.
        raise PassOn("the batches of query, key and value differ")
    if not 1 <= query.shape[-1] <= LARGEST_HEAD or not 1 <= value.shape[-1] <= LARGEST_HEAD:
        raise PassOn(
            f"head sizes {query.shape[-1]} and {value.shape[-1]} (of value); kernels take 1 to {LARGEST_HEAD}"
        )
    if not 0.0 <= dropout_p < 1.0:
        raise PassOn(f"dropout_p is {dropout_p}; kernels take 0 up to, not including, 1")
    if attn_mask is not None and is_causal:
        raise PassOn("attn_mask and is_causal are both given")


def _check_heads(query, key, value, enable_gqa: bool) -> None:
    if query.dim() == 2:
        return
    heads, key_heads, value_heads = (tensor.shape[-3] for tensor in (query, key, value))
    if key_heads != value_heads or key_heads == 0 or heads % key_heads:
        raise PassOn(
            f"query has {heads} heads, key {key_heads} and value {value_heads}; kernels take as many of key as of value, "
            "which divide those of query"
        )
    if not enable_gqa and key_heads not in (heads, 1):
        raise PassOn("query and key have different numbers of heads, without enable_gqa")


def _with_four_dimensions(tensor, width: int):
    """(batch, length, heads, width): a view, unless the head size is padded or many leading dimensions have no common stride."""
    if tensor.shape[-1] != width:
        tensor = torch.nn.functional.pad(tensor, (0, width - tensor.shape[-1]))
    if tensor.dim() > 4:
        tensor = tensor.flatten(0, -4)
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor.transpose(1, 2)


def _read(mask, lead: tuple[int, ...], heads: int, length: int, keys: int):
    """(diagonal, hidden) of `attend` that are equivalent to the mask."""
    if mask.requires_grad:
        raise PassOn("attn_mask requires a gradient")
    try:
        mask = mask.expand(*lead, heads, length, keys)
    except RuntimeError:
        raise PassOn("attn_mask does not broadcast to the scores of query and key") from None
    mask = mask.flatten(0, -4) if lead else mask.unsqueeze(0)
    if not mask.numel():
        return None, None

    def varies(axis: int) -> bool:
        return mask.shape[axis] > 1 and mask.stride(axis) != 0

    if mask.dtype == torch.bool and not varies(1) and not varies(2):
        return None, ~mask[:, 0, 0]
    if torch.compiler.is_compiling() or type(mask) is not torch.Tensor:
        raise PassOn("the values of attn_mask are not known while torch.compile traces")
    if not _State.read_masks:
        raise PassOn("attn_mask is no boolean key padding by its shape, and read_masks is False")
    if mask.dtype == torch.bool:
        visible = mask
    else:
        visible = mask == 0
        if not bool((visible | (mask == float("-inf"))).all()):
            raise PassOn("attn_mask adds values other than 0 and -inf; kernels add none")
    if varies(1) and not bool((visible == visible[:, :1]).all()):
        raise PassOn("attn_mask differs between heads")
    visible = visible[:, 0]
    if bool(visible.all()):
        return None, None
    kept = visible.any(1)
    if bool((visible == kept[:, None]).all()):
        return None, ~kept
    row, column = (torch.arange(size, device=mask.device) for size in (length, keys))
    place = column - row[:, None]
    diagonal = int(place.expand(visible.shape)[visible].max())
    below = place <= diagonal
    if bool((visible == below).all()):
        return diagonal, None
    if bool((visible == (below & kept[:, None])).all()):
        return diagonal, ~kept
    raise PassOn("attn_mask hides other keys than padding and what is behind a diagonal")


_switch = OperatorSwitch(_operator, _scaled_dot_product_attention, _enter, _leave)
