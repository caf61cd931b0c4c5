# SPDX-License-Identifier: MIT
"""hipkittens.attention_quantized compared with float64, both of the same quantized values and of the original operands."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens import attention_of_codes, attention_quantized
from hipkittens._accuracy import BAR, compare
from hipkittens.quantization import dtype_of
from hipkittens.quantized_attention import in_torch, quantized

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LENGTHS = (1, 2, 17, 255, 257)
# The tolerance of AITER's tests: elements that are off by both, of which there may be half a percent.
AITER_ATOL, AITER_RTOL, AITER_PART = 0.3, 0.25, 0.005


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


@pytest.fixture(autouse=True)
def results_begin_as_nan():
    """As torch.empty returns in this mode."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3, dtype=BF16).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def draw(n_q, n_k, heads=2, key_heads=2, size=64, value_size=None, dtype=BF16, batch=1, seed=0):
    """Keys have a mean that is larger than their variation."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, n_q, heads, size, generator=generator)
    k = torch.randn(batch, n_k, key_heads, size, generator=generator)
    k += 3 * torch.randn(1, 1, key_heads, size, generator=generator)
    v = torch.randn(batch, n_k, key_heads, value_size or size, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def exact(q, k, v, scale=None, causal=False, window=(-1, -1)):
    """softmax(scale q k^T) v in float64, and its LSE."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (rows.double().transpose(1, 2) for rows in (q, k, v))
    k, v = (rows.repeat_interleave(group, 1) for rows in (k, v))
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.mT
    distance = (
        torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None] - (k.shape[2] - q.shape[2])
    )
    left, right = window
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance > 0
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    return (weights @ v).transpose(1, 2), scores.logsumexp(-1)


def codes_of(q, k, v, scale=None, smooth_k=True, blocks=(128, 64)):
    mean = k.float().mean(1, keepdim=True) if smooth_k else None
    return quantized(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, mean, *blocks), mean


def assert_parity(q, k, v, *, causal=False, window=(-1, -1), scale=None, smooth_k=True, blocks=(128, 64)):
    """Compared with float64 on the same quantized values, and with PyTorch's float32 with weights rounded as the kernels round them; the
    LSE is that of k."""
    out, lse = attention_quantized(
        q, k, v, causal=causal, window_size=window, scale=scale, smooth_k=smooth_k, query_block=blocks[0],
        key_block=blocks[1], return_lse=True,
    )  # fmt: skip
    assert out.dtype == q.dtype and out.isfinite().all() and lse.dtype == F32
    codes, mean = codes_of(q, k, v, scale, smooth_k, blocks)
    right, right_lse = in_torch(codes, *blocks, causal, *window, F64)
    theirs, _ = in_torch(codes, *blocks, causal, *window)
    result = compare(out, theirs.to(q.dtype), right, right.abs().max().item())
    assert max(result.ratio_max, result.ratio_rms) <= BAR, result
    if mean is not None:
        grouped = q.double().unflatten(2, (k.shape[2], -1))
        of_mean = torch.einsum("bnhgd,bmhd->bhgn", grouped, mean.double()).flatten(1, 2)
        right_lse = right_lse + of_mean * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = right_lse.isfinite()
    assert lse.isneginf().equal(~seen)
    assert (
        (lse - right_lse)[seen].abs().max() <= 1e-5 * max(1, right_lse[seen].abs().max())
        if seen.any()
        else True
    )
    return out, lse


@pytest.mark.parametrize("n_k", LENGTHS)
@pytest.mark.parametrize("n_q", LENGTHS)
def test_lengths(target, n_q, n_k):
    assert_parity(*draw(n_q, n_k, 2, 1), causal=n_q != 17)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "size, value_size", [(16, 8), (64, 64), (80, 40), (128, 128), (128, 72), (192, 128), (256, 256)]
)
def test_head_sizes(target, size, value_size, dtype):
    assert_parity(*draw(70, 130, size=size, value_size=value_size, dtype=dtype))


@pytest.mark.parametrize("heads, key_heads", [(1, 1), (4, 4), (4, 2), (8, 1)])
def test_heads_and_batches(target, heads, key_heads):
    assert_parity(*draw(40, 70, heads, key_heads, batch=3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (20, -1), (-1, 7), (100, 3), (0, 0)])
