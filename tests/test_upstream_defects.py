# SPDX-License-Identifier: MIT
"""The defects of the kernels this project began from, each with a check that a kernel with the defect would fail.

Where the defect is arithmetic, PyTorch computes it too (`defect=...`), to show that the check detects it.
"""

import itertools
import math

import pytest
import torch
from parity_attention import hidden, steps
from parity_operation import bias as bias_of

import hipkittens
from hipkittens._accuracy import BAR, compare

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
TILE = 64  # keys


@pytest.fixture(params=TARGETS)
def target(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the problems are small
    with hipkittens.simulate(request.param, checks=True, threads=1):
        yield request.param
    torch.set_num_threads(threads)


def tensors(batch, n_q, n_k, heads, key_heads, size, dtype=BF16, seed=0):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, rows, count, size, generator=generator).to(dtype)
        for rows, count in ((n_q, heads), (n_k, key_heads), (n_k, key_heads), (n_q, heads))
    )


def gradients(function, inputs, grad_out, dtype=None):
    leaves = [value.detach().to(dtype or value.dtype).requires_grad_() for value in inputs]
    out = function(*leaves)
    return torch.autograd.grad(out, leaves, grad_out.to(out.dtype))


def exact_attention(q, k, v, causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = hidden(q.shape[1], k.shape[1], causal, (-1, -1))
    return steps(q.double(), k.double(), v.double(), scale, mask)[0]


def tiled_attention(q, k, v, *, threshold=8.0, defect=""):
    """Attention as a kernel computes it, 64 keys at a time, rescaled where scores have grown by 2^threshold.

    defect "late rescale": the first quarter of a tile's weights is added before the rescaling that the next tile requires,
    the rest after it (reference 2.3, 3). "stale factor": the last factor is applied to the sum of weights once
    more at the end (2.3, 4).
    """
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.float().transpose(1, 2) for t in (q, *(t.repeat_interleave(group, dim=2) for t in (k, v))))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 * math.log2(math.e))
    tiles, values = scores.split(TILE, -1), v.split(TILE, -2)
    top = tiles[0].amax(-1, keepdim=True)
    out, total, factor = torch.zeros_like(q), torch.zeros_like(top), torch.ones_like(top)
    for number, (tile, value) in enumerate(zip(tiles, values, strict=True)):
        weights = torch.exp2(tile - top)
        total = total + weights.sum(-1, keepdim=True)
        weights = weights.bfloat16().float()
        first, rest = (weights[..., a:b] @ value[..., a:b, :] for a, b in ((0, TILE // 4), (TILE // 4, TILE)))
        grown = top
        if number + 1 < len(tiles):
            highest = tiles[number + 1].amax(-1, keepdim=True)
            grown = torch.where(highest - top > threshold, highest, top)
        step = torch.exp2(top - grown)
        out = (out + first) * step + rest if defect == "late rescale" else (out + first + rest) * step
        total = total * step
        factor = torch.where(grown > top, step, factor)
        top = grown
    if defect == "stale factor":
        total = total * factor
    return (out / total).transpose(1, 2).to(BF16)


def growing_at(places, size=64, heads=1, n_q=40, tiles=6, dtype=BF16, growth=20.0):
    """One batch element for each of `places`: tiles of keys from which scores are 2^growth times those before."""
    q, k, v, grad = tensors(len(places), n_q, tiles * TILE, heads, 1, size, dtype)
    q[..., :8] = 1
    for number, place in enumerate(places):
        for tile in place:
            # A product of 8 ones with this lifts the score by `growth` in log2.
            k[number, tile * TILE :, :, :8] += growth * math.log(2) * size**0.5 / 8
    return q, k, v, grad


def ratio(out, baseline, exact, v):
    result = compare(out, baseline, exact, v.double().abs().max().item())
    return max(result.ratio_max, result.ratio_rms)


TILES = 6
ONE_JUMP = [(place,) for place in range(TILES)]
TWO_JUMPS = list(itertools.combinations(range(1, TILES), 2))


@pytest.mark.parametrize(
    "defect, places", [("late rescale", ONE_JUMP[1:]), ("stale factor", ONE_JUMP[2:] + TWO_JUMPS)]
)
def test_a_wrong_rescale_would_be_seen(defect, places):
    q, k, v, _ = growing_at(places)
    exact, right = exact_attention(q, k, v), tiled_attention(q, k, v)
    assert ratio(tiled_attention(q, k, v, threshold=0.0), right, exact, v) <= BAR
    wrong = tiled_attention(q, k, v, defect=defect)
    seen = [ratio(wrong[i : i + 1], right[i : i + 1], exact[i : i + 1], v) > BAR for i in range(len(places))]
    assert all(seen), (defect, places, seen)
    # Scores of one magnitude, the only ones that upstream tests, show nothing.
    q, k, v, _ = tensors(1, 40, TILES * TILE, 1, 1, 64)
    assert (
        ratio(tiled_attention(q, k, v, defect=defect), tiled_attention(q, k, v), exact_attention(q, k, v), v)
        <= BAR
    )


@pytest.mark.parametrize("size, dtype", [(64, BF16), (64, F16), (128, BF16), (128, F16), (256, BF16)])
@pytest.mark.parametrize("growth", [9.0, 20.0])  # in log2
def test_3_and_4_scores_that_grow_late(target, size, dtype, growth):
    """2.3 (3), (4): rescaling at every tile position, once and twice, in small problems' kernels and large ones'."""
    places = ONE_JUMP + TWO_JUMPS
    q, k, v, _ = growing_at(places, size, 1, 140, TILES, dtype, growth)
    exact, theirs = exact_attention(q, k, v), tiled_attention(q, k, v).to(dtype)
    assert ratio(hipkittens.attention(q, k, v), theirs, exact, v) <= BAR
    if size < 256 and growth > 10:  # 24 equal heads: workgroups that fill either device
        many = hipkittens.attention(q.expand(-1, -1, 24, -1), k, v)
        assert torch.equal(many, many[:, :, :1].expand_as(many))
        assert ratio(many[:, :, :1], theirs, exact, v) <= BAR
    q, k, v, grad = growing_at(places, size, 1, 20, TILES, dtype, growth)
    mine = gradients(hipkittens.attention, (q, k, v), grad)
    expected = gradients(exact_attention, (q, k, v), grad, F64)
    theirs = gradients(
        lambda *i: steps(*i, size**-0.5, hidden(20, TILES * TILE, False, (-1, -1)))[0], (q, k, v), grad
    )
    for one, other, right in zip(mine, theirs, expected, strict=True):
        result = compare(one, other, right, right.abs().max().item())
        assert max(result.ratio_max, result.ratio_rms) <= BAR


def test_1_lengths_that_are_no_multiple_of_256(target):
    """2.3 (1), 7.3: N = 256 k + r; the simulator stops any access outside the tensors."""
    for n in (1, 63, 255, 257, 300, 511, 513):
        q, k, v, grad = tensors(1, n, n, 2, 1, 64, seed=n)
        exact = exact_attention(q, k, v)
        mask = hidden(n, n, False, (-1, -1))
        theirs = steps(q, k, v, 0.125, mask)[0]
        assert ratio(hipkittens.attention(q, k, v), theirs, exact, v) <= BAR
        if n > 256:  # a kernel that forgets the tail
            cut = n // 256 * 256
            assert ratio(steps(q, k[:, :cut], v[:, :cut], 0.125, mask[:, :cut])[0], theirs, exact, v) > BAR
        for one, right in zip(
            gradients(hipkittens.attention, (q, k, v), grad),
            gradients(exact_attention, (q, k, v), grad, F64),
            strict=True,
        ):
            torch.testing.assert_close(
                one.double(), right, rtol=0, atol=1e-6 + 0.02 * right.abs().max().item()
            )


def upstream_head(x, heads, group):
    return (x % group) * group + x // group


@pytest.mark.parametrize(
    "heads, key_heads", [(4, 2), (8, 2), (32, 8), (40, 8), (48, 8), (12, 4), (5, 1), (7, 7), (64, 8)]
)
def test_2_every_head_reads_its_own_keys(target, heads, key_heads):
    """2.3 (2): upstream's order of heads is a permutation for H = G^2 and G = 1 only."""
    group = heads // key_heads
    q, k, _, grad = tensors(1, 3, 5, heads, key_heads, 16)
    v = torch.arange(1.0, key_heads + 1).to(BF16)[None, None, :, None].expand(1, 5, key_heads, 16)
    out = hipkittens.attention(q, k, v)
    expected = torch.arange(heads) // group + 1
    assert torch.equal(out, expected.to(BF16)[None, None, :, None].expand_as(out))
    dv = gradients(hipkittens.attention, (q, k, v), grad)[2]
    assert (dv != 0).any(-1).all()
    torch.testing.assert_close(
        dv.double().sum(1), grad.double().unflatten(2, (key_heads, group)).sum((1, 3)), rtol=0.05, atol=0.05
    )
    # Upstream's map visits all heads only in the cases it states.
    visited = {upstream_head(x, heads, group) for x in range(heads)}
    assert (visited == set(range(heads))) == (group == 1 or heads == group**2)


def test_5_one_process_runs_every_shape(target):
    """2.3 (5): sizes are arguments; going back to an earlier one gives the earlier bits."""
    shapes = [(1, 17, 33, 2, 1, 64), (2, 300, 40, 4, 4, 128), (1, 1, 257, 8, 2, 72)]
    first = [hipkittens.attention(*tensors(*shape)[:3]) for shape in shapes]
    for shape, out in zip(reversed(shapes), reversed(first), strict=True):
        assert torch.equal(hipkittens.attention(*tensors(*shape)[:3]), out)


def apart(value, dim, stride):
    """The same values in a tensor of more than 4 GiB: those of `dim` are `stride` elements apart."""
    sizes, strides = value.shape, list(torch.empty(value.shape, device="meta").stride())
    strides[dim] = stride
    storage = torch.empty(stride * (sizes[dim] - 1) + value.numel(), dtype=value.dtype)
    assert storage.numel() * 2 > 2**32
    view = storage.as_strided(sizes, strides)
    view.copy_(value)
    return view


@pytest.mark.parametrize("dim, stride", [(0, 2**31 + 2**12), (1, 2**23 + 64)])
def test_6_tensors_of_more_than_4_gib(target, dim, stride):
    """2.3 (6): 32-bit byte ranges and products of indices. Only the touched pages of these tensors take memory."""
    values = tensors(2, 270, 270, 1, 1, 64)
    expected = hipkittens.attention(*values[:3]), gradients(hipkittens.attention, values[:3], values[3])
    q, k, v, grad = (apart(value, dim, stride) for value in values)
    assert torch.equal(hipkittens.attention(q, k, v), expected[0])
    for one, other in zip(gradients(hipkittens.attention, (q, k, v), grad), expected[1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scale", [0.5, -0.2, 0.01])
def test_7_the_scale_is_an_argument(target, scale):
    """2.3 (7): upstream it is always 1 / sqrt(D), whatever is requested."""
    q, k, v, _ = tensors(1, 20, 70, 2, 1, 64)
    exact = exact_attention(q, k, v, scale=scale)
    mask = hidden(20, 70, False, (-1, -1))
    theirs = steps(q, k, v, scale, mask)[0]
    assert ratio(hipkittens.attention(q, k, v, scale=scale), theirs, exact, v) <= BAR
    assert ratio(hipkittens.attention(q, k, v), theirs, exact, v) > BAR


@pytest.mark.parametrize("size", [64, 128, 80])
def test_gradients_where_upstream_has_none(target, size):
    """2.4: D other than 128, N_q != N_k, N % 256; dQ needs no zeros from the caller and is not a sum of bfloat16."""
    q, k, v, grad = tensors(1, 100, 1100, 2, 1, size)
    scale, mask = size**-0.5, hidden(100, 1100, False, (-1, -1))
    mine = gradients(hipkittens.attention, (q, k, v), grad)
    expected = gradients(exact_attention, (q, k, v), grad, F64)
    theirs = gradients(lambda *i: steps(*i, scale, mask)[0], (q, k, v), grad, F32)  # rounded once, below
    for one, other, right in zip(mine, theirs, expected, strict=True):
        # PyTorch's P and dS are float32 here, ours are rounded on the way: the RMS must hold all the same.
        assert compare(one, other.to(BF16), right, right.abs().max().item()).ratio_rms <= BAR

    # dQ as upstream accumulates it: a bfloat16 atomic per 64 keys, in any order.
    parts = []
    weights = torch.softmax(q.double().transpose(1, 2) @ k.double().permute(0, 2, 3, 1) * scale, -1)
    slope = grad.double().transpose(1, 2) @ v.double().permute(0, 2, 3, 1)
    slope = weights * (slope - (weights * slope).sum(-1, keepdim=True)) * scale
    for first in range(0, 1100, TILE):
        parts.append(
            slope[..., first : first + TILE] @ k.double().transpose(1, 2)[:, :, first : first + TILE]
        )
    total = torch.zeros_like(parts[0], dtype=BF16)
    for part in parts:
        total = total + part.to(BF16)
    wrong = compare(total.transpose(1, 2), theirs[0].to(BF16), expected[0], expected[0].abs().max().item())
    assert wrong.ratio_rms > BAR


@pytest.mark.parametrize("arch", TARGETS)
def test_gradients_are_the_same_in_every_run(arch):
    """2.4: dQ by atomics differs from run to run. Here neither the waves' order nor the number of threads has an effect."""
    q, k, v, grad = tensors(1, 130, 400, 4, 2, 64)
    results = []
    for seed, threads in ((0, 1), (3, 2), (11, 0)):
        with hipkittens.simulate(arch, checks=True, seed=seed, threads=threads):
            results.append(gradients(hipkittens.attention, (q, k, v), grad))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_parameters_and_gradients_with_other_strides(target):
    """7.3: nn.Parameter inputs, and the expanded gradient that sum() returns."""
    q, k, v = (torch.nn.Parameter(value) for value in tensors(1, 20, 30, 2, 1, 64)[:3])
    hipkittens.attention(q, k, v).sum().backward()
    expected = gradients(exact_attention, (q, k, v), torch.ones(1, 20, 2, 64), F64)
    for parameter, right in zip((q, k, v), expected, strict=True):
        torch.testing.assert_close(
            parameter.grad.double(), right, rtol=0.02, atol=0.02 * right.abs().max().item()
        )


def test_rotary_rounds_once(target):
    """2.5: upstream every product and sum is in bfloat16, NeoX form only, all of the head, [B, H, N, D], no gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 200, 2, 64, generator=generator).to(BF16)
    angles = 50 * torch.rand(200, 32, generator=generator, dtype=F64)
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)

    def turned(x, cos, sin):
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    exact = turned(x.double(), cos.double(), sin.double())
    once = turned(x.float(), cos.float(), sin.float()).to(BF16)
    ours, wrong = (
        compare(out, once, exact, 8.0) for out in (hipkittens.rotary(x, cos, sin), turned(x, cos, sin))
    )
    assert ours.ratio_max <= 1.01 and ours.ratio_rms <= 1.01
    assert wrong.ratio_rms > 1.3
    # The gradient rotates back: rotating there and back gives x, up to two roundings.
    y = x.clone().requires_grad_()
    out = hipkittens.rotary(y, cos, sin)
    (back,) = torch.autograd.grad(out, y, out.detach())
    length = (cos.double().square() + sin.double().square())[:, None].repeat(1, 1, 2)
    torch.testing.assert_close(back.double(), x.double() * length, rtol=0.02, atol=0.02)


def test_norms_keep_their_statistics_in_float32(target):
    """2.5: upstream mean, variance and normalization are in bfloat16; one row length; no gradient."""
    generator = torch.Generator().manual_seed(0)
    for columns, mean in itertools.product((2048, 2049, 333), (0.0, 30.0)):
        x = (torch.randn(4, columns, generator=generator) + mean).to(BF16)
        weight, bias = (torch.randn(columns, generator=generator).to(BF16) for _ in range(2))
        exact = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double())
        theirs = torch.nn.functional.layer_norm(x, (columns,), weight, bias)
        assert compare(hipkittens.layer_norm(x, weight, bias), theirs, exact, 16.0).passes
        centred = x - x.mean(-1, keepdim=True)
        wrong = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias
        assert not compare(wrong, theirs, exact, 16.0).passes


def test_dropout_in_a_norm_can_be_repeated(target):
    """2.5: upstream it is seeded with the clock, so no gradient could know the mask."""
    x = torch.ones(64, 512, dtype=BF16, requires_grad=True)
    residual, weight = torch.zeros(64, 512, dtype=BF16), torch.ones(512, dtype=BF16)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        _, z = hipkittens.layer_norm(x, weight, residual=residual, dropout_p=0.25, return_residual=True)
        (grad,) = torch.autograd.grad(z, x, torch.ones_like(z))
        assert torch.equal(grad, z.detach())  # x is ones: what is kept, over 1 - p, in both
        outputs.append(z.detach())
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    assert abs((outputs[0] != 0).double().mean().item() - 0.75) < 0.02


def test_results_are_rounded_to_nearest(target):
    """7 (4): conversions that truncate shorten every number, by about 2^-9 of it."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(BF16)

    a, b, x, weight = draw(200, 96), draw(96, 200), draw(100, 512), draw(512)
    q, k, v, grad = tensors(1, 200, 200, 2, 1, 64)
    inputs = gradients(hipkittens.attention, (q, k, v), grad)
    exact = gradients(exact_attention, (q, k, v), grad, F64)
    pairs = [
        (hipkittens.matmul(a, b), a.double() @ b.double()),
        (
            hipkittens.rms_norm(x, weight),
            torch.nn.functional.rms_norm(x.double(), (512,), weight.double(), 1e-6),
        ),
        (hipkittens.attention(q, k, v), exact_attention(q, k, v)),
        *zip(inputs, exact, strict=True),
    ]
    for out, right in pairs:
        truncated = (right.float().view(torch.int32) & -(2**16)).view(F32)
        assert bias_of(truncated, right) < -(2.0**-10)
        assert abs(bias_of(out, right)) < 2.0**-12
