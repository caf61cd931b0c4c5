# SPDX-License-Identifier: MIT
"""Kernels compiled by Triton's AMD backend run as they are on the simulated devices; that compiler is independent of this project."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens._accuracy import compare
from hipkittens.integrations import triton as simulated
from tests.oracles import triton_kernels as kernels

TARGETS = ("gfx942", "gfx950")
BF16, F32 = torch.bfloat16, torch.float32
# The fp8 that each target multiplies (CDNA3: FNUZ; CDNA4: OCP).
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


@pytest.fixture(params=TARGETS)
def target(request):
    with simulated.active(), hipkittens.simulate(request.param, checks=True):
        yield request.param


def random(*sizes, dtype=F32, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def unwritten(*sizes, dtype=F32):
    return torch.full(sizes, float("nan"), dtype=dtype)


def blocks(size, block):
    return -(-size // block)


@pytest.mark.parametrize("size", (1, 1000, 5000))
def test_add(target, size):
    x, y, out = random(size), random(size, seed=1), unwritten(size)
    kernels.add[(blocks(size, 1024),)](x, y, out, size, BLOCK=1024)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("rows, columns", ((3, 1), (5, 781), (2, 4096)))
def test_softmax(target, rows, columns):
    x, out = random(rows, columns), unwritten(rows, columns)
    kernels.softmax[(rows,)](x, out, columns, BLOCK=max(64, 1 << (columns - 1).bit_length()))
    assert compare(out, torch.softmax(x, -1), torch.softmax(x.double(), -1), 1.0).passes


@pytest.mark.parametrize("columns", (64, 1000))
def test_layer_norm(target, columns):
    x = random(4, columns, dtype=BF16)
    weight, bias = random(columns, dtype=BF16, seed=1), random(columns, dtype=BF16, seed=2)
    out, mean, rstd = unwritten(4, columns, dtype=BF16), unwritten(4), unwritten(4)
    kernels.layer_norm[(4,)](x, weight, bias, out, mean, rstd, columns, 1e-5, BLOCK=256, STATISTICS=True)
    norm = torch.nn.functional.layer_norm
    theirs = norm(x, (columns,), weight, bias)
    exact = norm(x.double(), (columns,), weight.double(), bias.double())
    assert compare(out, theirs, exact, 8.0).passes


@pytest.mark.parametrize("columns", (64, 1000))
def test_rms_norm(target, columns):
    x, weight = random(4, columns, dtype=BF16), random(columns, dtype=BF16, seed=1)
    out, rstd = unwritten(4, columns, dtype=BF16), unwritten(4)
    kernels.rms_norm[(4,)](x, weight, out, rstd, columns, 1e-5, BLOCK=1024, STATISTICS=True)
    torch.testing.assert_close(rstd, (x.float().square().mean(-1) + 1e-5).rsqrt())
    norm = torch.nn.functional.rms_norm
    exact = norm(x.double(), (columns,), weight.double(), 1e-5)
    assert compare(out, norm(x, (columns,), weight, 1e-5), exact, 8.0).passes


def test_rotary(target):
    x = random(2, 3, 4, 64, dtype=BF16)
    cos, sin = (random(3, 32, seed=seed) for seed in (1, 2))
    out = unwritten(2, 3, 4, 64, dtype=BF16)
    kernels.rotary[(6,)](x, cos, sin, out, 3, HEADS=4, HALF=32)

    def turned(x, cos, sin):
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    tables = [table[None, :, None] for table in (cos, sin)]
    exact = turned(x.double(), *(table.double() for table in tables))
    assert compare(out, turned(x.float(), *tables).bfloat16(), exact, 8.0).passes


@pytest.mark.parametrize("columns", (64, 1000))
def test_layer_norm_backward(target, columns):
    rows, programs, block = 37, 8, 1 << (columns - 1).bit_length()
    x, dy = random(rows, columns, dtype=BF16), random(rows, columns, dtype=BF16, seed=1)
    weight = random(columns, dtype=BF16, seed=2)
    mean, rstd = x.float().mean(-1), 1 / (x.float().var(-1, unbiased=False) + 1e-5).sqrt()
    dx, partial = unwritten(rows, columns, dtype=BF16), [unwritten(programs, columns) for _ in range(2)]
    kernels.layer_norm_backward[(programs,)](
        dy, x, weight, mean, rstd, dx, *partial, rows, columns, BLOCK=block
    )
    dweight, dbias = (unwritten(columns, dtype=BF16) for _ in range(2))
    for sums, result in zip(partial, (dweight, dbias), strict=True):
        kernels.sum_rows[(blocks(columns, 64),)](sums, result, programs, columns, BLOCK_ROWS=32, BLOCK=64)
    leaves = [value.double().requires_grad_() for value in (x, weight, torch.zeros(columns))]
    exact = torch.nn.functional.layer_norm(leaves[0], (columns,), *leaves[1:])
    gradients = torch.autograd.grad(exact, leaves, dy.double())
    ours = torch.ops.hipkittens.norm_backward(dy, None, x, weight, mean, rstd, 0.0, None, True, True)
    for theirs, mine, right in zip((dx, dweight, dbias), (ours[0], *ours[2:]), gradients, strict=True):
        assert compare(mine, theirs, right, right.abs().max().item()).passes
        assert compare(theirs, mine, right, right.abs().max().item()).passes


@pytest.mark.parametrize("heads, size", ((4, 64), (3, 128)))
def test_rotary_heads(target, heads, size):
    x, out = random(2, 5, heads, size, dtype=BF16), unwritten(2, 5, heads, size, dtype=BF16)
    angle = random(5, size // 2)
    cos, sin = angle.cos().to(BF16), angle.sin().to(BF16)
    rows = 2 * 5 * heads
    kernels.rotary_heads[(blocks(rows, 16),)](x, cos, sin, out, rows, 5, heads, HALF=size // 2, BLOCK=16)
    first, second = x.double().chunk(2, -1)
    c, s = (value.double()[None, :, None] for value in (cos, sin))
    exact = torch.cat((first * c - second * s, second * c + first * s), -1)
    ours = hipkittens.rotary(x, cos, sin)
    assert compare(ours, out, exact, 4.0).passes and compare(out, ours, exact, 4.0).passes


@pytest.mark.parametrize("m, n, k", ((64, 64, 64), (100, 70, 130)))
def test_matmul_bf16(target, m, n, k):
    a, b, out = random(m, k, dtype=BF16), random(k, n, dtype=BF16, seed=1), unwritten(m, n, dtype=BF16)
    grid = blocks(m, 64), blocks(n, 64)
    kernels.matmul[grid](
        a, b, out, m, n, k, *(t.stride(0) for t in (a, b, out)), BLOCK_M=64, BLOCK_N=64, BLOCK_K=32
    )
    assert hipkittens.simulate.report()["mfma_instructions"] > 0
    assert compare(
        out, a @ b, a.double() @ b.double(), (a.double().abs() @ b.double().abs()).max().item()
    ).passes


def test_matmul_of_integers_is_exact(target):
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-8, 9, (128, 128), generator=generator).to(BF16) for _ in range(2))
    out = unwritten(128, 128)
    kernels.matmul[(2, 2)](a, b, out, 128, 128, 128, 128, 128, 128, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
    assert torch.equal(out.double(), a.double() @ b.double())


def test_matmul_fp8(target):
    a, b = (random(96, 96, seed=seed).to(FP8[target]) for seed in (0, 1))
    out = unwritten(96, 96)
    kernels.matmul[(2, 2)](a, b, out, 96, 96, 96, 96, 96, 96, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
    assert hipkittens.simulate.report()["mfma_instructions"] > 0
    exact = a.double() @ b.double()
    # Products of fp8 are exact in f32; what is left is the order of 96 f32 additions.
    bound = 96 * 2.0**-24 * (a.double().abs() @ b.double().abs()).max()
    assert (out.double() - exact).abs().max() <= bound


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("n, head", ((64, 64), (150, 64), (130, 128)))
def test_attention(target, n, head, causal):
    q, k, v = (random(2, n, head, dtype=BF16, seed=seed) for seed in range(3))
    out = unwritten(2, n, head, dtype=BF16)
    kernels.attention[(blocks(n, 64), 2)](
        q, k, v, out, head**-0.5, n, HEAD=head, BLOCK_M=64, BLOCK_N=32, CAUSAL=causal
    )
    sdpa = torch.nn.functional.scaled_dot_product_attention
    exact = sdpa(q.double(), k.double(), v.double(), is_causal=causal)
    assert compare(out, sdpa(q, k, v, is_causal=causal), exact, v.abs().max().item()).passes
    # Two implementations that have only the machine in common.
    ours = hipkittens.attention(*(t[None] for t in (q, k, v)), causal=causal, layout="bhnd")[0]
    assert compare(ours, out, exact, v.abs().max().item()).passes


def test_atomics(target):
    values = torch.randint(0, 255, (3000,), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    counts, total = torch.zeros(256, dtype=torch.int32), torch.zeros(1)
    kernels.histogram[(blocks(3000, 512),)](values, counts, total, 3000, BLOCK=512)
    assert torch.equal(counts[:255], torch.bincount(values, minlength=255).int())
    assert counts[255] == values.max() and total.item() == values.sum()


def test_a_fault_names_kernel_and_address(target):
    with pytest.raises(
        RuntimeError,
        match=r"(?s)Triton Error.*kernel out_of_bounds, workgroup .*buffer_store_dword.*store outside the memory",
    ):
        kernels.out_of_bounds[(1,)](torch.zeros(64))
    size = 100
    x, out = random(size), unwritten(size)
    kernels.add[(1,)](x, x, out, size, BLOCK=1024)
    assert torch.equal(out, x + x)


def test_lines_of_the_kernel_and_of_what_it_calls():
    """Triton writes DWARF 4: an instruction of tl.max has both its line in Triton's library and one in the kernel."""
    path = pathlib.Path(kernels.__file__)
    lines = path.read_text().splitlines()
    x, out = random(2, 781), unwritten(2, 781)
    with simulated.active(), hipkittens.timing("MI355X", values=False) as run:
        kernels.softmax[(2,)](x, out, 781, BLOCK=1024)
    (launch,) = run.launches
    own = {row["source"] for row in launch.instructions if not row["called_from"]}
    called = {row["called_from"] for row in launch.instructions if "triton/language" in row["source"]}
    for name, places in (("tl.load", own), ("tl.store", own), ("tl.max", called), ("tl.sum", called)):
        # Triton's cache may have it from a copy of this file elsewhere.
        said = [lines[int(place.rpartition(":")[2]) - 1] for place in places if f"/{path.name}:" in place]
        assert any(name in line for line in said), (name, places)


def test_the_driver_comes_back():
    code = (
        "from hipkittens.integrations import triton as simulated\n"
        "from triton.runtime import driver\n"
        "with simulated.active():\n"
        "    inside = driver._active\n"
        "assert isinstance(inside, simulated.SimulatedDriver) and driver._active is None\n"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
        },
    )
