# SPDX-License-Identifier: MIT
"""hipkittens.attention from PyTorch, compared with float64, next to PyTorch's own attention."""

import itertools
import os
import random
import subprocess
import sys

import pytest
import torch
from parity_attention import hidden
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens._accuracy import BAR, compare

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def tensors(batch, n_q, n_k, heads, key_heads, size, dtype=BF16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, rows, count, size, generator=generator).to(dtype)
        for rows, count in ((n_q, heads), (n_k, key_heads), (n_k, key_heads))
    )


def written_out(q, k, v, scale, mask, dtype, scale_first=False):
    """softmax(scale q k^T) v with every step in one dtype, the scale before or after the first product."""
    group = q.shape[2] // k.shape[2]
    q = q.to(dtype).transpose(1, 2)
    k, v = (tensor.to(dtype).repeat_interleave(group, dim=2).transpose(1, 2) for tensor in (k, v))
    scores = (q * scale) @ k.mT if scale_first else (q @ k.mT) * scale
    scores = scores.masked_fill(mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).masked_fill(mask.all(-1, keepdim=True), 0)
    return (weights @ v).transpose(1, 2), scores.logsumexp(-1)


def assert_parity(q, k, v, *, causal=False, window=(-1, -1), scale=None):
    """Ours within 2x the larger error of PyTorch's own fused attention and the same steps written out."""
    out, lse = hipkittens.attention(q, k, v, causal=causal, window_size=window, scale=scale, return_lse=True)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = hidden(q.shape[1], k.shape[1], causal, window)
    expected, expected_lse = written_out(q, k, v, scale, mask, torch.float64)
    fused = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=~mask, scale=scale, enable_gqa=True
    ).transpose(1, 2)
    fused = fused.masked_fill(mask.all(-1)[None, :, None, None], 0)
    results = [
        compare(out, theirs, expected, v.double().abs().max().item())
        for theirs in (fused, written_out(q, k, v, scale, mask, q.dtype)[0])
    ]
    ratio_max, ratio_rms = min(r.ratio_max for r in results), min(r.ratio_rms for r in results)
    assert out.shape == q.shape and out.dtype == q.dtype and max(ratio_max, ratio_rms) <= BAR, results
    assert lse.shape == expected_lse.shape and lse.dtype == F32
    seen = ~expected_lse.isneginf()
    assert torch.equal(lse.isneginf(), ~seen)
    baselines = [written_out(q, k, v, scale, mask, F32, order)[1].double() for order in (False, True)]
    if seen.any():
        theirs = max((other - expected_lse)[seen].abs().max().item() for other in baselines)
        error = (lse.double() - expected_lse)[seen].abs().max().item()
        # Their sum and ours add one rounding of the largest value each.
        assert error <= BAR * theirs + 2.0**-23 * (1 + expected_lse[seen].abs().max().item()), (error, theirs)
    return max(ratio_max, ratio_rms)


LENGTHS = ((1, 1), (1, 257), (2, 17), (17, 2), (255, 255), (257, 255), (130, 300), (64, 64), (300, 130))
HEADS = ((1, 1), (3, 1), (4, 4), (8, 2), (5, 1), (8, 1))
SIZES = (64, 128, 32, 80, 256, 104)
MASKS = ((False, (-1, -1)), (True, (-1, -1)), (True, (20, -1)), (False, (40, 9)))


