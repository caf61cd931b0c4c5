# SPDX-License-Identifier: MIT
"""hipkittens.aiter: each AITER function compared with its definition, with results written to tensors that the caller passes."""

import ast
import importlib
import importlib.util
import inspect
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import QuantSpec, aiter, quantize
from hipkittens.operations._attention_paged_problems import draw_latent, draw_paged
from hipkittens.operations._attention_sparse_problems import draw_sparse
from hipkittens.operations._mqa_logits_problems import draw_logits, draw_paged_logits
from tests import (
    test_aiter_attention,
    test_aiter_gemm,
    test_aiter_hstu_attention,
    test_aiter_lean_attention,
    test_aiter_moe_gemm,
    test_aiter_norm_rope_cache,
    test_aiter_quant_moe,
    test_aiter_quant_sorted,
    test_aiter_rope_cache,
    test_aiter_sage_attention,
)
from tests.oracles.aiter.formats import tiled, tiled_scales

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
LARGEST = {torch.float8_e4m3fnuz: 240.0, torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
# From AITER's main branch: the pinned version lacks them.
NEWER = {
    *(
        "causal_conv1d_fn",
        "causal_conv1d_fn_split_qkv",
        "causal_conv1d_update",
        "causal_conv1d_update_split_qkv",
    ),
    *test_aiter_gemm.NEWER,
    *test_aiter_moe_gemm.NEWER,
    *test_aiter_rope_cache.NEWER,
    *test_aiter_norm_rope_cache.NEWER,
    *test_aiter_quant_sorted.NEWER,
    *test_aiter_sage_attention.NEWER,
}
NUMBERS = (aiter.ActivationType, aiter.QuantType)
TESTED = test_aiter_gemm.TESTED | test_aiter_attention.TESTED | test_aiter_rope_cache.TESTED
TESTED |= test_aiter_lean_attention.TESTED | test_aiter_quant_moe.TESTED | test_aiter_moe_gemm.TESTED
TESTED |= test_aiter_norm_rope_cache.TESTED | test_aiter_quant_sorted.TESTED
TESTED |= test_aiter_hstu_attention.TESTED | test_aiter_sage_attention.TESTED
TESTED |= {
    # tests/test_causal_conv1d_split.py
    *("causal_conv1d_fn_split_qkv", "causal_conv1d_update_split_qkv"),
    # tests/test_cache_write_scaled.py
    *(
        "reshape_and_cache_with_pertoken_quant",
        "indexer_k_quant_and_cache",
        "cp_gather_indexer_k_quant_cache",
    ),
    # tests/test_cache_write_shared_scale.py
    *("reshape_and_cache_with_block_quant", "reshape_and_cache_with_block_quant_for_asm_pa"),
    # tests/test_aiter_probabilities.py
    *("top_k_renorm_probs", "top_p_sampling_from_probs", "top_k_top_p_sampling_from_probs"),
    # tests/test_aiter_flatten_reduce.py
    *("fused_flatten_fp8_group_quant", "fused_flatten_mxfp4_quant"),
    *("fused_reduce_act_mul_fp8_group_quant", "fused_reduce_rms_fp8_group_quant"),
}


def of(*names):
    """Declare the names that a test covers."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def close(mine, right, steps=1.0):
    """Within a rounding of its dtype, and float32's error."""
    step = steps * torch.finfo(mine.dtype).eps
    return bool(((mine.double() - right).abs() <= step * right.abs() + 2.0**-20 * right.abs().max()).all())


def signatures():
    """Arguments and defaults of all functions of the wheel's operators, from its sources: it cannot be imported without ROCm."""
    found = importlib.util.find_spec("aiter")
    if found is None:
        pytest.skip("amd-aiter is not installed")
    known, home = {}, Path(found.submodule_search_locations[0])
    for path in [
        *sorted((home / "ops").rglob("*.py")),
        home / "fused_moe.py",
        home / "fused_moe_bf16_asm.py",
        home / "mla.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                known.setdefault(node.name, []).append(node.args)
    return known


def defaults_of(arguments):
    names = [each.arg for each in arguments.args]
    values = [None] * (len(names) - len(arguments.defaults)) + [
        ast.unparse(each) for each in arguments.defaults
    ]
    return names, [None if value is None else value.rpartition(".")[2] for value in values]


def test_arguments_are_those_of_the_wheel():
    known = signatures()
    words = {
        "int8": "i8",
        "float4_e2m1fn_x2": "fp4x2",
        "MAX_TINY_ROW": "1024",
        "bfloat16": "bf16",
        "float16": "fp16",
    }
    # AITER's fp8_dtype is its device's; here it is each call's.
    for name in (
        set(aiter.__all__) - NEWER - {kind.__name__ for kind in (*NUMBERS, aiter.DequantScaleRoundingMode)}
    ):
        parameters = inspect.signature(getattr(aiter, name)).parameters.values()
        mine = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        theirs = [defaults_of(each) for each in known[name]]
        assert mine in [names for names, _ in theirs], (name, mine, theirs)
        defaults = [
            None
            if each.default is each.empty
            else words.get(str(each.default).rpartition(".")[2], str(each.default).rpartition(".")[2])
            for each in parameters
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        numbers = [
            [
                value
                if value is None
                else value.replace("1e-05", "1e-5")
                .replace("fp8_dtype", "None")
                .replace("BLOCK_SIZE_M", "32")
                .replace("DTYPE", "bf16")  # of gmm
                .replace("bfloat16", "bf16")
                .replace("float16", "fp16")
                .strip("'")
                for value in each
            ]
            for _, each in theirs
        ]
        assert [d if d is None else d.replace("1e-05", "1e-5") for d in defaults] in numbers, (
            name,
            defaults,
            theirs,
        )


def test_every_name_has_a_test():
    assert set(aiter.__all__) == TESTED and len(set(aiter.__all__)) == len(aiter.__all__)
    assert all(getattr(aiter, name).__doc__ or name.endswith("_and_mul") for name in aiter.__all__)


@of("rms_norm", "rmsnorm2d_fwd", "rms_norm_cu", "rmsnorm2d_fwd_with_add", "fused_add_rms_norm_cu")
@pytest.mark.parametrize("columns", [1, 17, 2048])
def test_rms_norms(target, columns):
    x, residual, weight, eps = draw(5, columns), draw(5, columns, seed=1), draw(columns, seed=2), 1e-5

    def right(x):
        return x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()

    for function in (aiter.rms_norm, aiter.rmsnorm2d_fwd):
        assert close(function(x, weight, eps), right(x))
        rounded = (right(x) / weight.double()).bfloat16()
        assert close(function(x, weight, eps, 1), rounded.double() * weight.double(), 2)
        with pytest.raises(ValueError, match="use_model_sensitive_rmsnorm is 2; allowed: 0, 1"):
            function(x, weight, eps, 2)
    out, summed = torch.empty_like(x), torch.empty_like(x)
    aiter.rms_norm_cu(out, x, weight, eps)
    assert close(out, right(x))
    aiter.rmsnorm2d_fwd_with_add(out, x, residual, summed, weight, eps)
    assert torch.equal(summed, x + residual) and close(out, right(summed))
    both = x.clone(), residual.clone()
    aiter.fused_add_rms_norm_cu(*both, weight, epsilon=eps)
    assert torch.equal(both[0], out) and torch.equal(both[1], summed)


@of("layer_norm", "layernorm2d_fwd", "layernorm2d_fwd_with_add")
def test_layer_norms(target):
    x, residual = draw(6, 130), draw(6, 130, seed=1)
    weight, bias = draw(130, seed=2), draw(130, seed=3)

    def right(x):
        return F.layer_norm(x.double(), (130,), weight.double(), bias.double(), 1e-5)

    assert close(aiter.layer_norm(x, weight, bias), right(x), 2)
    assert close(aiter.layernorm2d_fwd(x, weight, bias, 1e-5), right(x), 2)
    assert close(aiter.layer_norm(x), F.layer_norm(x.double(), (130,)), 2)
    out, summed = torch.empty_like(x), torch.empty_like(x)
    aiter.layernorm2d_fwd_with_add(out, x, residual, summed, weight, bias, 1e-5)
    assert torch.equal(summed, x + residual) and close(out, right(summed), 2)
    # x_bias is added before the residual, and only their sum is rounded.
    for function in (aiter.layer_norm, aiter.layernorm2d_fwd):
        assert close(
            function(x, weight, bias, 1e-5, residual[0]),
            right((x.float() + residual[0].float()).bfloat16()),
            2,
        )
    aiter.layernorm2d_fwd_with_add(out, x, residual, summed, weight, bias, 1e-5, x_bias=weight)
    assert torch.equal(summed, (x.float() + weight.float() + residual.float()).bfloat16())
    assert close(out, right(summed), 2)


@of("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "scaled_silu_and_mul")
@pytest.mark.parametrize("columns", [1, 131, 256])
def test_gates(target, columns):
    x = draw(7, 2 * columns, scale=3.0)
    gate, other = x.double().chunk(2, -1)
    kinds = {
        "silu_and_mul": F.silu,
        "gelu_and_mul": F.gelu,
        "gelu_tanh_and_mul": lambda x: F.gelu(x, approximate="tanh"),
    }
    for name, kind in kinds.items():
        guarded = torch.full((9, columns), 7.0, dtype=BF16)
        getattr(aiter, name)(guarded[1:8], x)
        assert close(guarded[1:8], kind(gate) * other) and (guarded[[0, 8]] == 7).all()
    dtype, scale = FP8[target], torch.tensor([0.37])
    out = torch.empty(7, columns, dtype=dtype)
    aiter.scaled_silu_and_mul(out, x, scale)
    limit = LARGEST[dtype]
    exact = ((F.silu(gate) * other).float() * (1 / scale)).clamp(-limit, limit)
    # A quantized value is the nearest, or its neighbor where float32 is halfway.
    step = exact.abs().clamp(min=2.0**-6) * 2.0**-4 * (1 + 1e-5)
    assert ((out.float() - exact).abs() <= step).all()
    with pytest.raises(ValueError, match=r"aiter\.silu_and_mul: out has shape \(1, "):
        aiter.silu_and_mul(torch.empty(1, columns, dtype=BF16), x)


def angles(rows, pairs):
    return torch.outer(
        torch.arange(rows).double(), 10000.0 ** -(torch.arange(pairs).double() / pairs)
    ).float()


def turned(x, angle, style, nope_first, back=False):
    """x [.., heads, features] rotated by angle [.., pairs], in float64."""
    x, angle = x.double(), angle.double()[..., None, :]
    turned_features = 2 * angle.shape[-1]
    first = x.shape[-1] - turned_features if nope_first else 0
    part = x[..., first : first + turned_features]
    pairs = part.unflatten(-1, (-1, 2)).unbind(-1) if style else part.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin() * (-1 if back else 1)
    a, b = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
    part = torch.stack((a, b), -1).flatten(-2) if style else torch.cat((a, b), -1)
    return torch.cat((x[..., :first], part, x[..., first + turned_features :]), -1)


@of(*aiter._rope.ROPE)
@pytest.mark.parametrize("nope_first", [False, True])
@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("name", sorted(aiter._rope.ROPE))
def test_rope(target, name, style, nope_first):
    function, tokens, batch, size = getattr(aiter, name), 5, 3, 32
    thd, two, back = "thd" in name, "_2c_" in name, name.endswith("_bwd")
    for pairs in (16, 4):
        table = angles(40, pairs)
        lead = (11,) if thd else (tokens, batch)
        inputs = [draw(*lead, heads, size, seed=heads) for heads in ((4, 2) if two else (4,))]
        rows = torch.arange(tokens)[:, None].expand(tokens, batch)
        arguments = []
        if thd:
            starts = torch.tensor([0, 2, 2, 11], dtype=I32)
            rows = torch.cat([torch.arange(2), torch.arange(9)])
            arguments += [starts, table[:11].reshape(11, 1, 1, pairs)]
        elif "cached" in name:
            arguments += [table.cos().view(40, 1, 1, pairs), table.sin().view(40, 1, 1, pairs)]
            if "positions" in name:
                rows = torch.randint(0, 20, (tokens, batch), generator=torch.Generator().manual_seed(3))
                arguments.append(rows)
            if "offsets" in name:
                offsets = torch.randint(0, 20, (tokens, batch), generator=torch.Generator().manual_seed(4))
                rows = rows + offsets
                arguments.append(offsets)
        else:
            arguments.append(table[:tokens].view(tokens, 1, 1, pairs))
        # For tables of cosines, float32's error.
        right = [turned(x, table[rows], style, nope_first, back) for x in inputs]
        options = (style, True, nope_first)
        if name.endswith("inplace"):
            mine = [x.clone() for x in inputs]
            assert function(*mine, *arguments, *options) is None
        else:
            mine = function(*inputs, *arguments, *options)
            mine = mine if two else (mine,)
            assert all(each.is_contiguous() for each in mine)
            if not thd:
                across = function(*inputs, *arguments, *options, True)
                for each, other in zip(mine, across if two else (across,), strict=True):
                    assert torch.equal(each, other) and other.transpose(0, 1).is_contiguous()
        assert all(close(a, b) for a, b in zip(mine, right, strict=True))
    with pytest.raises(ValueError, match="rotate_style is 2; allowed"):
        function(*inputs, *arguments, 2, True, nope_first)
    with pytest.raises(TypeError, match="argument"):
        function(*inputs)


def turned_by_columns(x, angle, style, back=False):
    """x [.., heads, features] rotated by angle [.., features], one angle per feature, in float64."""
    matrix = torch.zeros(*angle.shape, angle.shape[-1], dtype=torch.float64)
    half = angle.shape[-1] // 2
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if style else (pair, pair + half)
        matrix[..., a, a], matrix[..., a, b] = angle[..., a].double().cos(), -angle[..., a].double().sin()
        matrix[..., b, b], matrix[..., b, a] = angle[..., b].double().cos(), angle[..., b].double().sin()
    return x.double() @ (matrix if back else matrix.mT)


def unlike(rows, features):
    """Angles that differ within each pair."""
    return draw(rows, features, dtype=F32, seed=8, scale=2.0)


@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("name", sorted(aiter._rope.ROPE))
def test_rope_with_an_angle_for_each_feature(target, name, style):
    function, tokens, batch, size, wide = getattr(aiter, name), 5, 2, 24, 16
    thd, two, back = "thd" in name, "_2c_" in name, name.endswith("_bwd")
    table, rows = unlike(12, wide), torch.arange(tokens)
    lead = (tokens,) if thd else (tokens, batch)
    inputs = [draw(*lead, heads, size, seed=heads) for heads in ((4, 2) if two else (4,))]
    arguments, shape = [], (-1, 1, 1, wide)
    if thd:
        arguments.append(torch.tensor([0, 5], dtype=I32))
    if "cached" in name:
        arguments += [table.cos().view(shape), table.sin().view(shape)]
    else:
        arguments.append(table[:tokens].view(shape))
    numbers = rows[:, None].expand(tokens, batch)
    if "positions" in name:
        arguments.append(numbers)
    if "offsets" in name:
        arguments.append(torch.tensor([[2, 5]]).expand(tokens, batch))
        rows = numbers + arguments[-1]
    elif not thd:
        rows = numbers
    for nope_first in (False, True):
        first = size - wide if nope_first else 0
        right = []
        for x in inputs:
            y = x.double().clone()
            part = slice(first, first + wide)
            y[..., part] = turned_by_columns(x[..., part], table[rows], style, back)
            right.append(y)
        mine = [x.clone() for x in inputs]
        if name.endswith("inplace"):
            function(*mine, *arguments, style, False, nope_first)
        else:
            mine = function(*mine, *arguments, style, False, nope_first)
            mine = mine if two else (mine,)
        # Two products may cancel.
        assert all(
            (a.double() - b).abs().max() <= 2.0**-7 * b.abs().max() for a, b in zip(mine, right, strict=True)
        )


@of("rope_2d_fwd", "rope_2d_fwd_inplace", "rope_2d_bwd")
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("style", [0, 1])
def test_rope_of_images(target, style, wide):
    height, width, features = 3, 5, 16
    x = draw(2, height * width, 3, features)
    across, down = unlike(7, 8)[:, : 8 if wide else 4], unlike(16, 8)[9:, : 8 if wide else 4]
    tables = [down.cos().view(1, 7, 1, 1, -1), down.sin().view(1, 7, 1, 1, -1)]
    tables += [across.cos().view(1, 1, 7, 1, -1), across.sin().view(1, 1, 7, 1, -1)]
    rows, columns = (
        each.flatten() for each in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    )
    if not wide:
        down, across = (
            each.repeat_interleave(2, -1) if style else torch.cat((each, each), -1) for each in (down, across)
        )

    def right(back):
        halves = zip(x.chunk(2, -1), (down[rows], across[columns]), strict=True)
        return torch.cat([turned_by_columns(half, angle, style, back) for half, angle in halves], -1)

    options = (height, width, style, not wide, False)
    near = [right(back) * 2.0**-7 for back in (False, True)]
    assert ((aiter.rope_2d_fwd(x, *tables, *options) - right(False)).abs() <= near[0].abs().max()).all()
    assert ((aiter.rope_2d_bwd(x, *tables, *options) - right(True)).abs() <= near[1].abs().max()).all()
    given = x.clone()
    assert aiter.rope_2d_fwd_inplace(given, *tables, *options) is None
    assert torch.equal(given, aiter.rope_2d_fwd(x, *tables, *options))
    with pytest.raises(NotImplementedError, match="cos_h is an angle of 8 features of 16"):
        aiter.rope_2d_fwd(x, *(table[..., : 4 if wide else 2] for table in tables), *options)
    with pytest.raises(NotImplementedError, match="a table of angles is of shape"):
        aiter.rope_2d_fwd(x, *(table.expand(*table.shape[:3], 3, -1) for table in tables), *options)
    with pytest.raises(ValueError, match="cos_w has 4 rows for an image of 3 x 5"):
        aiter.rope_2d_fwd(x, *tables[:2], *(table[:, :, :4] for table in tables[2:]), *options)
    with pytest.raises(ValueError, match=r"it must be \(batch, 4 \* 5, heads"):
        aiter.rope_2d_fwd(x, *tables, 4, *options[1:])


@of("rope_fwd_3d")
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("features", [2, 8, 40, 128])
def test_rope_of_videos(target, features, dtype):
    """Two videos of different sizes, on two ranks, with more frames than freqs has rows."""
    pairs, third = features // 2, features // 2 // 3
    x, angle = draw(2, 10, 3, features, dtype=dtype), unlike(4, pairs)
    freqs = torch.polar(torch.ones(4, pairs, dtype=torch.float64), angle.double())
    grids = torch.tensor([[5, 2, 1], [2, 3, 2]])
    for rank in range(2):
        mine = aiter.rope_fwd_3d(x, grids, freqs if features == 8 else freqs.to(torch.complex64), 2, rank)
        right = x.double().clone()
        for video, (frames, height, width) in enumerate(grids.tolist()):
            for token in range(10):
                at = token + 10 * rank
                if at >= frames * height * width:
                    continue
                rows = (at // (height * width), at // width % height, at % width)
                counts = (pairs - 2 * third, third, third)
                row = [min(each, 3) for each, count in zip(rows, counts, strict=True) for _ in range(count)]
                turn = freqs[row, torch.arange(pairs)]
                numbers = torch.view_as_complex(right[video, token].unflatten(-1, (-1, 2)).contiguous())
                right[video, token] = torch.view_as_real(numbers * turn).flatten(-2)
        assert mine.dtype == F32 and mine.shape == x.shape
        assert (mine.double() - right).abs().max() <= 2.0**-22 * right.abs().max()
        # The second video has 12 tokens: two on the second rank, and copies.
        if rank:
            assert torch.equal(mine[1, 2:], x[1, 2:].float()) and torch.equal(mine[0], x[0].float())
    assert aiter.rope_fwd_3d(x[:, :0], grids, freqs, 1, 0).shape == (2, 0, 3, features)
    for arguments, message in (
        ((x[0], grids, freqs, 2, 0), "x has shape"),
        ((x, grids[:1], freqs, 2, 0), r"grid_sizes has shape \(1, 3\); it must be \(2, 3\)"),
        ((x, grids, freqs.real, 2, 0), r"freqs has shape .* and dtype torch.float64; it must be"),
        ((x, grids, freqs, 2, 2), r"sp_rank is 2 of sp_size 2; 0 .. 1 are allowed"),
    ):
        with pytest.raises(ValueError, match=message):
            aiter.rope_fwd_3d(*arguments)


@of("fused_qkv_split_qk_rope")
@pytest.mark.parametrize("nope_first", [False, True])
@pytest.mark.parametrize("neox", [True, False])
def test_packed_projections(target, neox, nope_first):
    qkv, table = draw(5, (4 + 2 * 2) * 16), angles(30, 4)
    positions, offsets = torch.tensor([3, 9, 0, 7, 7]), torch.tensor([0, 20, 1, 2, 2])
    parts = [each.unflatten(-1, (-1, 16)) for each in qkv.split((64, 32, 32), -1)]
    for moved in (None, offsets):
        rows = positions if moved is None else positions + moved
        right = [turned(x, table[rows], not neox, nope_first) for x in parts[:2]]
        q, k, v = aiter.fused_qkv_split_qk_rope(
            qkv, table.cos(), table.sin(), positions, 4, 2, 16, neox, moved, True, nope_first
        )
        assert close(q, right[0]) and close(k, right[1]) and torch.equal(v, parts[2])
        full = table.repeat(1, 2) if neox else table.repeat_interleave(2, -1)
        wide = aiter.fused_qkv_split_qk_rope(
            qkv, full.cos(), full.sin(), positions, 4, 2, 16, neox, moved, False, nope_first
        )
        assert torch.equal(wide[0], q) and torch.equal(wide[1], k)
    with pytest.raises(ValueError, match="qkv has 128 columns; 4 and twice 4 heads of 16"):
        aiter.fused_qkv_split_qk_rope(qkv, table.cos(), table.sin(), positions, 4, 4, 16)


@of("rotary_embedding_fwd")
@pytest.mark.parametrize("nope_first", [False, True])
@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embedding(target, neox, nope_first):
    table, positions = angles(30, 8), torch.tensor([3, 29, 0, 7, 7])
    query, key = draw(5, 4 * 24), draw(5, 2 * 24, seed=1)
    right = [
        turned(x.view(5, -1, 24), table[positions], not neox, nope_first).flatten(1) for x in (query, key)
    ]
    aiter.rotary_embedding_fwd(positions, query, key, 24, table.cos(), table.sin(), neox, nope_first)
    assert close(query, right[0]) and close(key, right[1])


def codes_of(x, scale, dtype):
    """x times 1 / scale, clamped; for integers truncated."""
    limit = LARGEST[dtype]
    scaled = (x.float() * (1 / scale)).clamp(-limit, limit)
    return scaled.trunc().to(dtype) if dtype == torch.int8 else scaled.to(dtype)


@of("static_per_tensor_quant", "dynamic_per_tensor_quant", "dynamic_per_token_scaled_quant", "per_token_quant_hip",
    "per_group_quant_hip", "per_tensor_quant_hip", "smoothquant_fwd")  # fmt: skip
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_quantisation(target, kind):
    dtype = torch.int8 if kind == "int8" else FP8[target]
    limit, x = LARGEST[dtype], draw(6, 256, scale=3.0)
    x[2] = 0
    x[3, :128] = 0

    def same(codes, right):
        assert codes.dtype == dtype and torch.equal(codes.view(torch.uint8), right.view(torch.uint8))

    def scale_of(x, floor=0.0):
        largest = x.abs().float().amax(-1, keepdim=True).clamp(min=floor)
        return torch.where(largest == 0, 1.0, largest / limit)

    out, scale = torch.empty(6, 256, dtype=dtype), torch.tensor([0.05])
    aiter.static_per_tensor_quant(out, x, scale)
    same(out, codes_of(x, scale, dtype))
    same(aiter.per_tensor_quant_hip(x, scale, dtype)[0], out)
    aiter.dynamic_per_tensor_quant(out, x, scale)
    assert torch.equal(scale, x.abs().max().float().view(1) / limit)
    same(out, codes_of(x, scale, dtype))
    codes, found = aiter.per_tensor_quant_hip(x, quant_dtype=dtype)
    same(codes, out)
    assert torch.equal(found, scale)

    scales = torch.empty(6, 1)
    aiter.dynamic_per_token_scaled_quant(out, x, scales)
    assert torch.equal(scales, scale_of(x))
    same(out, codes_of(x, scales, dtype))
    codes, found = aiter.per_token_quant_hip(x, None, dtype)
    same(codes, out)
    assert torch.equal(found, scales)
    aiter.dynamic_per_token_scaled_quant(out, x, scales, torch.tensor([2.0]))
    assert torch.equal(scales, torch.where(scale_of(x) == 1, 1.0, scale_of(x).clamp(max=2.0 / limit)))

    groups = scale_of(x.view(6, 2, 128), 1e-10)
    right = codes_of(x.view(6, 2, 128), groups, dtype).view(6, 256)
    codes, found = aiter.per_group_quant_hip(x, quant_dtype=dtype, group_size=128)
    same(codes, right)
    assert torch.equal(found, groups[..., 0])
    codes, found = aiter.per_group_quant_hip(x, quant_dtype=dtype, transpose_scale=True)
    same(codes, right)
    assert found.shape == (6, 2) and torch.equal(found.reshape(2, 6).t(), groups[..., 0])
    scales = torch.empty(6, 2)
    aiter.dynamic_per_token_scaled_quant(out, x.view(-1, 128), scales, shuffle_scale=True)
    same(out, right)
    assert torch.equal(scales.view(2, 6).t(), groups[..., 0])

    smooth, scales = draw(256, dtype=F32, seed=5).abs(), torch.empty(6, 1)
    aiter.smoothquant_fwd(out, x, smooth, scales)
    smoothed = x.float() * smooth
    assert torch.equal(scales, scale_of(smoothed, 1e-10))
    same(out, codes_of(smoothed, scales, dtype))


@of("moe_smoothquant_fwd", "smooth_per_token_scaled_quant")
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_factors_of_experts(target, kind):
    dtype = torch.int8 if kind == "int8" else FP8[target]
    tokens, k, features, experts = 9, 3, 100, 5
    x, factors = draw(tokens, features), draw(experts, features, dtype=F32, seed=1).abs()
    ids = torch.randint(0, experts, (tokens, k), generator=torch.Generator().manual_seed(0), dtype=I32)

    def check(codes, scales, product):
        right = product.abs().amax(-1, keepdim=True).clamp(min=1e-10) / LARGEST[dtype]
        assert torch.equal(scales.view(-1, 1), right)
        assert torch.equal(codes.view(torch.uint8), codes_of(product, right, dtype).view(torch.uint8))

    out, scales = torch.empty(k * tokens, features, dtype=dtype), torch.full((k * tokens, 1), math.nan)
    aiter.moe_smoothquant_fwd(out, x, factors, ids, scales)
    check(out, scales, torch.cat([x.float() * factors[ids[:, j]] for j in range(k)]))
    missing = ids.clone()
    missing[4, 1], missing[2, 0] = -1, experts
    again, of_missing = torch.empty_like(out), torch.empty_like(scales)
    aiter.moe_smoothquant_fwd(again, x, factors, missing, of_missing)
    there = (missing == ids).t().reshape(-1)
    assert torch.equal(again.view(torch.uint8)[there], out.view(torch.uint8)[there])
    assert (again.view(torch.uint8)[~there] == 0).all() and (of_missing[~there] <= 1e-11).all()

    out, scales = torch.empty(tokens, features, dtype=dtype), torch.full((tokens, 1), math.nan)
    aiter.smooth_per_token_scaled_quant(out, x, scales, factors, ids[:, 0].contiguous())
    check(out, scales, x.float() * factors[ids[:, 0]])
    aiter.smooth_per_token_scaled_quant(out, x, scales, factors[2], shuffle_scale=True)
    check(out, scales, x.float() * factors[2])
    with pytest.raises(NotImplementedError, match="num_rows"):
        aiter.smooth_per_token_scaled_quant(out, x, scales, factors[2], num_rows=torch.tensor([3]))
    with pytest.raises(ValueError, match="out has shape"):
        aiter.moe_smoothquant_fwd(out, x, factors, ids, scales)


@of("routing_sigmoid_top1")
@pytest.mark.parametrize("shape", [(17, 64), (2, 3, 130)])
def test_one_expert(target, shape):
    x, w = draw(*shape), draw(shape[-1], 12, seed=1)
    logits = x.reshape(-1, shape[-1]).double() @ w.double()
    for shared in (False, True):
        ids, weights = aiter.routing_sigmoid_top1(x, w, 1, shared)
        assert torch.equal(ids[:, 0], logits.argmax(-1).to(I32)) and ids.shape == weights.shape
        assert (weights[:, 0] - logits.amax(-1).sigmoid()).abs().max() < 1e-6
        if shared:
            assert (ids[:, 1] == 12).all() and (weights[:, 1] == 1).all()
    with pytest.raises(NotImplementedError, match="topk is 2"):
        aiter.routing_sigmoid_top1(x, w, 2)


@of("dynamic_per_group_scaled_quant_fp4", "per_1x32_f4_quant_hip")
@pytest.mark.parametrize("shuffle", [False, True])
def test_mxfp4(target, shuffle):
    x = draw(7, 96, scale=2.0)
    x[3, :32] = 0
    codes, scales = aiter.per_1x32_f4_quant_hip(x, shuffle=shuffle)
    assert codes.dtype == torch.float4_e2m1fn_x2 and scales.dtype == torch.float8_e8m0fnu
    # E - 2 for a largest magnitude m 2^E, and one more from m = 1.5 on.
    mantissa, exponent = torch.frexp(x.float().view(7, 3, 32).abs().amax(-1))
    power = exponent - 3 + (mantissa * 2 >= 1.5).int()
    expected = torch.where(mantissa == 0, 0, power + 127).to(torch.uint8)
    bytes_of_scales = scales.view(torch.uint8)
    if shuffle:
        assert bytes_of_scales.shape == (256, 8)
        row, column = torch.meshgrid(torch.arange(7), torch.arange(3), indexing="ij")
        place = (
            row // 32 * 256
            + column // 8 * 256
            + column % 4 * 64
            + row % 16 * 4
            + column % 8 // 4 * 2
            + row % 32 // 16
        )
        assert torch.equal(bytes_of_scales.flatten()[place], expected)
    else:
        assert torch.equal(bytes_of_scales, expected)
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    raw = codes.view(torch.uint8)
    nibbles = torch.stack((raw & 15, raw >> 4), -1).flatten(-2).long()
    values = table[nibbles & 7] * torch.where(nibbles >= 8, -1.0, 1.0)
    scaled = x.float().view(7, 3, 32) * torch.exp2(-power.float())[..., None]
    distance = (scaled.abs()[..., None] - table).abs().amin(-1)
    assert torch.equal((scaled - values.view(7, 3, 32)).abs().clamp(max=9), distance)
    out, into = torch.empty_like(raw), torch.empty_like(bytes_of_scales)
    aiter.dynamic_per_group_scaled_quant_fp4(out, x, into, 32, shuffle)
    assert torch.equal(out, raw) and torch.equal(into, bytes_of_scales)


@of("softmax", "fused_mul_add", "fused_qk_cat", "split_qkv")
@pytest.mark.parametrize("columns", [1, 257])
def test_rows_and_copies(target, columns):
    x, a, b = draw(5, columns), draw(5, columns, seed=1), draw(1, seed=2)
    assert close(aiter.softmax(x), x.double().softmax(-1))
    right = a.double() * x.double() + b.double()
    out = torch.empty(5 * columns, dtype=BF16)
    assert aiter.fused_mul_add(x, a, b, out) is out and close(out.view(5, columns), right)
    given = x.clone()
    assert aiter.fused_mul_add(given, 2, 0.5) is given and close(given, 2 * x.double() + 0.5)
    given = x.clone()
    assert aiter.fused_mul_add(given, a.flatten(), b) is given and torch.equal(given.flatten(), out)
    with pytest.raises(NotImplementedError, match=r"fused_mul_add: x is not contiguous"):
        aiter.fused_mul_add(draw(3, 4).t(), 1, 1)
    q1, q2, k1, k2 = (
        draw(3, 4, columns),
        draw(3, 4, 7, seed=1),
        draw(3, 2, columns, seed=2),
        draw(3, 2, 7, seed=3),
    )
    q, k = aiter.fused_qk_cat(q1, q2, k1, k2)
    assert torch.equal(q, torch.cat((q1, q2), -1)) and torch.equal(k, torch.cat((k1, k2), -1))
    qkv = draw(4, 3 * columns + 8)
    parts = aiter.split_qkv(qkv, columns + 8, columns)
    assert all(
        torch.equal(*each) for each in zip(parts, qkv.split((columns + 8, columns, columns), -1), strict=True)
    )


@of("reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla")
@pytest.mark.parametrize("kind", ["auto", "fp8", "int8"])
def test_caches(target, kind):
    tokens, heads, size, blocks, block = 6, 2, 32, 3, 16
    dtype = {"auto": BF16, "int8": torch.int8, "fp8": FP8[target]}[kind]
    x = 16 // dtype.itemsize
    key, value = draw(tokens, heads, size), draw(tokens, heads, size, seed=1)
    slots, scales = torch.tensor([0, 17, -1, 40, 5, 47]), (torch.tensor([0.5]), torch.tensor([0.25]))
    raw = torch.int16 if kind == "auto" else torch.uint8

    def written(rows, scale):
        if kind != "auto":
            rows = (rows.float() * (1 / scale)).clamp(-LARGEST[dtype], LARGEST[dtype])
        rows = rows.round() if kind == "int8" else rows
        flat = torch.zeros(blocks * block, *rows.shape[1:], dtype=dtype).view(raw)
        flat[slots[slots >= 0]] = rows[slots >= 0].to(dtype).view(raw)
        return flat.view(blocks, block, *rows.shape[1:])

    def empty(*shape):
        return torch.zeros(shape, dtype=dtype)

    k, v = written(key, scales[0]), written(value, scales[1])
    caches = empty(blocks, block, heads, size), empty(blocks, block, heads, size)
    aiter.reshape_and_cache_flash(key, value, *caches, slots, kind, *scales)
    assert torch.equal(caches[0].view(raw), k) and torch.equal(caches[1].view(raw), v)
    for asm in (False, True):
        shape = (blocks, heads, block // x, size, x) if asm else (blocks, heads, size, block)
        caches = empty(blocks, heads, size // x, block, x), empty(*shape)
        aiter.reshape_and_cache(key, value, *caches, slots, kind, *scales, asm)
        assert torch.equal(caches[0].view(raw), k.unflatten(-1, (-1, x)).permute(0, 2, 3, 1, 4))
        places = v.unflatten(1, (-1, x)).permute(0, 3, 1, 4, 2) if asm else v.permute(0, 2, 3, 1)
        assert torch.equal(caches[1].view(raw), places)
    latent, rotary, cache = draw(tokens, 48), draw(tokens, 16, seed=1), empty(blocks, block, 64)
    aiter.concat_and_cache_mla(latent, rotary, cache, slots, kind, scales[0])
    assert torch.equal(cache.view(raw), written(torch.cat((latent, rotary), -1), scales[0]))
    with pytest.raises(NotImplementedError, match="kv_cache_dtype is 'fp8_e5m2'"):
        aiter.concat_and_cache_mla(latent, rotary, cache, slots, "fp8_e5m2", scales[0])
    with pytest.raises(TypeError, match="kv_cache_dtype is"):
        aiter.concat_and_cache_mla(
            latent, rotary, cache, slots, "fp8" if kind != "fp8" else "int8", scales[0]
        )


@of("fused_add_rmsnorm_pad")
@pytest.mark.parametrize("multiple", [0, 64])
def test_padded_norm(target, multiple):
    x, residual, weight = draw(5, 130), draw(5, 130, seed=1), draw(130, seed=2)
    for given in (None, residual):
        z = x.double() if given is None else x.double() + residual.double()
        right = z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        found = aiter.fused_add_rmsnorm_pad(x, weight, 1e-5, given, multiple)
        y, *summed = (found,) if given is None else found
        # Nearest to the norm of the unrounded sum.
        assert (
            y.shape == (5, 192 if multiple else 130)
            and close(y[:, :130], right, 0.502)
            and not y[:, 130:].any()
        )
        assert given is None or torch.equal(summed[0], x + residual)


def decoded(codes, scales, group):
    """The dequantized values in float64, with the quantization step at each."""
    values = codes.double() * scales.double().repeat_interleave(group, -1)[..., : codes.shape[-1]]
    if codes.dtype == torch.int8:
        return values, scales.double().repeat_interleave(group, -1)
    return values, values.abs() * 2.0**-4 + scales.double().repeat_interleave(group, -1) * 2.0**-9


QUANTIZED_NORMS = [
    f"{norm}2d_fwd_with_{add}{kind}quant"
    for norm in ("rmsnorm", "layernorm")
    for add in ("", "add_")
    for kind in ("smooth", "dynamic")
]


@of(*QUANTIZED_NORMS)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_norms_with_codes(target, norm, kind):
    dtype = torch.int8 if kind == "int8" else FP8[target]
    x, residual, weight, bias = (
        draw(*shape, seed=i) for i, shape in enumerate(((6, 130), (6, 130), (130,), (130,)))
    )
    if norm == "rmsnorm":
        x[2] = residual[2] = 0
    smooth = draw(130, dtype=F32, seed=5).abs()

    def right(z):
        z = z.double()
        if norm == "layernorm":
            return F.layer_norm(z, (130,), weight.double(), bias.double(), 1e-5)
        return z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()

    tail = (weight, 1e-5) if norm == "rmsnorm" else (weight, bias, 1e-5)
    for add in ("", "add_"):
        for way in ("smooth", "dynamic"):
            function = getattr(aiter, f"{norm}2d_fwd_with_{add}{way}quant")
            out, scales, summed = torch.empty(6, 130, dtype=dtype), torch.empty(6, 1), torch.empty_like(x)
            function(
                out,
                x,
                *((residual, summed) if add else ()),
                *((smooth,) if way == "smooth" else ()),
                scales,
                *tail,
            )
            assert not add or torch.equal(summed, x + residual)
            exact = right(x + residual if add else x) * (smooth.double() if way == "smooth" else 1)
            largest = exact.abs().amax(-1, keepdim=True) / LARGEST[dtype]
            assert ((scales - torch.where(largest == 0, 1.0, largest)).abs() <= 1e-5 * scales).all()
            values, step = decoded(out, scales, 130)
            assert ((values - exact).abs() <= 1.001 * step).all()
    if norm == "rmsnorm":
        before, name = torch.empty_like(x), "rmsnorm2d_fwd_with_add_smoothquant"
        aiter.rmsnorm2d_fwd_with_add_smoothquant(out, x, residual, summed, smooth, scales, *tail, before)
        assert close(before, right(summed))
        rounded = (right(summed) / weight.double()).bfloat16().double() * weight.double() * smooth.double()
        for sensitive in (0, 1):
            aiter.rmsnorm2d_fwd_with_add_smoothquant(
                out, x, residual, summed, smooth, scales, *tail, None, sensitive
            )
            values, step = decoded(out, scales, 130)
            exact = rounded if sensitive else right(summed) * smooth.double()
            assert (scales * LARGEST[dtype] - exact.abs().amax(-1, keepdim=True))[
                [0, 1, 3, 4, 5]
            ].abs().max() <= 1e-4
            assert ((values - exact).abs() <= 1.001 * step).all()
        with pytest.raises(ValueError, match=f"{name}: use_model_sensitive_rmsnorm is 2; allowed: 0, 1"):
            aiter.rmsnorm2d_fwd_with_add_smoothquant(out, x, residual, summed, smooth, scales, *tail, None, 2)
    else:
        aiter.layernorm2d_fwd_with_add_dynamicquant(out, x, residual, summed, scales, *tail, x_bias=weight)
        assert torch.equal(summed, (x.float() + weight.float() + residual.float()).bfloat16())


@of("fused_rms_fp8_group_quant", "fused_rms_fp8_per_tensor_static_quant", "fused_rms_mxfp4_quant")
@pytest.mark.parametrize("given", [False, True])
def test_fused_norms_with_codes(target, given):
    x, weight, dtype = draw(6, 256), draw(256, seed=1), FP8[target]
    second, its_weight = (draw(6, 96, seed=2), draw(96, seed=3)) if given else (None, None)
    residual = draw(6, 256, seed=4) if given else None

    def right(z, weight, eps):
        return z * (z.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()

    z = x.double() + residual.double() if given else x.double()
    exact = right(z, weight, 1e-5)

    def rest(norm, other, summed):
        assert close(norm, exact)
        assert (other is None) == (summed is None) == (not given)
        if given:
            assert close(other, right(second.double(), its_weight, 1e-6)) and torch.equal(
                summed, x + residual
            )

    beside = (second, its_weight, 1e-6)
    (codes, scales), *others = aiter.fused_rms_fp8_group_quant(
        x, weight, 1e-5, *beside, 128, None, residual, True
    )
    rest(*others)
    values, step = decoded(codes, scales, 128)
    assert codes.dtype == dtype and ((values - exact).abs() <= 1.001 * step).all()
    largest = exact.view(6, 2, 128).abs().amax(-1) / LARGEST[dtype]
    assert ((scales - largest).abs() <= 1e-5 * largest).all()
    (again, across), *_ = aiter.fused_rms_fp8_group_quant(
        x, weight, 1e-5, *beside, res1=residual, dtype_quant=dtype, transpose_scale=True
    )
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8)) and across.shape == (6, 2)
    assert torch.equal(across.reshape(2, 6).t(), scales)
    scale = torch.tensor([0.05])
    codes, *others = aiter.fused_rms_fp8_per_tensor_static_quant(
        x, weight, 1e-5, scale, *beside, None, residual, True
    )
    rest(*others)
    values, step = decoded(codes, scale.expand(6, 1), 256)
    limit = LARGEST[dtype] * 0.05
    assert ((values - exact.clamp(-limit, limit)).abs() <= 1.001 * step).all()
    for shuffle in (False, True):
        (codes, scales), other, summed = aiter.fused_rms_mxfp4_quant(
            x, weight, 1e-5, *beside, residual, shuffle
        )
        assert (other is None) == (summed is None) == (not given)
        check_mxfp4(codes, scales, exact, shuffle)
    with pytest.raises(NotImplementedError, match="scale_shuffle_padding is True without shuffle"):
        aiter.fused_rms_mxfp4_quant(x, weight, 1e-5, scale_shuffle_padding=True)
    with pytest.raises(TypeError, match="this target's are"):
        aiter.fused_rms_fp8_group_quant(
            x, weight, 1e-5, dtype_quant=torch.float8_e5m2 if target == "gfx942" else FP8["gfx942"]
        )


def check_mxfp4(codes, scales, exact, shuffled):
    """Scales of the rule "even", and quantized values within half a step of the values."""
    rows, groups = exact.shape[0], exact.shape[1] // 32
    mantissa, exponent = torch.frexp(exact.view(rows, groups, 32).abs().amax(-1))
    power = exponent - 3 + (mantissa * 2 >= 1.75).int()
    if shuffled:
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(groups), indexing="ij")
        place = (
            row // 32 * 256
            + column // 8 * 256
            + column % 4 * 64
            + row % 16 * 4
            + column % 8 // 4 * 2
            + row % 32 // 16
        )
        scales = scales.flatten()[place]
    assert torch.equal(scales, (power + 127).to(torch.uint8))
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
    values = (table[nibbles & 7] * torch.where(nibbles >= 8, -1.0, 1.0)).view(rows, groups, 32)
    scaled = exact.view(rows, groups, 32) * torch.exp2(-power.double())[..., None]
    nearest = (scaled.abs()[..., None] - table).abs().amin(-1)
    assert ((scaled - values).abs() <= nearest + 1e-4).all()


@of("act_mul_and_fp8_group_quant", "act_mul_and_mxfp4_quant")
def test_gates_with_codes(target):
    x = draw(6, 512, scale=3.0)
    gate, other = x.double().chunk(2, -1)
    kinds = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
    }
    for kind, function in kinds.items():
        exact = function(gate) * other
        for group in (32, 128):
            codes, scales = aiter.act_mul_and_fp8_group_quant(x, kind, group)
            largest = exact.view(6, -1, group).abs().amax(-1) / LARGEST[FP8[target]]
            # From the value before it is rounded to bfloat16.
            assert ((scales - largest).abs() <= 1e-5 * largest).all()
            values, step = decoded(codes, scales, group)
            assert codes.dtype == FP8[target] and ((values - exact).abs() <= 1.001 * step).all()
        for shuffle in (False, True):
            check_mxfp4(*aiter.act_mul_and_mxfp4_quant(x, kind, "even", shuffle), exact, shuffle)
    # Half-way cases go away from 0: the group's scale is 1, since its largest value is 6.
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 4, dtype=BF16)
    codes, scales = aiter.act_mul_and_mxfp4_quant(torch.cat((torch.ones(32, dtype=BF16), ties))[None], "relu")
    assert scales.item() == 127
    assert torch.stack((codes & 15, codes >> 4), -1).flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 7] * 4
    with pytest.raises(NotImplementedError, match="activation is 'silu_exp2'"):
        aiter.act_mul_and_fp8_group_quant(x, "silu_exp2", 32)
    with pytest.raises(NotImplementedError, match="scaling_mode is 'floor'"):
        aiter.act_mul_and_mxfp4_quant(x, "silu", "floor")


@of("topk")
def test_topk(target):
    x = (draw(5, 300) * 2).round()
    values, ids = aiter.topk(x, 9)
    right = x.float().sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values.float(), right.values[:, :9]) and torch.equal(ids, right.indices[:, :9])


def chosen(scores, k):
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]


