# SPDX-License-Identifier: MIT
"""fmoe and fmoe_2stages: AITER's mixtures of experts, in one kernel or the first of two."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import torch

from hipkittens import _coverage
from tests.oracles.aiter import wheel
from tests.oracles.aiter.formats import (
    float4_values,
    float8,
    packed_int4,
    quantised,
    quantised_blocks,
    quantised_float4,
    quantised_int4,
    rounded_to_float4,
    tiled,
    tiled_scales,
)
from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error

TOKENS, EXPERTS, TOP = 40, 4, 2
BLOCK = 32  # rows of the one-kernel variants
PART = 256  # columns of the result that a workgroup finishes at a time

# What objects do other than their names, and the tables that AITER's host reads, say. See `deviations`.
ADDS_BF16_AS_F16 = "accumulates bf16 bit patterns as f16"
FP8_AS_INT8 = "multiplies fp8, named int8"
BF16_AS_F16 = "multiplies bf16, named f16"
READS_BF16_AS_F16 = "reads activations as bf16, named f16"
DROPS_RESULTS = "writes only the last 256 columns of the result"


@dataclasses.dataclass
class Result:
    run: Run
    error: float


@dataclasses.dataclass(frozen=True)
class Variant:
    """What an object takes and gives: what its instructions show, and what its name says where they do not."""

    target: str
    out: torch.dtype  # what its atomics add up
    weights: str  # none, int8, int4, fp8, block (fp8 with scales per 128 x 128) or mxfp4
    stored: torch.dtype
    activation: str
    gated: bool
    per_slot: bool  # every (slot, token) has a quantised row of its own
    smooth: bool  # quantises the activations itself, after smoothing factors
    weighted_input: bool
    persistent: bool
    columns: int  # of the intermediate result per workgroup
    least_dim: int = PART
    deviations: tuple[str, ...] = ()

    @property
    def adds_bf16_as_f16(self) -> bool:
        return ADDS_BF16_AS_F16 in self.deviations


@functools.cache
def mnemonics(name: str) -> frozenset[str]:
    coverage = _coverage.Coverage()
    coverage.add(name, wheel.objects()[name].read_bytes())
    return frozenset(coverage.mnemonics)


@functools.cache
def variant(name: str) -> Variant:
    target, file = name.split("/")[0], name.rsplit("/", 1)[1]
    lower = file.lower()
    plain = "noquant" in lower or re.fullmatch(r"fmoe_[bf]16\.co", file) is not None
    found = mnemonics(name)
    out = torch.float16 if "global_atomic_pk_add_f16" in found else torch.bfloat16
    deviations = []
    if out == torch.float16 and not any(
        mnemonic.startswith(("v_cvt_pkrtz_f16", "v_cvt_f16")) for mnemonic in found
    ):
        deviations.append(ADDS_BF16_AS_F16)
    if plain:
        stored = torch.float16 if "v_mfma_f32_16x16x16_f16" in found else torch.bfloat16
        weights = "none"
        if stored == torch.bfloat16 and "noquantfp16" in lower:
            deviations.append(BF16_AS_F16)
    elif "mxfp4" in lower:
        weights, stored = "mxfp4", torch.uint8
    elif "v_mfma_i32_16x16x32_i8" in found:
        weights, stored = "int8", torch.int8
    else:
        weights = "int4" if "int4" in lower else "block" if "blockscale" in lower else "fp8"
        stored = float8(target)
        if "int8" in lower:
            deviations.append(FP8_AS_INT8)
    gelu = "gelu" in lower or file in (
        "fmoe_b16.co",
        "fmoe_f16.co",
        "fmoe_int8_g1u0.co",
        "fmoe_int8_g1u0_smf.co",
    )
    smooth = "smf" in lower
    if smooth and "fp16" in lower and not any(mnemonic.startswith("v_cvt_f32_f16") for mnemonic in found):
        deviations.append(READS_BF16_AS_F16)
    if re.search(r"pertokenFp8_g1u1_vs_[a-z]+_1tg_32x128\.co", file):
        deviations.append(DROPS_RESULTS)
    # Longer pipelines, which nothing fills on shorter rows; two left-over files end theirs at the wrong address there.
    long = "atm_opt" in lower or file == "fmoe_int8_g1u0.co" or name.startswith("gfx942/fmoe_fp8_blockscale_")
    least_dim = 1024 if long else 512 if plain else PART
    size = re.search(r"_32x(\d+)\.co|subGU_(\d+)", file)
    return Variant(
        target, out, weights, stored, "gelu" if gelu else "silu", "g1u0" not in lower and not plain,
        "multix" in lower or (weights == "int8" and "g1u0" in lower and not smooth), smooth,
        "tkw1" in lower, "_ps" in lower, int(size[1] or size[2]) if size else 512, least_dim, tuple(deviations),
    )  # fmt: skip


def _activation(kind: str, values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(values) if kind == "gelu" else torch.nn.functional.silu(values)


def _by_expert(weights: torch.Tensor, expert: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Every row of x times the transpose of its expert's weights."""
    out = torch.empty(len(x), weights.shape[1], dtype=x.dtype)
    for index in range(len(weights)):
        out[expert == index] = x[expert == index] @ weights[index].T
    return out


