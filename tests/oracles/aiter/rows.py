# SPDX-License-Identifier: MIT
"""AITER's row-wise kernels: layer_norm with a residual, quantized or not, and topksoftmax."""

from __future__ import annotations

import dataclasses

import torch

from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error


@dataclasses.dataclass
class Result:
    run: Run
    errors: dict[str, float]


def layer_norm(name: str, rows: int = 6) -> Result:
    """Normalize x + residual, rows of 8192, and return that sum too; _qnt in int8 with a scale per row.

    layer_norm_qnt omits two of the sixteen partial maxima when it looks for the largest value of a row: its last
    reduction reads them into v12 and v13 and starts at v14. So the columns of threads 0 to 31, eight at a time, do not
    count; where one of them is the largest, it overflows int8. The reference leaves them out too.
    """
    columns, epsilon = 8192, 1e-5
    quantised = "_qnt" in name
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(rows, columns, generator=generator).bfloat16() for _ in range(2))
    weight, bias = (torch.randn(columns, generator=generator).bfloat16() for _ in range(2))
    smooth = torch.rand(columns, generator=generator)
    out = output((rows, columns), torch.int8 if quantised else torch.bfloat16)
    sums, scales = output((rows, columns), torch.bfloat16), output((rows, 1), torch.float32)
    arguments = {
        "OutBuffer": out, "InBuffer": Buffer(x), "WeightBuffer": Buffer(weight), "BiasBuffer": Buffer(bias),
        "epsilon": epsilon, "M": rows, "N": columns, "OutResidualBuffer": sums, "InResidualBuffer": Buffer(residual),
    }  # fmt: skip
    if quantised:
        arguments |= {"OutYScaleBuffer": scales, "XScaleBuffer": Buffer(smooth)}
    run = kernel(name).launch((-(-rows // 2), 1, 1), arguments)
    total = x.double() + residual.double()
    normal = torch.nn.functional.layer_norm(total, (columns,), weight.double(), bias.double(), epsilon)
    errors = {"residual": relative_error(sums.tensor, total)}
    if not quantised:
        return Result(run, errors | {"out": relative_error(out.tensor, normal)})
    expected = normal * smooth.double()
    counted = torch.arange(columns) // 8 % 256 >= 32
    largest = expected[:, counted].abs().amax(1, keepdim=True)
    fits = expected.abs() <= largest
    errors["out"] = relative_error((out.tensor.double() * scales.tensor.double())[fits], expected[fits])
    errors["scale"] = relative_error(scales.tensor, largest / 127)
    return Result(run, errors)


def top_k_softmax(name: str, renormalised: bool, tokens: int = 37) -> Result:
    rows, experts, k = (int(part) for part in name.split("_")[-1].removesuffix(".co").split("x"))
    scores = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
    chosen, weights = output((tokens, k), torch.int32), output((tokens, k), torch.float32)
    arguments = {
        "T": chosen, "W": weights, "A": Buffer(scores), "batch": tokens, "expert": experts, "topk": k,
        "renormalize": int(renormalised), "out_stride": 4 * k,
    }  # fmt: skip
    run = kernel(name).launch((-(-tokens // rows), 1, 1), arguments)
    expected, order = scores.double().softmax(-1).sort(-1, descending=True)
    expected = expected[:, :k]
    if renormalised:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(chosen.tensor.long(), order[:, :k])
    return Result(run, {"weights": relative_error(weights.tensor, expected)})