@pytest.mark.parametrize("n_q, n_k", [(150, 150), (90, 200), (200, 90)])
def test_masks(target, n_q, n_k, window, causal):
    out, lse = assert_parity(*draw(n_q, n_k), causal=causal, window=window)
    if causal and n_q > n_k:
        assert (out[:, : n_q - n_k] == 0).all() and lse[:, :, : n_q - n_k].isneginf().all()


@pytest.mark.parametrize("blocks", [(32, 64), (64, 512), (256, 128), (512, 256)])
def test_blocks(target, blocks):
    assert_parity(*draw(300, 290), causal=True, blocks=blocks)


@pytest.mark.parametrize("scale", [None, 1.0, 0.0, -0.3])
@pytest.mark.parametrize("smooth_k", [True, False])
def test_scale_and_smoothing(target, scale, smooth_k):
    assert_parity(*draw(60, 90), scale=scale, smooth_k=smooth_k)


@pytest.mark.parametrize("causal", [False, True])
def test_against_what_was_quantised(target, causal):
    """AITER's tolerance, and much less than that on normal values whose keys have a mean; the LSE is that of q and k."""
    q, k, v = draw(200, 260, 4, 2, 128)
    out, lse = attention_quantized(q, k, v, causal=causal, return_lse=True)
    right, right_lse = exact(q, k, v, causal=causal)
    difference = (out.double() - right).abs()
    off = (difference > AITER_ATOL) & (difference > AITER_RTOL * right.abs())
    assert off.double().mean() <= AITER_PART
    assert difference.norm() <= 0.06 * right.norm()
    assert (lse - right_lse).abs().max() <= 0.02


def test_smoothing_brings_keys_with_a_mean_closer(target):
    q, k, v = draw(64, 128)
    k += 100
    right, _ = exact(q, k, v)
    with_mean, without = (
        (attention_quantized(q, k, v, smooth_k=smooth).double() - right).norm() for smooth in (True, False)
    )
    assert 3 * with_mean < without


def test_weights_use_the_range_of_8_bit_floats(target):
    """With many keys of 2^-12 of the largest weight each, none is lost."""
    n_k = 1024
    q, k = torch.ones(1, 1, 1, 64, dtype=BF16), torch.zeros(1, n_k, 1, 64, dtype=BF16)
    k[:, 0] = 1
    v = torch.ones(1, n_k, 1, 64, dtype=BF16)
    v[:, 0] = 0
    scale = 12 * math.log(2) / 64
    out = attention_quantized(q, k, v, scale=scale, smooth_k=False)
    right, _ = exact(q, k, v, scale=scale)
    torch.testing.assert_close(out.double(), right, rtol=0.02, atol=0)


@pytest.mark.parametrize("value_size", [64, 72])
def test_codes(target, value_size):
    """Already quantized operands, of any strides, give the result of attention_quantized."""
    q, k, v = draw(70, 90, 4, 2, 64, value_size)
    codes, _ = codes_of(q, k, v, smooth_k=False)
    values = codes.v[..., :90].permute(0, 3, 1, 2)
    expected = attention_quantized(q, k, v, smooth_k=False, causal=True, return_lse=True)
    for make in (
        lambda rows: rows,
        lambda rows: rows.contiguous(),
        lambda rows: torch.cat([rows.view(torch.int8)] * 2, 3)[..., : rows.shape[3]].view(rows.dtype),
        lambda rows: (
            rows.view(torch.int8)
            .transpose(2, 3)
            .contiguous()
            .transpose(2, 3)
            .view(torch.int8)
            .view(rows.dtype)
        ),
    ):
        found = attention_of_codes(
            make(codes.q), make(codes.k), make(values), *codes[3:], causal=True, return_lse=True
        )
        for mine, other in zip(found, expected, strict=True):
            assert mine.equal(other)
    other = attention_of_codes(
        *(rows.transpose(1, 2) for rows in (codes.q, codes.k, values)), *codes[3:], causal=True, layout="bhnd", out_dtype=F16
    )  # fmt: skip
    torch.testing.assert_close(other.transpose(1, 2).float(), expected[0].float(), rtol=0.01, atol=0.01)


