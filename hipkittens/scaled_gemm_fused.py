# SPDX-License-Identifier: MIT
"""Scaled matrix products of quantized operands together with what follows them, in one launch: a multiplication and addition, or heads that
are split and concatenated with others.
"""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import (
    check_dtype_and_device,
    check_get_no_gradients,
    check_gets_no_gradient,
    check_tensor,
    check_whole_number,
    number,
)
from ._call import call
from ._panels import seen_as_rows
from .gemm import number_of_activation
from .scaled_gemm import (
    FORMATS,
    OUTPUT_DTYPES,
    SCALINGS,
    Scaling,
    check_product,
    in_dwords,
    operands_as_kernels_read,
    scaled_matmul,
)

_OUTER = ("tensor", "row")
_BLOCKS = ("1x128", "128x128")


@_backend.interruptible
def scaled_matmul_multiply_add(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    factor: torch.Tensor | float,
    addend: torch.Tensor | float,
    *,
    recipe: Scaling | tuple[Scaling, Scaling] | None = None,
    swizzle: str | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Scaled matrix product of quantized operands, times a factor, plus an addend (such as a residual), in float32 with one rounding.

    Computes factor * scaled_matmul(a, b, scale_a, scale_b, bias=bias, activation=activation) + addend (M, N), in one launch.

    `a`, `b`, `scale_a`, `scale_b`, `recipe`, `swizzle`, `bias`, `activation` as in `scaled_matmul`, of which these formats have kernels:
    e4m3 of the target with scales of tensors and rows, or of 1x128 and 128x128 blocks; and on gfx950 e2m1 with 1x32 scales. `factor` and
    `addend` are each a number, or a tensor of bfloat16, float16 or float32 that broadcasts to (M, N): a residual (M, N), one value for each
    row (M, 1) or column (N), or one for all. `out_dtype` is torch.bfloat16, float16 or float32. K is not split among workgroups: with few
    rows and a long K, scaled_matmul and then mul_add may be faster.

    Not differentiable: tensors that require a gradient are refused. Raises TypeError or ValueError, before anything is launched, for
    arguments that no kernel supports.
    """
    return multiply_add(
        "hipkittens.scaled_matmul_multiply_add",
        (a, b, scale_a, scale_b),
        factor,
        addend,
        recipe=recipe,
        swizzle=swizzle,
        bias=bias,
        activation=activation,
        out_dtype=out_dtype,
    )


def multiply_add(
    where: str,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    factor: torch.Tensor | float,
    addend: torch.Tensor | float,
    *,
    adds_result: bool = False,
    recipe: Scaling | tuple[Scaling, Scaling] | None = None,
    swizzle: str | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """scaled_matmul_multiply_add of (a, b, scale_a, scale_b), or factor * addend + result if `adds_result`."""
    product = _Product(where, operands, recipe, swizzle, bias, activation, out_dtype)
    terms = [_Term(where, name, value, product) for name, value in (("factor", factor), ("addend", addend))]
    if product.is_empty or _backend.uses_torch():
        result, (left, right) = product.in_float32(), (term.in_float32 for term in terms)
        return (left * right + result if adds_result else result * left + right).to(out_dtype)
    return call(
        "scaled_gemm_multiply_add",
        *product.tensors(),
        *(term.tensor for term in terms),
        *(term.number for term in terms),
        adds_result,
        *product.numbers(),
        number_of_activation(activation),
        out_dtype,
    )


@_backend.interruptible
def scaled_matmul_concat_heads(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    joined: torch.Tensor,
    first: int,
    *,
    recipe: Scaling | tuple[Scaling, Scaling] | None = None,
    swizzle: str | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled matrix product of quantized operands as heads that are split and concatenated with others; returns two tensors of heads.

    The product (M, N) is H heads of N / H features. Returns torch.cat((heads[..., :first], joined), -1) and heads[..., first:], both dense,
    in one launch. For multi-head latent attention: keys without position and values from the latent, and `joined` the rotary part of keys.

    `a`, `b`, `scale_a`, `scale_b`, `recipe`, `swizzle`, `bias` as in `scaled_matmul_multiply_add`. `joined` (M, H, features) is
    bfloat16, float16 or float32, which is also the dtype of the results, with any strides, so that one head may be expanded to all. `first`:
    0 to N / H.

    Not differentiable: tensors that require a gradient are refused. Raises TypeError or ValueError, before anything is launched, for
    arguments that no kernel supports.
    """
    where = "hipkittens.scaled_matmul_concat_heads"
    check_tensor(where, "joined", joined)
    out_dtype = joined.dtype if joined.dtype in OUTPUT_DTYPES else torch.bfloat16
    product = _Product(where, (a, b, scale_a, scale_b), recipe, swizzle, bias, None, out_dtype)
    m, n = product.shape
    check_dtype_and_device(where, "joined", joined, OUTPUT_DTYPES, "a", a)
    check_gets_no_gradient(where, "joined", joined)
    if joined.dim() != 3 or joined.shape[0] != m:
        raise ValueError(
            f"{where}: joined has shape {tuple(joined.shape)}; it must be ({m}, heads, features)"
        )
    heads = joined.shape[1]
    if heads == 0 or n % heads:
        raise ValueError(
            f"{where}: joined has {heads} heads and the product {n} columns; they must be heads of equal size"
        )
    features = n // heads
    check_whole_number(where, "first", first)
    if not 0 <= first <= features:
        raise ValueError(f"{where}: first is {first}; a head has {features} features")
    if product.is_empty or _backend.uses_torch():
        of_heads = product.in_float32().to(out_dtype).view(m, heads, features)
        return torch.cat((of_heads[..., :first], joined), -1), of_heads[..., first:].contiguous()
    return call(
        "scaled_gemm_concat_heads",
        *product.tensors(),
        joined,
        first,
        features - first,
        *product.numbers(),
        out_dtype,
    )


class _Product:
    """A product of quantized operands whose arguments were checked, for the operators with what follows it."""

    def __init__(self, where, operands, recipe, swizzle, bias, activation, out_dtype) -> None:
        a, b, scale_a, scale_b = operands
        self.panels = None
        if isinstance(b, torch.Tensor) and b.dim() == 4:
            self.panels, b = b, seen_as_rows(where, "b", b).t()
        if out_dtype not in OUTPUT_DTYPES:
            allowed = ", ".join(map(str, OUTPUT_DTYPES))
            raise TypeError(f"{where}: out_dtype is {out_dtype}; allowed: {allowed}")
        self.named, self.scalings = check_product(
            where, a, b, scale_a, scale_b, bias, recipe, swizzle, activation, out_dtype, None
        )
        outer = all(scaling in _OUTER for scaling in self.scalings)
        built = {("fp8", "fp8"): outer or self.scalings == _BLOCKS, ("fp4", "fp4"): True}
        if not built.get(self.named, False):
            raise ValueError(
                f"{where}: there is no kernel for a of {self.named[0]}, b of {self.named[1]} and the recipe {self.scalings}; allowed: "
                "e4m3 with 'tensor' and 'row' or with ('1x128', '128x128'), and e2m1 with '1x32'; or apply what follows to "
                "hipkittens.scaled_matmul"
            )
        check_get_no_gradients(where, a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias)
        self.a, self.b, self.scales = a, b, (scale_a, scale_b)
        self.bias, self.activation, self.swizzle = bias, activation, swizzle
        self.shape = a.shape[0], b.shape[1]
        self.is_empty = 0 in a.shape or 0 in b.shape

    def in_float32(self) -> torch.Tensor:
        """The product in PyTorch, or without elements of K."""
        return scaled_matmul(
            self.a,
            self.b if self.panels is None else self.panels,
            *self.scales,
            recipe=self.scalings,
            swizzle=self.swizzle,
            bias=self.bias,
            activation=self.activation,
            out_dtype=torch.float32,
        )

    def tensors(self) -> list[torch.Tensor | None]:
        """a, b, their scales and the bias, as operators take them."""
        b = self.b if self.panels is None else self.panels
        codes, scales = operands_as_kernels_read(
            self.a, b, self.scales, self.named, self.scalings, self.swizzle
        )
        return [*map(in_dwords, codes), *scales, self.bias]

    def numbers(self) -> list[int]:
        """Of the formats and scalings."""
        return [*(FORMATS[each] for each in self.named), *(SCALINGS[each] for each in self.scalings)]


class _Term:
    """A factor or addend: a number, or a tensor of two dimensions that broadcasts to the product."""

    tensor: torch.Tensor | None = None
    number = 0.0

    def __init__(self, where: str, name: str, value: torch.Tensor | float, product: _Product) -> None:
        if not isinstance(value, torch.Tensor):
            self.number = number(where, name, value)
            return
        check_dtype_and_device(where, name, value, OUTPUT_DTYPES, "a", product.a)
        check_gets_no_gradient(where, name, value)
        shape = (1,) * (2 - value.dim()) + tuple(value.shape)
        if len(shape) != 2 or any(
            own not in (1, extent) for own, extent in zip(shape, product.shape, strict=True)
        ):
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it must broadcast to {product.shape}"
            )
        self.tensor = value.view(shape)

    @property
    def in_float32(self) -> torch.Tensor | float:
        return self.number if self.tensor is None else self.tensor.float()
