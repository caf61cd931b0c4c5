# SPDX-License-Identifier: MIT
"""The grouped_gemm package as Megatron's experts call it, compared with a PyTorch product per expert."""

import importlib.util
import sys
import types

import pytest
import torch

import hipkittens
from hipkittens._accuracy import compare
from hipkittens.integrations import grouped_gemm

BF16 = torch.bfloat16


@pytest.fixture
def ops():
    grouped_gemm.install()
    import grouped_gemm as found

    grouped_gemm_again = sys.modules["grouped_gemm.ops"]
    grouped_gemm.install()  # once more does nothing
    assert sys.modules["grouped_gemm.ops"] is grouped_gemm_again is found.ops
    assert importlib.util.find_spec("grouped_gemm") is not None
    yield found.ops
    grouped_gemm.uninstall()
    assert not {"grouped_gemm", "grouped_gemm.ops"} & sys.modules.keys()
    grouped_gemm.uninstall()


def draw(*shape, seed=0, dtype=BF16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def one_by_one(a, b, sizes, trans_b=False):
    parts = zip(a.split(sizes), b.mT if trans_b else b, strict=True)
    return torch.cat([part @ weight for part, weight in parts])


def results(function, a, b, sizes, grad, **options):
    a, b = (each.detach().clone().requires_grad_() for each in (a, b))
    out = function(a, b, sizes, **options)
    return out.detach(), *torch.autograd.grad(out, (a, b), grad.to(out.dtype))


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("sizes", [[40, 0, 7, 81], [0, 0, 5, 0], [128, 1, 1, 0]])
def test_products_and_gradients(ops, target, trans_b, sizes):
    rows, width, columns = sum(sizes), 72, 48
    a, grad = draw(rows, width), draw(rows, columns, seed=1)
    b = draw(4, columns, width, seed=2) if trans_b else draw(4, width, columns, seed=2)
    exact = results(one_by_one, a.double(), b.double(), sizes, grad, trans_b=trans_b)
    theirs = results(one_by_one, a, b, sizes, grad, trans_b=trans_b)
    with hipkittens.simulate(target, checks="all") as run:
        ours = results(ops.gmm, a, b, torch.tensor(sizes), grad, trans_b=trans_b)
    assert not run.findings
    for mine, other, value in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == BF16 and mine.shape == value.shape
        assert compare(mine, other, value, value.abs().max().item()).passes
    empty = [group for group, size in enumerate(sizes) if not size]
    assert not ours[2][empty].any()


def test_weights_that_are_views_and_no_rows(ops):
    """Weights viewed as Megatron's GroupedMLP views its two matrices; and a rank whose experts no token chose."""
    whole, a = draw(32, 4 * 24), draw(10, 32, seed=1)
    with hipkittens.simulate("gfx942", checks="all") as run:
        out = ops.gmm(a, whole.view(4, 32, -1), torch.tensor([4, 3, 2, 1]), trans_b=False)
        none = ops.gmm(a[:0], whole.view(4, 32, -1), torch.zeros(4, dtype=torch.int64))
    expected = one_by_one(a.double(), whole.view(4, 32, -1).double(), [4, 3, 2, 1])
    assert not run.findings and none.shape == (0, 24)
    assert (out - expected).abs().max() < 0.1


def test_bad_input(ops):
    a, b, sizes = draw(10, 32), draw(2, 32, 8), torch.tensor([4, 6])
    for error, text, given in (
        (ValueError, r"a has shape \(10, 4, 8\); it needs 2 dimensions", (a.view(10, 4, 8), b, sizes)),
        (ValueError, r"b has shape \(64, 8\); it needs 3 dimensions", (a, b.flatten(0, 1), sizes)),
        (ValueError, r"batch_sizes has shape \(2, 1\)", (a, b, sizes[:, None])),
        (TypeError, r"batch_sizes is torch.int32; allowed: torch.int64", (a, b, sizes.int())),
        (ValueError, r"\[4, 5\], with the sum 9; .* sum to the 10 rows of a", (a, b, torch.tensor([4, 5]))),
        (ValueError, r"\[-1, 11\].* must not be negative", (a, b, torch.tensor([-1, 11]))),
        (ValueError, "batch_sizes has 3 groups and b 2", (a, b, torch.tensor([4, 3, 3]))),
        (ValueError, r"batch_sizes is on meta and a on cpu", (a, b, sizes.to("meta"))),
        (TypeError, "a is list; it must be a torch.Tensor", ([1.0], b, sizes)),
        (TypeError, "torch.float32", (a.float(), b.float(), sizes)),
    ):
        with pytest.raises(error, match=text):
            ops.gmm(*given)


@pytest.mark.parametrize("name", ["permute", "unpermute", "sinkhorn_kernel"])
def test_what_is_not_there(ops, name):
    with pytest.raises(NotImplementedError, match=f"grouped_gemm.ops.{name} is not there"):
        getattr(ops, name)(draw(2, 2))


def test_another_package_stays(monkeypatch):
    theirs = types.ModuleType(grouped_gemm.MODULE)
    monkeypatch.setitem(sys.modules, grouped_gemm.MODULE, theirs)
    with pytest.raises(ImportError, match="of its own; uninstall it"):
        grouped_gemm.install()
    grouped_gemm.uninstall()
    assert sys.modules[grouped_gemm.MODULE] is theirs
