# SPDX-License-Identifier: MIT
"""Invalid inputs, and the message each gets before anything is launched. docs/bad_inputs.md lists the same table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hipkittens

ROOT = Path(__file__).resolve().parent.parent
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def z(*shape, dtype=BF16, **options):
    return torch.zeros(shape, dtype=dtype, **options)


mm, lin = hipkittens.matmul, hipkittens.linear


def attend(**options):
    return hipkittens.attention(z(1, 8, 2, 64), z(1, 8, 2, 64), z(1, 8, 2, 64), **options)


# what, call, exception, message
BAD = [
    ("a list for a", lambda: mm([[1.0]], z(1, 1)), TypeError,
     "hipkittens.matmul: a is list; it must be a torch.Tensor"),
    ("a number for b", lambda: mm(z(2, 3), 4.0), TypeError,
     "hipkittens.matmul: b is float; it must be a torch.Tensor"),
    ("float32 operands", lambda: mm(z(2, 3, dtype=F32), z(3, 4, dtype=F32)), TypeError,
     "hipkittens.matmul: a is torch.float32; allowed: torch.bfloat16, torch.float16 "
     "(convert it, or run under torch.autocast)"),
    ("an integer b", lambda: mm(z(2, 3), z(3, 4, dtype=torch.int8)), TypeError,
     "hipkittens.matmul: b is torch.int8; allowed: torch.bfloat16, torch.float16 "
     "(convert it, or run under torch.autocast)"),
    ("two input dtypes", lambda: mm(z(2, 3), z(3, 4, dtype=F16)), TypeError,
     "hipkittens.matmul: a is torch.bfloat16 and b is torch.float16; convert one to the other"),
    ("inner sizes that differ", lambda: mm(z(2, 3), z(4, 5)), ValueError,
     "hipkittens.matmul: a has 3 columns and b has 4 rows (a: (2, 3), b: (4, 5)); they must be equal"),
    ("a vector a", lambda: mm(z(3), z(3, 4)), ValueError,
     "hipkittens.matmul: a has shape (3,); it needs at least 2 dimensions (unsqueeze a vector into a matrix)"),
    ("a vector b", lambda: mm(z(2, 3), z(3)), ValueError,
     "hipkittens.matmul: b has shape (3,); it needs at least 2 dimensions (unsqueeze a vector into a matrix)"),
    ("batches that do not broadcast", lambda: mm(z(2, 4, 3), z(3, 3, 5)), ValueError,
     "hipkittens.matmul: leading dimensions (2,) of a and (3,) of b do not broadcast"),
    ("a bias of the wrong length", lambda: mm(z(2, 3), z(3, 4), bias=z(3)), ValueError,
     "hipkittens.matmul: bias has shape (3,); it must be (4,)"),
    ("a bias with two dimensions", lambda: mm(z(2, 3), z(3, 4), bias=z(2, 4)), ValueError,
     "hipkittens.matmul: bias has shape (2, 4); it must be (4,)"),
    ("a bias of another dtype", lambda: mm(z(2, 3), z(3, 4), bias=z(4, dtype=torch.float64)), TypeError,
     "hipkittens.matmul: bias is torch.float64; allowed: torch.bfloat16, torch.float32"),
    ("an out_dtype without a kernel", lambda: mm(z(2, 3), z(3, 4), out_dtype=torch.float64), TypeError,
     "hipkittens.matmul: out_dtype is torch.float64; allowed: torch.bfloat16, torch.float16, torch.float32"),
    ("an out_dtype that is a string", lambda: mm(z(2, 3), z(3, 4), out_dtype="bf16"), TypeError,
     "hipkittens.matmul: out_dtype is bf16; allowed: torch.bfloat16, torch.float16, torch.float32"),
    ("a sparse a", lambda: mm(z(2, 3).to_sparse(), z(3, 4)), TypeError,
     "hipkittens.matmul: a is sparse (torch.sparse_coo); call .to_dense() first"),
    ("two devices", lambda: mm(z(2, 3), z(3, 4, device="meta")), ValueError,
     "hipkittens.matmul: a is on cpu and b on meta; move one to the other"),
    ("a bias elsewhere", lambda: mm(z(2, 3), z(3, 4), bias=z(4, device="meta")), ValueError,
     "hipkittens.matmul: bias is on meta and a on cpu; move one to the other"),
    ("a weight with three dimensions", lambda: lin(z(2, 3), z(1, 4, 3)), ValueError,
     "hipkittens.linear: weight has shape (1, 4, 3); it must be (out, in)"),
    ("features that differ", lambda: lin(z(2, 3), z(4, 5)), ValueError,
     "hipkittens.linear: x has 3 features and weight takes 5 (x: (2, 3), weight: (4, 5)); they must be equal"),
    ("a float32 x", lambda: lin(z(2, 3, dtype=F32), z(4, 3)), TypeError,
     "hipkittens.linear: x is torch.float32; allowed: torch.bfloat16, torch.float16 "
     "(convert it, or run under torch.autocast)"),
    ("a scalar x", lambda: lin(torch.tensor(1.0, dtype=BF16), z(4, 3)), ValueError,
     "hipkittens.linear: x has shape (); it needs at least 1 dimension"),
    ("None for x", lambda: lin(None, z(4, 3)), TypeError,
     "hipkittens.linear: x is NoneType; it must be a torch.Tensor"),
    ("a word for causal", lambda: attend(causal="no"), TypeError,
     "hipkittens.attention: causal is 'no'; allowed: True, False"),
    ("a word for scale", lambda: attend(scale="8"), TypeError,
     "hipkittens.attention: scale is '8'; it must be a number"),
    ("a word for dropout_p", lambda: attend(dropout_p="0.1"), TypeError,
     "hipkittens.attention: dropout_p is '0.1'; it must be a number"),
    ("half a key in a window", lambda: attend(window_size=(1.5, 0)), TypeError,
     "hipkittens.attention: window_size is (1.5, 0); it must be two integers (left, right)"),
    ("no heads", lambda: hipkittens.attention(z(1, 8, 2, 64), z(1, 8, 0, 64), z(1, 8, 0, 64)), ValueError,
     "hipkittens.attention: k has 0 heads (q: (1, 8, 2, 64), k: (1, 8, 0, 64), v: (1, 8, 0, 64); bnhd); "
     "allowed: 1 or more"),
    ("a negative eps", lambda: hipkittens.rms_norm(z(2, 8), z(8), eps=-1e-6), ValueError,
     "hipkittens.rms_norm: eps is -1e-06; it must be finite and not negative"),
    ("a word for eps", lambda: hipkittens.layer_norm(z(2, 8), z(8), eps="1e-5"), TypeError,
     "hipkittens.layer_norm: eps is '1e-5'; it must be a number"),
    ("a word for interleaved", lambda: hipkittens.rotary(z(1, 2, 1, 8), z(2, 4), z(2, 4), interleaved="no"), TypeError,
     "hipkittens.rotary: interleaved is 'no'; allowed: True, False"),
    ("half an offset", lambda: hipkittens.rotary(z(1, 2, 1, 8), z(9, 4), z(9, 4), offset=0.5), TypeError,
     "hipkittens.rotary: offset is 0.5; it must be an int (positions takes a tensor)"),
    ("an unknown target", lambda: hipkittens.simulate("gfx90a"), ValueError,
     "hipkittens.simulate: arch is 'gfx90a'; allowed: gfx942, gfx950"),
    ("an unknown arithmetic", lambda: hipkittens.simulate(arithmetic="slow"), ValueError,
     "hipkittens.simulate: arithmetic is 'slow'; allowed: fast, strict, exact"),
    ("an unknown host level", lambda: hipkittens.simulate(host_level="sse"), ValueError,
     "hipkittens.simulate: host_level is 'sse'; allowed: best, portable, avx2, avx512, avx512_bf16, amx"),
    ("an unknown partition mode", lambda: hipkittens.simulate(partition="NPS4"), ValueError,
     "hipkittens.simulate: partition is 'NPS4'; allowed: SPX, DPX, QPX, CPX"),
    ("a negative thread count", lambda: hipkittens.simulate(threads=-1), ValueError,
     "hipkittens.simulate: threads is -1; allowed: 0 (one per core) or a count"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_message(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert str(raised.value) == message


def test_the_page_lists_them():
    page = (ROOT / "docs" / "bad_inputs.md").read_text()
    missing = [f"| {what} | {error.__name__} | {message} |" for what, _, error, message in BAD]
    missing = [line for line in missing if line not in page]
    assert not missing, "\n".join(missing)


OPERATOR = torch.ops.hipkittens.gemm


@pytest.mark.parametrize(
    ("a", "b", "bias", "out", "message"),
    [
        (z(2, 3), z(4, 5), None, BF16, "the columns of a are not the rows of b; a is (2, 3), b is (4, 5)"),
        (z(2, 3), z(1, 3, 5), None, BF16, "a and b need the same leading dimensions"),
        (z(2, 3, dtype=F32), z(3, 5, dtype=F32), None, F32, "both must be bfloat16, or both float16"),
        (z(2, 3), z(3, 5, dtype=F16), None, BF16, "both must be bfloat16, or both float16"),
        (z(2, 3), z(3, 5), z(4), BF16, "bias needs the shape (5); it is (4)"),
        (z(2, 3), z(3, 5), None, torch.float64, "gemm: out_dtype: dtype number"),
    ],
)
def test_the_operator_itself_refuses(a, b, bias, out, message):
    with pytest.raises(RuntimeError) as raised:
        OPERATOR(a, b, bias, out, False)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "HIPKITTENS_BACKEND",
            "cuda",
            "hipkittens: HIPKITTENS_BACKEND is 'cuda'; allowed: auto, hip, sim, torch",
        ),
        ("HIPKITTENS_ARCH", "gfx90a", "hipkittens: HIPKITTENS_ARCH is 'gfx90a'; allowed: gfx942, gfx950"),
    ],
)
def test_environment(variable, value, message):
    result = subprocess.run(
        [sys.executable, "-c", "import hipkittens"],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert result.stderr.rstrip().endswith(f"ValueError: {message}")


def test_hip_backend_refuses_cpu_tensors():
    code = "import torch, hipkittens; hipkittens.matmul(*[torch.zeros(2, 2, dtype=torch.bfloat16)] * 2)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HIPKITTENS_BACKEND": "hip"},
        capture_output=True,
        text=True,
    )
    assert result.stderr.rstrip().endswith(
        "ValueError: hipkittens.matmul: a is on the CPU and HIPKITTENS_BACKEND=hip wants GPU tensors; "
        "move it with .to('cuda')"
    )
