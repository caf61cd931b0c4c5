# SPDX-License-Identifier: MIT
"""Cross-entropy loss over logits, and over a linear layer whose logits are never stored as a whole."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
import torch.nn.functional as F

from . import _autocast, _backend
from ._arguments import check_dtype_and_device, check_flag, check_probability, check_tensor, number
from ._autograd import no_forward_mode
from ._call import call
from ._vmap import in_a_loop
from .gemm import addmm_, matmul

LOGIT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FEATURE_DTYPES = (torch.bfloat16, torch.float16)
Reduction = Literal["mean", "sum", "none"]

# linear_cross_entropy allocates at most 1 / _PARTS of the logits' bytes for its work, except for small problems.
_PARTS, _SMALL_BYTES = 8, 1 << 24
# Rows and classes of a part are whole tiles of the GEMMs.
_STEP = 256
# Of a whole MI300X or MI325X, and MI350X or MI355X (AMD's data sheets). A partition has fewer; parts then do not have the best size.
_COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}
# The fixed cost of a tile, in elements of K: round / k_tile of 256 x 256 tiles in csrc/kernels/gemm/costs.def.
_TILE_BEGINS_AND_ENDS = 400


class _Options(NamedTuple):
    """The last arguments of torch.ops.hipkittens.cross_entropy*, in order. softcap 0.0: none."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float


@overload
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Reduction = "mean",
    return_entropy: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Reduction = "mean",
    return_entropy: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Reduction = "mean",
    return_entropy: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy loss of logits (..., V) and class indices target (...), like torch.nn.functional.cross_entropy, in float32.

    With x = softcap * tanh(logits / softcap), or the logits if `softcap` is None, and lse = log(sum(exp(x))), the loss of a row is
    (1 - label_smoothing) * (lse - x[target]) + label_smoothing * (lse - mean(x)) + z_loss * lse ** 2. A row whose target is `ignore_index`
    has loss, entropy and gradient 0, and does not count for the "mean". `reduction` "none" returns a loss for each row. `return_entropy`:
    also return lse - sum(softmax(x) * x) of every row, with its derivative. Sums are float32, and so is the loss for any dtype of logits.

    logits are float32, bfloat16 or float16. They are read once, and once more for their gradient, which is rounded once to their dtype.
    target is int64. A target outside 0 .. V - 1 raises IndexError for CPU tensors; on a GPU, where it is not checked, its loss is NaN.
    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.cross_entropy"
    check_tensor(where, "logits", logits)
    check_dtype_and_device(where, "logits", logits, LOGIT_DTYPES, "logits", logits)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"{where}: logits have shape {tuple(logits.shape)}; they need a last dimension of 1 or more"
        )
    _check_target(where, target, ignore_index, logits, "logits", logits.shape[-1])
    options = _checked_options(where, ignore_index, label_smoothing, z_loss, softcap, reduction)
    check_flag(where, "return_entropy", return_entropy)
    _backend.check_device(where, "logits", logits)
    target = target.contiguous()
    if _backend.uses_torch():
        loss, entropy = in_torch(logits, target, *options)
    else:
        loss, _, _, entropy = call("cross_entropy", logits, target, *options, return_entropy)
    loss = _reduced(loss, target, options, reduction)
    return (loss, entropy) if return_entropy else loss


