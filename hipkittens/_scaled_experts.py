# SPDX-License-Identifier: MIT
"""The experts of a layer with 8-bit weights: which scales these have, and how what is multiplied with them is quantised."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor
from .activation import activation as activate
from .activation import gated_activation
from .grouped import grouped_matmul
from .quantization import QuantSpec, dtype_of, gated_activation_quantize, quantize
from .scaled_grouped import Recipe

# What rows are quantised to by the first word of a recipe.
_SPECS = {
    "row": QuantSpec("fp8", "row"),
    "tensor": QuantSpec("fp8", "tensor"),
    "1x128": QuantSpec("fp8", 128),
}
# Those of which a layer is built: how rows of tokens are scaled, and how weights are. The first that fits is what shapes mean.
_BUILT = (("row", "row"), ("row", "tensor"), ("1x128", "128x128"), ("tensor", "tensor"), ("tensor", "row"))


class Scales(NamedTuple):
    """Of both weights as grouped_matmul takes those of b, and what rows of tokens are quantised to."""

    w1: torch.Tensor
    w2: torch.Tensor
    spec: QuantSpec
    recipe: tuple[str, str]


def checked(
    where: str,
    tensors: dict[str, torch.Tensor | None],
    scale_w1: torch.Tensor | None,
    scale_w2: torch.Tensor | None,
    recipe: Recipe | None,
) -> Scales:
    """Raises for scales that no kernel takes, weights of another target, and what requires a gradient.

    tensors  arguments of the layer by name, of which w1 (E, N, K) and w2 have the scales
    """
    scales = {"w1": scale_w1, "w2": scale_w2}
    x = tensors["x"]
    for name, scale in scales.items():
        if scale is None:
            raise ValueError(f"{where}: scale_{name} is None; 8-bit weights have scales: give both")
        check_tensor(where, f"scale_{name}", scale)
        check_dtype_and_device(where, f"scale_{name}", scale, (torch.float32,), "x", x)
        check_gets_no_gradient(where, f"scale_{name}", scale)
    for name, value in tensors.items():
        if value is not None:
            check_gets_no_gradient(where, name, value)
    if _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which quantises nothing; unset it")
    if x.device.type != "meta":
        fp8 = dtype_of("fp8", x.device, where)
        for name in scales:
            if tensors[name].dtype != fp8:
                raise TypeError(
                    f"{where}: {name} is {tensors[name].dtype}; {_backend.arch_of(x.device)} multiplies {fp8}, whose codes have "
                    "other values: quantise for this target"
                )
    pair = _pair(where, {name: tensors[name].shape for name in scales}, scales, recipe)
    ready = (_as_of_b(scales[name], pair[1], tensors[name].shape) for name in scales)
    return Scales(*ready, _SPECS[pair[0]], pair)


def hidden_rows(
    rows: torch.Tensor, w1: torch.Tensor, ends: torch.Tensor, scales: Scales, bias
) -> torch.Tensor:
    """The first product of rows (rows, K) that are quantised here, rounded to their dtype."""
    return _product(quantize(rows, scales.spec), w1, ends, scales.w1, scales, bias, rows.dtype)


def gated_rows(
    hidden: torch.Tensor,
    w2: torch.Tensor,
    ends: torch.Tensor,
    scales: Scales,
    bias: torch.Tensor | None,
    *,
    kind: str,
    other: torch.Tensor | None,
    limit: float | None,
    gated: bool,
) -> torch.Tensor:
    """The second product, of activations of what the first one gave."""
    if gated and scales.spec.granularity != "tensor":
        rows = gated_activation_quantize(hidden, scales.spec, kind, other=other, limit=limit)
    else:
        gate = gated_activation(hidden, kind, other=other, limit=limit) if gated else activate(hidden, kind)
        rows = quantize(gate, scales.spec)
    return _product(rows, w2, ends, scales.w2, scales, bias, hidden.dtype)


def _product(rows, weight, ends, scale, scales, bias, dtype) -> torch.Tensor:
    codes, factors = rows
    return grouped_matmul(
        codes,
        weight.mT,
        ends,
        scale_a=factors,
        scale_b=scale,
        recipe=scales.recipe,
        bias=bias,
        out_dtype=dtype,
    )


def _shapes(scaling: str, experts: int, rows: int, columns: int) -> list[tuple[int, ...]]:
    """Of the scales of weights (E, rows, columns)."""
    return {
        "row": [(experts, rows, 1), (experts, rows)],
        "tensor": [(experts, 1, 1), (experts, 1), (experts,)],
        "128x128": [(experts, -(-rows // 128), -(-columns // 128))],
    }[scaling]


def _fits(scale: torch.Tensor, scaling: str, shape: torch.Size) -> bool:
    return (scaling == "tensor" and scale.numel() == 1) or tuple(scale.shape) in _shapes(scaling, *shape)


def _as_of_b(scale: torch.Tensor, scaling: str, shape: torch.Size) -> torch.Tensor:
    experts, rows, _ = shape
    if scaling == "row":
        return scale.reshape(experts, 1, rows)
    return scale.mT if scaling == "128x128" else scale.reshape(-1, 1, 1)


def _pair(where, shapes, scales, recipe) -> tuple[str, str]:
    candidates = _BUILT
    if recipe is not None:
        wanted = tuple(recipe) if isinstance(recipe, (tuple, list)) else (recipe, recipe)
        if wanted not in _BUILT:
            allowed = ", ".join(map(str, _BUILT))
            raise ValueError(
                f"{where}: there is no kernel for the recipe {recipe!r}; allowed: 'row', 'tensor', None, or a pair, that of rows of "
                f"tokens and that of weights: {allowed}"
            )
        candidates = (wanted,)
    for pair in candidates:
        if all(_fits(scales[name], pair[1], shapes[name]) for name in scales):
            return pair
    scalings = list(dict.fromkeys(second for _, second in candidates))
    for name, scale in scales.items():
        if not any(_fits(scale, scaling, shapes[name]) for scaling in scalings):
            allowed = "; ".join(f"{scaling!r}: {_shapes(scaling, *shapes[name])[0]}" for scaling in scalings)
            raise ValueError(
                f"{where}: scale_{name} has shape {tuple(scale.shape)}; allowed with {name} {tuple(shapes[name])}: {allowed}"
            )
    raise ValueError(
        f"{where}: scale_w1 has shape {tuple(scales['w1'].shape)} and scale_w2 {tuple(scales['w2'].shape)}; both weights need "
        "scales of one kind"
    )