def test_extreme_codes(target):
    """Including -128, which quantization does not produce, and scales of 0: all visible keys alike."""
    dtype = dtype_of("fp8", torch.device("cpu"))
    q, k = (torch.full((1, 65, 1, 256), code, dtype=torch.int8) for code in (-128, 127))
    v = torch.arange(65 * 8).reshape(1, 65, 1, 8).remainder(7).float().to(dtype)
    scales = torch.full((1, 1, 1), 1e-6), torch.ones(1, 1, 2), torch.ones(1, 1, 8)
    out, lse = attention_of_codes(q, k, v, *scales, return_lse=True)
    right = v.double().mean(1, keepdim=True).expand(1, 65, 1, 8)
    torch.testing.assert_close(out.double(), right, rtol=0.01, atol=0)
    expected = math.log(65) - 128 * 127 * 256 * 1e-6 * math.log(2)
    torch.testing.assert_close(lse, torch.full_like(lse, expected), rtol=1e-5, atol=0)
    out, lse = attention_of_codes(q, k, v, scales[0] * 0, *scales[1:], causal=True, return_lse=True)
    torch.testing.assert_close(lse[0, 0], torch.arange(1, 66).float().log(), rtol=1e-5, atol=1e-6)


def test_codes_behind_the_last_key_do_not_matter(target):
    q, k, v = draw(5, 33)
    codes, _ = codes_of(q, k, v)
    assert codes.v.shape[3] == 48
    results = []
    for filler in (0, 0x7F, 0x80, 0xFF):
        values = codes.v.view(torch.uint8).clone()
        values[..., 33:] = filler
        results.append(
            torch.ops.hipkittens.attention_quantized(
                codes.q, codes.k, values, *codes[3:], 128, 64, False, -1, -1, BF16
            )[0]
        )
    assert all(result.equal(results[0]) for result in results) and results[0].isfinite().all()


def test_not_finite(target):
    q, k, v = draw(300, 200)
    bad = v.clone()
    bad[0, 150, 1, 5] = math.nan
    out = attention_quantized(q, k, bad)
    assert out[:, :, 1, 5].isnan().all() and out.isnan().sum() == 300
    bad = q.clone()
    bad[0, 130, 0, 3] = math.inf
    out = attention_quantized(bad, k, v)
    of_block = torch.zeros_like(out, dtype=torch.bool)
    of_block[:, 128:256, 0] = True
    assert out.isnan().equal(of_block)
    bad = k.clone()
    bad[0, 150, 1, 3] = math.nan
    out = attention_quantized(q, bad, v, smooth_k=False, window_size=(-1, 0))
    assert out[:, :, 1].isnan().any() and out[:, :, 0].isfinite().all()


def test_layout(target):
    q, k, v = draw(20, 30, 4, 2)
    expected = attention_quantized(q, k, v, return_lse=True)
    out, lse = attention_quantized(
        *(rows.transpose(1, 2).contiguous() for rows in (q, k, v)), layout="bhnd", return_lse=True
    )
    assert out.transpose(1, 2).equal(expected[0]) and lse.equal(expected[1])


def test_empty(target):
    for n_q, n_k, batch in ((0, 5, 1), (5, 0, 1), (5, 5, 0)):
        q, k, v = draw(n_q, n_k, batch=batch)
        out, lse = attention_quantized(q, k, v, return_lse=True)
        assert out.shape == q.shape and lse.shape == (batch, 2, n_q)
        assert (out == 0).all() and lse.isneginf().all()


def test_the_same_bits_alone_and_in_a_batch(target):
    q, k, v = draw(100, 150, batch=3)
    together = attention_quantized(q, k, v, causal=True)
    alone = attention_quantized(q[1:2], k[1:2], v[1:2], causal=True)
    assert together[1:2].equal(alone)


def test_torch_backend(monkeypatch, target):
    """HIPKITTENS_BACKEND=torch computes the same."""
    q, k, v = draw(20, 30, 4, 2)
    mine = attention_quantized(q, k, v, causal=True, return_lse=True)
    with monkeypatch.context() as patch:
        patch.setattr(hipkittens._backend, "uses_torch", lambda: True)
        theirs = attention_quantized(q, k, v, causal=True, return_lse=True)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, atol=0.03, rtol=0.03)