@_backend.interruptible
def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Reduction = "mean",
    recompute: bool | None = None,
) -> torch.Tensor:
    """Cross-entropy loss of a linear layer, without storing all logits: cross_entropy(linear(x, weight, bias), target, ...).

    `x` is (..., H), `weight` (V, H), `bias` (V) and `target` (...). x and weight are bfloat16 or float16, both the same, bias in their
    dtype or float32; the loss is float32. The logits are computed in parts, rounded to x's dtype; the entire workspace is an eighth of
    their size, or 16 MiB. Every gradient is accumulated in float32 and rounded once.

    `recompute`: if True, backward computes the logits again, a fourth GEMM. If False, the gradients of a "mean" or a "sum" in bfloat16 are
    computed with the loss, in three GEMMs, and kept for one backward; accumulating that of weight takes 4 V H more bytes. None is False
    where this fits into the eighth, that is for many rows, and True otherwise. Per-row losses are always recomputed; so is float16, whose
    gradients would underflow before a loss scale is applied to them, and so is everything under the transforms of torch.func.

    `ignore_index`, `label_smoothing`, `z_loss`, `softcap`, `reduction` and errors are those of `cross_entropy`.
    """
    where = "hipkittens.linear_cross_entropy"
    x, weight, bias = _autocast.to_autocast_dtype(x, weight, bias)
    for name, value in (("x", x), ("weight", weight), *([("bias", bias)] if bias is not None else [])):
        check_tensor(where, name, value)
    check_dtype_and_device(where, "x", x, FEATURE_DTYPES, "x", x)
    check_dtype_and_device(where, "weight", weight, (x.dtype,), "x", x)
    if x.dim() == 0 or weight.dim() != 2 or weight.shape[1] != x.shape[-1] or 0 in weight.shape:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be (..., H) and (V, H) "
            "with H and V of 1 or more"
        )
    if bias is not None:
        check_dtype_and_device(where, "bias", bias, (x.dtype, torch.float32), "x", x)
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"{where}: bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    _check_target(where, target, ignore_index, x, "x", weight.shape[0])
    options = _checked_options(where, ignore_index, label_smoothing, z_loss, softcap, reduction)
    if recompute is not None:
        check_flag(where, "recompute", recompute)
    _backend.check_device(where, "x", x)
    target = target.contiguous()
    if _backend.uses_torch():
        logits = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return _reduced(in_torch(logits, target, *options)[0], target, options, reduction)
    rows, flat = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    keeps = reduction != "none" and x.dtype == torch.bfloat16
    records = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    if recompute is None:
        recompute = weight.numel() * 4 > _workspace(rows.shape[0], weight.shape[0]) // 2
    elif not recompute and not keeps and torch.is_grad_enabled():
        raise ValueError(
            f"{where}: recompute is False, reduction {reduction!r} and x {x.dtype}; gradients are kept of a 'mean' or 'sum' "
            "of torch.bfloat16: leave recompute out"
        )
    if keeps and not recompute and records:
        scale = torch.ones((), dtype=torch.float32, device=x.device)
        if reduction == "mean":
            scale = 1.0 / _counted(flat, options)
        return _KeptGradients.apply(rows, weight, bias, flat, scale, options)
    loss, _, _ = _Recomputed.apply(rows, weight, bias, flat, *options)
    return _reduced(loss.reshape(target.shape), target, options, reduction)


def _check_target(
    where: str, target: torch.Tensor, ignore_index: int, rows: torch.Tensor, of: str, classes: int
) -> None:
    check_tensor(where, "target", target)
    if target.dtype != torch.int64:
        hint = "; class probabilities are not supported" if target.is_floating_point() else ""
        raise TypeError(f"{where}: target is {target.dtype}; allowed: torch.int64 class indices{hint}")
    if target.device != rows.device:
        raise ValueError(
            f"{where}: target is on {target.device} and {of} on {rows.device}; move one to the other"
        )
    if target.shape != rows.shape[:-1]:
        raise ValueError(
            f"{where}: target has shape {tuple(target.shape)} and {of} {tuple(rows.shape)}; target must have the shape "
            f"{tuple(rows.shape[:-1])}, one class for each row"
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"{where}: ignore_index is {ignore_index!r}; it must be an int")
    is_readable = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    if type(target) is torch.Tensor and target.device.type == "cpu" and is_readable:
        outside = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
        if outside.numel():
            raise IndexError(
                f"{where}: target has the class {int(outside[0])}; allowed: 0 .. {classes - 1}, and ignore_index "
                f"{ignore_index}"
            )