def sorted_tokens(chosen: torch.Tensor, weights: torch.Tensor, block: int):
    """AITER's moe_sorting: rows by expert in whole blocks, each slot << 24 | token; padding points past the tokens."""
    tokens, top = chosen.shape
    rows = tokens * top + EXPERTS * block - top
    blocks = -(-rows // block)
    ids = torch.full((rows,), top << 24 | tokens, dtype=torch.int32)
    row_weights, experts = torch.zeros(rows), torch.full((blocks,), -1, dtype=torch.int32)
    row = used = 0
    for expert in range(EXPERTS):
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        count, whole = len(token), -(-len(token) // block)
        ids[row : row + count] = (slot << 24 | token).int()
        row_weights[row : row + count] = weights[token, slot]
        experts[used : used + whole] = expert
        row, used = row + whole * block, used + whole
    return (
        Buffer(ids),
        Buffer(row_weights),
        Buffer(experts),
        Buffer(torch.tensor([row, tokens], dtype=torch.int32)),
    )


def _routing(generator: torch.Generator, top: int = TOP):
    scores = torch.randn(TOKENS, EXPERTS, generator=generator)
    chosen = scores.argsort(1, descending=True)[:, :top]
    return chosen, scores.gather(1, chosen).softmax(1)


def _sorted_scales(scales: torch.Tensor, ids: torch.Tensor, used: int) -> torch.Tensor:
    """AITER's moe_mxfp4_sort: e8m0 scales of the rows in sorted order, four to a word."""
    tokens, columns = scales.shape
    groups, blocks = -(-columns // 8), -(-len(ids) // 32)
    out = torch.zeros(blocks, groups, 4, 16, 4, dtype=torch.uint8)
    for row in range(used):
        token = int(ids[row]) & 0xFFFFFF
        if token >= tokens:
            continue
        part = row % 32
        for column in range(columns):
            byte = 2 * (column % 8 // 4) + part // 16
            out[row // 32, column // 8, column % 4, part % 16, byte] = scales[token, column]
    return out


def _halves(name: str, generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * (0.1 if name == "weights" else 1.0)


@dataclasses.dataclass
class _Operands:
    """Buffers for the kernel, and what their contents mean in f64."""

    x: torch.Tensor
    x_scale: torch.Tensor | None
    w1: torch.Tensor
    w1_scale: torch.Tensor | None
    w2: torch.Tensor
    w2_scale: torch.Tensor | None
    x_value: torch.Tensor  # [slot, token, dim] or [1, token, dim]
    w1_value: torch.Tensor
    w2_value: torch.Tensor
    smooth_1: torch.Tensor
    smooth_2: torch.Tensor


def _operands(
    kind: Variant, chosen: torch.Tensor, dim: int, inner: int, generator: torch.Generator
) -> _Operands:
    top = chosen.shape[1]
    x = _halves("x", generator, TOKENS, dim)
    w1 = _halves("weights", generator, EXPERTS, inner * (2 if kind.gated else 1), dim)
    w2 = _halves("weights", generator, EXPERTS, dim, inner)
    factors = kind.per_slot or kind.smooth
    smooth_1, smooth_2 = (
        0.5 + torch.rand(EXPERTS, size, generator=generator) if factors else torch.ones(EXPERTS, size)
        for size in (dim, inner)
    )
    if kind.weights == "none":
        x, w1, w2 = (value.to(kind.stored) for value in (x, w1, w2))
        return _Operands(
            x,
            None,
            tiled(w1),
            None,
            tiled(w2),
            None,
            x.double()[None],
            w1.double(),
            w2.double(),
            smooth_1,
            smooth_2,
        )
    if kind.weights == "mxfp4":
        (x, xs), (w1, s1), (w2, s2) = (quantised_float4(value) for value in (x, w1, w2))
        values = [float4_values(*pair) for pair in ((x, xs), (w1, s1), (w2, s2))]
        return _Operands(
            x, xs, tiled(w1), tiled_scales(s1.flatten(0, 1)), tiled(w2), tiled_scales(s2.flatten(0, 1)),
            values[0][None], values[1], values[2], smooth_1, smooth_2,
        )  # fmt: skip
    if kind.weights == "block":
        stored, scale, value = quantised(x.reshape(TOKENS, dim // 128, 128), kind.stored)
        (w1, s1, v1), (w2, s2, v2) = (quantised_blocks(value_, kind.stored) for value_ in (w1, w2))
        return _Operands(
            stored.reshape(TOKENS, dim), scale[..., 0].T.contiguous(), tiled(w1), s1, tiled(w2), s2,
            value.reshape(1, TOKENS, dim), v1, v2, smooth_1, smooth_2,
        )  # fmt: skip
    if kind.weights == "int4":
        (w1, s1, v1), (w2, s2, v2) = (quantised_int4(value) for value in (w1, w2))
        stored, scale, value = quantised(x, kind.stored)
        return _Operands(
            stored, scale, packed_int4(w1), s1, packed_int4(w2), s2, value[None], v1, v2, smooth_1, smooth_2
        )  # fmt: skip
    (w1, s1, v1), (w2, s2, v2) = (quantised(value, kind.stored) for value in (w1, w2))
    if kind.smooth:  # the kernel quantises x * smooth_1 itself
        x = x.to(torch.bfloat16 if READS_BF16_AS_F16 in kind.deviations else kind.out)
        value = torch.stack([x.double() * smooth_1.double()[chosen[:, slot]] for slot in range(top)])
        return _Operands(x, smooth_1, tiled(w1), s1, tiled(w2), s2, value, v1, v2, smooth_1, smooth_2)
    if kind.per_slot:
        x = torch.stack([x * smooth_1[chosen[:, slot]] for slot in range(top)])
    stored, scale, value = quantised(x, kind.stored)
    value = value if kind.per_slot else value[None]
    return _Operands(stored, scale, tiled(w1), s1, tiled(w2), s2, value, v1, v2, smooth_1, smooth_2)


def _requantised(values: torch.Tensor, stored: torch.dtype, largest: float) -> torch.Tensor:
    """What the kernels make of values in f32: a scale per row, to nearest in fp8, towards zero in int8."""
    scale = values.abs().amax(-1, keepdim=True) / largest
    scaled = values / scale
    return (scaled.trunc() if stored == torch.int8 else scaled.float().to(stored).double()) * scale


def _as_multiplied(kind: Variant, hidden: torch.Tensor) -> torch.Tensor:
    """The intermediate result as the second product takes it; read off the kernels, which requantise it."""
    if kind.weights == "none":
        return hidden.to(kind.stored).double()
    if kind.weights == "mxfp4":
        return rounded_to_float4(hidden)
    # With scales per block the largest value becomes 240 on both targets, which is the largest of gfx942's fp8 alone.
    largest = 240.0 if kind.weights == "block" else _largest(kind.stored)
    parts = hidden.reshape(len(hidden), -1, 128 if kind.weights == "block" else kind.columns)
    return _requantised(parts, kind.stored, largest).reshape(hidden.shape)


def _largest(stored: torch.dtype) -> float:
    return 127.0 if stored == torch.int8 else torch.finfo(stored).max


def run(name: str, dim: int = 512, kind: Variant | None = None) -> Result:
    """One kernel: out = sum over a token's experts of weight * w2 (activation(w1 x)).

    Objects that add up bits of bf16 as f16 run with one expert per token: then nothing is added but to zeros, and what
    they leave are the bits of the bf16 result. `kind` asks for something else than what the object shows.
    """
    kind = kind or variant(name)
    top = 1 if kind.adds_bf16_as_f16 else TOP
    inner = max(kind.columns, 256) if kind.weights == "block" else kind.columns
    generator = torch.Generator().manual_seed(0)
    chosen, weights = _routing(generator, top)
    operands = _operands(kind, chosen, dim, inner, generator)
    ids, row_weights, experts, valid = sorted_tokens(chosen, weights, BLOCK)
    out = output((TOKENS, dim), kind.out, zero=True)
    width = 2 if kind.weights == "none" else 0.5 if kind.weights in ("mxfp4", "int4") else 1
    x_scale = operands.x_scale
    if kind.weights == "mxfp4":
        x_scale = _sorted_scales(x_scale, ids.tensor, int(valid.tensor[0]))
    columns = -(-inner // kind.columns)
    resident = 8  # persistent workgroups
    w1_rows = inner * (2 if kind.gated else 1)

    def scale_bytes(scale: torch.Tensor | None) -> int:
        if scale is None:
            return 0
        return scale.numel() // EXPERTS * scale.itemsize

    scales = {
        offset: Buffer(value)
        for offset, value in ((80, x_scale), (96, operands.w1_scale), (112, operands.w2_scale))
        if value is not None
    }
    arguments = {
        0: out, 16: Buffer(operands.x), 32: Buffer(operands.w1), 48: valid, 64: Buffer(operands.w2), **scales,
        128: Buffer(operands.smooth_2), 144: ids, 160: row_weights, 176: experts, 192: dim, 208: inner, 224: TOKENS,
        240: EXPERTS, 256: int(operands.x.shape[-1] * operands.x.itemsize), 272: int(dim * width),
        288: int(inner * width), 304: dim * 2, 320: int(dim * width) * w1_rows, 336: int(inner * width) * dim,
        352: scale_bytes(operands.w1_scale), 368: scale_bytes(operands.w2_scale), 384: inner * 4, 400: top,
    }  # fmt: skip
    if kernel(name).metadata.argument_bytes > 416:
        arguments |= {416: resident // columns * columns if kind.persistent else 0, 432: columns}
    grid = (columns, experts.tensor.numel(), 1)
    if kind.smooth:
        grid = (grid[1], grid[0], 1)
    run_ = kernel(name).launch((resident, 1, 1) if kind.persistent else grid, arguments)
    expected = torch.zeros(TOKENS, dim, dtype=torch.float64)
    for slot in range(top):
        expert = chosen[:, slot]
        x = operands.x_value[slot if len(operands.x_value) > 1 else 0]
        weight = weights[:, slot].double()[:, None]
        if kind.weighted_input:
            x = x * weight
        if kind.smooth:
            parts = x.reshape(TOKENS, -1, PART)
            x = _requantised(parts, kind.stored, _largest(kind.stored)).reshape(x.shape)
        hidden = _by_expert(operands.w1_value, expert, x)
        gate = _activation(kind.activation, hidden[:, :inner])
        hidden = gate * hidden[:, inner:] if kind.gated else gate
        if kind.per_slot or kind.smooth:
            hidden = hidden * operands.smooth_2.double()[expert]
        part = _by_expert(operands.w2_value, expert, _as_multiplied(kind, hidden))
        expected += part if kind.weighted_input else part * weight
    result = out.tensor.view(torch.bfloat16) if kind.adds_bf16_as_f16 else out.tensor
    if DROPS_RESULTS in kind.deviations:
        result, expected = result[:, -PART:], expected[:, -PART:]
    return Result(run_, relative_error(result, expected))


def run_first_stage(name: str, activation: str = "silu", log2_splits: int = 0, dim: int = 512) -> Result:
    """The first of two kernels: activation(w1 x) for every (token, slot); the second is not among the wheel's objects."""
    target, file = name.split("/")[0], name.rsplit("/", 1)[1]
    block, columns = (int(part) for part in re.search(r"_(\d+)x(\d+)(?:_\dtg)?_pf", file).groups())
    scaled_blocks, doubled = "blockscale" in file, "doweight" in file
    stored = torch.int8 if "Int8" in file else float8(target)
    generator = torch.Generator().manual_seed(0)
    inner = math.lcm(columns, 128) if scaled_blocks else columns * 2
    chosen, weights = _routing(generator)
    kind = Variant(
        target, torch.bfloat16, "block" if scaled_blocks else "fp8", stored, activation, True, False, False, doubled, False, columns
    )  # fmt: skip
    operands = _operands(kind, chosen, dim, inner, generator)
    ids, row_weights, experts, valid = sorted_tokens(chosen, weights, block)
    if scaled_blocks:
        # fp8 rows, then their scales
        out = output((TOKENS + -(-4 * TOKENS // 128), TOP, inner), torch.uint8)
    elif log2_splits:
        out = output((TOKENS, TOP, 2 * inner), torch.float32, zero=True)
    else:
        out = output((TOKENS, TOP, inner), torch.bfloat16)
    w1_scale = operands.w1_scale
    arguments = {
        0: out, 16: Buffer(operands.x), 32: Buffer(operands.w1), 48: valid, 64: Buffer(operands.x_scale),
        80: Buffer(w1_scale), 112: ids, 128: experts, 144: dim, 160: inner, 176: TOKENS, 192: EXPERTS, 208: dim,
        224: dim, 240: out.stride(0), 256: dim * inner * 2, 272: w1_scale[0].numel() * 4, 288: inner * 4, 304: TOP,
        320: log2_splits, 336: int(activation == "gelu"), 352: row_weights,
    }  # fmt: skip
    if kernel(name).metadata.argument_bytes > 368:
        arguments |= {368: 0, 384: inner // columns}
    run_ = kernel(name).launch((inner // columns, experts.tensor.numel(), 1 << log2_splits), arguments)
    raw = torch.stack(
        [_by_expert(operands.w1_value, chosen[:, slot], operands.x_value[0]) for slot in range(TOP)], 1
    )
    if doubled:
        raw = raw * weights.double()[..., None]
    if log2_splits:
        return Result(run_, relative_error(out.tensor, raw))
    expected = _activation(activation, raw[..., :inner]) * raw[..., inner:]
    result = out.tensor
    if scaled_blocks:
        values = result[:TOKENS].view(stored).double().reshape(TOKENS, TOP, inner // 128, 128)
        scales = result[TOKENS:].reshape(-1)[: TOKENS * TOP * inner // 32].view(torch.float32)
        result = (values * scales.double().reshape(TOKENS, TOP, inner // 128, 1)).reshape(TOKENS, TOP, inner)
    return Result(run_, relative_error(result, expected))