def test_opcheck(target):
    q, k, v = draw(9, 12, 4, 2, 16)
    codes, _ = codes_of(q, k, v)
    results = torch.library.opcheck(
        torch.ops.hipkittens.attention_quantized.default,
        (*codes[:2], codes.v.view(torch.uint8), *codes[3:], 128, 64, True, 5, -1, BF16),
    )
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target):
    torch._dynamo.reset()

    def block(q, k, v):
        return attention_quantized(torch.relu(q), k, v, causal=True) * 2

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    q, k, v = draw(9, 20)
    torch.testing.assert_close(compiled(q, k, v), block(q, k, v), atol=1e-2, rtol=1e-2)


def test_flops(target):
    q, k, v = draw(10, 20, 4, 2, 64, 32)
    with FlopCounterMode(display=False) as counter:
        attention_quantized(q, k, v)
    counts = counter.get_flop_counts()["Global"]
    assert counts[torch.ops.hipkittens.attention_quantized] == 2 * 4 * 10 * 20 * (64 + 32)


def test_no_gradient(target):
    q, k, v = draw(4, 4)
    with pytest.raises(ValueError, match="k requires a gradient and gets none"):
        attention_quantized(q, k.requires_grad_(), v)
    with torch.no_grad():
        attention_quantized(q, k, v)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"layout": "thd"}, ValueError, "layout is 'thd'; allowed: bnhd, bhnd"),
        ({"query_block": 16}, ValueError, "query_block is 16; it must be a power of two from 32 to 1048576"),
        ({"key_block": 96}, ValueError, "key_block is 96; it must be a power of two from 64 to 1048576"),
        (
            {"query_block": 1 << 30},
            ValueError,
            "query_block is 1073741824; it must be a power of two from 32 to 1048576",
        ),
        ({"key_block": 64.0}, TypeError, "key_block is 64.0; it must be a whole number"),
        ({"smooth_k": "no"}, TypeError, "smooth_k is 'no'; allowed: True, False"),
        ({"scale": math.inf}, ValueError, "scale is inf; it must be finite"),
        ({"window_size": 3}, TypeError, "window_size is 3"),
    ],
)
def test_bad_options(change, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error, match=message):
        attention_quantized(*draw(4, 4), **change)


def test_bad_tensors():
    q, k, v = draw(4, 4)
    with hipkittens.simulate("gfx950"):
        with pytest.raises(
            ValueError, match="head size is 72; of int8 it must be a multiple of 16 up to 256"
        ):
            attention_quantized(*draw(4, 4, size=72))
        with pytest.raises(TypeError, match=r"q is torch\.float32"):
            attention_quantized(q.float(), k, v)
        with pytest.raises(ValueError, match="k and v differ"):
            attention_quantized(q, k, v[:, :2])
        codes, _ = codes_of(q, k, v)
        values = codes.v[..., :4].permute(0, 3, 1, 2)
        good = codes.q, codes.k, values, *codes[3:]
        attention_of_codes(*good)
        for place, wrong, error, message in (
            (0, codes.q.float(), TypeError, "q is torch.float32; it must be torch.int8"),
            (2, values.float().to(torch.float8_e4m3fnuz), TypeError, "v is torch.float8_e4m3fnuz; it must be torch.float8_e4m3fn"),
            (1, codes.k[:, :3], ValueError, "sizes do not fit together"),
            (3, codes.q_scale[..., :0], ValueError, r"q_scale .* must be torch.float32 of shape \(1, 2, 1\)"),
            (5, codes.v_scale.double(), ValueError, r"v_scale is torch.float64"),
        ):  # fmt: skip
            with pytest.raises(error, match=message):
                attention_of_codes(*good[:place], wrong, *good[place + 1 :])
        with pytest.raises(
            TypeError, match=r"out_dtype is torch\.float32; allowed: torch\.bfloat16, torch\.float16"
        ):
            attention_of_codes(*good, out_dtype=F32)
        with pytest.raises(RuntimeError, match=r"q is .*it needs 4 dimensions, and to be int8"):
            torch.ops.hipkittens.attention_quantized(
                q, codes.k, codes.v.view(torch.uint8), *codes[3:], 128, 64, False, -1, -1, BF16
            )
        with pytest.raises(ValueError, match="v has 4 columns; it needs n_k = 4 or more, a multiple of 16"):
            torch.ops.hipkittens.attention_quantized(
                *codes[:2], codes.v.view(torch.uint8)[..., :4], *codes[3:], 128, 64, False, -1, -1, BF16
            )