@of("topk_softmax", "topk_sigmoid")
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(8, 2), (128, 8), (60, 3)])
def test_topk_of_experts(target, experts, k, renormalize):
    logits = draw(9, experts, dtype=F32)
    weights, ids, numbers = torch.empty(9, k), torch.empty(9, k, dtype=I32), torch.empty(9, k, dtype=I32)
    aiter.topk_softmax(weights, ids, numbers, logits, renormalize)
    right = chosen(logits, k)
    values = logits.double().softmax(-1).gather(-1, right)
    values = values / values.sum(-1, keepdim=True) if renormalize else values
    assert torch.equal(ids.long(), right) and (weights - values).abs().max() <= 1e-6
    assert torch.equal(numbers, torch.arange(9 * k, dtype=I32).view(k, 9).t())
    aiter.topk_sigmoid(weights, ids, logits)
    assert (
        torch.equal(ids.long(), right)
        and (weights - logits.double().sigmoid().gather(-1, right)).abs().max() <= 1e-6
    )


@of("grouped_topk", "biased_grouped_topk", "biased_grouped_topk_hip", "moe_fused_gate")
@pytest.mark.parametrize("tokens", [1, 70])
def test_grouped_topk(target, tokens):
    experts, groups, best, k, factor = 64, 8, 4, 6, 2.5
    logits, bias = draw(tokens, experts, dtype=F32), draw(experts, dtype=F32, seed=1)

    def expected(choice, of_group, scores, renormalize):
        each = choice.view(tokens, groups, -1).topk(of_group, -1).values.sum(-1)
        left = (
            torch.zeros(tokens, groups)
            .scatter(1, chosen(each, best), 1.0)
            .repeat_interleave(experts // groups, 1)
        )
        ids = chosen(choice.masked_fill(left == 0, -math.inf), k)
        weights = scores.gather(-1, ids)
        return ids, factor * (weights / weights.sum(-1, keepdim=True) if renormalize else weights)

    def check(call, right):
        weights, ids = torch.empty(tokens, k), torch.empty(tokens, k, dtype=I32)
        call(weights, ids)
        assert torch.equal(ids.long(), right[0]) and (weights - right[1]).abs().max() <= 2e-6

    soft, sigmoid = logits.double().softmax(-1), logits.double().sigmoid()
    for renormalize in (False, True):
        check(
            lambda w, i, r=renormalize: aiter.grouped_topk(logits, w, i, groups, best, r, True, factor),
            expected(soft, 1, soft, renormalize),
        )
        check(
            lambda w, i, r=renormalize: aiter.grouped_topk(
                logits, w, i, groups, best, r, is_softmax=False, routed_scaling_factor=factor
            ),
            expected(sigmoid, 1, sigmoid, renormalize),
        )
        for function in (aiter.biased_grouped_topk, aiter.biased_grouped_topk_hip):
            check(
                lambda w, i, r=renormalize, f=function: f(logits, bias, w, i, groups, best, r, factor),
                expected(sigmoid + bias, 2, sigmoid, renormalize),
            )
    check(
        lambda w, i: aiter.moe_fused_gate(logits, bias, w, i, groups, best, k, 0, factor),
        expected(sigmoid + bias, 2, sigmoid, True),
    )
    with pytest.raises(NotImplementedError, match="n_share_experts_fusion is 1"):
        aiter.moe_fused_gate(
            logits, bias, torch.empty(tokens, k), torch.empty(tokens, k, dtype=I32), groups, best, k, 1
        )


def drawn_ids(tokens, k, experts):
    return torch.randint(0, experts, (tokens, k), generator=torch.Generator().manual_seed(6), dtype=I32)


@of("moe_align_block_size", "moe_align_block_size_triton")
@pytest.mark.parametrize(
    ("tokens", "experts", "block"), [(0, 8, 16), (1, 8, 16), (50, 8, 16), (257, 128, 32)]
)
def test_moe_align(target, tokens, experts, block):
    ids = drawn_ids(tokens, 3, experts)
    ids[tokens // 2 :, 1] = -1
    pairs, room = ids.numel(), ids.numel() + experts * (block - 1)
    entries, owners, left = [], [], []
    for expert in range(experts):
        mine = (ids.flatten() == expert).nonzero()[:, 0].tolist()
        for first in range(0, len(mine), block):
            owners.append(expert)
            left.append(len(mine) - first)
        entries += mine + [pairs] * (-len(mine) % block)
    for function, has_left in (
        (aiter.moe_align_block_size, True),
        (aiter.moe_align_block_size_triton, False),
    ):
        places, padded = torch.full((room,), pairs, dtype=I32), torch.empty(1, dtype=I32)
        experts_ids, token_nums = torch.full((2, -(-room // block)), -7, dtype=I32)
        function(ids, experts, block, places, experts_ids, *([token_nums] if has_left else []), padded)
        assert padded.item() == len(entries)
        assert places.tolist() == entries + [pairs] * (room - len(entries))
        assert experts_ids[: len(owners)].tolist() == owners and not (experts_ids[len(owners) :] >= 0).any()
        assert not has_left or token_nums[: len(left)].tolist() == left
    if tokens:
        with pytest.raises(ValueError, match=r"sorted_token_ids has shape \(1,\); it needs"):
            aiter.moe_align_block_size(ids, experts, block, places[:1], experts_ids, token_nums, padded)


@of("moe_sorting_fwd")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [1, 40])
def test_moe_sorting(target, tokens, masked):
    experts, k, unit = 16, 5, 32
    ids, weights = drawn_ids(tokens, k, experts), draw(tokens, k, dtype=F32).abs()
    mask = (torch.arange(experts) % 3 != 1).to(I32) if masked else None
    local = torch.tensor([tokens - tokens // 4], dtype=I32) if masked else None
    room = tokens * k + experts * unit - k
    places, in_order = torch.empty(room, dtype=I32), torch.empty(room)
    owners, valid, buffer = (
        torch.empty(-(-room // unit), dtype=I32),
        torch.empty(2, dtype=I32),
        torch.ones(tokens, 8),
    )
    aiter.moe_sorting_fwd(ids, weights, places, in_order, owners, valid, buffer, experts, unit, mask, local)
    counted, entries, values, blocks, number = int(local) if masked else tokens, [], [], [], 0
    for expert in range(experts):
        if masked and not mask[expert]:
            continue
        mine = (ids[:counted].flatten() == expert).nonzero()[:, 0].tolist()
        padding = -len(mine) % unit
        entries += [pair % k << 24 | pair // k for pair in mine] + [k << 24 | tokens] * padding
        values += [weights.flatten()[pair].item() for pair in mine] + [0.0] * padding
        blocks += [number] * ((len(mine) + padding) // unit)
        number += 1
    assert valid.tolist() == [len(entries), counted] and not buffer.any()
    assert places[: len(entries)].tolist() == entries and in_order[: len(entries)].tolist() == values
    assert owners[: len(blocks)].tolist() == blocks


@of("greedy_sample", "random_sample_outer_exponential", "mixed_sample_outer_exponential", "random_sample",
    "mixed_sample", "exponential")  # fmt: skip
def test_samples(target):
    x, temperatures = draw(6, 1111, scale=4.0), torch.tensor([1.0, 0.0, 0.5, 2.0, 0.0, 0.9])
    drawn = torch.empty(6, 1111)
    aiter.exponential(drawn, generator=torch.Generator().manual_seed(2))
    assert drawn.min() > 0 and 0.97 < drawn.mean() < 1.03
    greedy = x.float().argmax(-1).to(I32)
    out = torch.empty(6, dtype=I32)
    aiter.greedy_sample(out, x)
    assert torch.equal(out, greedy)

    def race(exponentials):
        scaled = x.double() / temperatures.double().clamp(min=1e-5)[:, None]
        return (scaled.softmax(-1) / (exponentials.double() + 1e-10)).argmax(-1).to(I32)

    for exponentials in (drawn, drawn[:1]):
        aiter.random_sample_outer_exponential(out, x, exponentials, temperatures)
        assert torch.equal(out, race(exponentials))
        aiter.mixed_sample_outer_exponential(out, x, exponentials, temperatures)
        assert torch.equal(out, torch.where(temperatures == 0, greedy, race(exponentials)))
    aiter.random_sample(out, x, temperatures, 1, torch.Generator().manual_seed(2))
    assert torch.equal(out, race(drawn))
    aiter.mixed_sample(out, x, temperatures, generator=torch.Generator().manual_seed(2))
    assert torch.equal(out, torch.where(temperatures == 0, greedy, race(drawn)))


@of("causal_conv1d_fn", "causal_conv1d_update")
def test_causal_convolutions(target):
    starts, slots = torch.tensor([0, 5, 6, 20], dtype=I32), torch.tensor([2, -1, 0], dtype=I32)
    x, weight, bias, states = draw(16, 20), draw(16, 4, seed=1), draw(16, seed=2), draw(3, 16, 5, seed=3)
    old, present = states.clone(), torch.tensor([True, True, False])
    y = aiter.causal_conv1d_fn(x, weight, bias, states, starts, [5, 1, 14], slots, present)

    def right(own, before):
        history = torch.cat((before.double(), own.double()), -1)
        pre = sum(weight.double()[:, j, None] * history[:, j : j + own.shape[1]] for j in range(4))
        return F.silu(pre + bias.double()[:, None])

    assert close(y[:, :5], right(x[:, :5], old[2, :, :3])) and close(
        y[:, 6:], right(x[:, 6:], torch.zeros(16, 3))
    )
    assert torch.equal(states[0, :, :3], x[:, -3:]) and torch.equal(states[2, :, :3], x[:, 2:5])
    assert torch.equal(states[..., 3:], old[..., 3:]) and torch.equal(states[1], old[1])

    step, before = draw(3, 16, seed=4), states.clone()
    given = step.clone()
    assert aiter.causal_conv1d_update(given, states, weight, bias, True, conv_state_indices=slots) is given
    for row, slot in ((0, 2), (2, 0)):
        assert close(given[row], right(step[row, :, None], before[slot, :, :3])[:, 0])
        assert torch.equal(states[slot, :, :3], torch.cat((before[slot, :, 1:3], step[row, :, None]), -1))
    assert torch.equal(given[1], step[1])
    with pytest.raises(NotImplementedError, match="intermediate_conv_window is given"):
        aiter.causal_conv1d_update(given, states, weight, intermediate_conv_window=states)


def test_what_has_no_kernel_says_so():
    x, out, scales = draw(2, 64), torch.empty(2, 64, dtype=torch.int8), torch.empty(2, 1)
    with hipkittens.simulate("gfx942"):
        for call, message in (
            (
                lambda: aiter.dynamic_per_token_scaled_quant(
                    out, x, scales, num_rows=torch.ones(1, dtype=I32)
                ),
                "num_rows is given",
            ),
            (lambda: aiter.per_token_quant_hip(x, scales), "scale is given"),
            (lambda: aiter.dynamic_per_group_scaled_quant_fp4(out, x, scales, 64), "group_size is 64"),
        ):
            with pytest.raises(NotImplementedError, match=message):
                call()
        with pytest.raises(
            TypeError, match=r"codes are torch\.float8_e4m3fn; this target's are torch\.float8_e4m3fnuz"
        ):
            aiter.per_token_quant_hip(x, quant_dtype=torch.float8_e4m3fn)
        with pytest.raises(ValueError, match="group_size is 48; allowed: 32, 64, 128"):
            aiter.per_group_quant_hip(x, group_size=48)
        codes, _ = quantize(x, QuantSpec("int8", rounding="truncate"))
        assert torch.equal(aiter.per_token_quant_hip(x)[0], codes)


def test_numbers_are_those_of_the_wheel():
    found = importlib.util.find_spec("aiter_meta")
    if found is None:
        pytest.skip("amd-aiter is not installed")
    folder = Path(next(iter(found.submodule_search_locations)))
    text = (folder / "csrc" / "include" / "aiter_enum.h").read_text()
    for kind in NUMBERS:
        body = re.search(rf"enum class {kind.__name__} : int\s*{{(.*?)}}", text, re.DOTALL)[1]
        number, values = -1, {}
        for name, value in re.findall(r"(\w+)(?: = (-?\d+))?,", body):
            number = int(value) if value else number + 1
            values[name] = number
        assert {each.name: each.value for each in kind} == values


def experts(tokens=19, count=8, k=2, hidden=64, inner=32, gated=True, dtype=BF16):
    """x, w1, w2, weights and ids."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.rand(tokens, count, generator=generator).argsort(1)[:, :k].to(I32)
    return (
        draw(tokens, hidden, dtype=dtype),
        draw(count, inner * (2 if gated else 1), hidden, seed=1, scale=hidden**-0.5, dtype=dtype),
        draw(count, hidden, inner, seed=2, scale=inner**-0.5, dtype=dtype),
        torch.rand(tokens, k, generator=generator),
        ids,
    )


def layer(x, w1, w2, weights, ids, act=F.silu, bias1=None, bias2=None, doweight_stage1=False):
    """The definition, in the dtype of the tensors."""
    out = torch.zeros(*ids.shape, x.shape[1], dtype=x.dtype)
    for expert in range(w1.shape[0]):
        token, slot = torch.where(ids == expert)
        hidden = x[token] @ w1[expert].T
        if doweight_stage1:
            hidden = hidden * weights[token, slot, None].to(x.dtype)
        if bias1 is not None:
            hidden = hidden + bias1[expert]
        if w1.shape[1] == 2 * w2.shape[2]:
            gate, up = hidden.chunk(2, -1)
            hidden = act(gate) * up
        else:
            hidden = act(hidden)
        rows = hidden @ w2[expert].T
        out[token, slot] = rows if bias2 is None else rows + bias2[expert]
    return (out if doweight_stage1 else out * weights[..., None].to(x.dtype)).sum(1)


def assert_within_twice(mine, arguments, ids, bias=(None, None), **options):
    exact = layer(
        *(each.double() for each in arguments),
        ids,
        **options,
        **{f"bias{i + 1}": None if b is None else b.double() for i, b in enumerate(bias)},
    )
    torchs = layer(*arguments, ids, **options, bias1=bias[0], bias2=bias[1])
    errors, others = mine.double() - exact, torchs.double() - exact
    assert errors.norm() <= 2 * others.norm()
    # Rows are rounded, and their sum: with few results PyTorch's may all be close by luck.
    assert errors.abs().max() <= max(2 * others.abs().max(), torch.finfo(mine.dtype).eps * exact.abs().max())


def swiglu(gate, up):
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@of("fused_moe", "ActivationType", "QuantType")
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
@pytest.mark.parametrize("gated", [True, False])
def test_experts(target, gated, dtype):
    *arguments, ids = experts(gated=gated, dtype=dtype)
    bias = draw(8, 64 if gated else 32, seed=5, dtype=dtype), draw(8, 64, seed=6, dtype=dtype)
    assert_within_twice(aiter.fused_moe(*arguments, ids), arguments, ids)
    for activation in (aiter.ActivationType.Gelu, 1):
        found = aiter.fused_moe(*arguments, ids, activation=activation, bias1=bias[0], bias2=bias[1])
        assert_within_twice(found, arguments, ids, bias, act=F.gelu)
    found = aiter.fused_moe(*arguments, ids, doweight_stage1=True, block_size_M=64)
    assert_within_twice(found, arguments, ids, doweight_stage1=True)
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0])
    local = torch.where(mask[ids.long()] != 0, ids, -1)
    here = mask.nonzero().flatten()
    x, w1, w2, weights = arguments
    found = aiter.fused_moe(
        x, w1[here], w2[here], weights, ids, mask.to(I32), num_local_tokens=torch.tensor([7]).to(I32)
    )
    assert not found[7:].any()
    assert_within_twice(found[:7], [x[:7], w1, w2, weights[:7]], local[:7])


@of("fused_moe")
def test_experts_of_gpt_oss_and_shuffled_weights(target):
    *arguments, ids = experts()
    found = aiter.fused_moe(*arguments, ids, activation=aiter.ActivationType.Swiglu)
    exact = torch.zeros_like(found, dtype=torch.float64)
    x, w1, w2, weights = arguments
    for token in range(x.shape[0]):
        for slot, expert in enumerate(ids[token].tolist()):
            gate, up = (w1[expert].double() @ x[token].double()).chunk(2)
            exact[token] += weights[token, slot].double() * (w2[expert].double() @ swiglu(gate, up))
    assert (found.double() - exact).norm() <= 2.0**-7 * exact.norm()
    # The order of aiter.ops.shuffle.shuffle_weight(w, (16, 16)) for elements of 2 bytes.
    shuffled = []
    for weight in (w1, w2):
        e, n, k = weight.shape
        made = weight.view(e, n // 16, 16, k // 32, 4, 8).permute(0, 1, 3, 4, 2, 5).reshape(e, n, k)
        made.is_shuffled = True
        shuffled.append(made)
    assert torch.equal(aiter.fused_moe(x, *shuffled, weights, ids), aiter.fused_moe(x, w1, w2, weights, ids))
    narrow = w2[:, :, :20]
    narrow.is_shuffled = True
    with pytest.raises(ValueError, match=r"w2 is shuffled and has shape \(8, 64, 20\); it needs"):
        aiter.fused_moe(x, w1[:, :40], narrow, weights, ids)


@of("fused_moe")
def test_experts_in_mxfp4():
    """hipkittens.moe on the same quantized weights, shuffled or not; tests/test_moe_mx.py compares it with float64."""
    generator = torch.Generator().manual_seed(4)
    plain = [torch.randn(shape, generator=generator) / 12 for shape in ((8, 256, 192), (8, 192, 128))]
    x, ids = draw(20, 192), torch.rand(20, 8, generator=generator).argsort(1)[:, :2].to(I32)
    weights = torch.rand(20, 2, generator=generator)
    (w1, scale1), (w2, scale2) = (quantize(each, QuantSpec("mxfp4")) for each in plain)
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        expected = hipkittens.moe(x, w1, w2, weights, ids, scale_w1=scale1, scale_w2=scale2, recipe="1x32")
        scales = [tiled_scales(each.flatten(0, 1)) for each in (scale1, scale2)]
        options = {"quant_type": aiter.QuantType.per_1x32, "w1_scale": scales[0], "w2_scale": scales[1]}
        assert torch.equal(aiter.fused_moe(x, w1, w2, weights, ids, **options), expected)
        packed = [each.view(torch.float4_e2m1fn_x2) for each in (w1, w2)]
        assert torch.equal(aiter.fused_moe(x, *packed, weights, ids, **options), expected)
        shuffled = [tiled(each) for each in (w1, w2)]
        for each in shuffled:
            each.is_shuffled = True
        assert torch.equal(aiter.fused_moe(x, *shuffled, weights, ids, **options), expected)
        options["w1_scale"] = scales[0][:40]
        with pytest.raises(ValueError, match=r"w1_scale has shape \(40, 8\); it needs 16384 bytes or more"):
            aiter.fused_moe(x, w1, w2, weights, ids, **options)
        with pytest.raises(
            ValueError, match=r"w1 has shape \(8, 248, 96\); QuantType.per_1x32 needs a multiple"
        ):
            aiter.fused_moe(x, w1[:, :248], w2, weights, ids, **options)
    assert simulation.findings == []


def test_experts_that_have_no_kernel():
    *arguments, ids = experts()
    x, w1, w2, weights = arguments
    scale = torch.ones(8, 64, 1)
    wrong = [
        ({"quant_type": aiter.QuantType.per_1x32, "w1_scale": scale, "w2_scale": scale}, NotImplementedError, "w1 is torch.bfloat16, which has no kernel; allowed with quant_type QuantType.per_1x32: torch.uint8"),
        ({"quant_type": 4}, ValueError, "w1_scale is None; quant_type QuantType.per_1x128 needs the weights' scales"),
        ({"quant_type": 2, "w1_scale": scale, "w2_scale": scale}, NotImplementedError, "w1 is torch.bfloat16, which has no kernel; allowed with quant_type QuantType.per_Token"),
        ({"quant_type": 2, "w1_scale": scale, "w2_scale": scale, "a1_scale": scale}, NotImplementedError, "a1_scale is a Tensor, which has no kernel"),
        ({"quant_type": 9}, ValueError, "quant_type is 9; allowed: QuantType.No, QuantType.per_Tensor"),
        ({"activation": "silu"}, ValueError, "activation is 'silu'; allowed: ActivationType.No"),
        ({"activation": -1}, ValueError, "activation is ActivationType.No; allowed: ActivationType.Silu"),
        ({"w1_scale": scale}, NotImplementedError, "w1_scale is a Tensor, which has no kernel; leave it out"),
        ({"hidden_pad": 64}, NotImplementedError, "hidden_pad is 64"),
        ({"intermediate_pad": 64}, NotImplementedError, "intermediate_pad is 64"),
        ({"dtype": torch.float16}, NotImplementedError, "dtype is torch.float16"),
        ({"w1": w1.to(FP8["gfx950"])}, NotImplementedError, "w1 is torch.float8_e4m3fn, which has no kernel; allowed with quant_type QuantType.No: torch.bfloat16"),
        ({"w1": w1[:, :32], "activation": 2}, ValueError, "Swiglu needs a gate, (E, 2 I, H)"),
    ]  # fmt: skip
    for options, error, message in wrong:
        given = {"hidden_states": x, "w1": w1, "w2": w2, "topk_weight": weights, "topk_ids": ids, **options}
        with pytest.raises(error) as raised:
            aiter.fused_moe(**given)
        assert message in str(raised.value), raised.value


@of("asm_moe", "asm_moe_tkw1")
def test_experts_by_the_names_of_assembly(target):
    x, w1, w2, weights, ids = experts(gated=False)
    given = x, w1, w2, weights, ids
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1]).to(I32)
    here = mask.nonzero().flatten()
    held = x, w1[here], w2[here], weights, ids
    assert torch.equal(aiter.asm_moe(*given), aiter.fused_moe(*given))
    found = aiter.asm_moe(*held, expert_mask=mask, activation=1)
    assert torch.equal(found, aiter.fused_moe(*held, mask, aiter.ActivationType.Gelu))
    found = aiter.asm_moe_tkw1(*held, expert_mask=mask)
    assert torch.equal(found, aiter.fused_moe(*held, mask, doweight_stage1=True))
    scale = torch.ones(8, 32, 1)
    for function in (aiter.asm_moe, aiter.asm_moe_tkw1):
        name = function.__name__
        for argument, value in (
            ("fc1_smooth_scale", torch.ones(8, 1, 64)),
            ("fc2_smooth_scale", torch.ones(8, 1, 32)),
            ("per_tensor_quant_scale", scale),
        ):
            with pytest.raises(
                NotImplementedError, match=f"{name}: {argument} is a Tensor, which has no kernel"
            ):
                function(*given, **{argument: value})
        with pytest.raises(
            ValueError, match=rf"{name}: fc2_smooth_scale has shape \(8, 1, 31\); it needs 256"
        ):
            function(*given, scale, scale, None, torch.ones(8, 1, 31))
        with pytest.raises(NotImplementedError, match=f"{name}: a16 is True"):
            function(*given, a16=True)
        with pytest.raises(NotImplementedError, match=r"w1 is torch\.bfloat16"):
            function(*given, scale, scale)
    with pytest.raises(NotImplementedError, match=r"block_shape is \(64, 64\)"):
        aiter.asm_moe(*given, block_shape=(64, 64))


def quantized_experts(spec, **options):
    """`experts`, with weights quantized by quantize."""
    x, w1, w2, weights, ids = experts(**options)
    (w1, scale1), (w2, scale2) = (hipkittens.quantize(each, spec) for each in (w1, w2))
    return (x, w1, w2, weights, ids), (scale1, scale2)


@of("fused_moe", "asm_moe", "asm_moe_tkw1")
@pytest.mark.parametrize("kind", ["per_Token", "per_128x128", "per_1x128", "per_Tensor"])
def test_experts_of_8_bits(target, kind):
    """hipkittens.moe, whose own tests are tests/test_moe_scaled.py, with scales in AITER's shapes and passed by position."""
    recipe = {"per_Token": ("row", "row"), "per_Tensor": ("tensor", "tensor")}.get(kind, ("1x128", "128x128"))
    spec = hipkittens.QuantSpec("fp8", (128, 128) if recipe[0] == "1x128" else "row")
    given, (scale1, scale2) = quantized_experts(spec)
    x, w1, w2, weights, ids = given
    if kind == "per_Tensor":
        scale1, scale2 = scale1[:, 0, 0], scale2[:, 0, 0]
    quantized = aiter.QuantType[kind]
    expected = hipkittens.moe(*given, scale_w1=scale1, scale_w2=scale2, recipe=recipe)
    found = aiter.fused_moe(*given, None, aiter.ActivationType.Silu, quantized, False, scale1, scale2)
    assert torch.equal(found, expected)
    if kind == "per_128x128":
        flat = scale1.flatten(1), scale2.flatten(1)
        found = aiter.fused_moe(*given, quant_type=quantized.value, w1_scale=flat[0], w2_scale=flat[1])
        assert torch.equal(found, expected)
        assert torch.equal(aiter.asm_moe(*given, *flat, block_shape=(128, 128)), expected)
    if kind == "per_Token":
        assert torch.equal(aiter.asm_moe(*given, scale1, scale2), expected)
        first = aiter.asm_moe_tkw1(*given, scale1, scale2)
        options = {"w1_scale": scale1, "w2_scale": scale2, "quant_type": quantized}
        assert torch.equal(first, aiter.fused_moe(*given, doweight_stage1=True, **options))
        # The order of aiter.ops.shuffle.shuffle_weight(w, (16, 16)) for elements of 1 byte.
        shuffled = []
        for weight in (w1, w2):
            e, n, k = weight.shape
            made = weight.view(e, n // 16, 16, k // 32, 2, 16).permute(0, 1, 3, 4, 2, 5).reshape(e, n, k)
            made.is_shuffled = True
            shuffled.append(made)
        assert torch.equal(aiter.fused_moe(x, *shuffled, weights, ids, **options), expected)


@of("fused_moe", "asm_moe", "asm_moe_tkw1")
@pytest.mark.parametrize("gated", [True, False])
def test_experts_of_int8(target, gated):
    """hipkittens.moe, whose own tests are tests/test_moe_int8.py; smooth factors in AITER's shapes and passed by position."""
    given, (scale1, scale2) = quantized_experts(hipkittens.QuantSpec("int8", "row"), gated=gated)
    scales = {"scale_w1": scale1, "scale_w2": scale2}
    expected = hipkittens.moe(*given, **scales, gated=gated)
    assert torch.equal(aiter.asm_moe(*given, scale1, scale2), expected)
    per_token = aiter.QuantType.per_Token
    assert torch.equal(
        aiter.fused_moe(*given, quant_type=per_token, w1_scale=scale1, w2_scale=scale2), expected
    )
    smooth = 0.5 + torch.rand(8, 1, 64), 0.5 + torch.rand(8, 1, 32)
    factors = {"smooth1": smooth[0][:, 0], "smooth2": smooth[1][:, 0]}
    for function, first in ((aiter.asm_moe, False), (aiter.asm_moe_tkw1, True)):
        expected = hipkittens.moe(*given, **scales, **factors, gated=gated, weight_input=first)
        assert torch.equal(function(*given, scale1, scale2, *smooth), expected)
    with pytest.raises(NotImplementedError, match=r"quant_type .*per_128x128: torch\.float8"):
        aiter.asm_moe(*given, scale1, scale2, block_shape=(128, 128))


@of("moe_sorting", "moe_sum", "fused_topk", "topk_softmax_asm")
@pytest.mark.parametrize("tokens", [1, 17])
def test_what_surrounds_experts(target, tokens):
    x, _, _, weights, ids = experts(tokens)
    count, k, block = 8, 2, 32
    entries, sorted_weights, block_experts, valid, into = aiter.moe_sorting(ids, weights, count, 64, BF16)
    assert entries.shape == sorted_weights.shape == (tokens * k + count * block - k,)
    assert block_experts.shape == (-(-entries.shape[0] // block),) and into.shape == (tokens, 64)
    assert not into.any() and valid.tolist() == [valid[0].item(), tokens]
    for place, entry in enumerate(entries.tolist()):
        slot, token = entry >> 24, entry & 0xFFFFFF
        if slot == k:
            assert token == tokens and sorted_weights[place] == 0
        else:
            assert place < valid[0] and sorted_weights[place] == weights[token, slot]
            assert block_experts[place // block] == ids[token, slot]
    assert (entries >> 24 < k).sum() == tokens * k and (block_experts[valid[0] // block :] == -1).all()
    rows, out = draw(tokens, 3, 64), torch.empty(tokens, 64, dtype=BF16)
    aiter.moe_sum(rows, out)
    assert torch.equal(out, rows.float().sum(1).bfloat16())
    with pytest.raises(
        ValueError, match=r"moe_sum: input has shape \(1, 2\); it needs \(tokens, k, columns\)"
    ):
        aiter.moe_sum(rows.new_zeros(1, 2), out)
    logits = draw(tokens, count, dtype=F32)
    best, chosen = logits.softmax(-1).topk(k)
    found, its_ids = aiter.fused_topk(x, logits, k, True)
    assert torch.equal(its_ids, chosen.to(I32))
    torch.testing.assert_close(found, best / best.sum(-1, keepdim=True))
    into = torch.empty(tokens + 3, k, dtype=I32), torch.empty(tokens + 3, k)
    found, its_ids = aiter.fused_topk(x, logits, k, False, *into)
    assert its_ids.data_ptr() == into[0].data_ptr() and found.data_ptr() == into[1].data_ptr()
    torch.testing.assert_close(found, best)
    into[1].zero_()
    aiter.topk_softmax_asm(into[1], into[0], torch.empty(tokens, k, dtype=I32), logits, False)
    torch.testing.assert_close(into[1][:tokens], best)
    with pytest.raises(ValueError, match="hidden_states has 0 rows and gating_output"):
        aiter.fused_topk(x[:0], logits, k, True)


PAGE = Path(__file__).parent.parent / "docs" / "aiter.md"


def test_the_page_has_a_line_for_each_kernel():
    """The names it mentions exist, and nothing is marked as done without a function and a test."""
    text = PAGE.read_text().partition("| kernel | function | judge | status |")[2]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "/" in line
    ]
    assert len(lines) == len({line[0] for line in lines}) == 95
    for kernel, functions, judge, status in lines:
        state, _, missing = status.partition(": ")
        assert state in ("done", "in part", "not yet") and bool(missing) == (state == "in part"), kernel
        assert bool(functions) == bool(judge) == (state != "not yet"), kernel
        for name in re.findall(r"`hipkittens\.([a-z0-9_.]+)`", functions):
            module, _, function = f"hipkittens.{name}".rpartition(".")
            assert callable(getattr(importlib.import_module(module), function)), name
        files = re.findall(r"`(tests/[\w/]+\.py)`", judge)
        assert bool(files) == bool(judge) and all((PAGE.parent.parent / file).is_file() for file in files), (
            kernel
        )


def test_the_example_of_the_page_runs():
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {}
    exec(block, namespace)
    gate, other = namespace["x"].double().chunk(2, -1)
    assert close(namespace["out"], F.silu(gate) * other)


@of("gemm_a8w8_blockscale", "gemm_a8w8_blockscale_bpreshuffle", "flatmm_a8w8_blockscale_ASM")
def test_products_with_scales_of_blocks(target):
    """Weights in the shuffled order are tested in tests/test_scaled_matmul_blocks.py. Ones are the same in any order."""
    m, n, k = 17, 128, 256
    ones = torch.ones(n, k).to(quantize(draw(1, 8), QuantSpec("fp8"))[0].dtype)
    x, x_scale = ones[:m], torch.rand(m, k // 128, generator=torch.Generator().manual_seed(1))
    w_scale = torch.rand(1, k // 128, generator=torch.Generator().manual_seed(2))
    right = (x_scale.double() * w_scale.double()).sum(1, keepdim=True).expand(m, n) * 128
    assert close(aiter.gemm_a8w8_blockscale(x, ones, x_scale, w_scale), right)
    halves = torch.full((m, k // 128), 0.5)
    right = (halves.double() * w_scale.double()).sum(1, keepdim=True).expand(m, n) * 128
    assert close(aiter.gemm_a8w8_blockscale_bpreshuffle(x, ones, halves, w_scale), right)


@of("gemm_a8w8", "gemm_a8w8_CK", "gemm_a8w8_per_token_scale")
@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_products_of_8_bit_codes(target, codes):
    m, n, k = 17, 48, 160
    spec = QuantSpec(codes)
    (x, x_scale), (w, w_scale) = (quantize(draw(rows, k, seed=rows), spec) for rows in (m, n))
    bias = draw(n)
    right = (x.double() @ w.double().t()) * x_scale.double() * w_scale.double().t()
    for function in (aiter.gemm_a8w8, aiter.gemm_a8w8_CK):
        assert close(function(x, w, x_scale, w_scale, bias), right + bias.double())
        assert close(function(x, w, x_scale, w_scale.t(), dtype=torch.float16, splitK=3), right)
        one = torch.full((1,), 0.5)
        assert close(function(x, w, one, one), (x.double() @ w.double().t()) * 0.25)
        with pytest.raises(ValueError, match=r"x_scale has shape \(3,\); it needs 1 element, or 17"):
            function(x, w, torch.ones(3), w_scale)
    y = torch.empty(m, n, dtype=BF16)
    assert aiter.gemm_a8w8_per_token_scale(x, w, x_scale, w_scale, y=y) is y and close(y, right)
    assert close(aiter.gemm_a8w8_per_token_scale(x, w, x_scale, w_scale, F32), right, 4)


@of("flash_attn_func", "flash_attn_varlen_func")
def test_flash_attention(target):
    q, k, v = draw(2, 20, 4, 64), draw(2, 33, 2, 64, seed=1), draw(2, 33, 2, 32, seed=2)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])
    options = {"causal": True, "scale": 0.2, "window_size": (20, 0), "alibi_slopes": slopes}
    expected, expected_lse = hipkittens.attention(q, k, v, return_lse=True, **options)
    out, lse = aiter.flash_attn_func(q, k, v, 0.0, 0.2, True, (20, 0), None, slopes, True, True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    leaf = q.requires_grad_()
    (mine,), (right,) = (
        torch.autograd.grad(function(leaf, k, v, causal=True).float().sum(), leaf)
        for function in (aiter.flash_attn_func, hipkittens.attention)
    )
    assert torch.equal(mine, right)

    ends_q, ends_k = torch.tensor([0, 15, 40], dtype=I32), torch.tensor([0, 40, 66], dtype=I32)
    packed = [value.detach().flatten(0, 1) for value in (q, k, v)]
    call = (*packed, ends_q, ends_k, 25, 40, 0, 0.0, 0.2, 3.0, True, (20, 0), None, slopes)
    expected, expected_lse = hipkittens.attention_varlen(
        *packed, ends_q, ends_k, 25, 40, softcap=3.0, return_lse=True, **options
    )
    into = torch.full_like(expected, torch.nan)
    out, lse = aiter.flash_attn_varlen_func(*call, return_lse=True, out=into)
    assert out is into and torch.equal(out, expected) and torch.equal(lse, expected_lse)
    assert torch.equal(aiter.flash_attn_varlen_func(*call), expected)

    problem = draw_paged([50, 17], [2, 4], heads=4, head_dim=64)
    q, k, v, table, lengths, ends, longest = problem.arguments()
    ends_k = F.pad(lengths.cumsum(0), (1, 0)).to(I32)
    out = aiter.flash_attn_varlen_func(q, k, v, ends, ends_k, longest, 50, causal=True, block_table=table)
    assert torch.equal(out, hipkittens.attention_paged(*problem.arguments()))

    for function, given in ((aiter.flash_attn_func, (leaf, k, v)), (aiter.flash_attn_varlen_func, call[:7])):
        for name in ("bias", "return_attn_probs"):
            with pytest.raises(NotImplementedError, match=rf"{function.__name__}: {name} is "):
                function(*given, **{name: True})
        with pytest.raises(ValueError, match="how_v3_bf16_cvt is 7; allowed: 0, 1, 2"):
            function(*given, how_v3_bf16_cvt=7)


@of("unified_attention")
def test_unified_attention(target):
    problem = draw_paged([50, 0, 17], [2, 1, 4], heads=4, head_dim=64)
    q, k, v, table, lengths, ends, longest = problem.arguments()
    slopes, sinks, out = torch.rand(4), torch.ones(4), torch.zeros_like(q)
    call = (q, k, v, out, ends, longest, lengths, 50, 0.2, True, (20, 0), table, 3.0)
    aiter.unified_attention(*call, None, None, None, slopes, sinks=sinks)
    options = {"scale": 0.2, "window_size": (20, 0), "softcap": 3.0, "alibi_slopes": slopes, "sinks": sinks}
    assert torch.equal(out, hipkittens.attention_paged(*problem.arguments(), **options))
    for name in ("q_descale", "output_scale", "qq_bias"):
        scales = dict.fromkeys(("q_descale", "k_descale", "v_descale")) | {name: torch.ones(1)}
        with pytest.raises(NotImplementedError, match=f"unified_attention: {name} is given"):
            aiter.unified_attention(*call, **scales)


@of("unified_attention")
def test_unified_attention_to_8_bits(target):
    problem = draw_paged([50, 0, 17], [2, 1, 4], heads=4, head_dim=64, cache_dtype=FP8[target])
    q, k, v, table, lengths, ends, longest = problem.arguments()
    k_scale, v_scale, out = torch.tensor([0.5]), torch.tensor([3.0]), torch.zeros_like(q)
    aiter.unified_attention(
        q, k, v, out, ends, longest, lengths, 50, 0.2, True, (-1, -1), table, 0.0, None, k_scale, v_scale
    )
    options = {"scale": 0.2, "k_scale": k_scale, "v_scale": v_scale}
    assert torch.equal(out, hipkittens.attention_paged(*problem.arguments(), **options))


@of("mla_decode_fwd")
@pytest.mark.parametrize("page", [1, 16])
def test_mla_decode(target, page):
    """Page lists without gaps between them, as AITER's callers make them."""
    lengths = [100, 0, 33]
    problem = draw_latent(lengths, [2, 1, 4], heads=16, page=page)
    q, cache, table, _, ends, longest = problem.arguments()
    counts = [-(-length // page) for length in lengths]
    indices = torch.cat([row[:count] for row, count in zip(table, counts, strict=True)])
    indptr = torch.tensor([0, *counts]).cumsum(0).to(I32)
    last = torch.tensor([(length - 1) % page + 1 for length in lengths], dtype=I32)
    out = torch.zeros(7, 16, 512, dtype=BF16)
    call = (q, cache, out, ends, indptr, indices, last, longest)
    logits, lse = aiter.mla_decode_fwd(*call, 0.07)
    expected, sums = hipkittens.attention_mla(*problem.arguments(), scale=0.07, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(logits[:, 0], expected) and torch.equal(lse, sums.T)
    aiter.mla_decode_fwd(*call, num_kv_splits=1)
    assert torch.equal(out, hipkittens.attention_mla(*problem.arguments(), scale=576**-0.5, num_splits=1))
    with pytest.raises(NotImplementedError, match=r"mla_decode_fwd: logit_cap is 3\.0"):
        aiter.mla_decode_fwd(*call, logit_cap=3.0)
    with pytest.raises(NotImplementedError, match="mla_decode_fwd: q_scale is given"):
        aiter.mla_decode_fwd(*call, q_scale=torch.ones(1))


@of(
    "gemm_a16w16_gated",
    "ff_a16w16_gated",
    "ff_a16w16_nogate",
    "ff_a16w16_fused_gated",
    "ff_a16w16_fused_ungated",
)
@pytest.mark.parametrize("dtype", (BF16, torch.float16))
def test_feed_forward_blocks(target, dtype):
    x, scale = draw(37, 48, dtype=dtype), 48**-0.5
    w_up, w_down = (
        draw(130, 48, dtype=dtype, seed=1, scale=scale),
        draw(65, 48, dtype=dtype, seed=2, scale=0.1),
    )
    w = draw(65, 48, dtype=dtype, seed=3, scale=scale)
    functions = {
        "silu": F.silu,
        "silu_exp2": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        None: lambda x: x,
    }
    for activation, function in functions.items():
        gate, other = (x.double() @ w_up.double().T).chunk(2, -1)
        gates, plain = function(gate) * other, function(x.double() @ w.double().T)
        found = aiter.gemm_a16w16_gated(x, w_up, dtype, activation=activation)
        assert found.dtype == dtype and close(found, gates)
        wide = torch.empty(37, 65)
        assert aiter.gemm_a16w16_gated(x, w_up, dtype, wide, activation=activation) is wide and close(
            wide, gates
        )

        def within(result, hidden, y):
            # One rounding of the intermediate of each of 65 products, and one of the result.
            step = torch.finfo(dtype).eps / 2
            allowed = step * (hidden.abs() @ w_down.double().abs() + y.abs()) + 1e-5
            return bool(((result.double() - y).abs() <= allowed).all())

        for hidden, weight, apart, fused in (
            (gates, w_up, aiter.ff_a16w16_gated, aiter.ff_a16w16_fused_gated),
            (plain, w, aiter.ff_a16w16_nogate, aiter.ff_a16w16_fused_ungated),
        ):
            y, between, into = hidden @ w_down.double(), torch.empty(37, 65), torch.full((37, 48), math.nan)
            assert within(apart(x, weight, w_down, dtype, between, activation=activation), hidden, y)
            assert close(between, hidden, torch.finfo(dtype).eps / torch.finfo(F32).eps)
            assert fused(x, weight, w_down, dtype, into, activation=activation) is into and within(
                into, hidden, y
            )
            assert within(fused(x, weight, w_down, dtype, activation=activation), hidden, y)
    with pytest.raises(ValueError, match="activation is 'tanh'; allowed: None, 'gelu'"):
        aiter.ff_a16w16_fused_gated(x, w_up, w_down, dtype, activation="tanh")
    with pytest.raises(ValueError, match=r"y has shape \(2, 2\)"):
        aiter.gemm_a16w16_gated(x, w_up, dtype, torch.empty(2, 2), activation="silu")
    between = torch.full((37, 65), math.nan)
    for arguments, message in (
        ((w_down, dtype, between, torch.empty(2, 2)), r"y has shape \(2, 2\); the result's is \(37, 48\)"),
        ((w_down, dtype, between[:3]), r"intermediate has shape \(3, 65\); the result's is \(37, 65\)"),
        ((w_down[:64], dtype, between), r"w_down has shape \(64, 48\)"),
    ):
        with pytest.raises(ValueError, match=message):
            aiter.ff_a16w16_gated(x, w_up, *arguments, activation="silu")
    assert between.isnan().all()


@of("unified_attention_sparse_mla")
def test_sparse_attention(target):
    problem = draw_sparse([40, 0, 3], 50, heads=16)
    q, cache, indices = problem.arguments()
    ends, lengths, table = (
        torch.tensor([0, 2, 3], dtype=I32),
        torch.tensor([99, 40], dtype=I32),
        torch.zeros(2, 3).int(),
    )
    out = torch.full((3, 16, 512), torch.nan).to(BF16)
    call = (q, cache.unsqueeze(2), out, ends, 2, lengths, 99, 0.07, indices, table)
    assert aiter.unified_attention_sparse_mla(*call, 512) is None
    assert torch.equal(out, hipkittens.attention_mla_sparse(*problem.arguments(), scale=0.07))
    with pytest.raises(ValueError, match="head_dim_v is 448; it must be 512"):
        aiter.unified_attention_sparse_mla(*call, 448)


@of("fp8_mqa_logits", "deepgemm_fp8_paged_mqa_logits")
def test_logits_of_an_indexer(target):
    problem = draw_logits([(0, 50), (3, 9)], 60, heads=4, dtype=FP8[target])
    assert torch.equal(
        aiter.fp8_mqa_logits(*problem.arguments()), hipkittens.mqa_logits(*problem.arguments())
    )
    paged = draw_paged_logits([50, 0, 17], 2, heads=4, page=1, dtype=FP8[target])
    q, cache, weights, lengths, table, columns = paged.arguments()
    out = torch.full((6, columns), torch.nan)
    call = (q, cache.unsqueeze(2), weights, out, lengths, table, columns)
    assert aiter.deepgemm_fp8_paged_mqa_logits(*call, ChunkK=128, SplitKV=1) is None
    assert torch.equal(out, hipkittens.mqa_logits_paged(*paged.arguments()))