def covering_cases():
    """Each length with each mask and dtype; heads, sizes and batches cycle with coprime periods."""
    for number, (lengths, mask, dtype) in enumerate(itertools.product(LENGTHS, MASKS, (BF16, F16))):
        yield lengths, HEADS[number % 6], SIZES[(number // 2) % 5], 1 + number % 3 // 2, mask, dtype, number


@pytest.mark.parametrize("part", range(4))
def test_parity(target, part):
    for (n_q, n_k), (heads, key_heads), size, batch, (causal, window), dtype, seed in list(covering_cases())[
        part::4
    ]:
        q, k, v = tensors(batch, n_q, n_k, heads, key_heads, size, dtype, seed)
        assert_parity(q, k, v, causal=causal, window=window)


@pytest.mark.slow
def test_random_parity(target):
    seed = int(os.environ.get("HIPKITTENS_TEST_SEED", random.randrange(1 << 30)))
    print(f"HIPKITTENS_TEST_SEED={seed}")
    choose = random.Random(seed)
    for number in range(60):
        key_heads = choose.randint(1, 4)
        n_q, n_k = choose.randint(1, 400), choose.randint(1, 700)
        q, k, v = tensors(choose.randint(1, 2), n_q, n_k, key_heads * choose.randint(1, 5), key_heads,
                          8 * choose.randint(1, 32), choose.choice((BF16, F16)), seed + number)  # fmt: skip
        window = choose.choice(
            ((-1, -1), (choose.randint(0, 300), -1), (choose.randint(0, 99), choose.randint(0, 99)))
        )
        assert_parity(q, k, v, causal=choose.random() < 0.5, window=window)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_parity_of_large_and_growing_scores(target, dtype):
    q, k, v = tensors(1, 100, 400, 2, 2, 64, dtype)
    assert_parity(q * 8, k * 4, v)
    growing = k * (torch.arange(400)[None, :, None, None] / 20)
    assert_parity(q, growing.to(dtype), v)
    assert_parity(q, growing.flip(1).to(dtype), v, scale=-0.3)
    assert_parity(q, k, v, scale=0.0)


def test_the_bar_sees_a_wrong_result(target):
    q, k, v = tensors(1, 100, 200, 1, 1, 64)
    expected, _ = written_out(q, k, v, 0.125, hidden(100, 200, False, (-1, -1)), torch.float64)
    theirs, _ = written_out(q, k, v, 0.125, hidden(100, 200, False, (-1, -1)), BF16)
    magnitude = v.abs().max().item()
    assert not compare(hipkittens.attention(q, k, v, scale=0.126), theirs, expected, magnitude).passes
    assert not compare(hipkittens.attention(q, k[:, :-1], v[:, :-1]), theirs, expected, magnitude).passes


def test_layouts_and_strides(target):
    q, k, v = tensors(2, 50, 70, 6, 2, 40)
    expected = hipkittens.attention(q, k, v)

    def forms(value):
        yield value.transpose(1, 2).contiguous().transpose(1, 2)  # stored (B, H, N, D)
        wide = torch.full((*value.shape[:3], value.shape[3] + 6), float("nan"), dtype=value.dtype)
        wide[..., 2:-4] = value
        yield wide[..., 2:-4]
        odd = torch.full((*value.shape[:3], value.shape[3] + 3), float("nan"), dtype=value.dtype)
        odd[..., 1:-2] = value
        yield odd[..., 1:-2]
        yield value.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)  # no unit stride along D

    for form in zip(forms(q), forms(k), forms(v), strict=True):
        assert torch.equal(hipkittens.attention(*form), expected)
    packed = torch.stack([q, q + 1, q - 1], dim=2)  # (B, N, 3, H, D)
    assert torch.equal(
        hipkittens.attention(*packed.unbind(2)),
        hipkittens.attention(*(part.contiguous() for part in packed.unbind(2))),
    )
    out, lse = hipkittens.attention(
        *(value.transpose(1, 2) for value in (q, k, v)), layout="bhnd", return_lse=True
    )
    assert out.shape == (2, 6, 50, 40) and torch.equal(out.transpose(1, 2), expected)
    assert torch.equal(lse, hipkittens.attention(q, k, v, return_lse=True)[1])
    one = k[:1, :, :1]
    assert torch.equal(
        hipkittens.attention(q, one.expand(2, 70, 2, 40), v),
        hipkittens.attention(q, one.expand(2, 70, 2, 40).contiguous(), v),
    )


def test_empty(target):
    for n_q, n_k, batch in ((0, 5, 2), (5, 0, 2), (0, 0, 1), (5, 5, 0)):
        q, k, v = tensors(batch, n_q, n_k, 4, 2, 16)
        out, lse = hipkittens.attention(q, k, v, return_lse=True)
        assert torch.equal(out, torch.zeros(batch, n_q, 4, 16, dtype=BF16))
        assert torch.equal(lse, torch.full((batch, 4, n_q), float("-inf")))


def test_a_nan_stays_in_its_query_or_head(target):
    q, k, v = tensors(1, 40, 90, 2, 2, 64)
    q[0, 7, 1, 3] = float("nan")
    v[0, 30, 0, 5] = float("nan")
    out = hipkittens.attention(q, k, v)
    assert out[0, 7, 1].isnan().all() and out[0, :, 0, 5].isnan().all()
    assert out.isnan().sum() == 64 + 40


def test_two_runs_are_equal(target):
    q, k, v = tensors(1, 200, 500, 4, 2, 64)
    first = hipkittens.attention(q, k, v, causal=True)
    with hipkittens.simulate(target, seed=9, threads=1):
        assert torch.equal(hipkittens.attention(q, k, v, causal=True, deterministic=True), first)


def test_opcheck(target):
    operator = torch.ops.hipkittens.attention_forward.default
    for q, k, v in (tensors(2, 9, 17, 4, 2, 16), tensors(1, 3, 5, 2, 2, 64, F16)):
        results = torch.library.opcheck(operator, (q, k, v, 0.2, True, 4, -1))
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(q, k, v):
        return hipkittens.attention(torch.relu(q), k, v, causal=True, window_size=(12, 0)) * 2

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (9, 20):
        q, k, v = tensors(2, rows, rows + 3, 4, 2, 16)
        assert torch.equal(compiled(q, k, v), block(q, k, v))


def test_autocast(target):
    q, k, v = tensors(1, 20, 30, 2, 2, 32, F32)
    for dtype in (BF16, F16):
        with torch.autocast("cpu", dtype):
            out = hipkittens.attention(q, k, v)
        assert torch.equal(out, hipkittens.attention(q.to(dtype), k.to(dtype), v.to(dtype)))


def test_flop_count(target):
    q, k, v = tensors(2, 10, 30, 4, 2, 32)
    with FlopCounterMode(display=False) as counter:
        hipkittens.attention(q, k, v)
    with FlopCounterMode(display=False) as theirs:
        repeated = (value.repeat_interleave(2, dim=2).transpose(1, 2) for value in (k, v))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), *repeated)
    assert counter.get_total_flops() == theirs.get_total_flops() == 4 * 2 * 4 * 10 * 30 * 32


