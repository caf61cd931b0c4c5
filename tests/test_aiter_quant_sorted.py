# SPDX-License-Identifier: MIT
"""hipkittens.aiter's MX quantization with scales in the order of sorted tokens: every byte, at the address that AITER's kernels compute."""

import inspect

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, aiter, quantize

BF16, U8 = torch.bfloat16, torch.uint8
MX = "input sorted_ids num_valid_ids token_num topk block_size num_rows group_size sorted_weights"
# Names and arguments from AITER's main branch of August 2026, which the pinned version lacks.
NEWER = {
    "fused_dynamic_mx_quant_moe_sort": MX.replace("num_rows", "quant_dtype num_rows"),
    "fused_dynamic_mxfp4_quant_moe_sort": MX,
    "fused_dynamic_mxfp8_quant_moe_sort": MX,
    "mxfp4_moe_sort_fwd": "scale sorted_ids num_valid_ids token_num cols",
}
TESTED = set(NEWER)


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(rows, columns):
    """Values of many magnitudes, including a row of zeros."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator) * 10.0 ** torch.randint(
        -4, 4, (rows, 1), generator=generator
    )
    x[rows // 2] = 0
    return x.to(BF16)


def sorting(tokens, k, experts=6, block=32):
    ids = torch.stack(
        [torch.randperm(experts, generator=torch.Generator().manual_seed(t))[:k] for t in range(tokens)]
    ).int()
    return aiter.moe_sorting(ids, torch.rand(tokens, k) + 0.5, experts, 32, BF16, block)[:4]


def address(padded, x, y):
    """AITER's mx_scale_shuffle_idx."""
    return (x // 32 * padded) * 32 + y // 8 * 256 + y % 4 * 64 + x % 16 * 4 + y % 8 // 4 * 2 + x % 32 // 16


def placed(scales, sorted_ids, valid, tokens, zero=()):
    """Scales (rows, groups) at the addresses AITER's kernels use, and 127 elsewhere."""
    slots, groups = scales.shape[0] // tokens, scales.shape[1]
    padded = -(-groups // 8) * 8
    right = torch.full((-(-len(sorted_ids) // 32) * 32 * padded,), 127, dtype=U8)
    for row in range(int(valid)):
        token, slot = int(sorted_ids[row]) & 0xFFFFFF, int(sorted_ids[row]) >> 24
        if token >= tokens:
            continue
        for group in range(groups):
            byte = 0 if row in zero else scales[token * slots + (slot if slots > 1 else 0), group]
            right[address(padded, row, group)] = byte
    return right.view(-1, padded)


def test_arguments_are_those_of_the_main_branch():
    for name, arguments in NEWER.items():
        assert list(inspect.signature(getattr(aiter, name)).parameters) == arguments.split(), name


@pytest.mark.parametrize("columns", [32, 96, 256, 384])
@pytest.mark.parametrize("tokens", [1, 17, 70])
def test_mxfp4(target, tokens, columns):
    k = 3
    sorted_ids, _, _, valid = sorting(tokens, k)
    for rows in (tokens, tokens * k):
        x = draw(rows, columns)
        codes, scales = aiter.fused_dynamic_mx_quant_moe_sort(x, sorted_ids, valid, tokens, k, 32)
        of_codes, of_scales = quantize(x, QuantSpec("mxfp4", scale_rule="round_up"))
        assert codes.dtype == torch.float4_e2m1fn_x2 and torch.equal(codes.view(U8), of_codes)
        assert scales.dtype == torch.float8_e8m0fnu
        assert torch.equal(scales.view(U8), placed(of_scales, sorted_ids, valid[0], tokens))
        again = aiter.fused_dynamic_mxfp4_quant_moe_sort(
            x.view(tokens, -1, columns), sorted_ids, valid, tokens, k, 32
        )
        assert all(torch.equal(a.view(U8), b.view(U8)) for a, b in zip(again, (codes, scales), strict=True))
        alone = aiter.mxfp4_moe_sort_fwd(
            of_scales.view(torch.float8_e8m0fnu), sorted_ids, valid, tokens, columns
        )
        assert torch.equal(alone.view(U8), scales.view(U8))


def test_mxfp8():
    sorted_ids, _, _, valid = sorting(9, 2)
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        x = draw(18, 64)
        codes, scales = aiter.fused_dynamic_mxfp8_quant_moe_sort(x, sorted_ids, valid, 9, 2, 64)
        of_codes, of_scales = quantize(x, QuantSpec("mxfp8", scale_rule="round_up"))
        assert codes.dtype == torch.float8_e4m3fn and torch.equal(codes.view(U8), of_codes.view(U8))
        assert torch.equal(scales.view(U8), placed(of_scales, sorted_ids, valid[0], 9))
    assert simulation.findings == []
    with hipkittens.simulate("gfx942"), pytest.raises(ValueError, match="'mxfp8' has e4m3fn codes"):
        aiter.fused_dynamic_mxfp8_quant_moe_sort(x, sorted_ids, valid, 9, 2, 64)


@pytest.mark.parametrize("of_slots", [False, True])
def test_rows_that_do_not_count(target, of_slots):
    """Two tokens with three slots: an input row none of whose sorted rows counts is quantized to 0."""
    tokens, k = 2, 3
    sorted_ids, weights, _, valid = sorting(tokens, k)
    x = draw(12, 64)[: tokens * k if of_slots else tokens]
    weights = weights.clone()
    rows = [row for row in range(int(valid[0])) if int(sorted_ids[row]) & 0xFFFFFF < tokens]
    zero = [row for row in rows if int(sorted_ids[row]) in (0, 1 << 24, 2 << 24, 1)]  # all of token 0's
    weights[zero] = 0
    codes, scales = aiter.fused_dynamic_mx_quant_moe_sort(
        x, sorted_ids, valid, tokens, k, 32, sorted_weights=weights
    )
    of_codes, of_scales = quantize(x, QuantSpec("mxfp4", scale_rule="round_up"))
    of_codes[[0, 1, 2, 3] if of_slots else [0]] = 0
    assert torch.equal(codes.view(U8), of_codes)
    assert torch.equal(scales.view(U8), placed(of_scales, sorted_ids, valid[0], tokens, zero))


def test_no_tokens(target):
    sorted_ids, valid = torch.zeros(64, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    codes, scales = aiter.fused_dynamic_mx_quant_moe_sort(draw(1, 64)[:0], sorted_ids, valid, 0, 2, 32)
    assert codes.shape == (0, 32) and (scales.view(U8) == 127).all() and scales.shape == (64, 8)


X, IDS, VALID = (
    torch.zeros(4, 64, dtype=BF16),
    torch.zeros(64, dtype=torch.int32),
    torch.zeros(2, dtype=torch.int32),
)
SORT = aiter.fused_dynamic_mx_quant_moe_sort
BAD = [
    (lambda: SORT(X, IDS, VALID, 2, 2, 32, num_rows=VALID), NotImplementedError, "num_rows is given"),
    (lambda: SORT(X, IDS, VALID, 2, 2, 32, group_size=64), NotImplementedError, "group_size is 64"),
    (lambda: SORT(X, IDS, VALID, 2, 2, 32, torch.int8), TypeError, "quant_dtype is torch.int8; allowed: torch.float4_e2m1fn_x2, torch.float8"),
    (lambda: SORT(X, IDS, VALID, 2, 2, 16), ValueError, "block_size is 16; it must be a multiple of 32"),
    (lambda: SORT(X, IDS, VALID, 3, 2, 32), ValueError, "input has 4 rows; 3 tokens of 2 slots have 3 or 6"),
    (lambda: SORT(X, IDS, VALID, 2, 2, 32, sorted_weights=torch.ones(3)), ValueError, "sorted_weights has shape (3,); it must be (64,)"),
    (lambda: SORT(X, IDS.long(), VALID, 2, 2, 32), ValueError, "it must be a vector of torch.int32"),
    (lambda: aiter.mxfp4_moe_sort_fwd(X[:, :3], IDS, VALID, 2, 64), ValueError, "it must be (rows, 2) of 8 bits"),
    (lambda: aiter.mxfp4_moe_sort_fwd(X.to(U8)[:, :2], IDS, VALID, 3, 64), ValueError, "scale has 4 rows; 3 tokens have as many each"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
