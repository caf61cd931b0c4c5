# SPDX-License-Identifier: MIT
"""grouped_matmul that gathers the rows of a by entries of expert_sort: bitwise equal to a product of rows gathered beforehand."""

import itertools

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, expert_gather, expert_sort, grouped_matmul, preshuffle, quantize
from hipkittens.operations._tensors import ends_of
from hipkittens.scaled_gemm import FORMATS, SCALINGS
from tests.oracles.aiter.formats import float8

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GFX950_ALONE = ("mxfp4", "mxfp8", "mxfp8 x mxfp4", "fp8 x mxfp4")
ALL = ["row", "tensor", "int8", "blocks", "bf16 x mxfp4", *GFX950_ALONE]


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def positive(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def operands(target, of, tokens, rows, sizes, n, k):
    """Quantized values of a (tokens, K), their scales for so many rows, w (G, N, K), its scales, and options."""
    groups, blocks = len(sizes), -(-k // 128)
    if of in ("row", "tensor", "int8"):
        dtype = torch.int8 if of == "int8" else float8(target)
        a, w = draw(tokens, k).mul(9).to(dtype), draw(groups, n, k, seed=1).mul(9).to(dtype)
        scale_a = positive(1)[0] if of == "tensor" else positive(rows, 1)
        return a, scale_a, w, positive(groups, 1, n, seed=1), {}
    if of == "blocks":
        a, w = draw(tokens, k).to(float8(target)), draw(groups, n, k, seed=1).to(float8(target))
        return a, positive(rows, blocks), w, positive(groups, blocks, -(-n // 128)), {}
    flat = draw(groups * n, k, seed=1)
    w, scale_b = quantize(flat, QuantSpec("mxfp8" if of == "mxfp8" else "mxfp4"))
    w, scale_b = w.view(groups, n, -1), scale_b.view(groups, n, -1).mT
    if of == "bf16 x mxfp4":
        return draw(tokens, k, dtype=BF16), None, w, scale_b, {"recipe": ("tensor", "1x32")}
    if of == "fp8 x mxfp4":
        a = draw(tokens, k).to(float8(target))
        return a, positive(rows, 1), w, scale_b, {"recipe": ("row", "1x32")}
    a, _ = quantize(draw(tokens, k), QuantSpec("mxfp4" if of == "mxfp4" else "mxfp8"))
    scale_a = torch.randint(120, 130, (rows, k // 32), generator=torch.Generator().manual_seed(2))
    return a, scale_a.to(torch.uint8), w, scale_b, {"recipe": "1x32"}


def entries_of(count, tokens, choices, seed=0):
    return torch.randint(
        tokens * choices, (count,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed)
    )


def rows_of(a, entries, choices):
    stored = a.view(torch.uint8) if a.itemsize == 1 else a
    return stored[entries.long() // choices].view(a.dtype)


def check(target, of, tokens, choices, sizes, n, k, behind=3, layout=lambda a: a, **options):
    rows, ends = sum(sizes) + behind, ends_of(sizes)
    a, scale_a, w, scale_b, recipe = operands(target, of, tokens, rows, sizes, n, k)
    entries = entries_of(rows, tokens, choices)
    given = {"scale_a": scale_a, "scale_b": scale_b, **recipe, **options}
    expected = grouped_matmul(rows_of(a, entries, choices), w.mT, ends, **given)
    for b in (w.mT, preshuffle(w)):
        found = grouped_matmul(layout(a), b, ends, **given, entries=entries, choices=choices)
        assert torch.equal(found, expected)


# Rows for tiles of every schedule, K inside a tile and inside a line, empty groups, and rows past the last group.
@pytest.mark.parametrize(
    ("sizes", "n", "k"),
    [([5, 0, 40, 1, 0], 144, 352), ([0, 0], 64, 128), ([31, 1, 32, 33], 80, 160), ([300, 7], 272, 608)],
)
@pytest.mark.parametrize("of", ALL)
def test_products(target, of, sizes, n, k):
    if target == "gfx942" and of in GFX950_ALONE:
        pytest.skip("no such matrix instruction")
    check(target, of, 41, 3, sizes, n, k)


# The largest tiles, with two pieces per workgroup: one XCD has work for them.
@pytest.mark.parametrize("of", ["row", "blocks", "mxfp8 x mxfp4", "mxfp4"])
def test_large_tiles(target, of):
    if target == "gfx942" and of in GFX950_ALONE:
        pytest.skip("no such matrix instruction")
    with hipkittens.simulate(target, partition="CPX", checks="racecheck") as simulation:
        check(target, of, 300, 8, [1400, 100], 2576, 480)
    assert simulation.findings == []


@pytest.mark.parametrize("of", ["row", "bf16 x mxfp4"])
def test_rows_are_apart(target, of):
    """Rows of a larger tensor, which are read in place."""

    def apart(a):
        around = torch.full((a.shape[0], a.shape[1] + 16), 127, dtype=torch.int8).to(a.dtype)
        around[:, 8:-8] = a
        return around[:, 8:-8]

    check(target, of, 20, 2, [9, 30], 48, 160, layout=apart)


@pytest.mark.parametrize("of", ["row", "blocks"])
def test_entries_that_name_no_row(target, of):
    """They count as rows of zeros, whatever follows a in memory."""
    a, scale_a, w, scale_b, _ = operands(target, of, 6, 8, [8], 32, 128)
    around = torch.full((7, 128), 100, dtype=torch.int8).to(a.dtype)
    around[:6] = a
    entries = torch.tensor([0, 11, 12, -1, 5, 2**31 - 1, -(2**31), 7], dtype=torch.int32)
    out = grouped_matmul(
        around[:6], w.mT, ends_of([8]), scale_a=scale_a, scale_b=scale_b, entries=entries, choices=2
    )
    assert not out[[2, 3, 5, 6]].any() and out[[0, 1, 4, 7]].any(1).all()


def test_in_torch(monkeypatch):
    """Implemented by PyTorch's operations."""
    a, scale_a, w, scale_b, _ = operands("gfx950", "row", 9, 20, [7, 10], 32, 96)
    entries, ends = entries_of(20, 9, 2), ends_of([7, 10])
    given = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": F32}
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    found = grouped_matmul(a, w.mT, ends, **given, entries=entries, choices=2)
    assert torch.equal(found, grouped_matmul(rows_of(a, entries, 2), w.mT, ends, **given))
    entries[:4] = torch.tensor([18, -1, 2**31 - 1, -(2**31)])  # the rows of a are those of 0 .. 17
    out = grouped_matmul(a, w.mT, ends, **given, entries=entries, choices=2)
    assert not out[:4].any() and torch.equal(out[4:], found[4:])


SPECS = [
    QuantSpec("fp8", "row"),
    QuantSpec("int8", "row"),
    QuantSpec("fp8", 128),
    QuantSpec("fp8", 128, layout="columns"),
    QuantSpec("mxfp8", layout="shuffled"),
    QuantSpec("mxfp4", layout="shuffled"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.format}-{spec.granularity}-{spec.layout}")
@pytest.mark.parametrize(("tokens", "choices", "columns"), [(13, 4, 160), (1, 1, 2048), (70, 9, 2816)])
def test_codes_of_tokens(target, spec, tokens, choices, columns):
    """Quantized values are those of x, scales those of the rows of its choices; some tokens have none."""
    if target == "gfx942" and spec.format.startswith("mx"):
        pytest.skip("no such matrix instruction")
    x = draw(tokens, columns, dtype=BF16)
    ids = torch.randint(7, (tokens, choices), generator=torch.Generator().manual_seed(1))
    order = expert_sort(ids, None, 6, layout="ragged")
    ends = order.offsets[1:]
    given = {
        "entries": order.entries,
        "choices": choices,
        "places": order.places,
        "offs": ends if spec.format.startswith("mx") else None,
    }
    codes, scales = quantize(x, spec, **given, codes_of_tokens=True)
    _, expected = quantize(x, spec, **given)
    assert torch.equal(codes.view(torch.uint8), quantize(x, spec)[0].view(torch.uint8))
    used = _scales_of_rows(expected, ends, spec)
    assert torch.equal(_scales_of_rows(scales, ends, spec), used) and used.numel()


def _scales_of_rows(scales, ends, spec):
    """The scales of rows in groups; the other scales of a band are not written."""
    if not spec.format.startswith("mx"):
        return scales[: ends[-1]]
    begins = [0, *ends.tolist()]
    rows = [
        32 * (b // 32 + g) + r for g, (b, e) in enumerate(itertools.pairwise(begins)) for r in range(e - b)
    ]
    bands = scales.view(-1, scales.shape[1] // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
    return bands.reshape(-1, scales.shape[1])[rows]


@pytest.mark.parametrize("x", [draw(5, 97, dtype=BF16)[:, 1:], draw(481, dtype=BF16)[1:].view(5, 96)])
def test_codes_of_tokens_that_are_not_aligned(target, x):
    """No row, or not every row, begins on 4 bytes."""
    entries = torch.arange(10, dtype=torch.int32)
    given = {"entries": entries, "choices": 2, "places": entries.view(5, 2)}
    codes, scales = quantize(x, QuantSpec("fp8"), **given, codes_of_tokens=True)
    expected, of_rows = quantize(x, QuantSpec("fp8"))
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales, of_rows.repeat_interleave(2, 0))


def test_product_of_quantized_tokens(target):
    """Both together: bitwise equal to expert_gather, quantize and the product."""
    x, w = draw(19, 256, dtype=BF16), draw(4, 64, 256, seed=1).to(float8(target))
    order = expert_sort(torch.arange(57).view(19, 3) % 4, None, 4, layout="ragged")
    ends, scale_b = order.offsets[1:], positive(4, 1, 64)
    codes, scale_a = quantize(
        x,
        QuantSpec("fp8"),
        entries=order.entries,
        choices=3,
        places=order.places,
        codes_of_tokens=True,
    )
    found = grouped_matmul(
        codes, w.mT, ends, scale_a=scale_a, scale_b=scale_b, entries=order.entries, choices=3
    )
    rows, scales = quantize(expert_gather(x, order.entries, order.places), QuantSpec("fp8"))
    assert torch.equal(found, grouped_matmul(rows, w.mT, ends, scale_a=scales, scale_b=scale_b))


def test_bad_input(target):
    a, scale_a, w, scale_b, _ = operands(target, "row", 6, 8, [8], 32, 128)
    given = {"scale_a": scale_a, "scale_b": scale_b}
    entries, ends = entries_of(8, 6, 2), ends_of([8])

    def refused(error, match, **changed):
        with pytest.raises(error, match=match):
            grouped_matmul(a, w.mT, ends, **{**given, "entries": entries, "choices": 2, **changed})

    refused(TypeError, r"entries is torch\.int64", entries=entries.long())
    refused(ValueError, r"entries has shape \(8, 1\)", entries=entries[:, None])
    refused(ValueError, r"choices is 0", choices=0)
    refused(ValueError, r"choices is True", choices=True)
    refused(ValueError, r"choices is 2 and entries is None", entries=None)
    refused(ValueError, r"scale_a has shape \(8, 1\)", entries=entries[:7])
    with pytest.raises(ValueError, match="without scales"):
        grouped_matmul(draw(6, 128, dtype=BF16), draw(1, 32, 128, dtype=BF16).mT, ends, entries=entries)
    far = torch.empty(1, dtype=a.dtype).expand(2**25, 128)
    with pytest.raises(ValueError, match="take 4294967296 bytes"):
        grouped_matmul(far, w.mT, ends, **given, entries=entries)


@pytest.mark.parametrize(
    ("x", "choices", "options"),
    [
        (draw(4, 96), 2, {}),  # float32
        (draw(4, 90, dtype=BF16), 2, {}),
        (draw(4, 8200, dtype=BF16), 2, {}),
        (draw(1, 96, dtype=BF16), 65, {}),
        (draw(4, 96, dtype=BF16), 2, {"smooth": torch.ones(96)}),
        (draw(4, 96, dtype=BF16), 2, {"places": None}),
    ],
)
def test_codes_of_tokens_that_no_kernel_writes(x, choices, options):
    count = len(x) * choices
    entries = torch.arange(count, dtype=torch.int32)
    given = {"entries": entries, "choices": choices, "places": entries.view(-1, choices), **options}
    with pytest.raises(ValueError, match="codes_of_tokens is True"):
        quantize(x, QuantSpec("fp8"), **given, codes_of_tokens=True)


def test_operators(target):
    a, scale_a, w, scale_b, _ = operands(target, "row", 6, 8, [8], 32, 128)
    entries = entries_of(8, 6, 2)
    operator = torch.ops.hipkittens.scaled_grouped_gemm.default
    codes = a.view(torch.uint8), w.view(torch.uint8).mT, ends_of([8]), scale_a, scale_b.mT
    of = FORMATS["fp8"], FORMATS["fp8"], SCALINGS["row"], SCALINGS["row"], BF16
    results = torch.library.opcheck(operator, (*codes, None, entries, 2, *of))
    assert set(results.values()) == {"SUCCESS"}
