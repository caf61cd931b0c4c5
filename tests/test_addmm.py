# SPDX-License-Identifier: MIT
"""hipkittens.addmm_: matrix products accumulated into float32 tensors."""

import pytest
import torch

import hipkittens

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def integers(*shape, dtype=BF16, seed=0):
    """Integers whose products and sums are all exact in float32."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(sums, a, b):
    """Bitwise equal, and nothing outside of the sums is written."""
    before = sums.clone()
    result = hipkittens.addmm_(sums, a, b)
    assert result is sums
    assert torch.equal(sums, before + a.float() @ b.float())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 17, 255), (257, 129, 130), (64, 64, 64), (130, 260, 96)])
def test_orientations(target, shape, dtype, layout):
    m, n, k = shape
    a = integers(k, m, dtype=dtype).t() if layout[0] == "t" else integers(m, k, dtype=dtype)
    b = integers(n, k, dtype=dtype, seed=1).t() if layout[1] == "t" else integers(k, n, dtype=dtype, seed=1)
    check(integers(m, n, dtype=F32, seed=2), a, b)


@pytest.mark.parametrize("n", [512, 510])  # 16 bytes at a time of sums' rows, and elements
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_tile_of_256_for_each_compute_unit(target, n, batch):
    m = 256 * (152 if target == "gfx942" else 128)
    a, b = integers(*batch, m, 64), integers(*batch, 64, n, seed=1)
    check(integers(*batch, m, n, dtype=F32, seed=2), a, b)


def test_split_k(target):
    """The reduction adds to the previous contents."""
    check(integers(64, 96, dtype=F32, seed=2), integers(8192, 64).t(), integers(8192, 96, seed=1))


def test_rows_with_gaps(target):
    wide = torch.full((3, 40, 77), float("nan"))
    sums = wide[:, :, 5:70]
    sums.copy_(integers(3, 40, 65, dtype=F32))
    check(sums, integers(40, 33), integers(3, 33, 65, seed=1))
    assert wide[:, :, :5].isnan().all() and wide[:, :, 70:].isnan().all()


def test_sums_of_many_parts_round_once_each(target):
    """Added to large sums, the error of a product relative to float64 is one rounding of the sum."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(BF16) for shape in ((64, 512), (512, 64)))
    before = 4096 + torch.rand(64, 64, generator=generator)
    sums = hipkittens.addmm_(before.clone(), a, b)
    exact = before.double() + a.double() @ b.double()
    assert (
        sums.double() - exact
    ).abs().max() <= 2.0**-12 + 1e-5  # half a unit of what is beyond 4096, and the sum over K


def test_infinity_and_nan_stay(target):
    sums = torch.tensor([[float("inf"), float("nan"), 1.0]])
    hipkittens.addmm_(sums, integers(1, 8), integers(8, 3))
    assert sums[0, 0] == float("inf") and sums[0, 1].isnan() and sums[0, 2].isfinite()


@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0)])
def test_empty(target, shape):
    m, n, k = shape
    check(integers(m, n, dtype=F32), integers(m, k), integers(k, n))


def test_two_runs_are_the_same(target):
    a, b = (torch.randn(shape).to(BF16) for shape in ((96, 4096), (4096, 80)))
    first, second = (hipkittens.addmm_(torch.ones(96, 80), a, b) for _ in range(2))
    assert torch.equal(first, second)


def test_autocast_takes_float32_operands(target):
    with torch.autocast("cpu", dtype=BF16):
        check(integers(8, 8, dtype=F32), integers(8, 8, dtype=F32), integers(8, 8, dtype=F32, seed=1))


def test_compiled(target):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def add(sums, a, b):
        return hipkittens.addmm_(sums, a, b) * 2

    sums, a, b = integers(16, 24, dtype=F32), integers(16, 8), integers(8, 24, seed=1)
    expected = sums + a.float() @ b.float()
    assert torch.equal(add(sums, a, b), expected * 2) and torch.equal(sums, expected)


def test_transforms(target):
    """vmap is a loop, in which the sums have to be mapped; a tangent is refused."""
    sums, a, b = integers(3, 8, 16, dtype=F32), integers(3, 8, 4, seed=1), integers(4, 16, seed=2)
    expected = sums + a.float() @ b.float()
    torch.func.vmap(hipkittens.addmm_, in_dims=(0, 0, None))(sums, a, b)
    assert torch.equal(sums, expected)
    with pytest.raises(RuntimeError, match="which is not mapped"):
        torch.func.vmap(lambda one: hipkittens.addmm_(sums[0], one, b))(a)
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="addmm_ has no forward"),
    ):
        hipkittens.addmm_(sums[0], torch.autograd.forward_ad.make_dual(a[0], a[0]), b)


def test_torch_backend(monkeypatch):
    monkeypatch.setenv("HIPKITTENS_BACKEND", "torch")
    check(integers(8, 8, dtype=F32), integers(3, 8).mT, integers(3, 8, seed=1))


SUMS, A, B = (torch.zeros(8, 16), integers(8, 4), integers(4, 16))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((SUMS.bfloat16(), A, B), TypeError, "sums is torch.bfloat16; allowed: torch.float32"),
        ((SUMS, A.float(), B), TypeError, "a is torch.float32; allowed: torch.bfloat16, torch.float16"),
        ((SUMS, A, B.half()), TypeError, "a is torch.bfloat16 and b is torch.float16; convert one"),
        ((SUMS[:7], A, B), ValueError, r"a is \(8, 4\), b is \(4, 16\) and sums \(7, 16\); they must be"),
        ((SUMS, A, B[:3]), ValueError, r"b is \(3, 16\)"),
        ((SUMS[0], A, B), ValueError, r"sums \(16,\)"),
        (
            (SUMS, A.expand(2, 8, 4), B),
            ValueError,
            r"leading dimensions \(2,\) of a do not broadcast to \(\)",
        ),
        ((SUMS.t().contiguous().t(), A, B), ValueError, r"strides \(1, 8\); its rows must be contiguous"),
        ((SUMS[:1].expand(8, 16), A, B), ValueError, r"strides \(0, 1\)"),
        ((SUMS.expand(2, 8, 16), A, B), ValueError, r"strides \(0, 16, 1\)"),
        ((SUMS, A.clone().requires_grad_(), B), ValueError, "a requires a gradient and gets none"),
        (("sums", A, B), TypeError, "sums"),
    ],
)
def test_bad_input(target, arguments, error, message):
    with pytest.raises(error, match="hipkittens.addmm_: .*" + message):
        hipkittens.addmm_(*arguments)