def test_what_is_refused():
    q, k, v = tensors(2, 4, 6, 4, 2, 16)

    def refused(error, match, *arguments, **options):
        with pytest.raises(error, match=match):
            hipkittens.attention(*arguments, **options)

    refused(ValueError, "dropout_p is 1.0", q, k, v, dropout_p=1.0)
    refused(ValueError, "layout is 'nbhd'", q, k, v, layout="nbhd")
    refused(TypeError, "window_size is 3", q, k, v, window_size=3)
    refused(TypeError, "deterministic is 'yes'", q, k, v, deterministic="yes")
    refused(TypeError, "q is torch.float32", q.float(), k.float(), v.float())
    refused(TypeError, "q is torch.bfloat16 and v is torch.float16", q, k, v.half())
    refused(TypeError, "k is list", q, [1], v)
    refused(ValueError, "k has shape", q, k[0], v)
    refused(ValueError, "k and v differ in more than the head size", q, k, v[:, :5])
    refused(ValueError, "batch 1 and k 2", q[:1], k, v)
    refused(ValueError, "head size 8 and k 16", q[..., :8], k, v)
    refused(ValueError, "3 heads of q are not a multiple of 2", q[:, :, :3], k, v)
    refused(ValueError, "head size is 12", q[..., :12], k[..., :12], v[..., :12])
    refused(ValueError, "head size is 264", *(value.repeat(1, 1, 1, 17)[..., :264] for value in (q, k, v)))


def test_the_operator_checks_for_itself(target):
    operator = torch.ops.hipkittens.attention_forward
    q, k, v = tensors(2, 4, 6, 4, 2, 16)
    for arguments, match in (
        ((q.float(), k.float(), v.float()), "q is float32"),
        ((q, k.half(), v), "k is float16"),
        ((q, k, v[:, :5]), "k and v need the same shape"),
        ((q[..., :12], k[..., :12], v[..., :12]), "multiple of 8"),
        ((q[0], k, v), "4 dimensions"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=match):
            operator(*arguments, 1.0, False, -1, -1)


def test_torch_backend():
    code = (
        "import torch, hipkittens\n"
        "q, k = torch.randn(1, 5, 4, 8).bfloat16(), torch.randn(1, 7, 2, 8).bfloat16()\n"
        "out, lse = hipkittens.attention(q, k, k, causal=True, return_lse=True)\n"
        "other = torch.nn.functional.scaled_dot_product_attention(q[:, -1:].transpose(1, 2), k.transpose(1, 2),"
        " k.transpose(1, 2), enable_gqa=True).transpose(1, 2)\n"
        "assert torch.allclose(out[:, -1:].float(), other.float(), atol=0.02)\n"
        "blind = hipkittens.attention(k, q[:, :2, :2], q[:, :2, :2], causal=True)\n"
        "assert not blind[:, :5].any() and blind[:, 5:].any()\n"
        "assert 'hipkittens_simulator' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HIPKITTENS_BACKEND": "torch"}, check=True
    )