def _checked_options(
    where: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    reduction: str,
) -> _Options:
    check_probability(where, "label_smoothing", label_smoothing)
    if not 0.0 <= number(where, "z_loss", z_loss) < float("inf"):
        raise ValueError(f"{where}: z_loss is {z_loss}; it must be 0 or more")
    if softcap is not None and not 0.0 < number(where, "softcap", softcap) < float("inf"):
        raise ValueError(f"{where}: softcap is {softcap}; it must be above 0, or None")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{where}: reduction is {reduction!r}; allowed: 'mean', 'sum', 'none'")
    return _Options(
        ignore_index, float(label_smoothing), float(z_loss), 0.0 if softcap is None else float(softcap)
    )


def _counted(target: torch.Tensor, options: _Options) -> torch.Tensor:
    return (target != options.ignore_index).sum(dtype=torch.float32)


def _reduced(loss: torch.Tensor, target: torch.Tensor, options: _Options, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / _counted(target, options)


def in_torch(
    logits: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses and entropies of rows by PyTorch operations, in float32 unless logits are float64."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    lse = x.logsumexp(-1)
    kept = target != ignore_index
    chosen = x.gather(-1, target.clamp(0, x.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    loss = lse - chosen
    if label_smoothing:
        loss = loss + label_smoothing * (chosen - x.mean(-1))
    if z_loss:
        loss = loss + z_loss * lse * lse
    powers = (x - lse.unsqueeze(-1)).exp()
    entropy = lse - torch.where(powers == 0, 0.0, powers * x).sum(-1)
    return torch.where(kept, loss, 0.0), torch.where(kept, entropy, 0.0)


def _workspace(rows: int, classes: int) -> int:
    """The workspace in bytes, for logits of 2 bytes each."""
    return max(rows * classes * 2 // _PARTS, _SMALL_BYTES)


def _steps(total: int, bytes_of_one: int, budget: int) -> list[tuple[int, int]]:
    """Start and end of parts that take at most `budget` bytes, unless that is less than one tile."""
    step = max(budget // bytes_of_one // _STEP, 1) * _STEP
    return [(first, min(first + step, total)) for first in range(0, total, step)]


def _left(rows: int, classes: int, sums: torch.Tensor | None) -> int:
    """Bytes of the workspace that `sums` leaves for logits."""
    space = _workspace(rows, classes)
    return space if sums is None else max(space - sums.numel() * 4, 0)


def _well_divided(rows: int, features: int, most: int, device: torch.device) -> int:
    """How many classes at a time, `most` or fewer, take the least time per class: the tiles of a part's three GEMMs are computed in
    rounds of one per compute unit, the last of which may be nearly empty.
    """
    units = _COMPUTE_UNITS[_backend.arch_of(device)]
    row_tiles, feature_tiles = (math.ceil(size / _STEP) for size in (rows, features))

    def cost_of_class(tiles: int) -> float:
        products = (
            (row_tiles * tiles, features),
            (feature_tiles * tiles, rows),
            (row_tiles * feature_tiles, tiles * _STEP),
        )
        return sum(math.ceil(count / units) * (k + _TILE_BEGINS_AND_ENDS) for count, k in products) / tiles

    return min(range(max(most // _STEP, 1), 0, -1), key=cost_of_class) * _STEP


def _part_of_logits(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, first: int, end: int
) -> torch.Tensor:
    return matmul(x, weight[first:end].t(), bias=None if bias is None else bias[first:end])


def _losses(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, options: _Options
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For all rows: the loss, and what the gradient needs, the maximum and the sum of exponentials."""
    rows, classes = x.shape[0], weight.shape[0]
    loss, maximum, sums = (x.new_empty((rows,), dtype=torch.float32) for _ in range(3))
    results = loss, maximum, sums
    for first, end in _steps(rows, classes * 2, _workspace(rows, classes)):
        logits = _part_of_logits(x[first:end], weight, bias, 0, classes)
        of_part = call("cross_entropy", logits, target[first:end], *options, False)
        for result, value in zip(results, of_part, strict=False):
            result[first:end] = value
    return results


def _zeros(need: bool, like: torch.Tensor | None, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """Zeros for a gradient, None if it is not needed."""
    return torch.zeros_like(like, dtype=dtype) if need and like is not None else None


def _rounded(sums: torch.Tensor | None, like: torch.Tensor | None) -> torch.Tensor | None:
    return None if sums is None or like is None else sums.to(like.dtype)


class _KeptGradients(torch.autograd.Function):
    """The sum of the losses times `scale`, in parts of rows; the gradients are computed together with it."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, scale, options):
        needed = ctx.needs_input_grad
        ctx.used = False
        rows, classes = x.shape[0], weight.shape[0]
        dx = _zeros(needed[0], x)
        dweight, dbias = _zeros(needed[1], weight, torch.float32), _zeros(needed[2], bias, torch.float32)
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for first, end in _steps(rows, classes * 2, _left(rows, classes, dweight)):
            part = x[first:end]
            logits = _part_of_logits(part, weight, bias, 0, classes)
            total += call("cross_entropy_in_place", logits, target[first:end], scale, *options).sum()
            if dx is not None:
                dx[first:end] = matmul(logits, weight)
            if dweight is not None:
                addmm_(dweight, logits.t(), part)
            if dbias is not None:
                dbias += logits.sum(0, dtype=torch.float32)
        # A single rounding of dbias, where it costs no memory; dx and dweight are also rounded before they are multiplied with dloss.
        ctx.save_for_backward(dx, _rounded(dweight, weight), dbias)
        ctx.dtype_of_bias = None if bias is None else bias.dtype
        return total * scale

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss):
        if ctx.used:
            raise RuntimeError(
                "hipkittens.linear_cross_entropy: its gradients were kept for one backward, and this is another; call it "
                "with recompute=True"
            )
        ctx.used = True
        dx, dweight, dbias = (value if value is None else value.mul_(dloss) for value in ctx.saved_tensors)
        return dx, dweight, None if dbias is None else dbias.to(ctx.dtype_of_bias), None, None, None

    @staticmethod
    def jvp(ctx, *_tangents):
        raise no_forward_mode("linear_cross_entropy")


class _Recomputed(torch.autograd.Function):
    """The losses of all rows; backward computes the logits again, in parts of classes."""

    @staticmethod
    def forward(x, weight, bias, target, *options):
        return _losses(x, weight, bias, target, _Options(*options))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, target, *options = inputs
        ctx.options = _Options(*options)
        _, maximum, sums = output
        ctx.mark_non_differentiable(maximum, sums)
        ctx.save_for_backward(x, weight, bias, target, maximum, sums)

    @staticmethod
    def jvp(ctx, *_tangents):
        raise no_forward_mode("linear_cross_entropy")

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return in_a_loop(_Recomputed.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss, *_):
        x, weight, bias, target, maximum, of_powers = ctx.saved_tensors
        options: _Options = ctx.options
        needed = ctx.needs_input_grad
        sums = _zeros(needed[0], x, torch.float32)
        dweight, dbias = _zeros(needed[1], weight), _zeros(needed[2], bias)
        rows, classes = x.shape[0], weight.shape[0]
        dloss, ignored = dloss.contiguous(), target == options.ignore_index
        budget = _left(rows, classes, sums)
        if sums is not None and dweight is not None and rows:
            budget = min(budget, _well_divided(rows, x.shape[1], budget // (rows * 2), x.device) * rows * 2)
        for first, end in _steps(classes, rows * 2, budget) if rows else ():
            logits = _part_of_logits(x, weight, bias, first, end)
            # Relative to the part's first class. -1 stands for ignored targets, since ignore_index may be a class of the part, and
            # `classes`, which is in no part, for the classes before it.
            here = torch.where(target < first, classes, target - first).masked_fill(ignored, -1)
            call(
                "cross_entropy_backward_in_place",
                logits,
                here,
                dloss,
                maximum,
                of_powers,
                classes,
                *options._replace(ignore_index=-1),
            )
            if sums is not None:
                addmm_(sums, logits, weight[first:end])
            if dweight is not None:
                dweight[first:end] = matmul(logits.t(), x)
            if dbias is not None:
                dbias[first:end] = logits.sum(0, dtype=torch.float32)
        return _rounded(sums, x), dweight, dbias, None, *(None for _ in options)
