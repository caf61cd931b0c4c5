# SPDX-License-Identifier: MIT
"""Float8 linear layer for training: the casts, the three GEMMs of forward and backward, and their scales."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad

from . import _autocast, _backend
from ._after_import import after_import
from ._arguments import check_dtype_and_device, check_tensor
from ._autograd import _has_tangent, no_forward_mode
from ._vmap import in_a_loop
from .gemm import matmul
from .quantization import QuantSpec, dtype_of, quantize
from .scaled_gemm import scaled_matmul

Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class _Casts(NamedTuple):
    """How the operands of a recipe are cast: those of y, dy, and w for dx."""

    operands: QuantSpec
    gradient: QuantSpec
    weight_of_dx: QuantSpec


_ROWS = QuantSpec("fp8", "row", scale_rule="round_up")
_CASTS: dict[str, _Casts] = {
    "tensorwise": _Casts(QuantSpec("fp8", "tensor"), QuantSpec("bf8", "tensor"), QuantSpec("fp8", "tensor")),
    "rowwise": _Casts(_ROWS, _ROWS, _ROWS),
    "rowwise_with_gw_hp": _Casts(_ROWS, _ROWS, QuantSpec("fp8", "tensor", scale_rule="round_up")),
}


@_backend.interruptible
def float8_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, recipe: Recipe = "rowwise"
) -> torch.Tensor:
    """Linear layer for training that casts both operands of each GEMM to 8-bit floats, in forward and backward.

    `x` is (..., K), `w` (N, K) and `bias` (N). With Q(t) for quantized values times their scale, y = Q(x) Q(w)^T + bias, dx = Q(dy) Q(w),
    dw = Q(dy)^T Q(x), and db = sum(dy). Each GEMM accumulates in float32, multiplies by the scales, and rounds once.

    `recipe` is one of torchao's:

    - "tensorwise": one scale per tensor, its largest magnitude over the largest representable value. x and w are e4m3, dy is e5m2.
    - "rowwise": all e4m3. One power-of-two scale per row along the summed dimension: x and w along K for y, dy and w along N for dx, dy and
      x along the rows of x for dw, so every tensor is cast twice.
    - "rowwise_with_gw_hp": as rowwise, but dw is hipkittens.matmul of the unquantized x and dy, and w has a single power-of-two scale for
      dx. bfloat16 and float16 only.

    e4m3 and e5m2 are the target's: fnuz on gfx942, OCP on gfx950. x and w are bfloat16, float16 or float32, both the same, and so are y, dx
    and dw; bias is in their dtype or float32. Under autocast they are converted first. Casts and products along a dimension other than the
    last copy their operand once. For backward, x is kept in 8 bits (except with rowwise_with_gw_hp) and w as it is. There is no second
    derivative. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.float8_linear"
    x, w, bias = _autocast.to_autocast_dtype(x, w, bias)
    for name, value in (("x", x), ("w", w), *([("bias", bias)] if bias is not None else [])):
        check_tensor(where, name, value)
    check_recipe(where, recipe)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    check_dtype_and_device(where, "w", w, (x.dtype,), "x", x)
    if x.dim() == 0 or w.dim() != 2 or w.shape[1] != x.shape[-1]:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and w {tuple(w.shape)}; they must be (..., K) and (N, K)"
        )
    if bias is not None:
        check_dtype_and_device(where, "bias", bias, (x.dtype, torch.float32), "x", x)
        if bias.shape != w.shape[:1]:
            raise ValueError(f"{where}: bias has shape {tuple(bias.shape)}; it must be ({w.shape[0]},)")
    if recipe == "rowwise_with_gw_hp" and x.dtype == torch.float32:
        raise TypeError(
            f"{where}: x is torch.float32 and the recipe 'rowwise_with_gw_hp', whose dw is a product of torch.bfloat16 or "
            "torch.float16; convert x and w, run under torch.autocast, or take another recipe"
        )
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which has no such operation; unset it")
    if 0 in x.shape or 0 in w.shape:  # sums of nothing
        return torch.nn.functional.linear(x, w, None if bias is None else bias.to(x.dtype))
    # A jvp of the function below would raise it as well, but torch.compile accepts no function that has one.
    if (
        not torch.compiler.is_compiling()
        and forward_ad._current_level >= 0
        and any(map(_has_tangent, (x, w, bias)))
    ):
        raise no_forward_mode("float8_linear")
    keeps = torch.is_grad_enabled() and w.requires_grad
    y, *_ = _Float8Linear.apply(x.reshape(-1, x.shape[-1]), w, bias, recipe, keeps)
    return y.reshape(*x.shape[:-1], w.shape[0])


def check_recipe(where: str, recipe: str) -> None:
    if recipe not in _CASTS:
        raise ValueError(f"{where}: recipe is {recipe!r}; allowed: {', '.join(map(repr, _CASTS))}")


def _bytes(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.uint8)


class _Float8Linear(torch.autograd.Function):
    """y, and what backward keeps besides x and w: the scale of w (or nothing), the codes of x for dw and their scale. Codes
    are passed as bytes, since few PyTorch functions accept 8-bit floats.
    """

    @staticmethod
    def forward(x, w, bias, recipe, keeps):
        casts = _CASTS[recipe]
        x_codes, x_scale = quantize(x, casts.operands)
        w_codes, w_scale = quantize(w, casts.operands)
        of_columns = w_scale if w_scale.dim() == 0 else w_scale.t()
        y = scaled_matmul(x_codes, w_codes.t(), x_scale, of_columns, bias=bias, out_dtype=x.dtype)
        if recipe == "tensorwise":
            return y, w_scale, _bytes(x_codes), x_scale
        if recipe == "rowwise" and keeps:
            codes, scale = quantize(x.t(), casts.operands)
            return y, y.new_empty(0), _bytes(codes), scale
        return y, y.new_empty(0), y.new_empty(0), y.new_empty(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, bias, ctx.recipe, _ = inputs
        _, w_scale, x_codes, x_scale = output
        ctx.mark_non_differentiable(w_scale, x_codes, x_scale)
        ctx.has_codes = x_codes.dim() == 2
        needs_x = ctx.needs_input_grad[1] and not ctx.has_codes
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(x if needs_x else None, w, w_scale, x_codes, x_scale)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return in_a_loop(_Float8Linear.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy, *_):
        x, w, w_scale, x_codes, x_scale = ctx.saved_tensors
        casts, recipe = _CASTS[ctx.recipe], ctx.recipe
        needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
        dx = dw = db = None
        of_tensor = None
        if needs_dx or (needs_dw and recipe == "tensorwise"):
            of_tensor = quantize(dy, casts.gradient)
        if needs_dx:
            dy_codes, dy_scale = of_tensor
            if recipe == "rowwise":
                codes, scale = quantize(w.t(), casts.weight_of_dx)
                codes, scale = codes.t(), scale.t()
            else:
                given = w_scale if recipe == "tensorwise" else None
                codes, scale = quantize(w, casts.weight_of_dx, given)
            dx = scaled_matmul(dy_codes, codes, dy_scale, scale, out_dtype=dy.dtype)
        if needs_dw and recipe == "rowwise_with_gw_hp":
            dw = matmul(dy.t(), x)
        elif needs_dw and recipe == "rowwise":
            dy_codes, dy_scale = quantize(dy.t(), casts.gradient)
            if ctx.has_codes:
                codes, scale = x_codes.view(dy_codes.dtype), x_scale
            else:
                codes, scale = quantize(x.t(), casts.operands)
            dw = scaled_matmul(dy_codes, codes.t(), dy_scale, scale.t(), out_dtype=dy.dtype)
        elif needs_dw:
            dy_codes, dy_scale = of_tensor
            codes = x_codes.view(dtype_of("fp8", x_codes.device))
            dw = scaled_matmul(dy_codes.t(), codes, dy_scale, x_scale, out_dtype=dy.dtype)
        if needs_db:
            db = dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return dx, dw, db, None, None


after_import("torch._dynamo", f"{__package__}._float8_in_graphs")
